#!/bin/bash
# The time of planning a conversion: a model of Qwen3-30B-A3B's shape, 18867 tensors, from shapes
# alone.
#
#     D9D_BIN=build/bin tests/bench/map_plan.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
map=${D9D_BIN:-$here/../../build/bin}/d9d-map
examples=$here/../../examples/mappers
config=$(mktemp) && trap 'rm -f "$config"' EXIT
cat >"$config" <<'JSON'
{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "head_dim": 128,
 "num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 48, "num_experts": 128,
 "num_experts_per_tok": 8, "moe_intermediate_size": 768, "vocab_size": 151936,
 "torch_dtype": "bfloat16"}
JSON

# measure NAME OPTION...
measure() {
    local TIMEFORMAT="$1: %R s, %U s of processor"
    shift
    time "$map" plan --model "$config" "$@" >/dev/null
}
{
    measure "text"
    measure "text, every group" --all
    measure "JSON with boxes" --json --boxes
    measure "DOT" --dot
    measure "from the suite's layout" --to hf
    measure "by a description" --mapper "$examples/qwen3_to_torchtitan.json"
} 2>&1
