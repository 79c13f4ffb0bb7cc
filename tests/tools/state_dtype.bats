#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# optimizer.state_dtype int8 and trainer.offload: they learn as float32 states do, resume, are saved, planned.

load train_bench

# Sequences in which three of four tokens follow from the one before.
sequences() {
    awk -v n="$1" 'BEGIN { x = 1; for (i = 0; i < n; i++) { a = 0; printf "{\"input_ids\": ["
        for (j = 0; j < 65; j++) { x = (x * 16807) % 2147483647; a = x % 4 ? (7 * a + 3) % 61 : x % 64; printf "%s%d", j ? ", " : "", a }
        print "]}" } }'
}

setup() {
    bench
    sequences 800 | d9d-shard -q --format tokens --out text -
    layers 2 200 4 4 ', "gradient_clipping": {"max_norm": 1.0}' >small.json
}

# end_of SEED [OPTION...]: the mean loss of the last twenty steps, in units of 1e-6.
end_of() {
    rm -rf run
    d9d-train -q --set trainer.determinism.base_seed="$1" "${@:2}" small.json
    grep '"loss"' run/metrics.jsonl | sed 's/.*"loss": \([^,]*\),.*/\1/' | tail -20 |
        awk '{ s += $1 } END { printf "%d", s / NR * 1e6 }'
}

@test "200 steps with states in 8 bits end within 0.1 % of where float32 ends, the mean of three seeds" {
    local f32=0 int8=0
    for seed in 1 2 3; do
        f32=$((f32 + $(end_of $seed)))
        int8=$((int8 + $(end_of $seed --set optimizer.state_dtype=int8)))
    done
    echo "float32 $f32, int8 $int8"
    ((f32 < 3 * 2000000)) # they begin at 4.16
    ((int8 != f32 && int8 < f32 + f32 / 1000 && int8 > f32 - f32 / 1000))
}

int8=(--set optimizer.state_dtype=int8 --set model_provider.dtype=bfloat16 --set trainer.run.steps=6)
host=(--set trainer.offload.optimizer=host)

@test "states in the memory of the host give the same bits, and a run goes on with them or without" {
    local way first second
    d9d-train -q "${int8[@]}" --set trainer.run.dir=here small.json
    d9d-train -q "${int8[@]}" "${host[@]}" --set trainer.run.dir=away small.json
    cmp here/export/model.safetensors away/export/model.safetensors
    for way in here away; do
        first=none second=host
        [ $way = here ] || { first=host second=none; }
        rm -rf run
        d9d-train -q "${int8[@]}" --set trainer.offload.optimizer=$first --set trainer.run.steps=3 small.json
        rm -r run/export
        d9d-train -q "${int8[@]}" --set trainer.offload.optimizer=$second small.json
        cmp here/export/model.safetensors run/export/model.safetensors
    done
}

@test "a checkpoint has the codes and their scales" {
    d9d-train -q "${int8[@]}" small.json
    local manifest=run/checkpoints/step-00000006/manifest.json
    grep -q '"name": "model.layers.0.mlp.up_proj.weight.exp_avg", "group": "optimizer", "dtype": "I8"' $manifest
    grep -q '"name": "model.layers.0.mlp.up_proj.weight.exp_avg_sq", "group": "optimizer", "dtype": "U8"' $manifest
    grep -q '"name": "model.layers.0.mlp.up_proj.weight.exp_avg_sq_scale", "group": "optimizer", "dtype": "BF16"' $manifest
    grep -q '"name": "model.norm.weight.exp_avg", "group": "optimizer", "dtype": "F32"' $manifest
    rm -r run/export
    says 2 'its optimizer state is exp_avg, exp_avg_scale, exp_avg_sq, exp_avg_sq_scale, and the optimizer adamw of this run keeps exp_avg, exp_avg_sq' d9d-train "${int8[@]}" --set optimizer.state_dtype=float32 --set trainer.run.steps=8 small.json
}

@test "plans count both memories, and the time of the bus" {
    local big=(--set model_provider.model.layer.intermediate_size=65536 --set model_provider.model.layer.hidden_size=2048
        --set optimizer.state_dtype=int8 --set model_provider.dtype=bfloat16)
    run -0 d9d-train --plan --gpu h200 "${big[@]}" small.json
    assert_output --partial 'exp_avg 1.1, exp_avg_sq 1.1, master_residual 2'
    refute_output --partial 'optimizer states'
    run -0 d9d-train --plan --gpu h200 "${big[@]}" "${host[@]}" small.json
    assert_output --partial 'for optimizer states'
    assert_output --partial 'optimizer, states, host'
    d9d-train --plan --json --gpu h200 "${big[@]}" small.json >here.json
    d9d-train --plan --json --gpu h200 "${big[@]}" "${host[@]}" small.json >away.json
    grep -o '"\(host_\)\?optimizer": [0-9]*' here.json | sort -u >here
    grep -o '"\(host_\)\?optimizer": [0-9]*' away.json | sort -u >away
    [ "$(sed -n 's/"optimizer": //p' here)" = "$(sed -n 's/"host_optimizer": //p' away)" ]
    [ "$(sed -n 's/"host_optimizer": //p' here)" = 0 ]
}

@test "what cannot be is refused in one sentence" {
    refused() { # SENTENCE [OPTION...]
        says 2 "$1" d9d-train "${@:2}" small.json
        [ ! -e run ]
    }
    refused 'state_dtype int8 rounds stochastically: it needs weight_update master or stochastic, not nearest' \
        --set optimizer.state_dtype=int8 --set optimizer.weight_update=nearest
    refused 'optimizer.state_dtype: unknown word "int4"' --set optimizer.state_dtype=int4
    refused 'trainer.offload.optimizer: unknown word "cpu"; expected none or host' --set trainer.offload.optimizer=cpu
}
