#!/usr/bin/env bats
# Tensor parallelism: the result of all ranks together is that of each rank alone.

load ../slurm/helper
load launch

setup_file() { no_launcher; }

setup() { with_mpi; }

export D9D_COMM_CHECK=1

driver=$D9D_BUILD/tests/multirank/tensor_driver

@test "one rank: the plan changes nothing" { run -0 "$driver"; }
@test "two ranks equal one" { all_well 2 "$driver"; }
@test "three ranks equal one" { all_well 3 "$driver"; }
@test "four ranks equal one" { all_well 4 "$driver"; }

@test "staging buffers in peer memory give the same results" {
    export D9D_P2P=force
    for n in 2 3 4; do all_well $n "$driver"; done
    D9D_COMM_CHECK=0 all_well 4 "$driver"
}
