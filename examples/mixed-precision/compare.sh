#!/bin/bash
# compare.sh - what each way of updating bfloat16 weights costs in loss: a small model on C headers,
# trained by each from random weights, and from a trained model at a rate of fine-tuning.  Prints the
# mean loss of the last hundred steps (docs/howto/mixed-precision.md).
#
#   D9D_BIN        folder of the tools    build/bin
#   D9D_WORK_DIR   folder to make         mixed-precision
#   D9D_STEPS      steps of each run      2000
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
: "${D9D_BIN:=$here/../../build/bin}" "${D9D_WORK_DIR:=mixed-precision}" "${D9D_STEPS:=2000}"
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
PATH=$(cd "$D9D_BIN" && pwd):$PATH

[ ! -e "$D9D_WORK_DIR" ] || { echo "compare.sh: $D9D_WORK_DIR exists; set D9D_WORK_DIR" >&2; exit 2; }
mkdir -p "$D9D_WORK_DIR"
cd "$D9D_WORK_DIR"

headers() { find "$@" -name '*.h' -type f -size -24k -printf '%p %f\n' | LC_ALL=C sort -k 1; }
# text DIR FOLDER...: those of its headers that are UTF-8.
text() {
    local to=$1 name file
    shift
    mkdir "$to"
    headers "$@" | while read -r name file; do
        ! iconv -f UTF-8 -t UTF-8 "$name" >/dev/null 2>&1 || cp "$name" "$to/$file"
    done
}
dataset() { # DIR FILE...
    local to=$1
    shift
    d9d-shard -q --tokenizer "$here/../tokenizer/tokenizer.json" --format text --append-eos '<|endoftext|>' \
        --max-length 64 --overflow split --out "$to" "$@"
}
text headers /usr/include -maxdepth 1
text kernel /usr/include/linux -maxdepth 1
dataset data headers/*
dataset others kernel/*
sed 's/"Qwen3MoeForCausalLM"/"Qwen3ForCausalLM"/; s/"qwen3_moe"/"qwen3"/
    s/"hidden_size": 128/"hidden_size": 64/; s/"num_hidden_layers": 4/"num_hidden_layers": 2/
    /expert\|moe_\|norm_topk\|sparse\|mlp_only/d' "$here/../demo/model.json" >model.json
d9d-map -q init --model model.json --seed 1 hf

# run NAME DTYPE OPTIMIZER-OPTIONS DATASET RATE SOURCE
run() {
    d9d-train -q --set trainer.run.dir="$1" --set model_provider.dtype="$2" \
        --set optimizer="{\"name\": \"adamw\", \"lr\": $5, \"betas\": [0.9, 0.95], \"weight_decay\": 0.1$3}" \
        --set data.dataset="$PWD/$4" --set model_provider.hf_config="$PWD/hf/config.json" \
        --set trainer.model_stage_factory.source_checkpoint="$PWD/$6" \
        --set trainer.run.steps="$D9D_STEPS" --set export_to="$PWD/$1/export" "$here/train.json" >/dev/null
}
# The mean of the last hundred.
loss() { grep '"loss"' "$1/metrics.jsonl" | tail -n 100 | sed 's/.*"loss": \([^,]*\),.*/\1/' | LC_ALL=C awk '{ s += $1 } END { printf "%.4f", s / NR }'; }

ways='float32|float32|
bfloat16, master (the default)|bfloat16|
bfloat16, stochastic|bfloat16|, "weight_update": "stochastic"
bfloat16, nearest|bfloat16|, "weight_update": "nearest"
bfloat16, nearest, moments too|bfloat16|, "weight_update": "nearest", "state_dtype": "bfloat16"'

i=0
printf '| %-32s | from random weights, 1e-3 | fine-tuning, 1e-5 |\n|---|---|---|\n' weights
while IFS='|' read -r name dtype options; do
    i=$((i + 1))
    run "pre-$i" "$dtype" "$options" data 1e-3 hf
    run "fine-$i" "$dtype" "$options" others 1e-5 pre-1/export
    printf '| %-32s | %s | %s |\n' "$name" "$(loss "pre-$i")" "$(loss "fine-$i")"
done <<<"$ways"
