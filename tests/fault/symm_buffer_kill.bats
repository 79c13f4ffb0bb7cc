#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of topology.bash
# Ranks that read each other's memory through symmetric staging buffers: one is killed or hangs at a
# random moment of training.  The others end soon, the rank is named with its call, and the
# checkpoints are good.

load ../slurm/helper

load ../multirank/topology

export D9D_P2P=force
saving=(--set data.epochs=null --set trainer.checkpointing.period_steps=2)

setup() { with_mpi && enter && struck d9d-train; }

# strike_run SIGNAL MODEL MESH TIMEOUT: sends SIGNAL to rank `who` of a run.  The messages are in err,
# those of d9d-metrics in said.
strike_run() {
    rm -rf run pid.*
    train "$2" "$3" run "${saving[@]}" --set trainer.run.steps=9999 \
        --set trainer.timeout.step_timeout="$4" --set trainer.timeout.init_timeout=60 2>err & # also applies to saves
    job=$!
    wait_for has_lines run/metrics.jsonl $((4 + RANDOM % 20))
    sleep "0.0$((RANDOM % 10))$((RANDOM % 10))"
    strike "$1"
    ended=0
    wait $job || ended=$?
    [ $ended -ne 0 ]
    d9d-metrics flight run >report
}

# goes_on MODEL MESH: resumes to the next multiple of 20 steps, with the bits of an undisturbed run.
goes_on() {
    local saved to whole
    saved=$(find run/checkpoints -name 'step-????????' | sort | tail -n 1)
    to=$(((10#${saved##*-} / 20 + 1) * 20))
    whole="whole $1 $2 $to"
    [ -d "$whole" ] || train "$1" "$2" "$whole" "${saving[@]}" --set trainer.run.steps=$to
    train "$1" "$2" run "${saving[@]}" --set trainer.run.steps=$to
    grep -q '"restart": 1, "step": [1-9]' run/metrics.jsonl
    cmp run/export/model.safetensors "$whole/export/model.safetensors"
}

# In turn: tensor, context and expert parallelism, and all of them.
runs=("dense 1 1 1 1 2 1" "dense 1 1 2 1 1 1" "moe 1 2 1 1 1 2" "moe 1 1 2 1 2 4")
each() { # TIMES SIGNAL TIMEOUT FILE STATE
    local i run first=$RANDOM
    for i in $(seq "$1"); do
        run=${runs[(first + i) % ${#runs[@]}]}
        strike_run "$2" "${run%% *}" "${run#* }" "$3"
        named "$4" "$5"
        goes_on "${run%% *}" "${run#* }"
    done
}

@test "a killed rank ends the others and is named; checkpoints are good" { each "${D9D_LONG:+10}4" KILL 300 report gone; }
@test "a hanging rank ends the others and is named; checkpoints are good" { each "${D9D_LONG:+4}2" STOP 20 err stopped; }
