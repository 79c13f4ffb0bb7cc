#!/bin/bash
# train_memory.sh - device memory runs out at one request of a training run after another: exit code
# 1 and one message with the request, the memory in use, the limit and the minimum needed.  Older
# checkpoints are unchanged, newer ones complete; with enough memory the run resumes to the same
# bytes.
#
# Each run has a little more memory than the last: enough for the request that failed.
# D9D_TEST_DEVICE: the device.  D9D_MEMORY_POINTS: tries this many limits in place of all.
set -u
here=$(cd "$(dirname "$0")" && pwd)
PATH=${D9D_BIN:+$D9D_BIN:}$PATH
device=${D9D_TEST_DEVICE:-cpu} golden=$here/../golden/moe
points=${D9D_MEMORY_POINTS:-}
export OMP_NUM_THREADS=1
work=$(mktemp -d "${TMPDIR:-/dev/shm}/d9d-memory-XXXXXX" 2>/dev/null || mktemp -d /tmp/d9d-memory-XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

complain() {
    printf '# %s\n' "$*"
    failures=$((failures + 1))
}

# Samples grow longer, so that later steps need more memory.
prepare() {
    awk 'BEGIN {
        for (i = 0; i < 24; i++) {
            printf "{\"input_ids\": [1"
            for (j = 0; j < 4 * i + 8; j++) printf ", %d", (7 * i + 3 * j) % 60
            print "]}"
        }
    }' | d9d-shard -q --format tokens -o "$work/data" - || return
    cat >"$work/config.json" <<JSON
{"data": {"dataset": "$work/data"},
 "model_provider": {"name": "qwen3_moe", "hf_config": "$golden/config.json"},
 "trainer": {"run": {"name": "memory", "dir": "unset"},
   "batching": {"global_batch_size": 4, "microbatch_size": 4},
   "model_stage_factory": {"source_checkpoint": "$golden"},
   "checkpointing": {"period_steps": 1, "num_to_keep": 9}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
    train base "$device" --set trainer.run.steps=2 && rm -rf "$work/base/export" &&
        cp -R "$work/base" "$work/whole" && train whole "$device"
}

train() { # RUN DEVICE [OPTION...]
    d9d-train -q -d "$2" "$work/config.json" --set trainer.run.dir="$work/$1" "${@:3}" 2>"$work/err"
}

digest() { (cd "$1" && find . -name '*.safetensors' -path "./step-${2:-*}/*" -exec cksum {} + | sort -k 3); }

# Size of the pool block for a request of N bytes (libcore/device/pool.h).
block() {
    local units=$((($1 + 255) / 256)) shift=0
    while [ $((units >> shift)) -ge 16 ]; do shift=$((shift + 1)); done
    echo $((((units + (1 << shift) - 1) >> shift) << (shift + 8)))
}

sentence='^d9d-train: out of device memory: [a-z:0-9]+: out of memory: (at least )?([0-9]+) bytes'

# Checks the messages of the failed run; sets `next`, the limit under which it gets further.
check_failure() { # LIMIT STATUS
    local message
    message=$(cat "$work/err")
    next=
    [ "$2" -eq 1 ] || complain "limit $1: exit status $2"
    [ "$(wc -l <"$work/err")" -eq 1 ] || complain "limit $1: says \"$message\""
    if [[ $message =~ $sentence\ needed,\ limit\ $1$ ]]; then
        next=${BASH_REMATCH[2]}
    elif [[ $message =~ $sentence\ requested,\ ([0-9]+)\ in\ use,\ limit\ $1\;\ at\ least\ $needed\ needed\ in\ all$ ]]; then
        next=$((BASH_REMATCH[3] + $(block "${BASH_REMATCH[2]}")))
    fi
    [ "${next:-0}" -gt "$1" ] || complain "limit $1: says \"$message\""
    [ "$(digest "$work/run/checkpoints" '*[12]')" = "$(digest "$work/base/checkpoints")" ] ||
        complain "limit $1: older checkpoints are not as they were"
    [ ! -e "$work/run/export" ] || complain "limit $1: there is an export"
    [ -z "$(find "$work/run/checkpoints" -name '*.tmp*')" ] || complain "limit $1: half a checkpoint is there"
}

# Every existing checkpoint, and the resumed run, equal the undisturbed run.
check_going_on() { # WHAT
    train run "$device" || complain "$1: does not go on: $(cat "$work/err")"
    [ "$(digest "$work/run/checkpoints")" = "$(digest "$work/whole/checkpoints")" ] ||
        complain "$1: goes on to other bytes"
    cmp -s "$work/run/export/model.safetensors" "$work/whole/export/model.safetensors" ||
        complain "$1: goes on to another model"
}

end_everywhere() {
    local limit=1 n=0 later=0 status peak
    peak=$(grep '"loss"' "$work/whole/metrics.jsonl" | sed 's/.*"mem_bytes": \([0-9]*\).*/\1/' | sort -n | tail -n 1)
    cp -R "$work/base" "$work/run" # reported once the minimum is known
    train run "$device@1"
    needed=$(sed 's/.*out of memory: at least \([0-9]*\) bytes.*/\1/' "$work/err")
    train run "$device@0"
    [ $? -eq 2 ] || complain "a limit of 0 is not refused"
    while [ "$failures" -eq 0 ]; do
        rm -rf "$work/run" && cp -R "$work/base" "$work/run"
        train run "$device@$limit"
        status=$?
        [ $status -ne 0 ] || break
        n=$((n + 1))
        check_failure "$limit" $status
        [ ! -e "$work/run/checkpoints/step-00000003" ] || later=$((later + 1))
        [ $((n % 8)) -ne 0 ] || check_going_on "limit $limit"
        [ -z "$points" ] || [ "${next:-0}" -gt $((limit + peak / points)) ] || next=$((limit + peak / points))
        limit=$next
    done
    check_going_on "limit $limit"
    [ "$n" -ge $((${points:-60} / 3)) ] || complain "only $n requests failed"
    [ "$later" -ge 1 ] || complain "no request failed after a step"
    if [ "$failures" -eq 0 ]; then
        echo "ok 1 - on $device memory ended at $n requests, $later of them after a step; $limit bytes are enough"
    else
        echo "not ok 1 - memory ended at $n requests of a run on $device"
    fi
}

if prepare; then
    end_everywhere
else
    echo "not ok 1 - a run to starve: $(tail -n 1 "$work/err")"
    failures=1
fi
echo "1..1"
exit $((failures > 0))
