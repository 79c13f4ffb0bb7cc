#!/bin/bash
# Training steps on a GPU beside transformers with torch.compile, on the same machine in the same
# run: models of full width from random weights, 4 sequences of 4096 random tokens a step, bfloat16,
# AdamW.  Prints tokens/s, MFU, peak memory and the ratio.
#
#     tests/gpu/compare.sh [dense|moe|dense-ours|moe-ours ...]     dense moe when none is named
#
# dense has the shape of Qwen3-1.7B with its own head, moe 8 layers of Qwen3-30B-A3B.  Needs d9d-shard
# and d9d-train on the path, 60 GB of GPU memory, and for the peer a Python with torch and
# transformers (D9D_PYTHON, else python3).
#
# MFU: (6 N + 6 L A D S) FLOP a token over 989 TFLOP/s, N being parameters of products that a
# token meets; causal attention counts half.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${D9D_PYTHON:-python3}
steps=${D9D_STEPS:-12} rows=4 length=4096
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

common='"hidden_size": 2048, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "hidden_act": "silu", "attention_bias": false,
 "attention_dropout": 0.0, "tie_word_embeddings": false, "initializer_range": 0.02,
 "use_sliding_window": false, "torch_dtype": "bfloat16", "use_cache": false'
declare -A config=(
    [dense]='{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "intermediate_size": 6144,
 "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, '"$common"'}'
    [moe]='{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "intermediate_size": 6144,
 "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 4,
 "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
 "decoder_sparse_step": 1, "mlp_only_layers": [], "router_aux_loss_coef": 0.0,
 "output_router_logits": false, '"$common"'}')
# Parameters that a token meets, and layers times heads.
declare -A met=([dense]=1720451072 [moe]=766246912) heads=([dense]=448 [moe]=256)

[ $# -gt 0 ] || set -- dense moe

tokens() {
    awk -v n=$((steps * rows)) -v len=$((length + 1)) 'BEGIN {
        x = 1
        for (i = 0; i < n; i++) {
            printf "{\"input_ids\": ["
            for (j = 0; j < len; j++) {
                x = (x * 16807) % 2147483647
                printf "%s%d", j ? ", " : "", x % 151936
            }
            print "]}"
        }
    }'
}
median() { sort -n | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }

# NAME WHO MILLISECONDS GIB FIRST_STEP_SECONDS
show() {
    awk -v name="$1" -v who="$2" -v ms="$3" -v gib="$4" -v first="$5" -v t=$((rows * length)) -v s="$length" \
        -v n="${met[$1]}" -v h="${heads[$1]}" 'BEGIN {
        printf "%-7s %-14s %9.1f ms %9.0f tok/s %6.1f %% MFU %7.1f GiB  first step after %.1f s\n",
            name, who, ms, t / ms * 1e3, (6 * n + 6 * h * 128 * s) * t / ms * 1e3 / 989e12 * 100, gib, first }'
}

ours() {
    local run=$tmp/run-$1 start
    printf '%s\n' "${config[$1]}" >"$tmp/$1.config.json"
    cat >"$tmp/$1.train.json" <<JSON
{"data": {"dataset": "$tmp/data"},
 "model_provider": {"name": "qwen3_$1", "hf_config": "$tmp/$1.config.json", "dtype": "bfloat16"},
 "trainer": {"run": {"name": "compare", "dir": "$run", "steps": $steps},
             "batching": {"global_batch_size": $rows, "microbatch_size": $rows},
             "gradient_manager": {"grad_dtype": "bfloat16"},
             "checkpointing": {"period_steps": "disable"}},
 "optimizer": {"name": "adamw", "lr": 1e-4}}
JSON
    start=$(date +%s.%N)
    # Ended after its last step, before it writes the model.
    ${D9D_WRAP:-} d9d-train --quiet --device "${D9D_TEST_DEVICE:-cuda}" "$tmp/$1.train.json" &
    local pid=$! first=
    while kill -0 $pid 2>/dev/null; do
        local n=0
        [ ! -s "$run/metrics.jsonl" ] || n=$(grep -c '"loss"' "$run/metrics.jsonl" || true)
        if [ "$n" -gt 0 ] && [ -z "$first" ]; then first=$(awk "BEGIN {print $(date +%s.%N) - $start}"); fi
        if [ "$n" -ge "$steps" ] && [ -z "${D9D_WRAP:-}" ]; then kill -KILL $pid; break; fi
        sleep 0.1
    done
    { wait $pid || true; } 2>/dev/null
    grep '"loss"' "$run/metrics.jsonl" | sed 's/.*"step_ms": \([0-9.]*\).*/\1/' | tail -n +4 | median >"$tmp/ms"
    show "$1" d9d "$(cat "$tmp/ms")" "$(grep '"loss"' "$run/metrics.jsonl" | tail -n 1 |
        sed 's/.*"mem_bytes": \([0-9]*\).*/\1/' | awk '{print $1 / 2^30}')" "${first:-0}"
}

peer() {
    printf '%s\n' "${config[$1]}" >"$tmp/$1.config.json"
    "$python" "$here/compare_peer.py" "$tmp/$1.config.json" "$rows" "$length" "$steps" >"$tmp/peer"
    read -r ms gib first <"$tmp/peer"
    show "$1" transformers "$ms" "$gib" "$first"
    awk -v a="$ms" -v b="$(cat "$tmp/ms")" -v n="$1" 'BEGIN { printf "%-7s ratio %.2f\n", n, a / b }'
}

tokens >"$tmp/tokens.jsonl"
d9d-shard --quiet --format tokens --out "$tmp/data" "$tmp/tokens.jsonl"
for model; do
    ours "${model%-ours}"
    [ "$model" != "${model%-ours}" ] || peer "$model"
done
