#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# A model given by its dimensions, without a HuggingFace form: several vocabulary splits and a
# shared expert, trained, exported in d9d's layout, and read again.

setup() {
    load helper
    export OMP_NUM_THREADS=1
    cd "$BATS_TEST_TMPDIR" || return 1
    awk 'BEGIN { x = 1; for (i = 0; i < 24; i++) { printf "{\"input_ids\": [";
        for (j = 0; j < 17; j++) { x = x * 16807 % 2147483647; printf "%s%d", j ? ", " : "", x % 60 }
        print "]}" } }' >tokens.jsonl
    d9d-shard -q --format tokens --out data tokens.jsonl
    cat >model.json <<'JSON'
{"name": "qwen3_moe", "model": {
  "layer": {"hidden_size": 12, "intermediate_size": 10, "num_attention_heads": 3,
            "num_key_value_heads": 1, "head_dim": 6, "num_experts": 4, "experts_top_k": 2,
            "shared_expert": {"intermediate_size": 14, "enable_gate": true}},
  "num_hidden_layers": 2, "max_position_ids": 64,
  "split_vocab_size": {"special": 12, "regular": 50}, "split_vocab_order": ["regular", "special"]}}
JSON
    train_json >train.json
    infer_json >infer.json
}

train_json() {
    printf '{"data": {"dataset": "data"}, "model_provider": %s,\n' "$(cat model.json)"
    printf ' "trainer": {"run": {"name": "own", "dir": "run"},\n'
    printf '  "batching": {"global_batch_size": 4}, "checkpointing": {"period_steps": 2}},\n'
    printf ' "optimizer": {"name": "adamw", "lr": 0.01}}\n'
}

infer_json() {
    printf '{"data": {"dataset": "data"}, "model_provider": %s,\n' "$(cat model.json)"
    printf ' "trainer": {"model_stage_factory": {"source_checkpoint": "run/export"}}}\n'
}

@test "a model without a HuggingFace form is trained, exported and read again" {
    run -0 --separate-stderr d9d-train train.json
    [[ "$stderr" == *"cannot have a vocabulary of several splits; the model will be written in d9d's own layout"* ]]
    [ ! -e run/export/config.json ]
    run -0 d9d-infer -q infer.json --json
    assert_output --partial '"samples": 24'
}

@test "a split of the vocabulary is trained alone, by its name" {
    d9d-train -q --set trainer.run.steps=2 train.json
    for pattern in '.*token_embedding\\.special' '.*token_embedding\\.special\\.weight'; do
        d9d-train -q --set trainer.run.dir=tuned --set trainer.run.steps=2 \
            --set trainer.model_stage_factory.source_checkpoint=run/export \
            --set 'peft={"kind": "full_tune", "module_name_pattern": "'"$pattern"'"}' train.json
        run -1 d9d-map diff run/export tuned/export
        assert_equal "$(grep -oE '[a-z0-9_.]+\.(weight|bias)' <<<"$output" | sort -u)" \
            model.embed_tokens.token_embedding.special.weight
        rm -r tuned
    done
    run -2 d9d-train -q --set 'peft={"kind": "full_tune", "module_name_pattern": ".*token_embedding\\.spezial"}' train.json
    assert_output --partial 'it matches none'
}

@test "a split that is named and not sized is refused before anything is made" {
    run -2 d9d-train train.json --set 'model_provider.model.split_vocab_order=["regular", "other"]'
    assert_output --partial 'split_vocab_order[1]: "other" is not in split_vocab_size'
    [ ! -e run ]
}

@test "a shared expert without a size is refused with its path" {
    run -2 d9d-train train.json --set 'model_provider.model.layer.shared_expert={}'
    assert_output --partial "model_provider.model.layer.shared_expert.intermediate_size"
}

@test "a rotary embedding that has no frequencies is refused before anything is made" {
    run -2 d9d-train train.json --set model_provider.model.layer.head_dim=2 \
        --set 'model_provider.model.rope_scaling={"type": "ntk", "factor": 3}'
    assert_output --partial "ntk): factor 3 gives no finite base of head_dim 2"
    [ ! -e run ]
}
