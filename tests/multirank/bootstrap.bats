#!/usr/bin/env bats
# Bootstrap: tasks find each other under mpirun, and under srun on the nodes of a real Slurm.

load ../slurm/helper
load two_nodes

driver=$D9D_BUILD/tests/multirank/bootstrap_driver

@test "a single process needs no launcher" {
    run -0 "$driver" gather
    assert_output --regexp '^0 of 1 on .*: well$'
    run -2 "$driver" agree 0
    assert_output --partial ": no file 0"
}

@test "mpirun: an all-gather gives every rank the data of all" {
    run -0 mpi -n 3 "$driver" gather
    assert_equal "$(sort <<<"$output" | grep -c 'of 3 on .*: well')" 3
}

@test "srun: an all-gather over two nodes gives every rank the data of all" {
    run -0 slurm 2 "$driver" gather
    assert_equal "$(sort <<<"$output" | cut -d: -f1 | tr '\n' ,)" "0 of 4 on n1,1 of 4 on n1,2 of 4 on n2,3 of 4 on n2,"
    refute_line --partial "gave other"
}

@test "by TCP: an all-gather, an agreement, a rank that dies, hosts of several names" {
    export D9D_BOOTSTRAP=tcp
    for n in 2 5 8; do
        run -0 mpi -x D9D_BOOTSTRAP -n $n "$driver" gather
        [ "$(grep -c "of $n on .*: well" <<<"$output")" -eq $n ]
    done
    run -0 slurm 2 "$driver" gather
    [ "$(grep -c 'of 4 on .*: well' <<<"$output")" -eq 4 ]
    run -2 mpi -x D9D_BOOTSTRAP -n 4 "$driver" agree 2
    assert_equal "$(grep -c 'rank 2 (.*): no file 2' <<<"$output")" 3
    run mpi -x D9D_BOOTSTRAP -n 3 "$driver" die 1
    [ "$status" -ne 0 ]
    unshare --uts --mount true 2>/dev/null || skip "not allowed to make hosts"
    run -0 mpi -x D9D_BOOTSTRAP -n 4 "$BATS_TEST_DIRNAME/on_hosts" ab "$driver" gather
    [ "$(grep -c 'of 4 on .*: well' <<<"$output")" -eq 4 ]
}

# One sentence for the job, whichever rank differs: also where its parent in the tree of TCP connects too.
@test "ranks that choose different carriers of messages are named, once" {
    # shellcheck disable=SC2016
    export one='[ "$OMPI_COMM_WORLD_RANK" != "$2" ] || export D9D_BOOTSTRAP=$1; shift 2; exec "$@"'
    echo '{}' >"$BATS_TEST_TMPDIR/c.json"
    for which in 0 1 3; do
        for value in tcp pmix TCP; do
            other=tcp
            [ $value = pmix ] || other=""
            D9D_BOOTSTRAP=$other run -2 mpi -x D9D_BOOTSTRAP -n 4 bash -c "$one" _ $value $which \
                "$D9D_BIN/d9d-train" -q "$BATS_TEST_TMPDIR/c.json"
            assert_equal "$(grep -c 'd9d-train: invalid configuration:' <<<"$output")" 1
            case $value$which in
            TCP*) assert_output --partial "D9D_BOOTSTRAP is \"TCP\" on rank $which (" ;;
            tcp0) assert_output --regexp 'rank 0 \(.*\) exchanges messages by TCP and rank 1 \(.*\) by PMIx: D9D_BOOTSTRAP is tcp on the first and not set on the second' ;;
            pmix0) assert_output --regexp 'rank 0 \(.*\) exchanges messages by PMIx and rank 1 \(.*\) by TCP: D9D_BOOTSTRAP is pmix on the first and tcp on the second' ;;
            pmix*) assert_output --regexp "rank 0 \(.*\) exchanges messages by TCP and rank $which \(.*\) by PMIx: D9D_BOOTSTRAP is tcp on the first and pmix" ;;
            *) assert_output --regexp "rank 0 \(.*\) exchanges messages by PMIx and rank $which \(.*\) by TCP" ;;
            esac
        done
    done
}

@test "ranks agree on the first failure" {
    run -2 mpi -n 4 "$driver" agree 2
    assert_equal "$(grep -c 'rank 2 (.*): no file 2' <<<"$output")" 3
    assert_line --regexp '^2 of 4 on .*: no file 2$'
    run -2 slurm 2 "$driver" agree 1
    assert_equal "$(grep -c 'rank 1 (n1): no file 1' <<<"$output")" 3
    run -0 slurm 2 "$driver" agree 9
}

@test "a rank that dies ends the others" {
    for launch in "mpi -n 3" "slurm 2"; do
        run $launch "$driver" die 1
        [ "$status" -ne 0 ]
        [ "$status" -ne 124 ]
    done
}

@test "one rank aborts the job with its status" {
    run -3 mpi -n 3 "$driver" abort 2
    refute_output --partial "still there"
    run -3 slurm 2 "$driver" abort 0
    refute_output --partial "still there"
}

@test "a second program in one launch of Open MPI 4 is reported as such" {
    run mpi -n 2 bash -c '"$0" gather && exec "$0" gather' "$driver"
    [ "$(grep -c 'of 2 on .*: well' <<<"$output")" -ge 2 ]
    [ "$status" -eq 0 ] || assert_output --partial "a second program of one launch needs a launch of its own"
}

@test "tasks that cannot find each other are an error" {
    [ -z "${cluster_why:-}" ] || skip "no Slurm here: $cluster_why"
    run -2 timeout 1800 srun --mpi=none -n 2 "$driver" gather 3>&-
    assert_output --partial "srun launched 2 tasks without PMIx, so that they cannot find each other: add --mpi=pmix"
    PMI_SIZE=4 run -2 "$driver" gather
    assert_output --partial "a PMI launcher launched 4 tasks"
    OMPI_COMM_WORLD_SIZE=1 SLURM_STEP_NUM_TASKS=3 run -0 "$driver" gather
    OMPI_COMM_WORLD_SIZE="" SLURM_PROCID=0 WORLD_SIZE=2 run -0 "$driver" gather # variables of an unrelated script
    # Every task may report it.
    SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=0 run -2 "$D9D_BIN/d9d-train" absent.json
    assert_output --partial "srun launched 3 tasks without PMIx"
    SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=2 run -2 "$D9D_BIN/d9d-train" absent.json
    assert_output ""
    for half in SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=few OMPI_COMM_WORLD_SIZE=0 PMI_RANK=1 \
        SLURM_STEP_NUM_TASKS=99999999999999999999 "RANK=1 WORLD_SIZE=x"; do
        # shellcheck disable=SC2086 # two arguments
        run -2 env $half "$driver" gather
        assert_output --partial "that is not understood"
    done
    RANK=0 WORLD_SIZE=2 run -2 "$driver" gather
    assert_output --partial "torchrun launched 2 tasks"
    PMIX_NAMESPACE=gone run -2 "$driver" gather
    PMIX_RANK=0 PMIX_NAMESPACE=gone run -2 "$driver" gather
    assert_output --partial "PMIx: the launcher's server does not answer"
    assert_output --partial "take PMIX_RANK and PMIX_NAMESPACE out of the environment"
    PMIX_RANK="" PMIX_NAMESPACE="" run -0 "$driver" gather # empty variables count as unset
}
