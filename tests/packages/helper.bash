# shellcheck shell=bash
# helper.bash - shared by tests/packages/*.bats: load it beside the helper of the tools.

# What is built here is built as by a user: of the make that runs the tests it has no arguments.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES

# needs COMMAND...: skip a test where a program is not there.
needs() {
    local command
    for command in "$@"; do command -v "$command" >/dev/null || skip "no $command"; done
}

# source_tree DIR: the files of this tree that git knows, as they are now.
source_tree() {
    local top
    top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    mkdir -p "$1"
    git -C "$top" ls-files -z | (cd "$top" && xargs -0 ls -d 2>/dev/null) | tar -C "$top" -T - -c | tar -C "$1" -x
}

# files_of ROOT: all that is below it, but what the package manager keeps of itself.
files_of() { (cd "$1" && find . -mindepth 1 ! -path './var/*' ! -path './proc/*' ! -path './dev/*' | sort); }
