#!/bin/bash
# `make test` finds every test file: none is forgotten because of its name or its place.
# (tests/bench is for `make bench`.)
. "$(dirname "$0")/meta.bash"

check() {
    cd "$1" || return 1
    comm -13 <(env -u MAKEFLAGS -u MAKELEVEL -u MAKEOVERRIDES -u T -u SUITES -u NOT make -s --no-print-directory -f Makefile list-tests B=/nonexistent | sort) \
        <(find tests \( -name '*.bats' -o -name 'test_*.c' -o -name 'fuzz_*.c' \) -o \( -path 'tests/*/*.sh' -perm -u+x ! -path 'tests/bench/*' \) | sort) |
        sed 's/$/: no suite runs it/'
    find tests -path 'tests/*/*.sh' ! -perm -u+x | sed 's/$/: is not executable/'
}

tree() { mkdir -p "$1/tests" && cp "$meta_root/Makefile" "$1" && mkdir -p "$1/libcore" "$1/kernels" "$1/tools"; }
plant_unknown_suite() { tree "$1" && put "$1/tests/extra/a.bats" </dev/null; }
plant_deep() { tree "$1" && put "$1/tests/unit/base/deep/test_a.c" </dev/null; }
plant_not_executable() { tree "$1" && put "$1/tests/meta/a.sh" </dev/null; }
allow_known() { tree "$1" && put "$1/tests/tools/a.bats" </dev/null && put "$1/tests/unit/base/test_a.c" </dev/null; }
meta_run
