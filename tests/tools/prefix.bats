#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# Prefix masks (prefix-LM) through the tools: who says that a model has one, what is written, and
# where it is refused.

setup() {
    load helper
    load train_helper
    work=$(workplace)
    cd "$work" || return 1
    model=$golden/families/llama_prefix
    d9d-shard -q --format tokens --out data "$model/train.jsonl"
    cat >train.json <<JSON
{"data": {"dataset": "data"},
 "model_provider": {"name": "llama", "hf_config": "$model/config.json"},
 "trainer": {"run": {"name": "small", "dir": "run"},
   "batching": {"global_batch_size": 3, "microbatch_size": 3},
   "model_stage_factory": {"source_checkpoint": "$model"}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
    cat >infer.json <<JSON
{"data": {"dataset": "data"},
 "model_provider": {"name": "llama", "hf_config": "$model/config.json"},
 "trainer": {"batching": {"microbatch_size": 2}, "model_stage_factory": {"source_checkpoint": "$model"}},
 "task": {"name": "logprobs", "output": "out.jsonl"}}
JSON
    mask=model_provider.attention_mask
}
teardown() { cd / && rm -rf "$work"; }

# The mean loss that transformers finds with the mask.
golden_loss() { sed -nE 's/.*"loss": ([0-9.]+),?/\1/p' "$model/train.json" | head -n 1; }
# loss_is WANT [OPTION...]: that of d9d-infer.
loss_is() {
    local want=$1 got
    shift
    got=$(d9d-infer -q --json --set 'task={"name": "perplexity"}' "$@" infer.json | sed -nE 's/.*"loss": ([0-9.]+),?/\1/p')
    awk -v a="$got" -v b="$want" 'BEGIN { exit !((a - b) ^ 2 < (1e-5 * b) ^ 2) }'
}

@test "scores are those of training, packed or not; the key decides before config.json" {
    loss_is "$(golden_loss)"
    loss_is "$(golden_loss)" --set "$mask"=prefix
    run ! loss_is "$(golden_loss)" --set "$mask"=causal
    d9d-shard -q --format tokens --pack 29 --out packed "$model/train.jsonl"
    loss_is "$(golden_loss)" --set data.dataset=packed
    sed 's/"attention_mask": "prefix"/"attention_mask": "causal"/' "$model/config.json" >config.json
    run ! loss_is "$(golden_loss)" --set model_provider.hf_config=config.json
    loss_is "$(golden_loss)" --set model_provider.hf_config=config.json --set "$mask"=prefix
    sed 's/"attention_mask": "prefix"/"attention_mask": "full"/' "$model/config.json" >config.json
    says 2 'attention_mask: "full" is not supported' \
        d9d-infer --set model_provider.hf_config=config.json infer.json
}

@test "a trained model says so in its config.json, and one trained causally does not" {
    d9d-train -q train.json
    grep -q '"attention_mask": "prefix"' run/export/config.json
    grep -q '"attention_mask": "auto"' run/config.json
    d9d-train -q --set "$mask"=causal --set trainer.run.dir=causal train.json
    run ! grep -q attention_mask causal/export/config.json
    grep -v attention_mask "$model/config.json" >config.json
    d9d-train -q --set model_provider.hf_config=config.json --set "$mask"=prefix --set trainer.run.dir=again train.json
    grep -q '"attention_mask": "prefix"' again/export/config.json
    same_run run again
    # What it wrote is read again, by whoever does not say it.
    exported=(--set model_provider.hf_config=again/export/config.json
        --set trainer.model_stage_factory.source_checkpoint=again/export)
    d9d-infer -q "${exported[@]}" infer.json
    d9d-infer -q "${exported[@]}" --set "$mask"=prefix --set task.output=prefix.jsonl infer.json
    d9d-infer -q "${exported[@]}" --set "$mask"=causal --set task.output=causal.jsonl infer.json
    cmp out.jsonl prefix.jsonl
    run ! cmp -s out.jsonl causal.jsonl
}

@test "certified like any other: files, golden vectors, gradients, generation" {
    run -0 d9d-map certify --golden "$model" "$model"
    [[ $output == *"generation   ok"* && $output == *"golden       ok"* ]]
}

# Longer than the parts in which a causal model reads prompts.
@test "a long prompt is read at once: the first token is the likeliest" {
    sed -E 's/"max_position_embeddings": [0-9]+/"max_position_embeddings": 4096/' "$model/config.json" >config.json
    longer=(--set model_provider.hf_config=config.json)
    prompt=$(awk 'BEGIN { for (i = 0; i < 2100; i++) printf "%s%d", i ? ", " : "", (i * i * 7 + i) % 52 + 1 }')
    echo "{\"input_ids\": [$prompt]}" >prompts.jsonl
    sed '/^{"data"/s/.*/{/' infer.json >generate.json
    d9d-infer -q "${longer[@]}" --set 'task={"name": "generate", "prompts": "prompts.jsonl", "max_new_tokens": 1,
        "stop_at_eos": false, "output": "text.jsonl"}' generate.json
    none=$(awk 'BEGIN { for (i = 1; i < 2100; i++) printf "-100, " }')
    got=$(sed 's/.*"tokens": \[//; s/\].*//' text.jsonl)
    some=$({ seq 1 5 52 && echo "$got"; } | sort -nu)
    for t in $some; do echo "{\"input_ids\": [$prompt], \"labels\": [$none$t]}"; done |
        d9d-shard -q --format tokens --out each -
    d9d-infer -q "${longer[@]}" --set data.dataset=each infer.json
    best=$(paste -d ' ' <(sed -E 's/.*"logprobs": \[([^]]*)\].*/\1/' out.jsonl) - <<<"$some" | sort -g | tail -n 1)
    [ "$got" = "${best#* }" ]
}

@test "refused for layers and tasks where it cannot hold" {
    needs='model_provider.attention_mask: "prefix" needs causal attention in every layer, and'
    of() { # SENTENCE FAMILY MODEL
        says 2 "$needs $1" d9d-infer --set model_provider.name="$2" --set model_provider.hf_config="$golden/$3/config.json" \
            --set trainer.model_stage_factory.source_checkpoint="$golden/$3" --set "$mask"=prefix \
            --set 'task={"name": "hidden_states", "output": "states"}' infer.json
    }
    of 'qwen3_next has recurrent layers' qwen3_next families/qwen3_next
    of 'modernbert has bidirectional layers' modernbert encoders/modernbert
    says 2 'model_provider.attention_mask: "prefix" begins at a prompt without targets, and the task classification has no next tokens as targets' \
        d9d-train --set 'task={"name": "classification", "num_labels": 3}' train.json
    says 2 'model_provider.attention_mask: unknown word "full"; expected auto, causal or prefix' d9d-train --set "$mask"=full train.json
}
