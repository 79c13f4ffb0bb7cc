#!/bin/bash
# map_kill.sh - kill -9 at every system call of a conversion: either the old content is there, or
# the result.  A rerun gives the bytes of an uninterrupted run and leaves nothing else.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/fault/maps.bash
. tests/fault/maps.bash

kill_everywhere() { # BASE NAME
    local name n line points=0 calls=0 rc
    while read -r name n line; do
        calls=$((calls + 1))
        [ $(((calls + points) % stride)) -eq 0 ] || continue
        points=$((points + 1))
        { with_fault "$1" signal=KILL "$name" "$n"; } 2>/dev/null
        rc=$?
        [ $rc -eq 137 ] || complain "$line: not killed, exit status $rc"
        check_result "$1" "killed at $line"
        check_rerun "killed at $line"
    done < <(calls_of "$1")
    if [ "$calls" -lt 100 ] || [ "$points" -lt 5 ]; then
        complain "only $points of $calls calls tried"
    fi
    verdict "$2: killed at $points of $calls system calls"
}

prepare
kill_everywhere fresh "a conversion"
kill_everywhere begun "one that goes on"
kill_everywhere older "one that replaces an older result"
echo "1..$tests"
exit "$failed"
