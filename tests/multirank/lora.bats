#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031 # a test's own meshes are for the functions that it calls
# shellcheck disable=SC2154,SC2034 # variables of the helper and of topology.bash
# Adapters on many ranks: losses, norms and weights are those of one rank; saved on one mesh, resumed on
# another.

load ../slurm/helper
steps=4
load topology

# All kinds of parallelism, fewer key-value heads than tensor ranks, and more ranks than the LoRA rank.
meshes=("1 1 1 1 1 1" "2 1 1 1 1 1" "1 2 1 1 1 1" "1 1 1 1 2 1" "1 1 2 1 1 1" "1 2 1 1 2 4"
    "1 1 1 1 8 1" "1 4 1 1 1 4" "2 1 1 2 1 2" "1 2 1 1 1 2 2" "1 1 1 1 2 1 2")
pairs=([0]="9" [5]="2" [9]="3")

lora='{"kind": "lora", "module_name_pattern": ".*_proj|.*gate", "params": {"r": 3, "alpha": 12}}'

# tune MODEL MESH DIR [OPTION...]: trains adapters on a mesh.
tune() {
    train "$1" "$2" "$3" --set "peft=$lora" \
        --set trainer.checkpointing.period_steps=2 "${@:4}"
}

# on_meshes MODEL MESH...: compares these meshes (by number) with one rank; all with D9D_LONG=1.
on_meshes() {
    local i bad=0 some=("${@:2}")
    [ -z "${D9D_LONG:-}" ] || some=("${!meshes[@]}")
    tune "$1" "${meshes[0]}" alone
    for i in "${some[@]}"; do
        rm -rf run
        { tune "$1" "${meshes[i]}" run && same run alone; } || { echo "mesh ${meshes[i]}"; bad=1; }
    done
    rm -rf alone
    [ "$bad" -eq 0 ]
}

# same_adapter A B: the same configuration, and factors as near as weights.
same_adapter() {
    local dir
    cmp "$2/adapter/adapter_config.json" "$1/adapter/adapter_config.json"
    for dir; do
        mkdir "$dir/factors" && cp "$dir/adapter/adapter_model.safetensors" "$dir/factors/model.safetensors"
    done
    "$driver" "$2/factors" "$1/factors"
}

@test "LoRA of a MoE model trains the same on every mesh" { on_meshes moe 5 6 9; }
@test "LoRA of a dense model trains the same on every mesh" {
    local meshes=("1 1 1 1 1 1" "1 2 1 1 2 1" "2 1 2 1 1 1" "1 1 2 1 2 1" "1 1 1 1 8 1")
    on_meshes dense 1
}

@test "prompt tuning trains the same on every mesh, and begins as the same rows of the vocabulary" {
    local i bad=0 some=(1 3 4 6) begin
    lora='{"kind": "prompt_tuning", "num_virtual_tokens": 5}'
    meshes=("1 1 1 1 1 1" "1 2 1 1 2 1" "2 1 2 1 1 1" "1 1 2 1 2 1" "1 1 1 1 8 1" "1 2 1 1 1 1 2" "2 1 1 1 2 1 2")
    [ -z "${D9D_LONG:-}" ] || some=("${!meshes[@]}")
    # trained DIR: what a run has learned, for same().
    trained() { mkdir "$1/export" && cp "$1/adapter/adapter_model.safetensors" "$1/export/model.safetensors"; }
    for begin in sample_vocab random; do
        lora=${lora/5*/5, \"init\": \"$begin\"\}}
        rm -rf alone
        tune dense "${meshes[0]}" alone && trained alone
        for i in "${some[@]}"; do
            rm -rf run
            { tune dense "${meshes[i]}" run && trained run && same run alone; } || { echo "mesh ${meshes[i]}"; bad=1; }
        done
    done
    rm -rf alone run
    lora=${lora/5/3}
    tune moe "${meshes[0]}" alone && trained alone
    tune moe "1 2 1 1 2 4" run && trained run && same run alone
    rm -rf alone run
    [ "$bad" -eq 0 ]
}

@test "DoRA trains the same on every mesh: norms of rows that ranks have parts of" {
    lora='{"kind": "dora", "module_name_pattern": "all-linear", "params": {"r": 3, "alpha": 12}}'
    local meshes=("1 1 1 1 1 1" "1 2 1 1 2 1" "2 1 2 1 1 1" "1 1 2 1 2 1" "1 1 1 1 8 1" "1 2 1 1 1 1 2" "1 1 1 1 4 1")
    on_meshes dense 1 4 5
}

@test "(IA)^3 trains the same on every mesh" {
    lora='{"kind": "ia3", "module_name_pattern": ".*\\.(k_proj|v_proj|o_proj|down_proj)", "feedforward_name_pattern": "down_proj"}'
    local meshes=("1 1 1 1 1 1" "1 2 1 1 2 1" "2 1 2 1 1 1" "1 1 2 1 2 1" "1 1 1 1 8 1" "1 2 1 1 1 1 2" "1 1 1 1 4 1")
    on_meshes dense 1 4 5
}

@test "modules trained whole beside adapters train the same on every mesh, and export the same adapter" {
    sed 's/"shared_expert": {[^}]*}/"shared_expert": null/' moe.json >plain.json
    lora='{"kind": "stack", "methods": [
        {"kind": "lora", "module_name_pattern": ".*_proj", "layers_to_transform": [0], "params": {"r": 3, "alpha": 12}},
        {"kind": "full_tune", "module_name_pattern": "model\\.(norm|embed_tokens)|lm_head|.*\\.1\\.mlp"}]}'
    on_meshes plain 5 9
    rm -rf alone run
    tune plain "${meshes[0]}" alone
    tune plain "1 2 1 1 2 1 2" run
    same run alone
    same_adapter run alone
    rm -rf alone run
}

