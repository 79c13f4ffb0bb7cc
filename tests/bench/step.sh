#!/bin/sh
# A training step on the CPU, compared with PyTorch eager: the same weights, tokens, threads and
# optimizer.  The losses must agree; then the medians are compared.  Without a Python that has torch
# and transformers (D9D_PYTHON, else python3) only our side is measured.
#
#     D9D_BIN=build/bin tests/bench/step.sh [dense|moe ...]
export LC_ALL=C # for numbers of awk and printf
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=${D9D_BIN:-$here/../../build/bin}
python=${D9D_PYTHON:-python3}
threads=${OMP_NUM_THREADS:-$(nproc)}
steps=12 rows=8 length=256
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export OMP_NUM_THREADS="$threads"

"$python" -c 'import torch, transformers' 2>/dev/null || python=

[ $# -gt 0 ] || set -- dense moe

# One JSONL line a sample: ids by a small linear congruence, the same every time.
tokens() {
    awk -v n=$((steps * rows)) -v len=$((length + 1)) 'BEGIN {
        x = 1
        for (i = 0; i < n; i++) {
            printf "{\"input_ids\": ["
            for (j = 0; j < len; j++) {
                x = (x * 16807) % 2147483647
                printf "%s%d", j ? ", " : "", x % 2048
            }
            print "]}"
        }
    }'
}

median() { sort -n | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }

tokens >"$tmp/tokens.jsonl"
"$bin/d9d-shard" --quiet --format tokens --out "$tmp/data" "$tmp/tokens.jsonl"

printf '%-8s %14s %14s %8s   %s\n' model 'd9d ms/step' 'torch ms/step' ratio \
    "(${rows}x$length tokens a step, $threads threads, median of $((steps - 2)))"
for model; do
    "$bin/d9d-map" init --quiet --seed 1 --model "$here/$model.config.json" "$tmp/$model"
    cat >"$tmp/$model.train.json" <<JSON
{"data": {"dataset": "$tmp/data"},
 "model_provider": {"name": "qwen3_$model", "hf_config": "$tmp/$model/config.json"},
 "trainer": {"run": {"name": "bench", "dir": "$tmp/run-$model"},
             "batching": {"global_batch_size": $rows, "microbatch_size": $rows},
             "model_stage_factory": {"source_checkpoint": "$tmp/$model"},
             "checkpointing": {"period_steps": "disable"},
             "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}}
JSON
    "$bin/d9d-train" --quiet "$tmp/$model.train.json"
    sed 's/.*"loss": \([^,]*\),.*"step_ms": \([^,]*\),.*/\1 \2/' "$tmp/run-$model/metrics.jsonl" \
        >"$tmp/ours"
    ours=$(tail -n +3 "$tmp/ours" | cut -d' ' -f2 | median)
    if [ -z "$python" ]; then
        printf '%-8s %14.1f %14s %8s\n' "$model" "$ours" - -
        continue
    fi
    "$python" "$here/peer_step.py" --model "$tmp/$model" --tokens "$tmp/tokens.jsonl" \
        --rows "$rows" --threads "$threads" >"$tmp/theirs"
    paste -d' ' "$tmp/ours" "$tmp/theirs" | awk '{
        d = ($1 - $3) / $3
        if (d > 1e-3 || d < -1e-3) { print "step " NR ": loss " $1 " and " $3 " differ"; bad = 1 }
    } END { exit bad }' >&2
    theirs=$(tail -n +3 "$tmp/theirs" | cut -d' ' -f2 | median)
    printf '%-8s %14.1f %14.1f %8.2f\n' "$model" "$ours" "$theirs" \
        "$(awk "BEGIN {print $theirs / $ours}")"
done
