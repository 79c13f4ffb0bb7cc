#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of the helpers
# trainer.optimizer_in_backward: the same bits on one rank, the memory that the plan says, refusals, and
# a step that is not finite.

load train_bench

setup() {
    bench
    random_tokens 16 8 | # few, so that gradients are much of the memory
        d9d-shard -q --format tokens --out text -
    layers 6 4 2 2 >small.json
}

released=(--set trainer.optimizer_in_backward=true)

# unchanged [OPTION...]: losses, norms and weights with and without.
unchanged() {
    rm -rf here released
    d9d-train -q --set trainer.run.dir=here "$@" small.json
    d9d-train -q --set trainer.run.dir=released "${released[@]}" "$@" small.json
    same_run here released
}

@test "updates within backward give the same bits in less memory, as the plan says" {
    local way here there gradients one=(--set 'trainer.batching={"global_batch_size": 1, "microbatch_size": 1}')
    for way in off full; do
        unchanged --set model_provider.checkpointing=$way "${one[@]}"
        here=$(last_number here/metrics.jsonl mem_bytes) there=$(last_number released/metrics.jsonl mem_bytes)
        d9d-train --plan --json --gpu cpu --set model_provider.checkpointing=$way "${one[@]}" small.json >plan.json
        gradients=$(last_number plan.json gradients)
        echo "$way: $here bytes, of which gradients are $gradients; released $there"
        ((here - there > gradients * 3 / 5 && here - there <= gradients))
        d9d-train --plan --json --gpu cpu --set model_provider.checkpointing=$way "${one[@]}" "${released[@]}" small.json >plan.json
        [ "$(last_number plan.json peak)" = "$there" ]
        [ "$(last_number plan.json gradients)" = 0 ]
    done
}

@test "every optimizer that updates one by one, states in 8 bits or on the host, averages and groups" {
    local kind
    for kind in '"adam"' '"lion"' '"sgd", "momentum": 0.9' '"schedule_free_adamw"' '"adamw", "state_dtype": "int8"' \
        '"adamw", "amsgrad": true, "layer_lr_decay": 0.8, "groups": [{"pattern": ".*norm.*", "weight_decay": 0}]'; do
        unchanged --set "optimizer={\"name\": $kind, \"lr\": 1e-3}"
    done
    unchanged --set 'optimizer={"name": "stochastic_adamw", "lr": 1e-3}' --set model_provider.dtype=bfloat16
    unchanged --set model_provider.dtype=bfloat16 --set trainer.offload.optimizer=host
    unchanged --set trainer.ema='{"decay": 0.9, "start_step": 1, "every_steps": 2}' --set trainer.offload.activations=host
    unchanged --set model_provider.model.tie_word_embeddings=true
}

@test "what keeps gradients is refused before anything is spent" {
    local plan
    refused() { # SENTENCE OPTION...
        for plan in "" --plan; do
            says 2 "trainer.optimizer_in_backward$1" d9d-train -q $plan "${released[@]}" "${@:2}" small.json
        done
        [ ! -e run ]
    }
    refused ": a step's norm is known when its last gradient is, and then none is left to be clipped to trainer.gradient_clipping.max_norm 1; set one of both" \
        --set trainer.gradient_clipping.max_norm=1
    refused ": gradients of the 2 micro-batches of a step are accumulated, so that they stay; trainer.batching.microbatch_size 2 makes one of them" \
        --set trainer.batching.microbatch_size=1
    refused ": trainer.integrity.rerun_period_steps 5 computes a step twice, and the first time changes its weights; set one of both" \
        --set trainer.integrity.rerun_period_steps=5
    refused ": the optimizer muon updates all its parameters together" --set 'optimizer={"name": "muon", "lr": 1e-3, "adjust_lr_fn": "match_rms_adamw"}'
    refused ": the optimizer adafactor updates all its parameters together" --set 'optimizer={"name": "adafactor", "lr": 1e-3}'
    says 2 "trainer.optimizer_in_backward: needs the whole model in one stage, and mesh.pipeline_parallel is 2" \
        d9d-train --plan "${released[@]}" --set mesh.pipeline_parallel=2 small.json
    d9d-train -q "${released[@]}" --set trainer.gradient_clipping.max_norm=0 small.json
}

