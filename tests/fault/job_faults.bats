#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034,SC2317 # variables of bats; for topology.bash; functions that run calls
# Faults at random moments of a job of 8 or 16 ranks, which starts again in the same allocation after each:
# ranks and hosts are killed, stop and stand still, also while a local checkpoint is sent; messages are lost;
# bits flip in weights, states, gradients, computations and messages; disks are slow or full.  The final weights are those of an
# undisturbed run, bit for bit, and what was flipped is found within its period and named.
#
# A host is a folder here, which D9D_LOCAL_DIR names for each rank.  D9D_FAULTS="FIRST N" runs so many
# faults, from that seed on: "1 10", in `make test-long` "1 100".  A failure prints the seed of its run.
# D9D_FAULTS_FROM=disk leaves local checkpoints out, to compare what a fault costs.

load ../slurm/helper
steps=40
load ../multirank/topology

# Ranks, expert degree and all degrees of topology.bash.
meshes=("8 dense 2 4 1 1 1 1" "8 dense 4 1 1 1 2 1" "8 dense 2 2 1 1 1 1 2" "8 moe 2 4 1 1 1 4" "8 dense 2 2 2 1 1 1" "16 dense 4 4 1 1 1 1")
kinds=(kill kill kill kill kill kill host host weights optimizer gradients tokens stuck weights gradients
    message message pause slow full stop link sent sent sent frozen bit)
options=(--set trainer.determinism.base_seed=3 --set data.epochs=null --set trainer.batching.global_batch_size=16
    --set trainer.checkpointing.period_steps=10 --set trainer.checkpointing.num_to_keep=2)
safe=(--set trainer.integrity.period_steps=1 --set trainer.integrity.memory=true
    --set trainer.integrity.rerun_period_steps=1 --set trainer.timeout.step_timeout=5 --set trainer.timeout.init_timeout=20)

setup_file() {
    workroom
    with_mpi
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    plugin flip "$BATS_TEST_DIRNAME/../multirank/flip_plugin.c"
    # shellcheck disable=SC2046 # several options
    ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -O2 -o faults.so "$BATS_TEST_DIRNAME/job_faults_preload.c" $(mpicc --showme:compile) -ldl
    d9d-shard -q --format tokens --out data "$golden/moe/train.jsonl"
    configure dense 48 '"intermediate_size": 48' | sed '1s/{/{"plugin": "libflip.so", "task": {"name": "flip_tokens"}, /' >dense.json
    configure moe 24 '"intermediate_size": 24, "num_experts": 8, "experts_top_k": 3' |
        sed '1s/{/{"plugin": "libflip.so", "task": {"name": "flip_tokens"}, /' >moe.json
    # Two ranks of each host are neighbours.
    cat >on_host <<'ON'
#!/bin/bash
export D9D_LOCAL_DIR=$PWD/host$((OMPI_COMM_WORLD_RANK / 2))
exec "$@"
ON
    chmod +x on_host
}
setup() {
    with_mpi
    enter
    unset FLIP FAULT
    export FAULT_LOG=$work/faults
}

# start DIR OPTION...: one start of the job on the mesh of `job`; the log goes to `log`.
start() {
    through=(./on_host env LD_PRELOAD="$work/faults.so")
    train "${job[1]}" "${job[*]:2}" "$@" "${options[@]}" >log 2>&1
}
# undisturbed M: the weights of a run on mesh M, in wholeM; and how many messages and writes a rank makes.
undisturbed() {
    [ ! -d "whole$1" ] || return 0
    local began=${EPOCHREALTIME/.}
    rm -rf faults run host*
    unset FLIP FAULT
    FAULT="count 1 0 0" start run "${all[@]}" || { cat log; return 1; }
    mv run "whole$1"
    read -r _ sends _ writes <faults || return 1
    echo "$sends $writes $((${EPOCHREALTIME/.} - began))" >"calls$1"
}
# repeated: the steps that were done more than once, each time that a start resumed.
repeated() {
    awk -F'[:,}]' '/^{"restart"/ { again += last - $4; last = $4 } /^{"step"/ { last = $2 } END { print again + 0 }' run/metrics.jsonl
}
newest() { numbers step run 2>/dev/null | tail -n 1; }

