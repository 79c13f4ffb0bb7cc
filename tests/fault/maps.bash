# shellcheck shell=bash
# maps.bash - shared by the tests of interrupted conversions.
#
# strace counts the system calls of one conversion.  The tests then inject a fault into one call after
# another, each in a copy of the same directory, so that the calls are the same.  Every $stride-th call
# is tried; D9D_LONG tries all.

map=${D9D_BIN:-build/bin}/d9d-map
map=$(cd "$(dirname "$map")" && pwd)/${map##*/}
# shellcheck disable=SC2034 # used by the scripts that include this
stride=${MAP_STRIDE:-$([ -n "${D9D_LONG:-}" ] && echo 1 || echo 29)}
# All calls are tried on a disk; some only in memory, where that is possible.
work=$(mktemp -d "${TMPDIR:-$([ -n "${D9D_LONG:-}" ] && echo /tmp || echo /dev/shm)}/d9d-maps-XXXXXX" 2>/dev/null ||
    mktemp -d /tmp/d9d-maps-XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
what=conversions
. "$(dirname "${BASH_SOURCE[0]}")/traced.bash"

# convert DIR [WORD...]: runs the conversion of src in DIR, behind the command prefix WORD...
convert() {
    local dir=$1
    shift
    (cd "$dir" && exec "$@" "$map" -q -j1 --force --shard-size 60kB src dst)
}

# Directories: fresh has a source, older also an older result, begun what a killed run left.  Also
# makes the result of an uninterrupted run.
prepare() {
    mkdir "$work/fresh"
    cp -r tests/golden/moe "$work/fresh/src"
    cp -r "$work/fresh" "$work/older" && cp -r tests/golden/dense_tied "$work/older/dst"
    cp -r "$work/fresh" "$work/begun"
    { convert "$work/begun" strace -qq -o /dev/null -e inject=pwrite64:signal=KILL:when=7; } 2>/dev/null
    cp -r "$work/fresh" "$work/whole"
    if ! convert "$work/whole" >"$work/out" 2>&1 || [ ! -d "$work/begun/dst.partial" ]; then
        echo "not ok 1 - a conversion without faults: $(tail -n 1 "$work/out")"
        exit 1
    fi
}

# The system calls of a conversion in a copy of directory $1, from the first access to its source on,
# as "NAME N LINE": the N-th call of that name.
calls_of() {
    rm -rf "$work/count" && cp -r "$work/$1" "$work/count"
    convert "$work/count" strace -qq -o "$work/log" -e trace=%file,%desc >/dev/null 2>&1 || return 1
    awk '{
        name = $0; sub(/\(.*/, "", name)
        if (name !~ /^[a-z0-9_]+$/) next
        count[name]++
        if (/"src\//) begun = 1
        if (begun) print name, count[name], $0
    }' "$work/log"
}

# with_fault DIR FAULT NAME N: runs the conversion in a fresh copy $work/one, with the fault at the
# N-th call of that name (N+: and at all later ones).
with_fault() {
    rm -rf "$work/one" && cp -r "$work/$1" "$work/one"
    convert "$work/one" strace -qq -o /dev/null -e "trace=$3" -e "inject=$3:$2:when=$4" \
        >"$work/out" 2>"$work/err"
}

# dst is what was there before or the complete result, with or without the writer's lock file: a
# directory is complete when it has its name.
check_result() { # BASE WHAT
    if [ -e "$work/one/dst" ] || [ -e "$work/$1/dst" ]; then
        diff -rq -x .d9d-partial "$work/one/dst" "$work/whole/dst" >/dev/null 2>&1 ||
            diff -rq -x .d9d-partial "$work/one/dst" "$work/$1/dst" >/dev/null 2>&1 ||
            complain "$2: dst is neither as it was nor the result"
    fi
}

# Repeats the conversion without faults: the same bytes, and no other files.
check_rerun() { # WHAT
    if ! convert "$work/one" >"$work/out" 2>"$work/err"; then
        complain "$1: a rerun fails: $(tail -n 1 "$work/err")"
        return
    fi
    diff -r "$work/one" "$work/whole" >"$work/out" 2>&1 ||
        complain "$1: after a rerun: $(head -n 1 "$work/out")"
}
