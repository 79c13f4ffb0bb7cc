# shellcheck shell=bash disable=SC2034 # variables are for those that source it
# meta.bash - shared by the meta checks.  A check is a script that defines
#
#     check ROOT          prints one line for each fault in the tree ROOT
#     plant_NAME DIR      makes in DIR a small tree with one fault of the kind NAME
#     allow_NAME DIR      makes a small tree that is in order (optional)
#
# and ends with `meta_run`, which checks this tree, then sees to it that every planted
# fault is found and that nothing is found where all is well.  The output is TAP.
set -u
meta_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
meta_name=$(basename "$0" .sh)
meta_build=${D9D_BUILD:-$meta_root/build}
: "${CC:=gcc}" "${CXX:=g++}"

# put FILE: write standard input there, making folders.
put() {
    mkdir -p "$(dirname "$1")" && cat >"$1"
}

meta_case() { # NUMBER WHAT WANT(faults|none) ROOT
    local found rc bad=
    found=$(check "$4" 2>&1)
    rc=$?
    [ $rc -eq 0 ] || bad="the check itself failed with status $rc"
    [ "$3" = faults ] && [ -z "$found" ] && bad="the planted fault was not found"
    [ "$3" = none ] && [ -n "$found" ] && bad="$(wc -l <<<"$found") found"
    if [ -z "$bad" ]; then
        echo "ok $1 - $meta_name: $2"
        return 0
    fi
    echo "not ok $1 - $meta_name: $2: $bad"
    [ -n "$found" ] && awk '{ print "#   " $0 }' <<<"$found"
    return 1
}

meta_run() {
    local n=1 status=0 tmp f
    meta_case 1 "this tree" none "$meta_root" || status=1
    tmp=$(mktemp -d)
    for f in $(declare -F | awk '$3 ~ /^(plant|allow)_/ { print $3 }'); do
        n=$((n + 1))
        mkdir "$tmp/$f"
        "$f" "$tmp/$f" || status=1
        case $f in
        plant_*) meta_case $n "finds a planted fault: ${f#plant_}" faults "$tmp/$f" ;;
        allow_*) meta_case $n "has nothing against: ${f#allow_}" none "$tmp/$f" ;;
        esac || status=1
    done
    rm -rf "$tmp"
    if [ $n -eq 1 ]; then
        echo "not ok 2 - $meta_name: has no planted fault"
        n=2 status=1
    fi
    echo "1..$n"
    exit $status
}
