# shellcheck shell=bash
# saves.bash - shared by the tests of interrupted saves.
#
# They need a program that trains: RUNNER DIR STEPS goes on from the newest checkpoint in
# DIR/checkpoints, or starts, takes steps until STEPS are done, saves after each and keeps
# the two newest.  $SAVE_RUNNER names another than the small one; it is one process, so a
# script ends in exec.  What it does after the save of step 3 and the removals begins with a
# call that names $SAVE_UNTIL.
#
# strace counts the calls of one save, of which the tests then spoil one after another, in a
# copy of the same directory each time: what is done is the same, so are the counts.

runner=${SAVE_RUNNER:-${D9D_BUILD:-build}/tests/fault/save_driver}
# shellcheck disable=SC2034 # used by those who include this
stride=${SAVE_STRIDE:-1} # every how many calls are tried
# In memory where that is possible: it is not the disk's promises that are tested here.
work=$(mktemp -d "${TMPDIR:-/dev/shm}/d9d-saves-XXXXXX" 2>/dev/null ||
    mktemp -d /tmp/d9d-saves-XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
# On one processor all calls are made by one thread: those that strace sees and counts.
taskset -cp "$(taskset -cp $$ | sed 's/.*: \([0-9]*\).*/\1/')" $$ >/dev/null
what=saves
. "$(dirname "${BASH_SOURCE[0]}")/traced.bash"

# Two checkpoints, the third to come; and what an uninterrupted run ends with.
prepare() {
    if ! "$runner" "$work/base" 2 >"$work/out" 2>&1 || ! "$runner" "$work/whole" 5 >"$work/out" 2>&1; then
        echo "not ok 1 - a run without faults: $(tail -n 1 "$work/out")"
        exit 1
    fi
}

# The calls of the save of step 3 in a copy of directory $1, and of the removals after it, as
# "name n save|prune LINE": the n-th call of that name.  Both begin with taking the lock.
calls_of_save() {
    rm -rf "$work/count" && cp -R "$work/$1" "$work/count"
    strace -qq -o "$work/log" -e trace=%file,%desc "$runner" "$work/count" 3 >/dev/null 2>&1 || return 1
    awk -v until="${SAVE_UNTIL:-}" '{
        if (phase > 1 && until != "" && index($0, until)) exit
        name = $0; sub(/\(.*/, "", name)
        if (name !~ /^[a-z0-9_]+$/) next
        count[name]++
        if (/\/checkpoints\/\.lock"/) phase++
        if (phase) print name, count[name], phase == 1 ? "save" : "prune", $0
    }' "$work/log"
}

# Run to step 3 in a fresh copy $work/one of directory $1 with the fault $2 at the $4-th call $3;
# leaves its output in $work/out and $work/err.
run_with_fault() {
    rm -rf "$work/one" && cp -R "$work/$1" "$work/one"
    strace -qq -o /dev/null -e "trace=$3" -e "inject=$3:$2:when=$4" \
        "$runner" "$work/one" 3 >"$work/out" 2>"$work/err"
}

# What is in a directory, on one line.
names() { find "$1" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort | tr '\n' ' '; }

# Go on to step 5 in $work/one: from step 2 or 3, to the same bytes, with nothing left over.
check_recovery() { # WHAT
    local from f
    if ! "$runner" "$work/one" 5 >"$work/out" 2>"$work/err"; then
        complain "$1: cannot go on: $(tail -n 1 "$work/err")"
        return
    fi
    from=$(sed -n 's/^  "parent": \(-*[0-9]*\),$/\1/p' "$work/one/checkpoints/step-00000005/manifest.json")
    [ "$from" = 2 ] || [ "$from" = 3 ] || complain "$1: goes on from step $from"
    for f in "$work"/whole/checkpoints/step-00000005/*.safetensors; do
        cmp -s "$f" "$work/one/checkpoints/step-00000005/${f##*/}" ||
            complain "$1: ${f##*/} differs from that of the whole run"
    done
    [ "$(names "$work/one/checkpoints")" = "$(names "$work/whole/checkpoints")" ] ||
        complain "$1: left over: $(names "$work/one/checkpoints")"
}
