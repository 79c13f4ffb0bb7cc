# shellcheck shell=bash
# maps.bash - shared by the tests of interrupted conversions.
#
# strace counts the calls of one conversion, of which the tests then spoil one after another,
# each in a copy of the same directory: what is done is the same, so are the counts.  Of all
# calls every $stride-th is tried; D9D_LONG tries all.

map=${D9D_BIN:-build/bin}/d9d-map
map=$(cd "$(dirname "$map")" && pwd)/${map##*/}
# shellcheck disable=SC2034 # used by those who include this
stride=${MAP_STRIDE:-$([ -n "${D9D_LONG:-}" ] && echo 1 || echo 29)}
# All calls on a disk; some of them in memory, where that is possible.
work=$(mktemp -d "${TMPDIR:-$([ -n "${D9D_LONG:-}" ] && echo /tmp || echo /dev/shm)}/d9d-maps-XXXXXX" 2>/dev/null ||
    mktemp -d /tmp/d9d-maps-XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
what=conversions
. "$(dirname "${BASH_SOURCE[0]}")/traced.bash"

# convert DIR [WORD...]: the conversion in a directory, whose source is src, after these words.
convert() {
    local dir=$1
    shift
    (cd "$dir" && exec "$@" "$map" -q -j1 --force --shard-size 60kB src dst)
}

# fresh: a source.  older: with an older result.  begun: with what a killed run left.  And what
# an uninterrupted run makes.
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

# The calls of a conversion in a copy of directory $1, from the first look at its source on, as
# "name n LINE": the n-th call of that name.
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

# with_fault DIR FAULT NAME N: the conversion in a fresh copy $work/one, with that fault at the
# n-th call of that name (n+: and at all after it).
with_fault() {
    rm -rf "$work/one" && cp -r "$work/$1" "$work/one"
    convert "$work/one" strace -qq -o /dev/null -e "trace=$3" -e "inject=$3:$2:when=$4" \
        >"$work/out" 2>"$work/err"
}

# What is at dst is what was there, or the whole result, with or without the mark of who writes: a
# directory is whole when it has its name.
check_result() { # BASE WHAT
    if [ -e "$work/one/dst" ] || [ -e "$work/$1/dst" ]; then
        diff -rq -x .d9d-partial "$work/one/dst" "$work/whole/dst" >/dev/null 2>&1 ||
            diff -rq -x .d9d-partial "$work/one/dst" "$work/$1/dst" >/dev/null 2>&1 ||
            complain "$2: dst is neither as it was nor the result"
    fi
}

# Again, without faults: the same bytes, and nothing left over.
check_rerun() { # WHAT
    if ! convert "$work/one" >"$work/out" 2>"$work/err"; then
        complain "$1: a rerun fails: $(tail -n 1 "$work/err")"
        return
    fi
    diff -r "$work/one" "$work/whole" >"$work/out" 2>&1 ||
        complain "$1: after a rerun: $(head -n 1 "$work/out")"
}