# draw: the fault of the next start.
draw() {
    local r=$((RANDOM * 32768 + RANDOM)) sends writes at
    read -r sends writes _ <"calls$m"
    kind=${kinds[RANDOM % ${#kinds[@]}]} rank=$((RANDOM % job[0]))
    # Who always computes wrongly is found by a peer, which rows of experts have none.
    [ "$kind" != stuck ] || [ "${job[7]}" -eq 1 ] || kind=tokens
    at=$(newest)
    step=$((${at:-0} + 1 + RANDOM % (steps / 3)))
    unset FLIP FAULT
    rm -f faults
    case $kind in
    weights | optimizer | gradients | tokens | stuck) export FLIP="$kind $rank $step $r" ;;
    slow | full) export FAULT="$kind $rank $((1 + RANDOM % (writes + 1))) $r" ;;
    sent | frozen | bit) export FAULT="$kind $rank $((1 + RANDOM % 300)) $r" ;;
    host) export FAULT="kill $rank $((1 + r % (sends / 3))) $r" ;;
    *) export FAULT="$kind $rank $((1 + r % (sends / 3))) $r" ;;
    esac
}
# happened: the fault of this start took place.
happened() { [ -s faults ] || grep -q "^flipped" log; }

# found_in_time: a flipped bit is named in the step of the fault, or the next one.
found_in_time() {
    local said at
    said=$(grep -m 1 "silent data corruption" log) || { echo "exit status 76 without a sentence"; return 1; }
    [ "$kind" != message ] && [ "$kind" != bit ] || return 0
    at=$(grep -oE "(after step|steps [0-9]+ and|corruption: step) [0-9]+" <<<"$said" | grep -oE "[0-9]+$" | tail -n 1)
    [ -n "$at" ] || at=$(grep -oE "step [0-9]+" <<<"$said" | head -n 1 | grep -oE "[0-9]+")
    { [ "$at" -ge "$step" ] && [ "$at" -le $((step + 1)) ]; } || { echo "found in step $at: $said"; return 1; }
    grep -qE "rank $rank( of [0-9]+)? \(" <<<"$said" || { echo "rank $rank is not named: $said"; return 1; }
}

# judge STATUS: what a start that did not end the run may say.
judge() {
    case $1 in
    76)
        case $kind in
        weights | optimizer | gradients | tokens | stuck | message | bit) found_in_time && found=$((found + 1)) ;;
        *) false ;;
        esac
        ;;
    2) [ "$kind" = message ] ;; # a word of an agreement may be what was flipped
    *) true ;;
    esac
}

# disturbed SEED: a run to its end, with a fault in each start.
disturbed() {
    local starts rc history='' began=${EPOCHREALTIME/.}
    RANDOM=$1
    m=$((RANDOM % ${#meshes[@]}))
    read -ra job <<<"${meshes[m]}"
    peer=(--set trainer.integrity.rerun_on_peer=true)
    [ "${job[7]}" -eq 1 ] || peer=()
    all=("${safe[@]}" "${peer[@]}")
    undisturbed "$m" || return 1
    rm -rf run host*
    mkdir host{0..7}
    [ "${D9D_FAULTS_FROM:-}" = disk ] || all+=(--set trainer.checkpointing.local_period_steps=2)
    for ((starts = 1; ; starts++)); do
        [ "$starts" -le 100 ] || { echo "no end after 100 starts"; return 1; }
        draw
        rc=0
        start run "${all[@]}" || rc=$?
        ! happened || history+="  start $starts, at step $(newest): ${FLIP:-$FAULT}, exit status $rc: $(grep -hs flipped log | head -n 1)"$'\n'
        ! happened || faults=$((faults + 1)) of[$kind]=$((${of[$kind]:-0} + 1))
        [ "$rc" -ne 0 ] || break
        judge "$rc" || { echo "seed $1, start $starts, exit status $rc of ${FLIP:-$FAULT} on ${job[*]}:"; cat log; return 1; }
        [ "$kind" != host ] || ! happened || { rm -rf host$((rank / 2)) && mkdir host$((rank / 2)); }
    done
    read -r _ _ whole_us <"calls$m"
    again=$((again + $(repeated)))
    lost_us=$((lost_us + ${EPOCHREALTIME/.} - began - whole_us))
    cmp run/export/model.safetensors "whole$m/export/model.safetensors" || { printf 'seed %d: other weights, on %s:\n%s' "$1" "${job[*]}" "$history"; return 1; }
    [ -z "$(find host* -name 'd9d-*')" ] || { echo "seed $1: local checkpoints stay"; return 1; }
}

@test "faults at random moments: the run ends with the weights of an undisturbed one" {
    local first=1 n=10 seed faults=0 found=0 lost_us=0 again=0
    declare -A of=()
    [ -z "${D9D_LONG:-}" ] || n=100
    read -r first n <<<"${D9D_FAULTS:-$first $n}"
    for ((seed = first; faults < n; seed++)); do
        disturbed "$seed" || return 1
        echo "# seed $seed: $faults faults, $found flipped bits found, $again steps repeated, $((lost_us / (faults ? faults : 1) / 1000)) ms lost by each: $(for k in "${!of[@]}"; do printf '%s %d, ' "$k" "${of[$k]}"; done)" >&3
    done
}
