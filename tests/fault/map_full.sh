#!/bin/bash
# map_full.sh - the disk is full at each write of a conversion: exit code 1 with a message, the
# destination is unchanged, and once there is space a rerun gives the same bytes.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/fault/maps.bash
. tests/fault/maps.bash

# System calls that need disk space: those that create, write or rename.
needs_room() {
    grep -E '^[a-z0-9_]+ [0-9]+ (open.*O_CREAT|mkdir|(write|pwrite64)\(([3-9]|[0-9]{2,}),|ftruncate|fsync|rename)' |
        grep -v EEXIST
}

fill_everywhere() { # BASE
    local name n line points=0 calls=0 rc
    while read -r name n line; do
        calls=$((calls + 1))
        [ $(((calls + points) % (stride / 4 + 1))) -eq 0 ] || continue
        points=$((points + 1))
        # A direct write that fails is repeated through the page cache.
        with_fault "$1" error=ENOSPC "$name" "$n$([ "$name" = pwrite64 ] && echo +)"
        rc=$?
        [ $rc -eq 1 ] || complain "$line: exit status $rc"
        grep -q "^d9d-map: input/output error: .*No space left on device$" "$work/err" ||
            complain "$line: says \"$(tail -n 1 "$work/err")\""
        check_result "$1" "full at $line"
        check_rerun "full at $line"
    done < <(calls_of "$1" | needs_room)
    if [ "$calls" -lt 40 ] || [ "$points" -lt 5 ]; then
        complain "only $points of $calls writes tried"
    fi
    verdict "the disk was full at $points of $calls calls that need room"
}

prepare
fill_everywhere fresh
echo "1..$tests"
exit "$failed"
