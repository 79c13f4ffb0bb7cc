#!/usr/bin/env bats
# shellcheck disable=SC2086 # a launcher is words
# Collectives between ranks on processors: under mpirun, and under srun over two nodes.

load ../slurm/helper
load two_nodes

driver=$D9D_BUILD/tests/multirank/comm_driver

setup() {
    with_mpi
    cd "$BATS_TEST_TMPDIR" || return 1
}

export ASAN_OPTIONS=detect_leaks=0 # MPI leaves some

# pipeline, replicate, shard, context replicate, context shard, tensor, expert
@test "every call over every group is right, on 1 to 8 ranks" {
    run -0 "$driver" all 1,1,1,1,1,1,1
    assert_output "4875 calls of 1 ranks are right"
    for mesh in "2 1,1,2,1,1,1,1" "3 1,1,1,1,1,3,3" "8 1,1,2,1,2,2,4"; do
        set -- $mesh
        run -0 mpi -n $1 "$driver" all $2
        assert_output "4875 calls of $1 ranks are right"
    done
}

@test "rooms that ranks of a host read of each other" {
    D9D_P2P=force run -0 mpi -n 3 "$driver" all 1,1,1,1,1,3,3
    assert_output "4875 calls of 3 ranks are right"
    D9D_COMM_SHARE=1 run -0 mpi -n 3 "$driver" all 1,1,1,1,1,3,3 # as 0.1 had it
    assert_output "4875 calls of 3 ranks are right"
}

@test "every mesh of up to 8 ranks" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    for mesh in "2 2,1,1,1,1,1,1" "4 2,1,2,1,1,1,2" "4 1,1,2,1,1,2,4" "5 1,5,1,1,1,1,5" "6 1,1,1,1,3,2,2" "6 3,1,1,1,1,2,1" \
        "7 1,1,7,1,1,1,7" "8 2,2,2,1,1,1,4" "8 1,2,2,1,1,2,8" "8 2,1,1,2,1,2,2" "8 1,1,1,2,2,2,4"; do
        set -- $mesh
        run -0 mpi -n $1 "$driver" all $2
        assert_output "4875 calls of $1 ranks are right"
    done
}

@test "srun: the same over two nodes" {
    run -0 slurm 2 "$driver" all 1,1,2,1,1,2,2
    assert_output "4875 calls of 4 ranks are right"
}

@test "sums are added in the order of ranks, and have the same bits each time" {
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
 expert 4 5 6 7 expert_replicate 2 6"
}

@test "rank 0 goes first" {
    run -0 mpi -n 3 "$driver" first 1,1,3,1,1,1,1
    assert_equal "$(grep -c 'rank 0 was done' <<<"$output")" 3
}

@test "what D9D_COMM_CHECK=1 holds ranks to is right here" {
    D9D_COMM_CHECK=1 run -0 mpi -n 2 "$driver" all 1,1,1,1,1,2,2
    # where one rank alone was asked, too
    run -0 mpi -n 1 "$driver" all 1,1,1,1,1,2,2 : -n 1 env D9D_COMM_CHECK=1 "$driver" all 1,1,1,1,1,2,2
}

@test "degrees that do not make the job, and a build without MPI" {
    run -2 mpi -n 2 "$driver" all 1,1,3,1,1,1,1
    assert_output --partial "shard 3 x context 1 x 1 x tensor 1 is 3 ranks, and this job has 2"
    mkdir alone && cp "$driver" alone && cd alone # where there is no module beside it
    run -2 mpi -n 2 env -u LD_LIBRARY_PATH ./comm_driver all 1,1,2,1,1,1,1
    assert_output --partial "several ranks on processors need MPI, which this build or machine lacks"
}
