#!/bin/bash
# save_full.sh - the disk is full at each write of a save: exit code 1, the message names path and
# bytes, and older checkpoints are unchanged.  Once there is space the run resumes to the same
# bytes.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/fault/saves.bash
. tests/fault/saves.bash

# System calls that need disk space: those that create, write or rename.
needs_room() {
    grep -E '^[a-z0-9_]+ [0-9]+ save ' |
        grep -E ' open.*O_CREAT|^mkdir|^(write|pwrite64|copy_file_range) .*\(([3-9]|[0-9]{2,}),|^(ftruncate|fallocate|fsync|fdatasync|rename)'
}

# The files below a directory, as names and hashes.
digest() { (cd "$1" && find . -type f -exec sha256sum {} + | sort -k 2); }

check_failure() { # WHAT NAME
    local message
    message=$(tail -n 1 "$work/err")
    case $message in
    *"$work/one/checkpoints"*"No space left on device"*) ;;
    *) complain "$1: says \"$message\"" ;;
    esac
    case $2 in
    write | pwrite64 | ftruncate | copy_file_range)
        [[ $message =~ [0-9]+\ bytes ]] || complain "$1: names no bytes: \"$message\"" ;;
    esac
    # No new checkpoint or, if only the last sync failed, a complete one.
    if [ -e "$work/one/checkpoints/step-00000003" ]; then
        [ "$2" = fsync ] || complain "$1: step 3 is there"
    elif [ "$(digest "$work/one/checkpoints")" != "$(digest "$work/base/checkpoints")" ]; then
        complain "$1: the checkpoints are not as they were"
    fi
}

fill_everywhere() {
    local name n _ line points=0 calls=0 rc
    while read -r name n _ line; do
        calls=$((calls + 1))
        [ $((calls % stride)) -eq 0 ] || continue
        points=$((points + 1))
        run_with_fault base error=ENOSPC "$name" "$n"
        rc=$?
        case $line in
        mkdir*EEXIST*) ;; # needs no space: the directory exists
        *)
            [ $rc -eq 1 ] || complain "$line: exit status $rc"
            check_failure "$line" "$name" ;;
        esac
        check_recovery "full at $line"
    done < <(calls_of_save base | needs_room)
    if [ "$calls" -lt 10 ] || [ "$points" -eq 0 ]; then
        complain "only $calls writes in the trace of a save"
    fi
    verdict "the disk was full at $points of $calls calls of a save that need room"
}

prepare
fill_everywhere
echo "1..$tests"
exit "$failed"
