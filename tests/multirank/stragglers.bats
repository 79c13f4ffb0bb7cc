#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034,SC2317 # variables of bats; for topology.bash; functions that run calls
# Stragglers: a rank that computes slower than its peers is named, whatever the mesh, though all steps take
# the same time on all ranks.  It is made slow by stopping it most of the time; so that this hits its
# computing, and not its messages, the models are large and the ranks replicas.

load ../slurm/helper
batch=16
load topology

setup_file() {
    workroom
    with_mpi
    d9d-shard -q --format tokens --out data "$golden/moe/train.jsonl"
    configure dense 48 '"intermediate_size": 768' | sed 's/"hidden_size": 32/"hidden_size": 256/' >dense.json
    configure moe 24 '"intermediate_size": 128, "num_experts": 8, "experts_top_k": 3' | sed 's/"hidden_size": 32/"hidden_size": 256/' >moe.json
}
setup() {
    with_mpi
    enter
    rm -rf run whole pid.*
    struck d9d-train
}
teardown() { [ -z "${slower:-}" ] || relieved; }

watched=(--set data.epochs=null --set trainer.stragglers.period_steps=5 --set trainer.stragglers.periods=2
    --set trainer.stragglers.factor=1.5 --set trainer.run.steps=99999 --set trainer.timeout.step_timeout=600)

# slow RANK: stops the rank for 30 ms in every 40.
slow() {
    local pid fifo
    pid=$(cat "pid.$1") fifo=$work/never
    [ -p "$fifo" ] || mkfifo "$fifo"
    exec 9<>"$fifo"
    while kill -STOP "$pid" 2>/dev/null; do
        read -rt 0.03 -u 9 || true
        kill -CONT "$pid" 2>/dev/null
        read -rt 0.01 -u 9 || true
    done
}
# relieved: no rank is stopped any more.  left: and the run leaves.
relieved() {
    local f
    kill "$slower" 2>/dev/null
    for f in pid.*; do kill -CONT "$(cat "$f")" 2>/dev/null || true; done
}
left() {
    relieved
    kill "$(cat pid.0)"
    wait "$job" || true
}
# begun MODEL MESH OPTION...: starts a run without an end in the background; err has what it says.
begun() {
    train "$1" "$2" run "${watched[@]}" "${@:3}" 2>err 3>&- &
    job=$!
    wait_for has_lines run/metrics.jsonl 6
}
told() { grep -q "\"straggler\": [0-9]*, \"rank\": $1, .*\"slower\"" run/metrics.jsonl; }
ended() { is_gone "$job"; }

@test "a rank that is slow is named, in the log, the records and by d9d-metrics" {
    begun dense "4 1 1 1 1 1"
    slow 2 3>&- &
    slower=$!
    wait_for told 2
    wait_for grep -qE "warning: rank 2 \(.*\) computes [0-9.]+ times slower than its peers since step [0-9]+: [0-9.e+]+ ms a step, and they [0-9.e+]+" err
    d9d-metrics show run >shown
    assert grep -qE "^step [0-9]+: rank 2 \(.*\) computes [0-9.]+ times slower than its peers since step" shown
    d9d-metrics --json show run | grep -q '"stragglers"'
    left
}

@test "ranks are compared within their stage and among those with the same experts" {
    begun dense "2 1 1 1 1 1 2"
    slow 1 3>&- &
    slower=$!
    wait_for told 1
    left
    rm -rf run
    begun moe "4 1 1 1 1 2"
    slow 3 3>&- &
    slower=$!
    wait_for told 3
    left
}

@test "stop: the run saves, the node is excluded, and the run goes on later" {
    begun dense "4 1 1 1 1 1" --set trainer.stragglers.action=stop
    slow 3 3>&- &
    slower=$!
    wait_for ended
    rc=0
    wait $job || rc=$?
    [ $rc -eq 75 ]
    assert grep -qE "rank [0-9] \(.*\) computes [0-9.]+ times slower than .*: saved after step [0-9]+ of 99999" err
    assert grep -q "computes .* times slower" "run/excluded_nodes/$(uname -n)"
    [ -n "$(ls run/checkpoints)" ]
    train dense "4 1 1 1 1 1" run --set data.epochs=null --set trainer.run.steps=$(($(numbers step run | tail -n 1) + 2)) >log 2>&1
    [ -e run/export ]
}

@test "where no rank does what another one does, none is compared" {
    train moe "1 2 1 1 1 2" run --set data.epochs=null --set trainer.stragglers.period_steps=5 2>&1 | tee log
    assert grep -q "trainer.stragglers: no rank of 2 does what another one does, so that none can be compared" log
}

@test "measuring changes no bit" {
    while read -r model degrees; do
        rm -rf run whole
        train "$model" "${degrees//,/ }" whole --set data.epochs=null
        train "$model" "${degrees//,/ }" run --set data.epochs=null --set trainer.stragglers.period_steps=2
        cmp run/export/model.safetensors whole/export/model.safetensors
        diff <(numbers loss run) <(numbers loss whole)
    done <<'MESHES'
dense 2,2,1,1,1,1
dense 1,1,2,1,2,1
moe 2,1,1,1,1,2,2
MESHES
}
