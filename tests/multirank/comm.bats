#!/usr/bin/env bats
# shellcheck disable=SC2086 # a launcher is several arguments
# Collectives between ranks on processors: under mpirun, and under srun over two nodes.

load ../slurm/helper
load two_nodes

driver=$D9D_BUILD/tests/multirank/comm_driver

setup() {
    with_mpi
    cd "$BATS_TEST_TMPDIR" || return 1
}

export ASAN_OPTIONS=detect_leaks=0 # MPI leaks memory

# pipeline, replicate, shard, context replicate, context shard, tensor, expert
@test "every collective on every group of 1 to 8 ranks is correct" {
    run -0 "$driver" all 1,1,1,1,1,1,1
    assert_output "5525 calls of 1 ranks are right"
    for mesh in "2 1,1,2,1,1,1,1" "3 1,1,1,1,1,3,3" "8 1,1,2,1,2,2,4"; do
        set -- $mesh
        run -0 mpi -n $1 "$driver" all $2
        assert_output "5525 calls of $1 ranks are right"
    done
}

@test "staging buffers in peer memory are correct" {
    D9D_P2P=force run -0 mpi -n 3 "$driver" all 1,1,1,1,1,3,3
    assert_output "5525 calls of 3 ranks are right"
    D9D_COMM_SHARE=1 run -0 mpi -n 3 "$driver" all 1,1,1,1,1,3,3 # the variable of 0.1
    assert_output "5525 calls of 3 ranks are right"
}

@test "every mesh of up to 8 ranks is correct" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    for mesh in "2 2,1,1,1,1,1,1" "4 2,1,2,1,1,1,2" "4 1,1,2,1,1,2,4" "5 1,5,1,1,1,1,5" "6 1,1,1,1,3,2,2" "6 3,1,1,1,1,2,1" \
        "7 1,1,7,1,1,1,7" "8 2,2,2,1,1,1,4" "8 1,2,2,1,1,2,8" "8 2,1,1,2,1,2,2" "8 1,1,1,2,2,2,4"; do
        set -- $mesh
        run -0 mpi -n $1 "$driver" all $2
        assert_output "5525 calls of $1 ranks are right"
    done
}

@test "srun: collectives over two nodes are correct" {
    run -0 slurm 2 "$driver" all 1,1,2,1,1,2,2
    assert_output "5525 calls of 4 ranks are right"
}

@test "sums are in rank order, with the same bits every time" {
    run -0 mpi -n 3 "$driver" order 1,1,3,1,1,1,1
    first=$(sort <<<"$output")
    [ "$(cut -d' ' -f3- <<<"$first" | sort | uniq -c | awk '{ print $1 }' | sort -u)" = 3 ] # each hash on 3 ranks
    run -0 mpi -n 3 "$driver" order 1,1,3,1,1,1,1
    assert_equal "$(sort <<<"$output")" "$first"
}

@test "groups have the names and ranks of their axes" {
    run -0 mpi -n 8 "$driver" groups 1,1,2,1,2,2,4
    assert_line "6 is dps 1 cps 1 tp 0; dp_shard 2 6 cp_shard 4 6 tp 6 7 dp_shard 2 6 dp_shard+cp_shard 0 2 4 6\
 dp_shard+cp_shard 0 2 4 6 dp_shard+cp_shard+tp 0 1 2 3 4 5 6 7 dp_shard+cp_shard+tp 0 1 2 3 4 5 6 7\
 expert 4 5 6 7 expert_shard 2 6 expert_shard 2 6"
}

@test "the other ranks wait for rank 0 in a root-first section" {
    run -0 mpi -n 3 "$driver" first 1,1,3,1,1,1,1
    assert_equal "$(grep -c 'rank 0 was done' <<<"$output")" 3
}

@test "D9D_COMM_CHECK=1 finds no desync in correct programs" {
    D9D_COMM_CHECK=1 run -0 mpi -n 2 "$driver" all 1,1,1,1,1,2,2
    # also if only one rank has the variable
    run -0 mpi -n 1 "$driver" all 1,1,1,1,1,2,2 : -n 1 env D9D_COMM_CHECK=1 "$driver" all 1,1,1,1,1,2,2
}

@test "degrees whose product is not the number of ranks, and a build without MPI, are errors" {
    run -2 mpi -n 2 "$driver" all 1,1,3,1,1,1,1
    assert_output --partial "mesh: data_parallel_shard 3 is 3 ranks, and this job has 2"
    mkdir alone && cp "$driver" alone && cd alone # without the MPI module beside it
    run -2 mpi -n 2 env -u LD_LIBRARY_PATH ./comm_driver all 1,1,2,1,1,1,1
    assert_output --partial "several ranks on processors need MPI, which this build or machine lacks"
}
