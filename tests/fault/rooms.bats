#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of topology.bash
# Ranks that take rows from each other's memory: one is killed or stands still at a random moment of
# training.  The others are gone soon, it is named with its call, and what was saved is good.

load ../slurm/helper

load ../dist/topology

export D9D_COMM_SHARE=1
saving=(--set trainer.run.steps=100 --set data.epochs=null --set trainer.checkpointing.period_steps=2)

setup() {
    with_mpi
    enter
    mkdir -p bin # a d9d-train that says who it is
    # shellcheck disable=SC2016
    printf '#!/bin/bash\necho $$ >pid.$OMPI_COMM_WORLD_RANK\nexec %q "$@"\n' "$D9D_BIN/d9d-train" >bin/d9d-train
    chmod +x bin/d9d-train
    PATH=$work/bin:$PATH
}

all_gone() {
    local f
    for f in pid.*; do is_gone "$(cat "$f")" || return 1; done
}

# strike SIGNAL MODEL MESH TIMEOUT: a rank of a run, `who`, which all outlive by seconds at most;
# what they say is in err, and in said what d9d-metrics says.
strike() {
    rm -rf run pid.*
    train "$2" "$3" run "${saving[@]}" --set trainer.run.steps=9999 --set trainer.timeout.step_timeout="$4" 2>err &
    job=$!
    wait_for has_lines run/metrics.jsonl $((4 + RANDOM % 20))
    sleep "0.0$((RANDOM % 10))$((RANDOM % 10))"
    local ranks=(pid.*)
    who=$((RANDOM % ${#ranks[@]}))
    kill "-$1" "$(cat pid.$who)"
    patience=60 wait_for all_gone # the limit, and what finding out and ending take
    ended=0
    wait $job || ended=$?
    [ $ended -ne 0 ]
    d9d-metrics flight run >said
}

# named FILE HOW: it says that the one who was struck is HOW, and its call.
named() {
    grep -E "(rank|is) $who \([^)]*\),? which is $2( since [0-9.]+ s)?; its last call: [a-z_+]+: [a-z_]+ [0-9]+ of " "$1" || { echo "rank $who:"; cat err said; return 1; }
}

# goes_on MODEL MESH: from what was saved, to the bits of a run that nobody struck.
goes_on() {
    [ -d "whole $1 $2" ] || train "$1" "$2" "whole $1 $2" "${saving[@]}"
    train "$1" "$2" run "${saving[@]}"
    grep -q '"restart": 1, "step": [1-9]' run/metrics.jsonl
    "$driver" run/export "whole $1 $2/export"
    cmp run/export/model.safetensors "whole $1 $2/export/model.safetensors"
}

# The rows of tensor, context and expert parallelism, and all of them at once, in turn.
runs=("dense 1 1 1 1 2 1" "dense 1 1 2 1 1 1" "moe 1 2 1 1 1 2" "moe 1 1 2 1 2 4")
each() { # TIMES SIGNAL TIMEOUT FILE HOW
    local i run first=$RANDOM
    for i in $(seq "$1"); do
        run=${runs[(first + i) % ${#runs[@]}]}
        strike "$2" "${run%% *}" "${run#* }" "$3"
        named "$4" "$5"
        goes_on "${run%% *}" "${run#* }"
    done
}

@test "one is killed" { each "${D9D_LONG:+10}4" KILL 300 said gone; }
@test "one stands still" { each "${D9D_LONG:+4}2" STOP 3 err stopped; }