@test "LoRA of embedding and head trains the same on every mesh, also of a tied table" {
    lora='{"kind": "lora", "module_name_pattern": "model\\.embed_tokens|lm_head|.*q_proj", "params": {"r": 3, "alpha": 12, "dropout": 0.2}}'
    local meshes=("1 1 1 1 1 1" "1 2 1 1 2 1" "2 1 2 1 1 1" "1 1 2 1 2 1" "1 1 1 1 2 1 2" "1 2 1 1 1 1 2")
    on_meshes dense 1 3 4
    sed 's/"num_hidden_layers"/"tie_word_embeddings": true, &/' dense.json >tied.json
    lora='{"kind": "lora", "module_name_pattern": "model\\.embed_tokens|.*q_proj", "params": {"r": 3, "alpha": 12}}'
    on_meshes tied 1 4 5
}

@test "dropout masks do not depend on the mesh" {
    lora='{"kind": "lora", "module_name_pattern": ".*self_attn.*_proj|.*gate|.*shared.*", "params": {"r": 3, "alpha": 12, "dropout": 0.3}}'
    on_meshes moe 4 5 7 10
}

# The masks of an expert's rows are those of their tokens, which other ranks may have: over one level, over
# nodes, with full experts, and recomputed.
@test "dropout masks of experts do not depend on the mesh" {
    lora='{"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 3, "alpha": 12, "dropout": 0.3}}'
    on_meshes moe 3 5 7 8 9
    tune moe "${meshes[0]}" alone
    rm -rf run
    tune moe "1 4 1 1 1 4" run --set mesh.expert_parallel_local=2 --set model_provider.checkpointing=full
    same run alone
    full=(--set model_provider.router.capacity_factor=1)
    rm -rf alone run
    tune moe "${meshes[0]}" alone "${full[@]}"
    tune moe "1 2 1 1 2 4" run "${full[@]}"
    same run alone
    rm -rf alone run
}

@test "adapter-only checkpoints saved on one mesh resume on another" {
    local from to bad=0
    only=(--set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true)
    for from in "${!pairs[@]}"; do
        for to in ${pairs[from]}; do
            rm -rf first run
            tune moe "${meshes[from]}" first "${only[@]}"
            cp -r first run && rm -rf run/export run/checkpoints/step-00000004
            run -1 grep -o '"name": "[^"]*q_proj.weight"' run/checkpoints/*/manifest.json
            tune moe "${meshes[to]}" run "${only[@]}"
            tac run/metrics.jsonl | awk -F'[:,]' '!/"loss"/ || !seen[$2]++' | tac >tidy && mv tidy run/metrics.jsonl
            same run first || { echo "from ${meshes[from]} to ${meshes[to]}"; bad=1; }
        done
    done
    [ "$bad" -eq 0 ]
}

@test "training from given adapters over pipeline stages equals one rank" {
    sed 's/"shared_expert": {[^}]*}/"shared_expert": null/' moe.json >plain.json
    rm -rf first alone run
    tune plain "1 1 1 1 1 1" first
    on=(--set trainer.model_stage_factory.source_adapter=first/adapter)
    tune plain "1 1 1 1 1 1" alone "${on[@]}"
    for mesh in "1 1 1 1 1 1 2" "1 2 1 1 1 2 2"; do
        rm -rf run
        tune plain "$mesh" run "${on[@]}"
        same run alone
    done
}

@test "adapters exported by several ranks equal those of one" {
    sed 's/"shared_expert": {[^}]*}/"shared_expert": null/' moe.json >plain.json
    rm -rf alone run
    tune plain "1 1 1 1 1 1" alone
    tune plain "1 2 1 1 2 4" run
    same run alone
    same_adapter run alone
}
