# shellcheck shell=bash
# saves.bash - shared by the tests of interrupted saves.
#
# They need a training program.  RUNNER DIR STEPS resumes from the newest checkpoint in
# DIR/checkpoints, or starts, and trains until STEPS are done.  It saves after each step and keeps the
# two newest checkpoints.  $SAVE_RUNNER selects another runner; it is one process, so a script ends in
# exec.  The first system call after the save of step 3 and its removals names $SAVE_UNTIL.
#
# strace counts the system calls of one save.  The tests then inject a fault into one call after
# another, in a copy of the same directory each time, so that the calls are the same.

runner=${SAVE_RUNNER:-${D9D_BUILD:-build}/tests/fault/save_driver}
# shellcheck disable=SC2034 # used by the scripts that include this
stride=${SAVE_STRIDE:-1} # every stride-th call is tried
# In memory where that is possible: the durability of the disk is not tested here.
work=$(mktemp -d "${TMPDIR:-/dev/shm}/d9d-saves-XXXXXX" 2>/dev/null ||
    mktemp -d /tmp/d9d-saves-XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
# On one processor one thread makes all calls, so that strace counts them the same each time.
taskset -cp "$(taskset -cp $$ | sed 's/.*: \([0-9]*\).*/\1/')" $$ >/dev/null
what=saves
. "$(dirname "${BASH_SOURCE[0]}")/traced.bash"

# A directory with two checkpoints, before the third, and the result of an uninterrupted run.
prepare() {
    if ! "$runner" "$work/base" 2 >"$work/out" 2>&1 || ! "$runner" "$work/whole" 5 >"$work/out" 2>&1; then
        echo "not ok 1 - a run without faults: $(tail -n 1 "$work/out")"
        exit 1
    fi
}

# The system calls of the save of step 3 in a copy of directory $1 and of the removals after it, as
# "NAME N save|prune LINE": the N-th call of that name.  Both begin with taking the lock.  Memory that is
# asked for is left out: how often that happens differs where a sanitizer keeps what was freed.
calls_of_save() {
    rm -rf "$work/count" && cp -R "$work/$1" "$work/count"
    strace -qq -o "$work/log" -e trace=%file,%desc "$runner" "$work/count" 3 >/dev/null 2>&1 || return 1
    awk -v until="${SAVE_UNTIL:-}" '{
        if (phase > 1 && until != "" && index($0, until)) exit
        name = $0; sub(/\(.*/, "", name)
        if (name !~ /^[a-z0-9_]+$/) next
        count[name]++
        if (/\/checkpoints\/\.lock"/) phase++
        if (phase && !/MAP_ANONYMOUS/) print name, count[name], phase == 1 ? "save" : "prune", $0
    }' "$work/log"
}

# Run to step 3 in a fresh copy $work/one of directory $1 with the fault $2 at the $4-th call $3;
# leaves its output in $work/out and $work/err.
run_with_fault() {
    rm -rf "$work/one" && cp -R "$work/$1" "$work/one"
    strace -qq -o /dev/null -e "trace=$3" -e "inject=$3:$2:when=$4" \
        "$runner" "$work/one" 3 >"$work/out" 2>"$work/err"
}

# The names in a directory, on one line.
names() { find "$1" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort | tr '\n' ' '; }

# Resumes in $work/one from step 2 or 3 to step 5: the same bytes, and no other files.
check_recovery() { # WHAT
    local from f
    if ! "$runner" "$work/one" 5 >"$work/out" 2>"$work/err"; then
        complain "$1: cannot go on: $(tail -n 1 "$work/err")"
        return
    fi
    from=$(sed -n 's/^  "parent": \(-*[0-9]*\),$/\1/p' "$work/one/checkpoints/step-00000005/manifest.json")
    [ "$from" = 2 ] || [ "$from" = 3 ] || complain "$1: goes on from step $from"
    for f in "$work"/whole/checkpoints/step-00000005/*/*.safetensors; do
        cmp -s "$f" "$work/one/${f#"$work"/whole/}" ||
            complain "$1: ${f##*/} differs from that of the whole run"
    done
    [ "$(names "$work/one/checkpoints")" = "$(names "$work/whole/checkpoints")" ] ||
        complain "$1: left over: $(names "$work/one/checkpoints")"
}
