#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034,SC2086 # variables of bats and of the helpers
# A slow or hanging file system: ranks that do not need it continue.

load ../slurm/helper
load ../multirank/launch
load ../tools/train_helper

train="d9d-train -q --device cpu --set mesh.data_parallel_shard=2 --set trainer.batching.microbatch_size=1"
PATH=$D9D_BIN:$PATH

setup_file() { no_launcher && workshop; }
setup() {
    with_mpi
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    bench
    ${CC:-cc} -shared -fPIC -o slow.so "$BATS_TEST_DIRNAME/../multirank/slow_preload.c"
}
teardown() { clear_bench; }

# slowly RULES [OPTION...]: starts two ranks in the background.  The rules apply from the tenth record
# on, while the file `now` exists.  Messages are in err, pids in pid.RANK, waiting threads in waited.
slowly() {
    local rules=$1
    shift
    # shellcheck disable=SC2016
    SLOW=$rules SLOW_WHEN=$PWD/now SLOW_LOG=$PWD/waited mpi -n 2 --mca orte_abort_on_non_zero_status 0 --enable-recovery \
        bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; LD_PRELOAD=$PWD/slow.so exec "$@"' _ \
        $train --set data.epochs=null --set trainer.run.steps=99999999 "$@" c.json 2>err 3>&- &
    job=$!
    wait_for has_lines run/metrics.jsonl 10
    before=$(longest)
    touch now
}
all_gone() { is_gone "$(cat pid.0)" && is_gone "$(cat pid.1)"; }
leave() {
    kill -s USR1 "$(cat pid.0)"
    wait_for all_gone
    wait "$job" || true
}
longest() { sed -n 's/.*"step_ms": \([0-9]*\).*/\1/p' run/metrics.jsonl | sort -n | tail -n 1; }

# quiet RULES MS [OPTION...]: a file system that hangs for MS, or longer if steps are slow, does not
# delay a step, and the files are complete.
quiet() {
    local rules=$1 ms=$2
    shift 2
    rm -rf run now waited
    slowly "$rules" "$@"
    wait_for test -s waited
    [ $((10 * before)) -le "$ms" ] || ms=$((10 * before))
    sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
    rm now
    leave
    ! grep '^main' waited || return 1
    [ "$(longest)" -lt $((ms * 2 / 3)) ] || { echo "a step of $(longest) ms, while a call took $ms; $before before"; return 1; }
    grep -q '"end": "saved"' run/metrics.jsonl
    [ -z "$(numbers | awk '$1 != ++n')" ] # every step once
}
numbers() { sed -n 's/^{"step": \([0-9]*\),.*/\1/p' run/metrics.jsonl; }
boards=(--set 'trainer.logging.tracker=[{"provider": "tensorboard"}]')

@test "a slow flight recorder file does not delay steps" { quiet write:rank-1.bin:0 3000; }

@test "a slow flight recorder file does not delay the end of a job with a killed rank, which is named" {
    slowly open:rank-1.bin:900000
    kill -9 "$(cat pid.1)"
    wait_for is_gone "$(cat pid.0)"
    wait "$job" || true
    grep -E 'rank 1 \(.*\), which is gone' err || { cat err; return 1; }
}

@test "slow metrics.jsonl and run directory do not delay steps" {
    quiet write:jsonl:0,write:tfevents:0,stat:run:0 3000 "${boards[@]}"
}

# A trace waits for the previous one, for ten seconds at most.
@test "a slow trace file delays a step for ten seconds at most" {
    quiet write:traces:0,open:traces:0 20000 --set trainer.profiling.period_steps=2 --set trainer.profiling.active_steps=1
    grep -q 'the file system gives no answer for the trace before; the run goes on without this trace' err
}

# Standard error may be a pipe that nobody reads, or a file on a hanging file system.
@test "a blocked standard error does not delay steps" {
    mkfifo pipe
    exec 7<>pipe
    timeout 2 cat /dev/zero >pipe || true # full
    # shellcheck disable=SC2016
    mpi -n 2 bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec 2>pipe; exec "$@"' _ ${train/ -q/} --set data.epochs=null \
        --set trainer.run.steps=99999999 --set trainer.checkpointing.period_steps=10 c.json >out 2>err 3>&- 7>&- &
    job=$!
    wait_for has_lines run/metrics.jsonl 200
    leave
    grep -q '"end": "saved"' run/metrics.jsonl
    exec 7>&-
}

@test "a file system that hangs for longer than the timeout does not end the job" {
    [ -n "${D9D_LONG:-}" ] || skip "takes minutes: make test-long"
    for rules in write:rank-1.bin:0 write:jsonl:0 stat:run:0; do
        quiet $rules 60000 --set trainer.timeout.step_timeout=20
        [ $rules = write:rank-1.bin:0 ] || grep -q 'run/metrics.jsonl: its file system has not answered for 10 s' err
    done
}
