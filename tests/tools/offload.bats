#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# trainer.offload.activations: the same bits, the memory that the plan says, and refusals.

load train_bench
golden=$BATS_TEST_DIRNAME/../golden

setup() {
    bench
    random_tokens 64 128 | d9d-shard -q --format tokens --out text -
    layers 6 4 8 4 ', "gradient_clipping": {"max_norm": 1.0}' >small.json
}

away=(--set trainer.offload.activations=host)

@test "activations in the host's memory give the same bits in less memory, as the plan says" {
    local way here there
    for way in off selective full; do
        local recompute=(--set model_provider.checkpointing="$way")
        rm -rf here away
        d9d-train -q "${recompute[@]}" --set trainer.run.dir=here small.json
        d9d-train -q "${recompute[@]}" "${away[@]}" --set trainer.run.dir=away small.json
        cmp here/export/model.safetensors away/export/model.safetensors
        here=$(last_number here/metrics.jsonl mem_bytes) there=$(last_number away/metrics.jsonl mem_bytes)
        echo "$way: $here bytes, with the host $there"
        ((there < here))
        d9d-train --plan --json --gpu cpu "${recompute[@]}" "${away[@]}" small.json >plan.json
        [ "$(last_number plan.json peak)" = "$there" ]
        [ "$(last_number plan.json host_activations)" -gt 0 ]
        [ "$(last_number plan.json host_activations)" = "$(last_number away/metrics.jsonl host_bytes)" ]
        [ -z "$(last_number here/metrics.jsonl host_bytes)" ]
    done
    ((there > 0))
}

@test "a run goes on with activations in the host's memory or without, and evaluates between" {
    local evaluated=(--set 'evaluation={"name": "e", "data": {"dataset": "text"}, "samples": 8, "period_steps": 1}')
    d9d-train -q "${evaluated[@]}" small.json
    mv run whole
    d9d-train -q "${evaluated[@]}" --set trainer.run.steps=2 "${away[@]}" --set trainer.offload.activation_fraction=0.4 small.json
    rm -r run/export
    d9d-train -q "${evaluated[@]}" small.json
    cmp whole/export/model.safetensors run/export/model.safetensors
    for run in whole run; do grep -o '"step": .*"e/loss": [0-9.e-]*' $run/metrics.jsonl >$run.losses; done
    [ "$(wc -l <run.losses)" = 4 ]
    cmp run.losses whole.losses
}

# Operations of all kinds save something.
@test "activations in the host's memory change no bit of other families, LoRA, FP8, dropout and packed rows" {
    local family
    unchanged() { # CONFIG [OPTION...]
        rm -rf here away
        d9d-train -q --set trainer.run.dir=here "${@:2}" "$1"
        d9d-train -q --set trainer.run.dir=away "${away[@]}" "${@:2}" "$1"
        cmp here/export/model.safetensors away/export/model.safetensors ||
            cmp here/export/adapter_model.safetensors away/export/adapter_model.safetensors
    }
    unchanged small.json --set trainer.run.steps=2 --set 'peft={"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 4, "alpha": 8, "dropout": 0.1}}'
    unchanged small.json --set trainer.run.steps=2 --set trainer.fp8='{}' --set model_provider.dtype=bfloat16
    random_tokens 64 128 | d9d-shard -q --format tokens --pack 128 --out packed -
    unchanged small.json --set trainer.run.steps=2 --set data.dataset=packed
    random_tokens 8 128 | sed -E 's/\b(4[89]|5[0-9]|6[0-9])\b/7/g; s/(([0-9]+, ){63}[0-9]+).*/\1]}/' |
        d9d-shard -q --format tokens --out short -
    for family in deepseek_v3 gemma3 glm4_moe gpt_oss granitemoehybrid qwen3_next; do
        unchanged small.json --set trainer.run.steps=1 --set data.dataset=short --set trainer.batching.microbatch_size=2 \
            --set "model_provider={\"name\": \"auto\", \"hf_config\": \"$golden/families/$family/config.json\"}"
    done
}

@test "plans say what the bus takes" {
    local wide=(--set model_provider.model.layer.hidden_size=4096 --set model_provider.model.layer.intermediate_size=12288
        --set model_provider.model.layer.num_attention_heads=32 --set model_provider.model.layer.head_dim=128
        --set model_provider.model.max_position_ids=32768 --set model_provider.dtype=bfloat16
        --set trainer.batching.microbatch_size=1 --set trainer.batching.global_batch_size=1)
    run -0 d9d-train --plan --gpu h100 --length 32768 "${wide[@]}" small.json
    refute_output --partial 'for activations'
    refute_output --partial 'from host'
    run -0 d9d-train --plan --gpu h100 --length 32768 "${wide[@]}" "${away[@]}" small.json
    assert_output --partial ' for activations'
    assert_output --partial 'activations, from host, host'
    assert_output --partial 'the bus to the host bounds the step: computation waits'
    run -0 d9d-train --plan --gpu h100 --length 32768 "${wide[@]}" "${away[@]}" --set model_provider.checkpointing=full small.json
    assert_output --partial 'activations travel to the host and back beside the computation, which waits'
}

@test "what cannot be is refused in one sentence" {
    refused() { # SENTENCE [OPTION...]
        says 2 "$1" d9d-train "${@:2}" small.json
        [ ! -e run ]
    }
    refused 'trainer.offload.activations: unknown word "disk"; expected none or host' --set trainer.offload.activations=disk
    refused 'trainer.offload.activation_fraction: 0.5 has no effect without activations "host"' --set trainer.offload.activation_fraction=0.5
    refused 'trainer.offload.activation_prefetch: 2 has no effect without activations "host"' --set trainer.offload.activation_prefetch=2
    refused 'trainer.offload.activation_fraction: ' "${away[@]}" --set trainer.offload.activation_fraction=1.5
    refused 'trainer.offload.activation_prefetch: ' "${away[@]}" --set trainer.offload.activation_prefetch=0
}

@test "a host without memory is said before it is used" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o poor.so "$BATS_TEST_DIRNAME/../multirank/no_memory_preload.c"
    says 1 "trainer.offload.activations: 0.00 GiB are in the host's memory, 0.12 MiB more were asked for, and the host has 0.00 GiB available" \
        env LD_PRELOAD="$PWD/poor.so" d9d-train --set trainer.run.dir=poor "${away[@]}" small.json
    [ ! -e poor/export ]
    d9d-train -q --set trainer.run.dir=poor small.json
}
