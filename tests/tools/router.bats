#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of the helper
# Routers that HuggingFace's format does not have: from a HuggingFace checkpoint, and exported back.

load train_bench

# routed OPTION...: trains with a bias that is not small.
routed() {
    d9d-train -q --set model_provider.router.expert_bias=true \
        --set model_provider.router.bias_update_rate=0.01 "$@" c.json
}

@test "a bias goes from training to inference, and through d9d-map" {
    rm -rf run again
    routed --set model_provider.dtype=bfloat16
    grep -q '"expert_bias": true' run/export/config.json
    d9d-map -q --to d9d run/export again
    d9d-map diff run/export again
    run -2 d9d-map -q --to hf run/export hf
    [[ "$output" == *"has no routers other than softmax top-k"* ]]
    rm -r again
    d9d-map -q --model run/export/config.json --to d9d "$(echo run/checkpoints/step-*)" again
    d9d-map diff run/export again
}

@test "a run that goes on has the biases that it had" {
    rm -rf run other
    routed --set trainer.run.dir=other --set trainer.checkpointing.period_steps=10
    cp -r other run
    rm -r run/export run/checkpoints/step-00000020
    routed --set trainer.checkpointing.period_steps=10
    diff -r run/export other/export
}

@test "a frozen bias stays where it was" {
    rm -rf run other
    routed --set peft='{"kind": "lora", "module_name_pattern": ".*q_proj", "params": {"r": 2, "alpha": 4}}'
    d9d-train -q --set trainer.run.dir=other --set model_provider.router.expert_bias=true \
        --set model_provider.router.bias_update_rate=0 \
        --set peft='{"kind": "lora", "module_name_pattern": ".*q_proj", "params": {"r": 2, "alpha": 4}}' c.json
    diff -r run/export other/export
}

# dropped FILE: the shares of dropped choices.
dropped() { grep -oE '"expert_dropped": [0-9.e-]+' "$1" | grep -oE '[0-9.e-]+$'; }

@test "a capacity drops choices in training alone, whatever names the family" {
    local golden=$BATS_TEST_DIRNAME/../golden/families/qwen3_moe
    d9d-shard -q --format tokens --out rows "$golden/train.jsonl"
    for name in auto qwen3_moe; do
        rm -rf run "$name.jsonl"
        cat >capacity.json <<JSON
{"data": {"dataset": "rows", "epochs": 2},
 "model_provider": {"name": "$name", "hf_config": "$golden/config.json", "router": {"capacity_factor": 0.5}},
 "trainer": {"run": {"name": "run", "dir": "run", "steps": 2}, "batching": {"global_batch_size": 3, "microbatch_size": 1},
  "logging": {"experts": "layers"}, "model_stage_factory": {"source_checkpoint": "$golden"}},
 "evaluation": {"name": "same", "data": {"dataset": "rows"}, "period_steps": 1},
 "optimizer": {"name": "adamw", "lr": 1e-30, "weight_decay": 0}}
JSON
        d9d-train -q --device cpu capacity.json
        [ "$(dropped run/metrics.jsonl | wc -l)" -eq 2 ]
        dropped run/metrics.jsonl | awk '{ if (!($1 > 0.2 && $1 < 0.8)) exit 1 }'
        grep -q '"expert_dropped/0": ' run/metrics.jsonl
        cp run/metrics.jsonl "$name.jsonl"
        rm -rf run
        d9d-train -q --device cpu --set model_provider.router.capacity_factor=0 capacity.json
        run ! dropped run/metrics.jsonl
        # The loss that is trained on is another; that of the evaluation is not.
        run ! cmp <(grep -o '"loss": [^,]*' run/metrics.jsonl) <(grep -o '"loss": [^,]*' "$name.jsonl")
        cmp <(grep -o '"same/loss": [^,]*' run/metrics.jsonl) <(grep -o '"same/loss": [^,]*' "$name.jsonl")
    done
    cmp <(dropped auto.jsonl) <(dropped qwen3_moe.jsonl)
}

@test "the losses that are logged are of rows: micro-batches change nothing" {
    for micro in 1 4; do
        d9d-train -q --set trainer.run.dir=r$micro --set trainer.run.steps=1 --set trainer.batching.microbatch_size=$micro \
            --set model_provider.router.aux_loss_coef=0.1 --set model_provider.router.z_loss_coef=0.01 c.json
        grep -o '"router_[a-z]*_loss": [0-9.]*' r$micro/metrics.jsonl >losses.$micro
    done
    [ "$(wc -l <losses.1)" = 2 ]
    paste -d' ' losses.1 losses.4 | awk '{ x = $2 / $4 - 1; bad += x * x > 1e-12 } END { exit bad > 0 }'
}

@test "what cannot be is refused, with the numbers" {
    fails() {
        run -2 d9d-train -q --set "model_provider.$1" c.json
        [[ "$output" == *"$2"* ]]
    }
    fails router.groups=3 "n_group (router.groups) is 3: at most 32 groups, which divide "
    fails 'router={"groups": 4, "top_groups": 1}' "topk_group (router.top_groups) 1 of n_group (router.groups) 4 have 2 experts of num_experts 8, and num_experts_per_tok is 3"
    fails router.group=2 'model_provider.router.group: unknown key; did you mean "groups"?'
    fails router.aux_loss_coef=-1 "model_provider.router.aux_loss_coef: -1 is not at least 0"
    fails router.capacity_factor=-1 "model_provider.router.capacity_factor: -1 is not at least 0"
    fails router.scale=0 "model_provider.router.scale: 0 is not above 0"
    fails router.score=tanh 'unknown word "tanh"; expected softmax or sigmoid'
}
