#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# The campaign of job_faults: faults at random moments of jobs that start again.  It must end with the weights
# of undisturbed runs, and must itself see weights that are others.
#
# D9D_FAULTS="FIRST N" runs so many faults, from that seed on: "1 10", in `make test-long` "1 100".

load ../slurm/helper
load ../multirank/launch

setup() {
    with_mpi
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    no_launcher
}

@test "faults at random moments: the run ends with the weights of an undisturbed one" {
    local first=1 n=10
    [ -z "${D9D_LONG:-}" ] || n=100
    read -r first n <<<"${D9D_FAULTS:-$first $n}"
    run -0 "$BATS_TEST_DIRNAME/job_faults" -n "$n" -s "$first" -j 1 3>&-
    echo "# ${lines[*]: -2:1}" >&3
    [ "$(awk '$1 == "all" { print $2 }' <<<"$output")" -ge "$n" ]
    assert_line "every job has the weights and the steps of an undisturbed one"
}

@test "the campaign sees flipped bits that nobody looked for" {
    run -1 "$BATS_TEST_DIRNAME/job_faults" -u -k weights -n 1 3>&-
    assert_line --regexp "^FAILED  seed [0-9]+ on "
    assert_line "other weights"
}

@test "the campaign refuses kinds of faults that it does not know" {
    run -2 "$BATS_TEST_DIRNAME/job_faults" -k "kill meteor" 3>&-
    assert_line --partial "KINDS"
}

ranks_in() { pgrep -f "d9d-train .*$1/" >/dev/null; }
@test "a campaign that is ended takes its ranks along" {
    local room=$BATS_TEST_TMPDIR/room pid rc=0
    mkdir "$room"
    TMPDIR=$room "$BATS_TEST_DIRNAME/job_faults" -n 5 -j 1 >/dev/null 2>&1 3>&- </dev/null &
    pid=$!
    patience=60 wait_for ranks_in "$room"
    kill -TERM $pid
    wait $pid || rc=$?
    assert_equal $rc 143
    [ -z "$(ls "$room")" ]
    run ! ranks_in "$room"
}

@test "faults of local checkpoints are refused where there are none" {
    run -2 "$BATS_TEST_DIRNAME/job_faults" -d -k "sent frozen" 3>&-
    assert_line --partial "KINDS"
}
