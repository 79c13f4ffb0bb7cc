#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034 # variables of bats and of topology.bash
# Combinations of features that are also tested alone, on meshes of several degrees: losses, norms,
# evaluations and weights are those of one rank.

load ../slurm/helper
layers=4 batch=12 steps=4 eps=1e-3
load topology

tied='model_provider.model.tie_word_embeddings=true'
packed=(data.dataset=odd data.epochs=null trainer.batching.microbatch_size=2)
even='model_provider.router={"score": "sigmoid", "expert_bias": true, "bias_update_rate": 0.1, "aux_loss_coef": 0.1, "z_loss_coef": 0.01}'
evaluated='evaluation={"data": {"dataset": "data"}, "samples": 7, "microbatch_size": 2, "period_steps": 2, "at_start": true}'

schedule() { printf 'trainer.pipelining.schedule={"schedule": "%s"%s}' "$1" "${2:-}"; }
lora() { printf '{"kind": "lora", "module_name_pattern": "%s", "params": {"r": 3, "alpha": 12, "dropout": %s}}' "$1" "$2"; }
whole() { printf '{"kind": "full_tune", "module_name_pattern": "%s"}' "$1"; }
stack() { local IFS=,; printf 'peft={"kind": "stack", "methods": [%s]}' "$*"; }

# together MODEL MESH KEY=VALUE...: trains and evaluates on the mesh and on one rank, and compares.
together() {
    local model=$1 mesh=$2 set options=(--set "$evaluated")
    shift 2
    for set; do options+=(--set "$set"); done
    rm -rf run alone
    d9d-train -q --device cpu --set trainer.run.dir=alone "${options[@]}" \
        --set 'trainer.pipelining.schedule={"schedule": "1f1b"}' "$model.json"
    train "$model" "$mesh" run "${options[@]}"
    same run alone && close_to 1e-5 <(numbers valid/loss run) <(numbers valid/loss alone)
}

@test "tied embedding, partly frozen, tensor and pipeline parallel" {
    together dense "1 1 1 1 2 1 2" "$tied" "$(schedule zero_bubble_v)" trainer.gradient_clipping.max_norm=1e-3
    together dense "1 2 1 1 1 1 2" "$tied" "$(stack "$(whole 'model\\.embed_tokens.*')" "$(lora '.*\\.q_proj' 0.3)")" \
        trainer.gradient_manager.reduce=step trainer.sharding.reshard_after_forward=false
}

@test "LoRA on experts and attention, packed documents of odd lengths, pipeline parallel" {
    d9d-shard -q --format tokens --pack 37 --out odd "$golden/moe/train.jsonl"
    together moe "1 1 1 2 1 2 2" "${packed[@]}" "$even" model_provider.checkpointing=selective \
        "$(stack "$(lora '.*grouped_experts.*' 0)" "$(lora '.*self_attn.*_proj' 0.3)" "$(whole '.*norm')")"
    together dense "1 1 3 1 2 1" "${packed[@]}" "$tied" model_provider.checkpointing=full
}

@test "top_k of all experts, loss-free balancing, two pipeline stages per rank" {
    together moe "1 2 1 1 1 2 2" "$even" model_provider.model.layer.experts_top_k=8 \
        "$(schedule 1f1b ', "num_stages_per_rank": 2, "zero_bubble": true')" trainer.gradient_manager.reduce=step
    together moe "3 1 1 1 2 2" "$even" data.order=bucketed 'optimizer={"name": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": true}'
}

# Prompts are most of each sample, so that some lie in several chunks.
@test "prefix masks, packed or not, context, tensor and pipeline parallel" {
    awk '{ split($0, part, "\"labels\": \\["); n = split(part[2], label, ", ")
           printf "%s\"labels\": [", part[1]
           for (i = 1; i <= n; i++) printf "%s%s", i < n - NR % 3 ? "-100" : label[i], i < n ? ", " : "\n" }' \
        "$golden/moe/train.jsonl" >prompts.jsonl
    d9d-shard -q --format tokens --out prompts prompts.jsonl
    d9d-shard -q --format tokens --pack 37 --out packed prompts.jsonl
    prefix=model_provider.attention_mask=prefix
    of_packs=(data.dataset=packed data.epochs=null trainer.batching.microbatch_size=2)
    together dense "1 2 2 1 1 1" "$prefix" "${of_packs[@]}" model_provider.checkpointing=full
    # Not by chance: a causal model has other losses.
    d9d-train -q --device cpu --set trainer.run.dir=causal --set data.dataset=packed --set data.epochs=null \
        --set trainer.batching.microbatch_size=2 dense.json
    run ! same causal alone
    together dense "1 1 1 2 2 1" "$prefix" "${of_packs[@]}"
    together moe "1 1 2 1 1 1 2" "$prefix" data.dataset=prompts
    together dense "1 1 2 1 2 1" "$prefix" "${of_packs[@]}" mesh.context_parallel_method=all_to_all
    together dense "1 1 2 2 1 1" "$prefix" data.dataset=prompts mesh.context_parallel_method=all_to_all+all_gather
}