# The plugin makes a weight infinite between forward and backward of step 2: layers above it have been
# updated when its gradient is met.
@test "a gradient that is not finite is named, nothing of its step is saved, and the run goes on from before" {
    local root=$BATS_TEST_DIRNAME/../..
    # shellcheck disable=SC2046 # words
    ${CC:-cc} -std=c11 -D_GNU_SOURCE ${D9D_SAN:+-fsanitize=$D9D_SAN} -shared -fPIC -o libspoil.so \
        -I"$root/libcore/include" -I"$root/kernels/include" $(pkg-config --cflags jansson) \
        "$BATS_TEST_DIRNAME/spoil_weight_plugin.c" -L"$D9D_BUILD/lib" -ld9d
    local saves=(--set trainer.checkpointing.period_steps=1)
    d9d-train -q "${released[@]}" small.json
    mv run whole
    sed '1s/{/{"plugin": "libspoil.so", /' small.json >spoilt.json
    says 1 "step 2: the gradient of model.layers.3." d9d-train -q "${released[@]}" "${saves[@]}" spoilt.json
    [[ "${stderr_lines[-1]}" == *".weight is not finite; samples "*"; what backward had reached before it is updated, and is not saved" ]]
    [ -e run/checkpoints/step-00000001 ]
    [ ! -e run/checkpoints/step-00000002 ]
    d9d-train -q "${released[@]}" "${saves[@]}" small.json
    cmp whole/export/model.safetensors run/export/model.safetensors
}

# A NaN among the weights makes the loss one: then nothing was updated.
@test "a loss that is not finite updates nothing" {
    d9d-train -q --set trainer.run.dir=good small.json
    cp -r good/export bad
    chmod -R u+w bad
    printf '\0\0\300\177' | dd of=bad/model.safetensors bs=1 conv=notrunc status=none \
        seek=$(($(stat -c %s bad/model.safetensors) - 4))
    says 1 "step 1: the loss of samples 0, 1 of the split train is nan; " \
        d9d-train -q "${released[@]}" --set trainer.model_stage_factory.source_checkpoint=bad small.json
    [[ "${stderr_lines[-1]}" == *" is not finite at element "*"; nothing was updated" ]]
}

# Replicas have buckets, shards are reduced unit by unit, and both do both.
@test "a plan of many ranks falls by the gradients, and says where it makes a job fit" {
    local mesh before after gradients large
    large='model_provider.model={"num_hidden_layers": 12, "layer": {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "intermediate_size": 4096}, "rope_base": 10000, "max_position_ids": 128, "initializer_range": 0.02, "split_vocab_size": {"regular": 64}, "split_vocab_order": ["regular"]}'
    plan() { d9d-train --plan --gpu h100 --set "$large" --set data.epochs=100 --set trainer.batching.global_batch_size=4 "$@" small.json; }
    for mesh in "1 1 4" "2 1 2" "1 2 2" "2 2 1"; do
        read -ra mesh <<<"$mesh"
        set -- --set mesh.data_parallel_replicate="${mesh[0]}" --set mesh.data_parallel_shard="${mesh[1]}" --set trainer.batching.microbatch_size="${mesh[2]}"
        plan --json "$@" >plan.json
        before=$(last_number plan.json peak) gradients=$(last_number plan.json gradients)
        plan --json "$@" "${released[@]}" >plan.json
        after=$(last_number plan.json peak)
        echo "${mesh[*]}: $before bytes, of which gradients are $gradients; released $after"
        ((before - after > gradients * 3 / 4 && before - after <= gradients))
    done
    set -- --set trainer.batching.microbatch_size=4 --memory 3.4GiB
    run -2 plan "$@"
    assert_output --partial "it does not fit: 4.05 GiB of 3.40 GiB"
    assert_output --partial "with trainer.optimizer_in_backward it fits: "
    assert_output --partial "trainer.optimizer_in_backward makes it fit; "
    run -2 plan "$@" --suggest 1
    assert_output --regexp "no mesh of 1 rank fits: .*; local with micro-batches of 4, activation checkpointing and trainer.optimizer_in_backward fits, with 3.* GiB; more ranks"
    run -0 plan "$@" "${released[@]}"
    assert_output --partial "it fits"
    run -0 plan "$@" --suggest 1 "${released[@]}"
}
