#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# trainer.fp8: it learns as float32 does, says what it cannot do, and is in plans.

load train_bench

# Sequences in which three of four tokens follow from the one before.
sequences() {
    awk -v n="$1" 'BEGIN { x = 1; for (i = 0; i < n; i++) { a = 0; printf "{\"input_ids\": ["
        for (j = 0; j < 65; j++) { x = (x * 16807) % 2147483647; a = x % 4 ? (7 * a + 3) % 61 : x % 64; printf "%s%d", j ? ", " : "", a }
        print "]}" } }'
}

model='{"name": "qwen3_dense", "model": {"num_hidden_layers": 2,
   "layer": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
     "rms_norm_eps": 1e-6, "intermediate_size": 128}, "rope_base": 10000, "max_position_ids": 64,
   "initializer_range": 0.02, "split_vocab_size": {"regular": 64}, "split_vocab_order": ["regular"]}}'

small() { # STEPS
    cat <<JSON
{"data": {"dataset": "text"}, "model_provider": $model,
 "trainer": {"run": {"name": "small", "dir": "run", "steps": $1},
   "batching": {"global_batch_size": 4, "microbatch_size": 4}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 3e-3}}
JSON
}

setup() {
    bench
    sequences 800 | d9d-shard -q --format tokens --out text -
    small 200 >small.json
    small 120 | sed 's/qwen3_dense/qwen3_moe/; s/"intermediate_size": 128/"num_experts": 4, "experts_top_k": 2, "intermediate_size": 64/' >experts.json
}

# end_of FP8 SEED [CONFIG]: the mean loss of the last twenty steps, in units of 1e-5.
end_of() {
    rm -rf run
    d9d-train -q --set "trainer.fp8=$1" --set trainer.determinism.base_seed="$2" "${3:-small.json}"
    grep '"loss"' run/metrics.jsonl | sed 's/.*"loss": \([^,]*\),.*/\1/' | tail -20 |
        awk '{ s += $1 } END { printf "%d", s / NR * 1e5 }'
}

# Two runs differ by 0.1 to 0.4 % either way, as bfloat16's do from float32's.
@test "200 steps in FP8 end within 0.5 % of where those of float32 end, the mean of three seeds" {
    local fp8 f32=0 got
    for seed in 1 2 3; do f32=$((f32 + $(end_of null $seed))); done
    ((f32 < 3 * 200000)) # they begin at 4.16
    for fp8 in '{}' '{"recipe": "tensorwise", "grad_format": "e5m2"}'; do
        got=0
        for seed in 1 2 3; do got=$((got + $(end_of "$fp8" $seed))); done
        echo "float32 $f32, $fp8 $got"
        ((got != f32 && got < f32 + f32 / 200 && got > f32 - f32 / 200))
    done
}

@test "120 steps of experts in FP8 end within 1 % of where those of float32 end, the mean of two seeds" {
    local fp8 f32=0 dense=0 got
    for seed in 1 2; do f32=$((f32 + $(end_of null $seed experts.json))); done
    ((f32 < 2 * 200000))
    for fp8 in '{"experts": true}' '{}'; do
        got=0
        for seed in 1 2; do got=$((got + $(end_of "$fp8" $seed experts.json))); done
        echo "float32 $f32, $fp8 $got"
        ((got != f32 && got != dense && got < f32 + f32 / 100 && got > f32 - f32 / 100))
        dense=$got
    done
}

@test "gathers in 8 bits where nothing is gathered are said to have no effect" {
    run -0 d9d-train --set trainer.run.steps=1 --set 'trainer.fp8={"fsdp_float8_all_gather": true}' small.json
    [[ "$output" == *"trainer.fp8.fsdp_float8_all_gather: has no effect here: mesh.data_parallel_shard and context_parallel_shard are 1"* ]]
    rm -rf run
    run -0 d9d-train --set trainer.run.steps=1 --set 'trainer.fp8={}' small.json
    [[ "$output" != *"has no effect"* ]]
}

@test "what FP8 cannot do is refused in one sentence" {
    refused() { # SENTENCE [OPTION...]
        local sentence=$1
        shift
        says 2 "$sentence" d9d-train --set 'trainer.fp8={}' "$@"
        [ ! -e run ]
    }
    refused 'trainer.fp8: model.layers.0.mlp.grouped_experts.gate_proj.weight is 64 x 40, and the dimensions of products in FP8 are multiples of 16' \
        --set trainer.fp8.experts=true --set model_provider.model.layer.intermediate_size=40 experts.json
    refused 'experts.json: trainer.fp8.experts: expected true or false, got a string ("yes")' --set 'trainer.fp8={"experts": "yes"}' experts.json
    refused 'trainer.fp8: model.layers.0.mlp.gate_proj.weight is 40 x 64, and the dimensions of products in FP8 are multiples of 16' \
        --set model_provider.model.layer.intermediate_size=40 small.json
    refused 'small.json: trainer.fp8.recipe: unknown word "rowise"; did you mean "rowwise"?' --set 'trainer.fp8={"recipe": "rowise"}' small.json
    refused 'small.json: trainer.fp8.recipes: unknown key; did you mean "recipe"?' --set 'trainer.fp8={"recipes": "rowwise"}' small.json
    refused 'small.json: trainer.fp8.grad_format: unknown word "e3m4"; expected e4m3 or e5m2' --set 'trainer.fp8={"grad_format": "e3m4"}' small.json
}

@test "plans have FP8 products where the device has them" {
    run -0 d9d-train --plan --set 'trainer.fp8={}' --gpu h200 small.json
    assert_output --partial 'fp8 gemm'
    run -0 d9d-train --plan --set 'trainer.fp8={"experts": true}' --gpu h200 experts.json
    assert_output --partial 'fp8 grouped gemm'
    run -0 d9d-train --plan --set 'trainer.fp8={}' --gpu h200 experts.json
    refute_output --partial 'fp8 grouped gemm'
    run -0 d9d-train --plan --gpu h200 small.json
    refute_output --partial 'fp8 gemm'
    says 2 'trainer.fp8: a100 does not multiply in FP8; GPUs of compute capability 8.9 and above do' \
        d9d-train --plan --set 'trainer.fp8={}' --gpu a100 small.json
}
