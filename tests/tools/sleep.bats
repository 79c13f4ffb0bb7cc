#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# d9d-train releases its device and takes it back (SIGUSR2).

load train_bench
teardown() {
    [ -z "${pid:-}" ] || kill -KILL "$pid" 2>/dev/null || true # one that sleeps would outlive a failure
    clear_bench
}

epochs='data={"dataset": "data", "epochs": 20}'

# begin DIR [OPTION]...: a long run in the background, until it has done some steps.
begin() {
    d9d-train --set "$epochs" --set trainer.run.dir="$1" --set trainer.run.steps=400 "${@:2}" \
        c.json 2>"$1.log" 3>&- &
    pid=$!
    wait_for has_said "$1/metrics.jsonl" '"step": 5,'
}
has_said() { [ "$(grep -cs -- "$2" "$1")" = "${3:-1}" ]; } # FILE TEXT [TIMES]

@test "a run that slept goes on bit for bit" {
    d9d-train -q --set "$epochs" --set trainer.run.dir=awake --set trainer.run.steps=400 c.json
    begin dozed
    for i in 1 2; do
        kill -USR2 "$pid"
        wait_for has_said dozed.log asleep $i
        wait_for is_quiet dozed
        [ "$(records dozed)" -lt 400 ]
        kill -USR2 "$pid"
        wait_for has_said dozed.log awake: $i
    done
    wait "$pid"
    [ "$(records dozed)" = 400 ]
    cmp <(history_of awake) <(history_of dozed)
    cmp awake/export/model.safetensors dozed/export/model.safetensors
}

@test "nearly everything is given back" {
    begin run
    kill -USR2 "$pid"
    wait_for has_said run.log asleep
    run -0 awk '/asleep/ {
        free = $0; sub(/.*asleep: /, "", free)
        split(free, w, " "); exit !(w[1] >= 0.95 * w[3] && w[3] > 0) }' run.log
    kill -USR2 "$pid"
    wait "$pid"
}

@test "a run that is told to leave while it sleeps wakes, saves and leaves" {
    begin run
    kill -USR2 "$pid"
    wait_for has_said run.log asleep
    kill -TERM "$pid"
    code=0
    wait "$pid" || code=$?
    [ "$code" = 75 ]
    grep -q "SIGTERM: saved after step" run.log
    d9d-train -q --set "$epochs" --set trainer.run.dir=run --set trainer.run.steps=400 c.json
    [ "$(grep -c '"restart": 1' run/metrics.jsonl)" = 1 ]
}
