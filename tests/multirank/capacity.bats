#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Experts with a capacity on many meshes: losses, norms, weights, dropped shares and expert loads are
# those of one rank.  A mesh is a line as in topology.bats, followed by the pipeline's degree.

load ../slurm/helper

load topology

capacity="--set model_provider.router.capacity_factor=0.75 --set trainer.logging.experts=counts
    --set model_provider.router.aux_loss_coef=0.02"

# values RUN: names and values of a run's expert statistics, one per line.
values() {
    grep '"loss"' "$1/metrics.jsonl" | grep -oE '"step": [0-9]+|"(expert|router)_[a-z_0-9/]+": [^,}]+'
}

# same_experts A B: counts are equal, losses to 1e-5.
same_experts() {
    paste <(values "$1") <(values "$2") | awk '
        { a = $2; b = $4; n++
          if ($1 != $3 || !((a - b) ^ 2 <= ($1 ~ /loss/ ? 1e-5 * b : 0) ^ 2)) { print; bad = 1 } }
        END { exit bad || n < 100 }'
}

# alone: one rank, which drops a good part of the choices.
alone() {
    rm -rf alone
    # shellcheck disable=SC2086 # options
    d9d-train -q --device cpu --set trainer.run.dir=alone $capacity moe.json
    awk 'match($0, /"expert_dropped": [^,}]+/) {
             x = substr($0, RSTART + 18, RLENGTH - 18); n++; if (x < 0.1 || x > 0.9) bad = 1 }
         END { exit bad || n < 10 }' alone/metrics.jsonl
}

# on MESH...: each equals one rank.
on() {
    local mesh
    for mesh in "$@"; do
        rm -rf run
        # shellcheck disable=SC2086 # options
        train moe "$mesh" run $capacity
        same run alone
        same_experts run alone
    done
}

@test "experts with a capacity keep and drop the choices of one rank on every mesh" {
    alone
    on "2 1 1 1 1 1" "1 2 1 1 1 2" "1 1 2 1 2 4" "1 1 1 2 1 2" "1 1 1 1 2 1" "1 1 1 1 1 1 2" \
        "2 2 1 1 1 2 2"
}

@test "rows of other micro-batches, full checkpointing and expert groups over nodes change nothing" {
    alone
    for option in trainer.batching.microbatch_size=4 model_provider.checkpointing=full; do
        rm -rf run
        # shellcheck disable=SC2086 # options
        d9d-train -q --device cpu --set trainer.run.dir=run $capacity --set $option moe.json
        same run alone
        same_experts run alone
    done
    rm -rf run
    # shellcheck disable=SC2086 # options
    train moe "1 4 1 1 1 4" run $capacity --set mesh.expert_parallel_local=2
    same run alone
    same_experts run alone
}

@test "staging buffers in peer memory hold what has a capacity" {
    alone
    D9D_P2P=force on "1 2 1 1 1 2" "1 1 2 1 2 4"
}

@test "a capacity beyond what anybody chooses changes no bit" {
    rm -rf free run
    d9d-train -q --device cpu --set trainer.run.dir=free moe.json
    d9d-train -q --device cpu --set trainer.run.dir=run --set model_provider.router.capacity_factor=100 moe.json
    cmp {free,run}/export/model.safetensors
    grep -q '"expert_dropped": 0[,}.]' run/metrics.jsonl
}
