# shellcheck shell=bash disable=SC2154 # variables of bats
# workplace.bash - shared by the scripts of several suites.

# workplace: a new directory, in memory where that is possible: these tests sync a lot.
workplace() { mktemp -d "${TMPDIR:-/dev/shm}/d9d-XXXXXX" 2>/dev/null || mktemp -d /tmp/d9d-XXXXXX; }

# uptime_s: seconds of a clock that nobody sets; bash has the time of day alone.
uptime_s() {
    local up
    read -r up _ </proc/uptime
    echo "${up%.*}"
}

# wait_for COMMAND...: until it succeeds.  Patience, in seconds, is for what hangs: a busy machine
# may take long.
wait_for() {
    local end=$(($(uptime_s) + ${patience:-900}))
    until "$@"; do
        [ "$(uptime_s)" -lt "$end" ] || { echo "waited in vain for: $*" >&2; return 1; }
        sleep 0.02
    done
}
# is_gone PID: it has ended, or only its parent's look is missing.
is_gone() { [[ "$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null)" =~ ^[ZX]?$ ]]; }
# is_quiet RUN: nothing is recorded for half a second.
is_quiet() {
    local n
    n=$(wc -c <"$1/metrics.jsonl")
    sleep 0.5
    [ "$(wc -c <"$1/metrics.jsonl")" = "$n" ]
}
# near_end COMMAND...: `run` in an allocation of Slurm that ends in seconds, in more of them where
# that was too late to begin.
near_end() {
    local seconds
    for seconds in 2 10 50 250; do
        SLURM_JOB_END_TIME=$((EPOCHSECONDS + seconds)) run --separate-stderr "$@"
        [[ $status -eq 2 && $stderr == *"there is no time but to save"* ]] || break
    done
}
has_lines() { [ -e "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ]; } # FILE N: so many or more
