#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Ranks that load quantised weights train as ranks that load the decoded twin: each decodes what its
# stage, shard or experts need.

golden=$BATS_TEST_DIRNAME/../golden

load workroom

setup_file() {
    workroom
    head -n 2 "$golden/families/deepseek_v3/train.jsonl" | d9d-shard -q --format tokens --out data -
}

# losses DIR AXIS=N...: of two steps from the weights of DIR, on a mesh of two ranks.
losses() {
    local dir=$1 sets=() axis
    shift
    for axis; do sets+=(--set "mesh.$axis"); done
    cat >config.json <<JSON
{"data": {"dataset": "data", "epochs": 2, "order": "sequential"},
 "model_provider": {"name": "auto", "hf_config": "$dir"},
 "trainer": {"run": {"name": "quant", "dir": "run", "steps": 2},
  "batching": {"global_batch_size": 2, "microbatch_size": 1},
  "model_stage_factory": {"source_checkpoint": "$dir"}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
    rm -rf run
    mpi -n 2 d9d-train -q --device cpu "${sets[@]}" config.json
    grep -oE '"(loss|grad_norm)": *[0-9.e+-]+' run/metrics.jsonl
}

# as_twin NAME TWIN MESH...: on each mesh, losses from the weights of quant/NAME are those of TWIN.
as_twin() {
    local name=$1 twin=$2 mesh
    shift 2
    for mesh; do
        # shellcheck disable=SC2086 # words
        losses "$golden/quant/$name" $mesh >quantised
        # shellcheck disable=SC2086 # words
        losses "$PWD/$twin" $mesh >plain
        [ "$(wc -l <quantised)" -eq 4 ]
        cmp quantised plain || { echo "$name: $mesh" && false; }
    done
}

@test "weights in FP8 on stages, shards, experts and parts of matrices" {
    d9d-map -q --dtype float32 --to hf "$golden/quant/deepseek_v3" twin
    as_twin deepseek_v3 twin pipeline_parallel=2 tensor_parallel=2 data_parallel_shard=2 \
        "data_parallel_shard=2 expert_parallel=2"
}

@test "weights of bitsandbytes, GPTQ and AWQ on shards and parts of matrices" {
    for name in qwen3_bnb4 qwen3_bnb8 qwen3_gptq qwen3_awq; do
        d9d-map -q --dtype float32 --to hf "$golden/quant/$name" "$name"
        as_twin "$name" "$name" tensor_parallel=2 data_parallel_shard=2
    done
}

@test "weights of AutoFP8, FBGEMM, modelopt and compressed-tensors on shards and parts of matrices" {
    for name in qwen3_{autofp8,fbgemm,modelopt_fp8,modelopt_nvfp4,modelopt_mixed,nvfp4,mxfp4,int4,int8}; do
        d9d-map -q --dtype float32 --to hf "$golden/quant/$name" "$name"
        as_twin "$name" "$name" tensor_parallel=2 data_parallel_shard=2
    done
}
