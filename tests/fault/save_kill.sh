#!/bin/bash
# save_kill.sh - kill -9 at every system call of a save: the newest complete checkpoint is found,
# and the run resumes to the same bytes.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/fault/saves.bash
. tests/fault/saves.bash

# kill_everywhere BASE NAME: kills at each call of the save in a copy of BASE.
kill_everywhere() {
    local name n phase line points=0 calls=0 rc
    while read -r name n phase line; do
        calls=$((calls + 1))
        [ $((calls % stride)) -eq 0 ] || continue
        points=$((points + 1))
        { run_with_fault "$1" signal=KILL "$name" "$n"; } 2>/dev/null
        rc=$?
        [ $rc -eq 137 ] || complain "$phase: $line: not killed, exit status $rc"
        check_recovery "killed in $phase at $line"
    done < <(calls_of_save "$1")
    if [ "$calls" -lt 20 ] || [ "$points" -eq 0 ]; then
        complain "only $calls calls in the trace of a save"
    fi
    verdict "$2: killed at $points of $calls system calls, each time the run went on bitwise equal"
}

prepare
kill_everywhere base "a save and the removal of an old checkpoint"

# The save also removes files of a killed save, and replaces a damaged step 3.
cp -R "$work/base" "$work/worse"
cp -R "$work/base/checkpoints/step-00000002" "$work/worse/checkpoints/step-00000003"
cp -R "$work/base/checkpoints/step-00000002" "$work/worse/checkpoints/step-00000003.tmp-99-0"
kill_everywhere worse "a save that replaces a damaged checkpoint and removes leftovers"

echo "1..$tests"
exit "$failed"
