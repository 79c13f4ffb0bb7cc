#!/usr/bin/env bats
# Expert parallelism: the block over a group computes what one rank with all tokens computes.

load ../slurm/helper
load launch

driver=$D9D_BUILD/tests/multirank/experts_driver

setup_file() { no_launcher; }
setup() { with_mpi; }

@test "one rank equals finite differences" {
    run -0 "$driver"
    assert_output "rank 0 of 1: 0 failed"
}

@test "two, three and four ranks equal one" {
    for n in 2 3 4; do all_well $n "$driver"; done
}

@test "eight ranks in one group and in two equal one" {
    all_well 8 "$driver"
    all_well 8 "$driver" 4
}

@test "staging buffers in peer memory give the same results" {
    export D9D_P2P=force
    for n in 2 3; do all_well $n "$driver"; done
    all_well 8 "$driver" 4
    D9D_COMM_CHECK=1 all_well 2 "$driver"
}
