#!/bin/bash
# verify.sh - d9d-map verify and diff compared with cat, from the page cache: GB/s by wall time and
# by CPU time of one thread.  D9D_BENCH_LAYERS (8) layers of a 0.6B model, D9D_BENCH_JOBS (2).
export LC_ALL=C # for numbers of awk and printf
set -eu
cd "$(dirname "$0")/../.."
export PATH=${D9D_BIN:-$PWD/build/bin}:$PATH
work=$(mktemp -d "${TMPDIR:-/tmp}/d9d-bench-XXXXXX")
trap 'rm -rf "$work"' EXIT
jobs=${D9D_BENCH_JOBS:-2}
cat >"$work/config.json" <<JSON
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
 "intermediate_size": 3072, "num_hidden_layers": ${D9D_BENCH_LAYERS:-8}, "num_attention_heads": 16,
 "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rms_norm_eps": 1e-6,
 "rope_theta": 1000000, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
 "max_position_embeddings": 4096, "hidden_act": "silu", "attention_bias": false}
JSON
d9d-map init -q --dtype bfloat16 --model "$work/config.json" "$work/a"
cp -R "$work/a" "$work/b"
bytes=$(du -sb "$work/a" | cut -f1)

# rate NAME BYTES COMMAND...: the best of five.
rate() {
    local name=$1 n=$2 i
    shift 2
    TIMEFORMAT='%R %U %S'
    for ((i = 0; i < 5; i++)); do
        { time "$@" >/dev/null 2>&1; } 2>&1
    done | awk -v name="$name" -v n="$n" '
        { cpu = $2 + $3; if (!wall || $1 < wall) wall = $1; if (!least || cpu < least) least = cpu }
        END { printf("%-34s %6.2f GB/s  %6.2f GB a processor second\n", name, n / wall / 1e9, n / least / 1e9) }'
}
cat "$work"/b/* >/dev/null
rate "cat" "$bytes" cat "$work"/a/*
rate "verify" "$bytes" d9d-map verify -q -j "$jobs" "$work/a"
rm "$work/b/manifest.json"
rate "verify --no-manifest" "$bytes" d9d-map verify -q -j "$jobs" --no-manifest "$work/b"
rate "diff, equal" "$((2 * bytes))" d9d-map diff -q -j "$jobs" "$work/a" "$work/b"
rm -r "$work/b"
d9d-map init -q --seed 1 --dtype bfloat16 --model "$work/config.json" "$work/b"
cat "$work"/b/* >/dev/null
rate "diff, every element differs" "$((2 * bytes))" d9d-map diff -q -j "$jobs" "$work/a" "$work/b"
