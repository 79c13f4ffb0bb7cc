#!/bin/bash
# d9d-map compared with `cp -r` of the same bytes: a pure rename, and experts that are stacked and
# transposed, and the reverse.  Sources are in the page cache and, as root, not. cp leaves its bytes
# to writeback; `cp, sync` includes it, as d9d-map does.
#
#     D9D_BIN=build/bin tests/bench/map.sh [rename|stack|unstack ...]
#     BENCH_LAYERS=7 BENCH_EXPERT_LAYERS=1 BENCH_RUNS=3    smaller than the 4 GB each, and fewer
#     BENCH_DIR=/scratch                                   where to work; room for three of them
export LC_ALL=C # for numbers of awk and printf
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${D9D_BIN:-$here/../../build/bin}
runs=${BENCH_RUNS:-5} jobs=${BENCH_JOBS:-2}
tmp=$(mktemp -d "${BENCH_DIR:-/tmp}/d9d-bench-XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# model FILE LAYERS MORE: Qwen3 of 1.7B shape, with heads of its own or experts of 30B-A3B's.
model() {
    cat >"$1" <<JSON
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2048,
 "intermediate_size": 6144, "num_hidden_layers": $2, "num_attention_heads": 16,
 "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rms_norm_eps": 1e-6,
 "rope_theta": 1000000, "max_position_embeddings": 4096, "hidden_act": "silu",
 "attention_bias": false, "torch_dtype": "bfloat16"$3}
JSON
}

median() { sort -n | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
now() { date +%s%N; }

# Everything on disk, nothing of an earlier result; the source where the run wants it.
prepare() { # SRC CACHE
    rm -rf "$tmp/out"
    sync -f "$tmp"
    if [ "$2" = cold ]; then
        echo 3 >/proc/sys/vm/drop_caches
    else
        cat "$1"/* >/dev/null
    fi
}

# clock NAME COMMAND...: milliseconds to the file of that name; the most memory to NAME.rss.
clock() {
    local name=$1 begin pid
    shift
    begin=$(now)
    "$@" &
    pid=$!
    while grep VmHWM "/proc/$pid/status" >"$tmp/hwm" 2>/dev/null; do
        [ -s "$tmp/hwm" ] && awk '{print $2 / 1024}' "$tmp/hwm" >"$tmp/$name.last"
        sleep 0.02
    done
    wait "$pid"
    echo $((($(now) - begin) / 1000000)) >>"$tmp/$name"
    cat "$tmp/$name.last" >>"$tmp/$name.rss"
}

copy() { cp -r "$1" "$tmp/out"; }
copy_sync() { cp -r "$1" "$tmp/out" && sync -f "$tmp/out"; }
map() { exec "$bin/d9d-map" -q --jobs "$jobs" "$1" "$tmp/out"; }

compare() { # TITLE SRC CACHE
    local cp sync map
    rm -f "$tmp"/time.*
    for _ in $(seq "$runs"); do
        for what in copy map copy_sync; do
            prepare "$2" "$3"
            clock "time.$what" "$what" "$2"
        done
    done
    cp=$(median <"$tmp/time.copy") sync=$(median <"$tmp/time.copy_sync") map=$(median <"$tmp/time.map")
    awk -v t="$1, $3" -v b="$(du -sb "$2" | cut -f1)" -v c="$cp" -v s="$sync" -v m="$map" \
        -v r="$(sort -n "$tmp/time.map.rss" | tail -n 1)" 'BEGIN {
        printf "%-24s %6.2f %8.2f %12.2f %9.2f %8.2f %10.2f %8.0f\n", t, b / 1e9, c / 1e3, s / 1e3, m / 1e3, m / c, m / s, r}'
}

caches=warm
[ -w /proc/sys/vm/drop_caches ] && caches="warm cold"
model "$tmp/dense.json" "${BENCH_LAYERS:-28}" ', "tie_word_embeddings": false'
model "$tmp/moe.json" "${BENCH_EXPERT_LAYERS:-3}" ', "tie_word_embeddings": true,
 "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true'
sed -i 's/Qwen3ForCausalLM/Qwen3MoeForCausalLM/; s/"qwen3"/"qwen3_moe"/' "$tmp/moe.json"

printf '%-24s %6s %8s %12s %9s %8s %10s %8s   (%d threads, medians of %d)\n' 'hf to d9d; unstack: back' GB \
    'cp, s' 'cp, sync, s' 'map, s' map/cp 'map/sync' MiB "$jobs" "$runs"
[ $# -gt 0 ] || set -- rename stack unstack
for case; do
    rm -rf "$tmp/src" "$tmp/out"
    case $case in
    rename) "$bin/d9d-map" init -q --model "$tmp/dense.json" "$tmp/src" ;;
    *) "$bin/d9d-map" init -q --model "$tmp/moe.json" "$tmp/src" ;;
    esac
    if [ "$case" = unstack ]; then
        "$bin/d9d-map" -q "$tmp/src" "$tmp/out"
        rm -rf "$tmp/src"
        mv "$tmp/out" "$tmp/src"
    fi
    for cache in $caches; do compare "$case" "$tmp/src" "$cache"; done
done
