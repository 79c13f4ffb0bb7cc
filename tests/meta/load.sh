#!/bin/bash
# tests/load.sh: its load runs in the tests' session and ends with it; a failing run is named, and
# so is a run without output.
. "$(dirname "$0")/meta.bash"
. "$meta_root/tests/workplace.bash"

session() { awk '{ sub(/.*\) /, ""); print $4 }' "/proc/$1/stat" 2>/dev/null; }
used() { awk '{ sub(/.*\) /, ""); print $12 }' "/proc/$1/stat" 2>/dev/null; }

# Those of this session whose command line has the driver's name and that have run: PID...
busy_beside() { # DRIVER
    local pid
    for pid in /proc/[0-9]*; do
        pid=${pid#/proc/}
        grep -qzxF "$1" "/proc/$pid/cmdline" 2>/dev/null && [ "$(session "$pid")" = "$(session $$)" ] &&
            [ "$(used "$pid")" -ge 10 ] && echo "$pid"
    done
}
has_busy() { [ "$(busy_beside "$1" | wc -l)" -ge "$2" ]; } # DRIVER N: or more
all_gone() { # FILE of PIDs
    local pid
    while read -r pid; do is_gone "$pid" || return 1; done <"$1"
}
says() { "${@:2}" >/dev/null 2>&1 || echo "$1"; } # WHAT COMMAND...

# The driver, told to end while its command runs, leaves no load, and no tests if it can.
outlived() { # DRIVER SIGNAL
    local dir busy_driver
    dir=$(mktemp -d)
    put "$dir/test.sh" <<<$'#!/bin/bash\necho $$ >"${0%/*}/pid"; exec sleep 1000'
    chmod +x "$dir/test.sh"
    "$1" -n 3 -r 1 -o "$dir/log" "$dir/test.sh" </dev/null >/dev/null 2>&1 &
    busy_driver=$!
    says "no tests" wait_for test -s "$dir/pid"
    says "no load" wait_for has_busy "$1" 3
    busy_beside "$1" >"$dir/busy"
    kill -"$2" $busy_driver
    wait $busy_driver 2>/dev/null
    says "SIG$2: its load is left" wait_for all_gone "$dir/busy"
    [ "$2" = KILL ] || says "SIG$2: the tests go on" wait_for all_gone "$dir/pid"
    # shellcheck disable=SC2046
    kill $(cat "$dir/pid" "$dir/busy") 2>/dev/null
    rm -rf "$dir"
}

expect() { # DRIVER STATUS SAYS SCRIPT: two runs of a command
    local dir out rc
    dir=$(mktemp -d)
    put "$dir/test.sh" <<<"#!/bin/bash"$'\n'"$4"
    chmod +x "$dir/test.sh"
    out=$("$1" -n 1 -r 2 -o "$dir/log" "$dir/test.sh" 2>&1)
    rc=$?
    [ $rc -eq "$2" ] && [ "$(grep -c "$3" <<<"$out")" -eq 2 ] || echo "\"$4\": \"$out\" and status $rc in place of two \"$3\" and $2"
    rm -rf "$dir"
}

# A library that changes no clock is refused.
no_clock() { # DRIVER
    local dir
    dir=$(mktemp -d)
    "$1" -n 1 -r 1 -c libm.so.6 -o "$dir" echo 1 passed, 0 failed, 0 skipped >/dev/null 2>&1 &&
        echo "a library without a clock is taken for one"
    rm -rf "$dir"
}

check() {
    local driver=$1/tests/load.sh
    local patience=60 left
    [ "$1" = "$meta_root" ] || patience=3 # what a planted fault is waited for
    left=$(outlived "$driver" TERM && outlived "$driver" KILL)
    [ -z "$left" ] || { echo "$left"; return; }
    expect "$driver" 0 'run [12] of 2, .*: 3 passed, 0 failed, 0 skipped' 'echo 3 passed, 0 failed, 0 skipped'
    expect "$driver" 1 '| not ok 2 - b' 'echo "FAIL  a"; echo "      | not ok 2 - b"; echo 1 passed, 1 failed, 0 skipped; exit 1'
    expect "$driver" 1 'run [12] of 2, .*: 1 passed, 1 failed, 0 skipped' 'echo 1 passed, 1 failed, 0 skipped'
    expect "$driver" 1 'no totals' 'echo it did not build'
    expect "$driver" 1 'exit status 3' 'echo 1 passed, 0 failed, 0 skipped; exit 3'
    no_clock "$driver"
}

broken() { # DIR SED: a copy of the driver with a fault
    mkdir -p "$1/tests"
    sed "$2" "$meta_root/tests/load.sh" >"$1/tests/load.sh"
    chmod +x "$1/tests/load.sh"
    cp "$meta_root/tests/workplace.bash" "$1/tests"
    ! cmp -s "$meta_root/tests/load.sh" "$1/tests/load.sh"
}
plant_has_no_load() { broken "$1" 's/ i < busy;/ i < 0;/'; }
plant_sleeps() { broken "$1" 's/i < 20000; i++)); do :;/i < 1; i++)); do sleep 0.1;/'; }
plant_leaves_its_load() { broken "$1" 's/until read -r -t 0;/until false;/'; }
plant_leaves_the_tests() { broken "$1" '/^end_run/,/^}/s/^    \(kill\|wait\) .*/    :/'; }
plant_always_green() { broken "$1" 's/^exit $failed/exit 0/'; }
plant_takes_any_clock() { broken "$1" 's/-gt 3600/-gt -3600/'; }
plant_trusts_the_output() { broken "$1" 's/$rc -ne 0/0 -ne 0/'; }
meta_run
