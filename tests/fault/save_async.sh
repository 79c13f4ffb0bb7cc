#!/bin/bash
# save_async.sh - asynchronous checkpoints: kill -9 at every system call of the writer thread, and a
# full disk at each call that needs space.  The newest complete checkpoint is good, the run resumes
# to the same bytes, and nothing is left over.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/fault/saves.bash
. tests/fault/saves.bash

# go STEPS: runs in $work/one with asynchronous saves and the faults of $fault.
go() {
    # shellcheck disable=SC2086 # several arguments
    strace -f -qq -o "${log:-/dev/null}" -e trace=%file,%desc ${fault:-} \
        "$runner" "$work/one" "$1" behind >"$work/out" 2>"$work/err"
}
fresh() { rm -rf "$work/one" && cp -R "$work/base" "$work/one"; }

# The system calls of writer threads, as "NAME N": the largest count of one thread.  "NAME N main" is
# one that the main thread has made before any of them began, as the runtime of OpenMP does: a fault
# would hit that one.  So it would the main thread's message, its first write.
calls_of_threads() {
    local fault='' log=$work/log
    fresh && go 6 || return 1
    awk 'NR == 1 { main = $1 }
        $1 != main { begun = 1 }
        $2 ~ /^[a-z0-9_]+\(/ {
            name = $2; sub(/\(.*/, "", name)
            if ($1 == main && !begun) before[name]++
            else if ($1 != main && ++count[$1, name] > most[name]) most[name] = count[$1, name]
        }
        END {
            for (name in most)
                for (n = 1; n <= most[name]; n++) print name, n, (n <= before[name] ? "main" : "")
        }' "$work/log" | sort -k1,1 -k2n
}

check_end() { # WHAT
    local f
    if ! "$runner" "$work/one" 6 behind >"$work/out" 2>"$work/err"; then
        complain "$1: cannot go on: $(tail -n 1 "$work/err")"
        return
    fi
    for f in "$work"/whole/checkpoints/step-00000006/*/*.safetensors; do
        cmp -s "$f" "$work/one/${f#"$work"/whole/}" || complain "$1: ${f##*/} differs"
    done
    [ "$(names "$work/one/checkpoints")" = "$(names "$work/whole/checkpoints")" ] ||
        complain "$1: left over: $(names "$work/one/checkpoints")"
}

# each FAULT STATUS [NAME...]: injects FAULT at every call, or those of these names.
each() {
    local action=$1 status=$2 name n main rc fault calls=0
    shift 2
    points=0
    while read -r name n main; do
        [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
        [ "$main" != main ] || continue
        [ "$status $name $n" != "1 write 1" ] || continue
        calls=$((calls + 1))
        [ $((calls % stride)) -eq 0 ] || continue
        fresh
        fault="-e inject=$name:$action:when=$n"
        { go 6; } 2>/dev/null
        rc=$?
        points=$((points + 1))
        [ $rc -eq "$status" ] || complain "$action at $name $n: exit status $rc: $(tail -n 1 "$work/err")"
        [ "$status" -ne 1 ] || grep -q "$work/one/checkpoints.*No space left on device" "$work/err" ||
            complain "$action at $name $n: says $(tail -n 1 "$work/err")"
        [ -e "$work/one/checkpoints/step-00000006" ] && complain "$action at $name $n: went on to the end"
        check_end "$action at $name $n"
    done <"$work/calls"
    if [ "$calls" -lt 15 ] || [ "$points" -eq 0 ]; then
        complain "only $calls calls of threads in the trace of saves"
    fi
}

prepare
rm -rf "$work/whole"
"$runner" "$work/whole" 6 || complain "a run without faults"
calls_of_threads >"$work/calls"
each signal=KILL 137
verdict "killed at $points system calls of a thread that saves, each time the run went on bitwise equal"
each error=ENOSPC 1 pwrite64 ftruncate fsync write rename
verdict "the disk was full at $points of them: said after the step, older checkpoints good"
echo "1..$tests"
exit "$failed"
