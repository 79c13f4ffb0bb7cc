#!/bin/bash
# Every line of a test counts.  A shell continues after a failing A in "A && B" or "! A", unless
# that is the last line of the test: such a line checks nothing.
. "$(dirname "$0")/meta.bash"

check() {
    find "$1/tests" -name '*.bats' | sort | xargs -r awk -v root="$1/" '
        function judge(next_line) {
            if (held != "" && next_line !~ /^}/) print held
            held = ""
        }
        FNR == 1 { held = ""; within = 0 }
        /^[[:space:]]*(#|$)/ { next }
        { judge($0) }
        /^}/ { within = 0 }
        within && !/\|\|/ && /^ +(! .*|(! )?\[\[? .* \]\]? && .*)$/ && !/&& (return|continue|break|skip)( |$)/ {
            held = substr(FILENAME, length(root) + 1) ":" FNR ": does not count where it fails: " $0
        }
        /^@test / { within = 1 }'
}

bats() { put "$1/tests/tools/a.bats"; }
plant_list() { printf '@test "x" {\n    [ -e a ] && [ ! -e b ]\n    true\n}\n' | bats "$1"; }
plant_words() { printf '@test "x" {\n    [[ "$output" == a* ]] && grep -q x y\n\n    true\n}\n' | bats "$1"; }
plant_not() { printf '@test "x" {\n    ! grep -q x y\n    true\n}\n' | bats "$1"; }
plant_in_loop() { printf '@test "x" {\n    for i in 1 2; do\n        [ -e a ] && [ -e b ]\n    done\n}\n' | bats "$1"; }
allow_last_line() { printf '@test "x" {\n    true\n    [ -e a ] && [ ! -e b ]\n}\n' | bats "$1"; }
allow_run() { printf '@test "x" {\n    run ! grep -q x y\n    [ -e a ] || skip\n}\n' | bats "$1"; }
allow_return() { printf '@test "x" {\n    [ -e a ] && return 1\n    true\n}\n' | bats "$1"; }
allow_function() { printf 'f() {\n    [ -e a ] && [ -e b ]\n    true\n}\n' | bats "$1"; }
meta_run
