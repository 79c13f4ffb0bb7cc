#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# Modules that are trained whole beside adapters (peft's modules_to_save): written, read, merged and trained on.

load train_bench

whole='model\\.(norm|embed_tokens)|lm_head|.*\\.1\\.mlp\\.(router|grouped_experts)|.*\\.0\\.self_attn\\.q_norm'

# methods PATTERN: LoRA, and modules trained whole.
methods() {
    printf '%s\n' '{"kind": "stack", "methods": [
        {"kind": "lora", "module_name_pattern": ".*\\.(q|v)_proj", "params": {"r": 2, "alpha": 4}},
        {"kind": "full_tune", "module_name_pattern": "'"$1"'"}]}'
}

setup_file() {
    workshop
    cd "$shared" || return 1
    d9d-train -q --set trainer.run.dir=tuned --set "peft=$(methods "$whole")" --set optimizer.lr=1e-2 c.json
}

setup() {
    bench
    ln -s "$shared/tuned" .
    from=(--set trainer.model_stage_factory.source_adapter=tuned/adapter)
}

refused() {
    says 2 "$1" d9d-train -q "${@:2}" c.json
    [ ! -e run ]
}

loss_of() { d9d-infer -q --json --set 'task={"name": "perplexity"}' "$@" i.json | sed -nE 's/.*"loss": ([^,]+),/\1/p'; }

@test "they are in adapter/, under their own names" {
    tr -d ' \n' <tuned/adapter/adapter_config.json | grep -qF '"modules_to_save":["model.embed_tokens","model.layers.0.self_attn.q_norm","model.layers.1.mlp.gate","model.layers.1.mlp.experts","model.norm","lm_head"]'
    head -c 9000 tuned/adapter/adapter_model.safetensors >header
    for name in model.norm.weight lm_head.weight model.layers.1.mlp.experts.gate_up_proj model.layers.1.mlp.gate.weight; do
        grep -aqF "\"base_model.model.$name\"" header
    done
}

@test "they are merged in every layout, to the bits of the export" {
    d9d-map -q --adapter tuned/adapter --to hf "$golden/moe" merged
    d9d-map diff -q merged tuned/export
    d9d-map -q --adapter tuned/adapter --to hf --expert-layout per-expert "$golden/moe_fused" fused
    d9d-map diff -q fused tuned/export
    d9d-map -q --to d9d "$golden/moe" own
    d9d-map -q --adapter tuned/adapter --to hf own from_own
    d9d-map diff -q from_own tuned/export
    [ "$(loss_of "${from[@]}")" = "$(loss_of --set trainer.model_stage_factory.source_checkpoint=tuned/export)" ]
}

@test "training goes on from them: a step that learns nothing writes them again, to the byte" {
    d9d-train -q --set "peft=$(methods "$whole")" --set optimizer.lr=1e-30 --set trainer.run.steps=1 "${from[@]}" c.json
    cmp {tuned,run}/adapter/adapter_model.safetensors
    cmp {tuned,run}/adapter/adapter_config.json
}

@test "a checkpoint of what is trained alone goes on with them" {
    only=(--set "peft=$(methods "$whole")" --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true
        --set trainer.checkpointing.period_steps=2)
    d9d-train -q "${only[@]}" --set trainer.run.steps=4 c.json
    cp -r run whole
    rm -r run/export run/adapter run/checkpoints/step-00000004
    d9d-train -q "${only[@]}" --set trainer.run.steps=4 c.json
    cmp {whole,run}/adapter/adapter_model.safetensors
}

@test "what would be lost is refused: no method trains what the adapter has" {
    refused 'model.embed_tokens.token_embedding.regular.weight: was trained whole beside the adapters of the files, and no method' \
        "${from[@]}" --set 'peft={"kind": "lora", "module_name_pattern": ".*\\.(q|v)_proj", "params": {"r": 2, "alpha": 4}}'
}

@test "what peft cannot save is said: a part of a tensor, a matrix with an adapter too" {
    d9d-train -q --set "peft=$(methods '.*\\.1\\.mlp\\.grouped_experts\\.up_proj')" --set trainer.run.steps=1 c.json 2>log
    grep -q 'run/adapter: not written: model.layers.1.mlp.grouped_experts.up_proj.weight is trained whole and is a part of model.layers.1.mlp.experts.gate_up_proj of' log
    [ ! -e run/adapter ]
    [ -e run/export ]
    rm -r run
    d9d-train -q --set "peft=$(methods '.*\\.1\\.self_attn\\.q_proj')" --set trainer.run.steps=1 c.json 2>log
    grep -q 'model.layers.1.self_attn.q_proj.weight is trained whole and has an adapter too' log
}

