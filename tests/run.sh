#!/bin/bash
# run.sh [-j N] [-o LOGDIR] TEST... - runs test files concurrently and prints one line per file.
#
# A test file is a program, a script, or a .bats file; each prints TAP ("ok 1 - name", "not ok 2 -
# name", "ok 3 # SKIP why").  A file without such a line counts as one test, judged by its exit
# status.  A script with the line "# run.sh: alone" measures time and runs alone after the others.
# Those that took longest last time, by LOGDIR/.seconds, are begun first.
# The output of failures is shown, every skip is named, and the last line has the totals:
#
#     212 passed, 0 failed, 1 skipped
#
# Exit status 1 if anything failed.  D9D_WRAP goes before programs, D9D_PRELOAD into every test.
# Tests sort names, and read what programs print, in the locale C.UTF-8.
set -u
jobs=$(nproc) logs=build/log
while getopts j:o: opt; do
    case $opt in
    j) jobs=$OPTARG ;;
    o) logs=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
: "${TEST_TIMEOUT:=3600}" "${D9D_WRAP:=}" "${D9D_PRELOAD:=}"
export LC_ALL=C.UTF-8
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$PWD/tests/lsan.supp:print_suppressions=0}
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} CMOCKA_MESSAGE_OUTPUT=TAP
mkdir -p "$logs" || exit 1
exec 8>"$logs/.run"
flock -n 8 || { echo "run.sh: other tests run and write $logs" >&2; exit 1; }

# Seconds of a clock that nobody sets.
now() {
    local up
    read -r up _ </proc/uptime
    echo "$up"
}

# The name under which a test file is known: suite/stem.
name_of() {
    local stem=${1##*/} suite=${1%/*}
    stem=${stem%.*}
    printf '%s/%s' "${suite##*/}" "${stem#test_}"
}

# The timeout of a test makes a group of its own: it hears of an end by us alone.
end_jobs() {
    # shellcheck disable=SC2046
    kill $(jobs -p) 2>/dev/null
    exit 143
}
trap end_jobs INT TERM

run_one() { # TEST LOG
    local -a command
    case $1 in
    *.bats) command=(bats --tap) ;;
    */fuzz/fuzz_*) set -- "$1" "$2" "tests/fuzz/${1##*/fuzz_}" ;;
    *.sh) ;;
    *) read -ra command <<<"$D9D_WRAP" ;;
    esac
    [ -z "$D9D_PRELOAD" ] || command=(env "LD_PRELOAD=$D9D_PRELOAD" ${command[@]+"${command[@]}"})
    timeout -k 10 "$TEST_TIMEOUT" ${command[@]+"${command[@]}"} "$1" "${@:3}" </dev/null >"$2" 2>&1 &
    trap end_jobs INT TERM
    wait $!
}

# Read one log; say "passed failed skipped".  cmocka calls a skipped test "not ok ... # SKIP".
tally() { # LOG STATUS
    awk -v rc="$2" '
        /^1\.\.[0-9]+/           { sub(/^1\.\./, ""); plan += $1; next }
        /^(not )?ok .*# *[Ss][Kk][Ii][Pp]/ { skip++; next }
        /^ok( |$)/               { pass++; next }
        /^not ok( |$)/           { fail++; next }
        END {
            seen = pass + fail + skip
            if (!seen && rc == 0 && !plan) pass = 1         # a plain program that succeeded
            else if (seen < plan) fail += plan - seen       # it died on the way
            if (rc != 0 && !fail) fail = 1
            print pass + 0, fail + 0, skip + 0
        }' "$1"
}

# Processor seconds of what the shell had waited for when it wrote this.
cpu_seconds() { # TIMES
    awk 'NR == 2 { for (i = 1; i < 3; i++) { split($i, t, "[ms]"); s += 60 * t[1] + t[2] } printf "%.2f", s }' "$1"
}

do_test() { # TEST: run it and leave LOG and LOG.sum behind
    local name log start rc pass fail skip
    name=$(name_of "$1") log=$logs/${name//\//.}.log start=$(now)
    run_one "$1" "$log"
    rc=$?
    times >"$log.times"
    read -r pass fail skip < <(tally "$log" "$rc")
    {
        flock 9
        if [ "$fail" -gt 0 ]; then
            printf 'FAIL  %-28s %3d passed, %d failed (exit status %d); its output:\n' "$name" "$pass" "$fail" "$rc"
            sed 's/^/      | /' "$log"
        else
            printf 'ok    %-28s %3d passed' "$name" "$pass"
            [ "$skip" -gt 0 ] && printf ', %d skipped' "$skip"
            awk -v a="$start" -v b="$(now)" -v cpu="$(cpu_seconds "$log.times")" 'BEGIN { printf "  %.2f s (%s CPU)\n", b - a, cpu }'
        fi
        awk -v a="$start" -v b="$(now)" -v t="$1" 'BEGIN { printf "%.2f\t%s\n", b - a, t }' >>"$logs/.seconds"
    } 9>"$logs/.lock"
    echo "$pass $fail $skip" >"$log.sum"
}

# The tests, those of the most seconds last time first.  A test's last line counts.
longest_first() { # TEST...
    [ $# -eq 0 ] || printf '%s\n' "$@" | awk -F '\t' '
        FNR == NR { s[$2] = $1; next }
        { printf "%.2f\t%d\t%s\n", s[$1], FNR, $1 }' "$logs/.seconds" - | sort -k 1,1rn -k 2,2n | cut -f 3-
}

side_by_side() { # MOST TEST...
    local most=$1 running=0 t
    shift
    for t in "$@"; do
        if [ "$running" -ge "$most" ]; then
            wait -n
            running=$((running - 1))
        fi
        do_test "$t" 8>&- &
        running=$((running + 1))
    done
    wait
}

rm -f "$logs"/*.log "$logs"/*.sum "$logs"/*.times
together=() alone=()
for t in "$@"; do
    if grep -qsx '# run.sh: alone' "$t"; then alone+=("$t"); else together+=("$t"); fi
done
touch "$logs/.seconds"
{
    printf '0\t\n' # never empty, which awk would not tell from the list
    awk -F '\t' '{ s[$2] = $1 } END { for (t in s) if (t) printf "%s\t%s\n", s[t], t }' "$logs/.seconds"
} >"$logs/.seconds.new"
mv "$logs/.seconds.new" "$logs/.seconds"
mapfile -t together < <(longest_first "${together[@]}")
side_by_side "$jobs" "${together[@]}"
side_by_side 1 "${alone[@]}"

# Each skip by its suite, with its name and why.
awk '/^(not )?ok .*# *[Ss][Kk][Ii][Pp]/ {
    sub(/^(not )?ok [0-9]* *(- )?/, ""); sub(/# *[Ss][Kk][Ii][Pp] */, "# ")
    suite = FILENAME; sub(/.*\//, "", suite); sub(/\.log$/, "", suite); sub(/\./, "/", suite)
    print "skip  " suite ": " $0
}' "$logs"/*.log /dev/null
lost=$(($# - $(find "$logs" -name '*.log.sum' | wc -l)))
cat "$logs"/*.sum | awk -v lost="$lost" '{ p += $1; f += $2; s += $3 } END {
    f += lost
    printf "%d passed, %d failed, %d skipped\n", p, f, s
    exit f > 0 }'
