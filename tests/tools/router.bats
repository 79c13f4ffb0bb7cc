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

@test "what cannot be is refused, with the numbers" {
    fails() {
        run -2 d9d-train -q --set "model_provider.$1" c.json
        [[ "$output" == *"$2"* ]]
    }
    fails router.groups=3 "3 groups of experts: at most 32, which divide 8 experts"
    fails 'router={"groups": 4, "top_groups": 1}' "1 of 4 groups have 2 experts, and a token has 3"
    fails router.group=2 'model_provider.router.group: unknown key; did you mean "groups"?'
    fails router.aux_loss_coef=-1 "model_provider.router.aux_loss_coef: -1 is not at least 0"
    fails router.scale=0 "model_provider.router.scale: 0 is not above 0"
    fails router.score=tanh 'unknown word "tanh"; expected softmax or sigmoid'
}