@test "of a tied model the embedding is both modules; one of them alone is refused" {
    d9d-shard -q --format tokens --out small "$golden/dense_tied/train.jsonl"
    tied=(--set data.dataset=small --set model_provider.hf_config="$golden/dense_tied/config.json"
        --set model_provider.name=qwen3_dense --set trainer.model_stage_factory.source_checkpoint="$golden/dense_tied")
    d9d-train -q "${tied[@]}" --set "peft=$(methods 'model\\.embed_tokens')" --set trainer.run.steps=2 c.json
    grep -q '"ensure_weight_tying": true' run/adapter/adapter_config.json
    head -c 3000 run/adapter/adapter_model.safetensors | grep -aqF '"base_model.model.lm_head.weight"'
    d9d-map -q --adapter run/adapter --to hf "$golden/dense_tied" merged
    d9d-map diff -q merged run/export
    # without the head, as peft writes it without ensure_weight_tying
    cp -r run/adapter alone && sed -i 's/"ensure_weight_tying": true/"ensure_weight_tying": false/' alone/adapter_config.json
    sed -i 's/base_model.model.lm_head.weight/base_model.model.lm_hexd.weight/' alone/adapter_model.safetensors
    says 2 'modules_to_save has one of them alone' d9d-map -q --adapter alone --to hf "$golden/dense_tied" no
    cp -r run/adapter other && printf '\1' | dd of=other/adapter_model.safetensors bs=1 conv=notrunc status=none \
        seek=$(($(stat -c %s other/adapter_model.safetensors) - 1))
    says 2 'is another matrix' d9d-map -q --adapter other --to hf "$golden/dense_tied" no
}

tables='{"kind": "lora", "module_name_pattern": "model\\.embed_tokens|lm_head|.*q_proj", "params": {"r": 3, "alpha": 6}}'

@test "adapters of embedding and head: nothing at first, merged in every layout, and read again to the byte" {
    d9d-train -q --set trainer.run.dir=base --set trainer.run.steps=1 c.json
    d9d-train -q --set "peft=$tables" --set optimizer.lr=1e-2 c.json
    [ "$(sed -nE '1s/.*"loss": ([^,]+),.*/\1/p' base/metrics.jsonl)" = "$(sed -nE '1s/.*"loss": ([^,]+),.*/\1/p' run/metrics.jsonl)" ]
    head -c 3000 run/adapter/adapter_model.safetensors >header
    grep -aqF '"base_model.model.model.embed_tokens.lora_embedding_A":{"dtype":"F32","shape":[3,' header
    grep -aqF '"base_model.model.lm_head.lora_A.weight":{"dtype":"F32","shape":[3,' header
    tr -d ' \n' <run/adapter/adapter_config.json | grep -qF '"target_modules":["embed_tokens","q_proj","lm_head"]'
    d9d-map -q --adapter run/adapter --to hf "$golden/moe" merged
    d9d-map diff -q merged run/export
    d9d-map -q --to d9d "$golden/moe" own
    d9d-map -q --adapter run/adapter --to hf own from_own
    d9d-map diff -q from_own run/export
    d9d-train -q --set "peft=$tables" --set optimizer.lr=1e-30 --set trainer.run.steps=1 --set trainer.run.dir=again \
        --set trainer.model_stage_factory.source_adapter=run/adapter c.json
    cmp {run,again}/adapter/adapter_model.safetensors
}

@test "beside the weights they compute what they do merged, losses and generated tokens" {
    d9d-train -q --set "peft=$tables" --set optimizer.lr=1e-2 c.json
    on=(--set trainer.model_stage_factory.source_adapter=run/adapter)
    awk -v a="$(loss_of "${on[@]}")" -v b="$(loss_of "${on[@]}" --set "peft=$tables")" \
        'BEGIN { exit !(a > 0 && (a - b) ^ 2 <= (1e-5 * b) ^ 2) }'
    printf '{"input_ids": [3, 9, 4]}\n{"input_ids": [7]}\n' >prompts.jsonl
    for how in merged beside base; do
        case $how in merged) more=("${on[@]}") ;; beside) more=("${on[@]}" --set "peft=$tables") ;; base) more=() ;; esac
        sed -E 's/"data": *\{[^}]*\},?//' i.json >g.json
        d9d-infer -q --set 'task={"name": "generate", "prompts": "prompts.jsonl", "output": "'$how'.jsonl", "max_new_tokens": 12}' "${more[@]}" g.json
    done
    cmp merged.jsonl beside.jsonl
    run ! cmp merged.jsonl base.jsonl
}

@test "adapters of a table are LoRA alone, and a run is planned with them" {
    refused 'adapters of embeddings and heads are LoRA alone' \
        --set 'peft={"kind": "dora", "module_name_pattern": "lm_head", "params": {"r": 2, "alpha": 2}}'
    # before anything is spent: by a plan, and by a run that leaves nothing
    smooth=(--set "peft=$tables" --set 'task={"name": "causal_lm", "label_smoothing": 0.1}' c.json)
    summed="lora: label smoothing and soft labels of the whole vocabulary sum the head's rows, which are not those of an adapter"
    says 2 "$summed" d9d-train --plan "${smooth[@]}"
    says 2 "$summed" d9d-train -q --set trainer.run.dir=smooth "${smooth[@]}"
    soft='task={"name": "causal_lm", "soft_labels": "p", "soft_ids": "ids"}'
    says 2 "lora: dropout is 0.1: soft labels read rows of the head, without what an adapter drops" \
        d9d-train -q --set trainer.run.dir=smooth --set "peft=$tables" --set peft.params.dropout=0.1 --set "$soft" c.json
    [ ! -e smooth ]
    d9d-train --plan --json c.json >whole
    d9d-train --plan --json --set "peft=$tables" c.json >plan
    parameters() { sed -nE 's/^  "parameters": ([0-9]+),/\1/p' "$1"; }
    [ "$(parameters plan)" -gt "$(parameters whole)" ]
}
