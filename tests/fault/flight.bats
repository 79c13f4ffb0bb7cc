#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# A rank dies, hangs, or makes another collective (desync).  All ranks end within the limit; the
# watchdog and d9d-metrics name the rank and the call.

load ../slurm/helper
load ../multirank/launch

driver=$D9D_BUILD/tests/multirank/comm_driver
PATH=$D9D_BIN:$PATH
mesh=1,1,2,1,1,2,2 # dp_shard 2 x tp 2

setup() {
    with_mpi
    cd "$BATS_TEST_TMPDIR" || return 1
    mkdir run
}

export D9D_TEST_TIMEOUT=2 D9D_TEST_FLIGHT=run/flight

is() { "$D9D_BUILD/schemas/dump" "$@"; }

# blames FAULT RANKS: d9d-metrics flight reports this fault and these ranks.
blames() { # FAULT CULPRITS
    d9d-metrics flight --json run >flight.json
    is d9d.flight.v1 flight.json
    grep -q "\"fault\": \"$1\"" flight.json || { d9d-metrics flight run; return 1; }
    [ "$(tr -d ' \n' <flight.json | sed 's/.*"culprits":\[\([0-9,]*\)\].*/\1/')" = "$2" ] || { d9d-metrics flight run; return 1; }
}

@test "a rank missing from a collective is named, with its last call" {
    for rank in 2 0; do
        run -1 mpi -n 4 "$driver" late $mesh $rank
        [ "$(grep -c '^dp_shard+tp: all_reduce 2 of loss, float32 \[10\]: ranks' <<<"$output")" -eq 1 ]
        assert_output --regexp "wait since [0-9]+\.[0-9] s for rank $rank \(.*dps .*\), which is alive; its last call: dp_shard\+tp: all_reduce 1 of warm, float32 \[10\], done"
        blames missing $rank
        run -0 d9d-metrics flight run
        assert_output --partial "watchdog: dp_shard+tp: all_reduce 2 of loss"
    done
}

@test "a rank missing from a bootstrap exchange is named" {
    run -1 mpi -n 4 "$driver" mute $mesh 3
    assert_output --regexp 'dp_shard\+tp: allgather_bytes [0-9]+ of bootstrap all-gather, uint8 \[[0-9]+\]: ranks 0 1 2 wait since [0-9]+\.[0-9] s for rank 3 '
    blames missing 3
}

@test "a rank in a different collective is named, with both calls" {
    run -1 mpi -n 4 "$driver" other $mesh 1
    assert_output --regexp 'call 2 differs: rank 1 \(.*\) makes all_gather 2 of all_gather, float32 \[20\]; ranks 0 2 3 make all_reduce 2 of loss, float32 \[5\]'
    blames mismatch 1
    # With D9D_COMM_CHECK=1 no rank waits.
    D9D_COMM_CHECK=1 D9D_TEST_TIMEOUT=50 run -1 mpi -n 4 "$driver" other $mesh 1
    assert_output --partial "rank 1 calls all_gather of all_gather, float32"
    blames mismatch 1
}

@test "a rank with a smaller count is named" {
    D9D_TEST_TIMEOUT=50 run -1 mpi -n 4 "$driver" short $mesh 3
    assert_output --partial "all_reduce of loss: rank 3 sent 28 bytes, not the 40 that it should"
    blames mismatch 3
    D9D_COMM_CHECK=1 run -1 mpi -n 4 "$driver" short $mesh 3
    assert_output --partial "rank 3 calls all_reduce of loss, float32 [7]"
}

# Open MPI 4 would write the longer message behind the memory of the shorter receive.
@test "ranks that sum different numbers of elements say so, and none aborts" {
    for elements in 100 2000 10000 3000000; do # from messages that MPI buffers to those that it does not
        for rank in 0 3; do
            rm -rf run && mkdir run
            D9D_TEST_ELEMENTS=$elements D9D_TEST_TIMEOUT=50 run -1 mpi -n 4 "$driver" sizes $mesh $rank
            assert_output --partial "all_reduce of loss: rank $rank sent 40 bytes, not the "
            assert_output --regexp "$rank: dp_shard\+tp: all_reduce of loss: rank [0-3] sent [0-9]+ bytes, not the 40 that it should"
            refute_output --regexp "Signal|invalid pointer|corrupt|AddressSanitizer"
        done
    done
}

@test "ranks in a deadlock are named" {
    run -1 mpi -n 4 "$driver" cross $mesh 3
    assert_output --partial "they wait for each other"
    blames cycle 2,3
}

@test "a single failing rank ends the others" {
    D9D_TEST_TIMEOUT=50 run -1 mpi -n 4 "$driver" fail $mesh 1
    assert_output --partial "1: no more"
    blames missing 1
}

