#!/bin/bash
# tests/run.sh counts right, and its exit status says whether anything failed: for tests that
# fail, crash, stop halfway, hang, say nothing, or cannot be started; one that measures time runs
# alone, two runs do not share their logs, and one that is ended leaves no test behind.
. "$(dirname "$0")/meta.bash"
. "$meta_root/tests/workplace.bash"

expect() { # RUNNER LAST_LINE STATUS SCRIPT...: each SCRIPT is the text of one test file; limit: of a test, in seconds
    local runner=$1 last=$2 status=$3 dir out rc n=0 text
    shift 3
    dir=$(mktemp -d)
    mkdir "$dir/suite"
    for text; do
        n=$((n + 1))
        printf '#!/bin/bash\n%s\n' "$text" >"$dir/suite/t$n.sh"
        chmod +x "$dir/suite/t$n.sh"
    done
    out=$(TEST_TIMEOUT=${limit:-600} "$runner" -j 2 -o "$dir/log" "$dir"/suite/* 2>&1)
    rc=$?
    out=${out##*$'\n'}
    [ "$out" = "$last" ] && [ $rc -eq "$status" ] ||
        echo "\"$*\": \"$out\" and status $rc in place of \"$last\" and $status"
    rm -rf "$dir"
}

# A run whose test starts another with the same logs.
beside() { # RUNNER
    expect "$1" "1 passed, 0 failed, 0 skipped" 0 \
        "! '$1' -o \"\${0%/*/*}/log\" \"\${0%/*}/none\" 2>&1 | grep -q passed"
}

# A run that is told to end takes its tests along.
ended() { # RUNNER
    local dir pid
    dir=$(mktemp -d)
    put "$dir/t.sh" <<<$'#!/bin/bash\nsleep 60 & echo $! >"${0%/*}/pid.new"; mv "${0%/*}/pid.new" "${0%/*}/pid"; wait'
    chmod +x "$dir/t.sh"
    "$1" -o "$dir/log" "$dir/t.sh" >/dev/null 2>&1 &
    wait_for test -e "$dir/pid"
    kill -TERM $!
    wait $!
    pid=$(cat "$dir/pid")
    patience=15 wait_for is_gone "$pid" || { echo "a test outlives its run"; kill "$pid"; }
    rm -rf "$dir"
}

# What took longest last time, as the runner wrote it then, begins first.
ordered() { # RUNNER
    local dir out
    dir=$(mktemp -d)
    mkdir "$dir/suite"
    printf '#!/bin/bash\n' | tee "$dir/suite/a.sh" >"$dir/suite/b.sh"
    chmod +x "$dir/suite"/*
    "$1" -j 1 -o "$dir/log" "$dir"/suite/* >/dev/null
    sed -i -E 's|^[0-9.]+(\t.*/a.sh)$|1.00\1|; s|^[0-9.]+(\t.*/b.sh)$|2.00\1|' "$dir/log/.seconds"
    out=$("$1" -j 1 -o "$dir/log" "$dir"/suite/* | awk '{ printf "%s ", $2 }')
    [ "$out" = "suite/b suite/a passed, " ] || echo "tests of 1 and 2 s ran in this order: $out"
    rm -rf "$dir"
}

check() {
    local run=$1/tests/run.sh
    beside "$run"
    ended "$run"
    ordered "$run"
    expect "$run" "3 passed, 0 failed, 1 skipped" 0 'echo 1..2; echo ok 1 - a; echo "ok 2 - b # skip why"' 'echo "ok 1"; echo "ok 2"'
    expect "$run" "1 passed, 0 failed, 0 skipped" 0 'echo says nothing that is TAP'
    expect "$run" "1 passed, 1 failed, 0 skipped" 1 'echo 1..2; echo ok 1 - a; echo not ok 2 - b; exit 1'
    expect "$run" "0 passed, 1 failed, 0 skipped" 1 'echo not ok 1 - but status 0'
    expect "$run" "1 passed, 2 failed, 0 skipped" 1 'echo 1..3; echo ok 1 - a; exit 0'
    expect "$run" "1 passed, 1 failed, 0 skipped" 1 'echo ok 1 - a; exit 3'
    expect "$run" "0 passed, 1 failed, 0 skipped" 1 'kill -SEGV $$'
    limit=1 expect "$run" "0 passed, 1 failed, 0 skipped" 1 'sleep 600'
    expect "$run" "0 passed, 0 failed, 1 skipped" 0 'echo "not ok 1 # SKIP as cmocka says it"'
    expect "$run" "1 passed, 1 failed, 0 skipped" 1 'exit 1' 'exit 0'
    expect "$run" "2 passed, 0 failed, 0 skipped" 0 $'# run.sh: alone\n[ -e "$0.others" ]' 'sleep 0.3; touch "${0%/*}/t1.sh.others"'
}

broken() { # DIR SED: a copy of the runner with a fault
    mkdir -p "$1/tests"
    sed "$2" "$meta_root/tests/run.sh" >"$1/tests/run.sh"
    chmod +x "$1/tests/run.sh"
    ! cmp -s "$meta_root/tests/run.sh" "$1/tests/run.sh"
}
plant_always_green() { broken "$1" 's/exit f > 0/exit 0/'; }
plant_forgets_the_plan() { broken "$1" 's/fail += plan - seen/fail += 0/'; }
plant_trusts_the_output() { broken "$1" 's/if (rc != 0 \&\& !fail) fail = 1//'; }
plant_shares_logs() { broken "$1" 's/flock -n 8/true/'; }
plant_leaves_none_alone() { broken "$1" 's/alone+=/together+=/'; }
plant_starts_the_longest_last() { broken "$1" 's/sort -k 1,1rn/sort -k 1,1n/'; }
plant_forgets_its_tests() { broken "$1" 's/kill $(jobs -p).*/:/'; }
meta_run
