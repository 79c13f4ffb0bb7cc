#!/bin/bash
# load.sh [-n BUSY] [-r RUNS] [-c LIBRARY] [-o LOGDIR] COMMAND... - runs tests again and again on a
# loaded machine, to find flaky ones.
#
# A test that depends on the machine's speed fails here.  COMMAND ends with the totals of run.sh.
# Its output is kept in LOGDIR; this script prints one line per run, followed by the failures:
#
#     run 1 of 3, beside 16 busy processes: 212 passed, 0 failed, 1 skipped  310 s
#
# The busy processes belong to the session of the tests, since the kernel shares processors among
# sessions first.  They end with this script, however it ends. -c: the tests see the clock of that
# library (tests/fault/clock_jump_preload.c).  Exit status 1 if anything failed.
set -u
busy=16 runs=3 logs=build/load
while getopts n:r:c:o: opt; do
    case $opt in
    n) busy=$OPTARG ;;
    r) runs=$OPTARG ;;
    c) export D9D_PRELOAD=$OPTARG ;;
    o) logs=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { echo "load.sh: no command" >&2; exit 2; }
. "${BASH_SOURCE[0]%/*}/workplace.bash"
mkdir -p "$logs" || exit 1

# A library whose functions nobody can see would test the clock of the host.
if [ -n "${D9D_PRELOAD:-}" ]; then
    echo 7200 >"$logs/ahead"
    ahead=$(($(JUMP_FILE=$logs/ahead LD_PRELOAD=$D9D_PRELOAD date +%s) - $(date +%s)))
    [ "$ahead" -gt 3600 ] || { echo "load.sh: $D9D_PRELOAD: changes no clock" >&2; exit 1; }
fi

# Until its input ends, which this script alone holds open.
be_busy() {
    local i
    until read -r -t 0; do
        for ((i = 0; i < 20000; i++)); do :; done
    done
}
load() {
    local i
    for ((i = 0; i < busy; i++)); do be_busy <&0 & done
    wait
}
exec 7> >(load >/dev/null 2>&1)

end_run() {
    kill "$running" 2>/dev/null
    wait "$running"
    exit 143
}
running=
failed=0
for ((r = 1; r <= runs; r++)); do
    log=$logs/run.$r.log began=$(uptime_s)
    "$@" </dev/null >"$log" 2>&1 7>&- &
    running=$!
    trap end_run INT TERM HUP
    wait "$running"
    rc=$?
    # Behind them make says that it failed.
    totals=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    [[ $totals =~ ^[0-9]+\ passed,\ ([0-9]+)\ failed ]] || totals="no totals"
    printf 'run %d of %d, beside %d busy processes: %s  %d s\n' "$r" "$runs" "$busy" "$totals" \
        $(($(uptime_s) - began))
    if [ $rc -ne 0 ] || [ "${BASH_REMATCH[1]:-1}" -ne 0 ]; then
        failed=1
        sed -nE '/^FAIL /p; /^ +\| not ok /p' "$log"
        echo "    exit status $rc; its output is in $log"
    fi
done
exit $failed
