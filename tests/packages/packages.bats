#!/usr/bin/env bats
# Recipes by their own tools.

load ../tools/helper

top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)

setup_file() {
    work=$(mktemp -d)
    export work
}
teardown_file() { rm -rf "$work"; }

@test "ReFrame lists both checks" {
    command -v reframe >/dev/null || skip "no reframe"
    cd "$work"
    run -0 reframe -c "$top/packaging/reframe/d9d_check.py" -l
    assert_output --partial "Found 2 check(s)"
}
