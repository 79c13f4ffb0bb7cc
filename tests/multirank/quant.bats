#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Ranks that load weights in FP8 train as ranks that load the decoded twin: each decodes what its
# stage, shard or experts need.

golden=$BATS_TEST_DIRNAME/../golden

load workroom

setup_file() { workroom; }

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

@test "weights in FP8 on stages, shards, experts and parts of matrices" {
    head -n 2 "$golden/families/deepseek_v3/train.jsonl" | d9d-shard -q --format tokens --out data -
    d9d-map -q --dtype float32 --to hf "$golden/quant/deepseek_v3" twin
    for mesh in pipeline_parallel=2 tensor_parallel=2 data_parallel_shard=2 \
        "data_parallel_shard=2 expert_parallel=2"; do
        # shellcheck disable=SC2086 # words
        losses "$golden/quant/deepseek_v3" $mesh >fp8
        # shellcheck disable=SC2086 # words
        losses "$PWD/twin" $mesh >plain
        [ "$(wc -l <fp8)" -eq 4 ]
        cmp fp8 plain || { echo "$mesh" && false; }
    done
}