# begin [OPTION...]: starts `busy` and waits until all ranks have written their pids.
begin() {
    rm -rf run/flight log
    mpi -n 4 "$@" "$driver" busy $mesh >log 2>&1 &
    job=$!
    wait_for all_said || { cat log; return 1; }
}
all_said() { [ "$(grep -c ' is [0-9]*$' log)" -eq 4 ]; }
pid_of() { sed -n "s/^$1 is //p" log; }
all_gone() {
    local r
    for r in 0 1 2 3; do is_gone "$(pid_of $r)" || return 1; done
}
strike() { # SIGNAL RANK
    sleep "0.$((RANDOM % 10))$((RANDOM % 10))"
    kill "-$1" "$(pid_of "$2")"
    wait_for all_gone
    ended=0
    wait "$job" || ended=$?
}

# The launcher must not kill the others, which would have no time to report the first failure.
@test "a rank killed at a random moment ends the others and is named" {
    local times=3
    [ -z "${D9D_LONG:-}" ] || times=200
    for _ in $(seq $times); do
        rank=$((RANDOM % 4))
        begin --mca orte_abort_on_non_zero_status 0 --enable-recovery
        strike KILL $rank
        grep -qE "rank $rank \(.*\), which is gone" log
        run -0 d9d-metrics flight run
        [[ "${lines[0]}" =~ rank\ $rank\ \([^\)]*\),\ which\ is\ gone ]] || { cat log; echo "$output"; return 1; }
    done
}

@test "a killed rank is named before the timeout, also without help of the launcher" {
    export D9D_TEST_TIMEOUT=300
    begin --mca orte_abort_on_non_zero_status 0 --enable-recovery
    strike KILL 2
    run -0 cat log
    assert_output --regexp 'rank 2 \(.*\), which is gone'
}

@test "a stopped rank is named, and all end" {
    rank=$((RANDOM % 4))
    begin
    strike STOP $rank
    [ $ended -ne 0 ]
    run -0 cat log
    assert_output --regexp "rank $rank \(.*\), which is stopped"
}

@test "a hanging file system does not block the watchdog" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    ${CC:-cc} -shared -fPIC -o slow.so "$BATS_TEST_DIRNAME/../multirank/slow_preload.c"
    export SLOW=sync:rank-:600000
    run -1 mpi -n 4 -x LD_PRELOAD="$PWD/slow.so" "$driver" late $mesh 2
    assert_output --regexp 'all_reduce 2 of loss, .*: ranks 0 1 3 wait since [0-9.]+ s for rank 2 \(.*\), which is alive'
    unshare --uts --mount true 2>/dev/null || skip "not allowed to make hosts"
    run -1 mpi -n 4 -x LD_PRELOAD="$PWD/slow.so" "$BATS_TEST_DIRNAME/../multirank/on_hosts" ab "$driver" late $mesh 2
    assert_output --regexp 'call 2, of loss, waits since [0-9.]+ s for ranks that are not known as the flight recorder.s file system gives no answer'
}

is_far() { # the first file has no calls yet
    d9d-metrics flight --json run >now.json 2>/dev/null
    [ "$(grep -o '"number": [0-9]*' now.json | awk '$2 > n { n = $2 } END { print n + 0 }')" -gt 20 ]
}
memory_of() { grep -aoE '/dev/shm/d9d-flight-.{6}' "run/flight/rank-$1.bin"; }

@test "records that a job did not write are recovered from its host's memory, once" {
    [ -w /dev/shm ] || skip "no memory with names"
    begin
    wait_for is_far
    kill -9 "$(pid_of 0)" "$(pid_of 1)" "$(pid_of 2)" "$(pid_of 3)"
    wait "$job" || true
    run -0 d9d-metrics flight --json run
    newest=$(grep -o '"number": [0-9]*' <<<"$output" | sort -k2n | tail -n 1)
    [ "${newest##* }" -gt 20 ]
    [ -e "$(memory_of 1)" ]
    cp run/flight/rank-1.bin first
    mpi -n 4 "$driver" groups $mesh # a run that ends well removes the records
    for r in 0 1 2 3; do [ ! -e "$(memory_of $r)" ]; done
    cp first run/flight/rank-1.bin
    [ ! -e "$(memory_of 1)" ]
}

@test "damaged flight record files are reported" {
    run -1 mpi -n 4 "$driver" late $mesh 2
    cp run/flight/rank-2.bin whole
    truncate -s 100 run/flight/rank-2.bin
    run -0 d9d-metrics flight run/flight
    assert_output --partial "for rank 2 (dps 1 tp 0), which has no record"
    for seed in 1 2 3; do
        cp whole run/flight/rank-2.bin
        for at in $(seq 40); do
            printf '\xff' | dd of=run/flight/rank-2.bin bs=1 seek=$(((seed * 7919 + at * 104729) % (at % 2 ? 4096 : 135168))) conv=notrunc status=none
        done
        run -0 d9d-metrics flight --json run
    done
    for r in 0 1 2 3; do printf '9' | dd of=run/flight/rank-$r.bin bs=1 seek=7 conv=notrunc status=none; done
    run -1 d9d-metrics flight run
    assert_output --regexp "run/flight/rank-[0-3].bin: not a flight recorder's file of this version"
    rm run/flight/*
    run -2 d9d-metrics flight run
    assert_output --partial "run/flight: has no flight recorder's files (rank-N.bin)"
}
