#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034,SC2086 # variables of bats and of the helpers
# A file system that takes its time, or stands still: ranks that have nothing to ask of it go on.

load ../slurm/helper
load ../dist/launch
load ../tools/train_helper

train="d9d-train -q --device cpu --set mesh.data_parallel_shard=2 --set trainer.batching.microbatch_size=1"
PATH=$D9D_BIN:$PATH

setup_file() { no_launcher && workshop; }
setup() {
    with_mpi
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    bench
    ${CC:-cc} -shared -fPIC -o slow.so "$BATS_TEST_DIRNAME/../dist/slow.c"
}
teardown() { clear_bench; }

# slowly RULES [OPTION...]: two ranks with that file system from the third record on, in the
# background; what they say is in err, who they are in pid.RANK.
slowly() {
    local rules=$1
    shift
    # shellcheck disable=SC2016
    SLOW=$rules SLOW_WHEN=$PWD/now mpi -n 2 --mca orte_abort_on_non_zero_status 0 --enable-recovery \
        bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; LD_PRELOAD=$PWD/slow.so exec "$@"' _ \
        $train --set data.epochs=null --set trainer.run.steps=99999999 "$@" c.json 2>err 3>&- &
    job=$!
    wait_for has_lines run/metrics.jsonl 3
    touch now
}
all_gone() { is_gone "$(cat pid.0)" && is_gone "$(cat pid.1)"; }
leave() {
    kill -s USR1 "$(cat pid.0)"
    patience=${1:-60} wait_for all_gone
    wait "$job" || true
}
# steps_over MS: how many recorded steps took longer.
steps_over() { sed -n 's/.*"step_ms": \([0-9.]*\),.*/\1/p' run/metrics.jsonl | awk -v ms="$1" '$1 > ms { n++ } END { print n + 0 }'; }

# quiet RULES SECONDS LIMIT-MS [OPTION...]: no step of a run took longer, and what it wrote is whole.
quiet() {
    local rules=$1 seconds=$2 limit=$3
    shift 3
    slowly "$rules" "$@"
    sleep "$seconds"
    leave
    [ "$(steps_over "$limit")" = 0 ] || { grep -o '"step_ms": [0-9]*' run/metrics.jsonl | sort -k2n | tail; return 1; }
    grep -q '"end": "saved"' run/metrics.jsonl
    [ -z "$(numbers | awk '$1 != ++n')" ] # every step once
}
numbers() { sed -n 's/^{"step": \([0-9]*\),.*/\1/p' run/metrics.jsonl; }

@test "no step waits for the flight recorder's file" { quiet write:rank-1.bin:2500 6 1200; }

@test "... nor does the end of a job whose rank was killed, which is named" {
    slowly open:rank-1.bin:60000
    kill -9 "$(cat pid.1)"
    patience=9 wait_for is_gone "$(cat pid.0)"
    wait "$job" || true
    grep -E 'rank 1 \(.*\), which is gone' err || { cat err; return 1; }
}

@test "no step waits for the records, nor for a look at the run directory" {
    quiet write:jsonl:2500,write:tfevents:2500,stat:run:2500 4 1200 --set 'trainer.logging.tracker=[{"provider": "tensorboard"}]'
}

@test "for longer than a call may take: the job lives" {
    [ -n "${D9D_LONG:-}" ] || skip "takes minutes: make test-long"
    for rules in write:rank-1.bin:60000 write:jsonl:60000 stat:run:60000; do
        rm -rf run now
        slowly $rules --set trainer.timeout.step_timeout=20
        sleep 40
        before=$(awk '{ print $14 }' "/proc/$(cat pid.0)/stat")
        sleep 5
        [ "$(awk '{ print $14 }' "/proc/$(cat pid.0)/stat")" -gt "$before" ] # it goes on
        sleep 20
        rm now # from here on it is quick again
        leave 200
        grep -q '"end": "saved"' run/metrics.jsonl
        [ "$rules" = write:rank-1.bin:60000 ] || grep -q 'run/metrics.jsonl: its file system has not answered for 10 s' err
    done
}

@test "no step is a tenth of a second longer" {
    [ -n "${D9D_LONG:-}" ] || skip "wants a machine of its own: make test-long"
    for rules in none:none:0 write:rank-1.bin:3000 write:jsonl:3000 stat:run:3000; do
        rm -rf run now
        slowly $rules
        sleep 25
        leave
        worst=$(sed -n 's/.*"step_ms": \([0-9]*\).*/\1/p' run/metrics.jsonl | sort -n | tail -n 1)
        [ -n "${without:-}" ] || without=$worst
        [ "$worst" -le $((without + 100)) ]
    done
}
