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

@test "two levels, over nodes and in each, equal one rank, and send the bytes of the arithmetic" {
    all_well 4 "$driver" 4 2
    all_well 8 "$driver" 8 4
    # 36 tokens of 12 float32 with 16 choices: to the four ranks of the other node, and to one of them
    assert_output --partial "every expert: 144 rows, 55296 bytes between nodes"
    assert_output --partial "every expert: 36 rows, 13824 bytes between nodes"
    D9D_COMM_CHECK=1 all_well 8 "$driver" 8 2
    all_well 8 "$driver" 4 2
}

@test "staging buffers in peer memory give the same results" {
    export D9D_P2P=force
    for n in 2 3; do all_well $n "$driver"; done
    all_well 8 "$driver" 4
    all_well 8 "$driver" 8 4
    D9D_COMM_CHECK=1 all_well 2 "$driver"
}

@test "copies of experts compute what their owners do, and the slowest rank has fewer rows" {
    for n in 2 3 4; do all_well $n "$driver" $n 1 copies; done
    # 27 tokens with 3 choices, all of the last rank's experts; 2 of its slots has every other rank
    assert_output --partial "all to one rank: 6 copies, rows of the slowest rank 34, without them 81"
    all_well 4 "$driver" 2 1 copies
    all_well 8 "$driver" 8 4 copies
    D9D_P2P=force all_well 4 "$driver" 4 2 copies
    D9D_COMM_CHECK=1 all_well 4 "$driver" 4 1 copies
}

@test "copies that have not got their owners' weights are seen" {
    leaks_too
    run mpi -n 4 "$driver" 4 1 stale
    [ "$status" -ne 0 ]
    assert_output --partial "is off by"
}
