# shellcheck shell=bash
# helper.bash - shared by tests/tools/*.bats; load it in setup().
bats_require_minimum_version 1.5.0
load /usr/lib/bats/bats-support/load
load /usr/lib/bats/bats-assert/load
load ../workplace
PATH="${D9D_BIN:-$BATS_TEST_DIRNAME/../../build/bin}:$PATH"
export LC_ALL=C.UTF-8 TERM=xterm COLUMNS=80
unset NO_COLOR D9D_DEBUG

# on_read_only DIR COMMAND...: with DIR mounted read-only for it alone.
on_read_only() {
    local dir=$1
    shift
    # shellcheck disable=SC2016 # for the other shell
    unshare --mount --map-root-user bash -c 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" &&
        ! touch "$0/x" 2>/dev/null && exec "$@"' "$dir" "$@"
}
