# shellcheck shell=bash
# traced.bash - shared by the tests that inject faults into system calls: a verdict, and a probe of
# strace.  Before it is included, `work` is a directory and `what` names what is interrupted.

failures=0 tests=0 failed=0
# The leak sanitizer does not work in a traced process.
export ASAN_OPTIONS=detect_leaks=0

complain() {
    printf '# %s\n' "$*"
    failures=$((failures + 1))
}

# Prints one TAP line for all complaints since the last.
verdict() { # NAME
    tests=$((tests + 1))
    if [ "$failures" -eq 0 ]; then
        echo "ok $tests - $1"
    else
        echo "not ok $tests - $1 ($failures of them failed)"
        # shellcheck disable=SC2034
        failed=1
    fi
    failures=0
}

# shellcheck disable=SC2154 # set by the scripts that include this
if ! strace -qq -o "$work/probe" true 2>/dev/null; then
    echo "ok 1 - interrupted $what # SKIP strace cannot trace a process here"
    echo "1..1"
    exit 0
fi
