#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# MoE load balancing on many meshes: losses, norms, weights, expert loads and biases are those of
# one rank.  A mesh is a line as in topology.bats, followed by the pipeline's degree.

load ../slurm/helper

load topology

meshes="2 1 1 1 1 1 1,1 2 1 1 1 2 1,1 1 2 1 2 4 1,1 1 1 1 1 1 2"
even='--set model_provider.router.aux_loss_coef=0.02 --set model_provider.router.z_loss_coef=0.01
    --set model_provider.router.expert_bias=true --set model_provider.router.bias_update_rate=0.01
    --set trainer.logging.experts=counts'
grouped="--set model_provider.router.score=sigmoid --set model_provider.router.groups=4
    --set model_provider.router.top_groups=2 --set model_provider.router.scale=1.5"

# values RUN: names and values of a run's expert statistics, one per line.
values() {
    grep '"loss"' "$1/metrics.jsonl" | grep -oE '"step": [0-9]+|"(expert|router)_[a-z_0-9/]+": [^,}]+'
}

# same_experts A B: compares counts exactly, other values to 1e-5.
same_experts() {
    paste <(values "$1") <(values "$2") | awk '
        { a = $2; b = $4; n++
          if ($1 != $3 || !((a - b) ^ 2 <= ($1 ~ /loss/ ? 1e-5 * b : 0) ^ 2)) { print; bad = 1 } }
        END { exit bad || n < 100 }'
}

# many OPTION...: compares every mesh with one rank.
many() {
    local mesh
    rm -rf alone
    d9d-train -q --device cpu --set trainer.run.dir=alone "$@" moe.json
    while read -r mesh; do
        rm -rf run
        train moe "$mesh" run "$@"
        same run alone
        same_experts run alone
    done < <(tr , '\n' <<<"$meshes")
}

@test "router losses, bias and expert loads equal one rank" {
    # shellcheck disable=SC2086 # options
    many $even
}

@test "sigmoid routers with groups equal one rank" {
    # shellcheck disable=SC2086 # options
    meshes="1 2 1 1 2 4 1" many $even $grouped
}

@test "a router resumes on another mesh, and bit for bit on the same" {
    # shellcheck disable=SC2206 # options
    options=($even --set trainer.checkpointing.period_steps=5)
    rm -rf first run
    train moe "1 2 1 1 1 2" first "${options[@]}"
    for mesh in "1 2 1 1 1 2" "1 1 1 1 2 1"; do
        rm -rf run && cp -r first run && rm -r run/export run/checkpoints/step-00000010
        train moe "$mesh" run "${options[@]}"
        "$driver" run/export first/export
        [ "$mesh" != "1 2 1 1 1 2" ] || diff -r first/export run/export
    done
}

@test "activation checkpointing counts expert loads once" {
    # shellcheck disable=SC2086 # options
    for checkpointing in full selective; do
        rm -rf alone run
        d9d-train -q --device cpu --set trainer.run.dir=alone $even moe.json
        d9d-train -q --device cpu --set trainer.run.dir=run $even \
            --set model_provider.checkpointing=$checkpointing moe.json
        same_experts run alone
        cmp alone/export/model.safetensors run/export/model.safetensors
    done
}

@test "a micro-batch of several rows equals its rows one by one" {
    # shellcheck disable=SC2086 # options
    for rows in 1 4; do
        rm -rf run$rows
        d9d-train -q --device cpu --set trainer.run.dir=run$rows $even \
            --set trainer.batching.microbatch_size=$rows moe.json
    done
    same run4 run1
    same_experts run4 run1
}
