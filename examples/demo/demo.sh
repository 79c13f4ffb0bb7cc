#!/bin/bash
# demo.sh - the whole workflow in minutes: from C headers to a trained model and its report.
#
#   D9D_BIN         folder of the tools                          build/bin
#   D9D_DEMO_DIR    folder to make, replaced if a demo made it   demo
#   D9D_DEMO_BYTES  size of the text                             2500000
#
# Every command is shown before it runs; all of them run inside the demo's folder.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tokenizer=$here/../tokenizer
: "${D9D_BIN:=$here/../../build/bin}" "${D9D_DEMO_DIR:=demo}" "${D9D_DEMO_BYTES:=2500000}"
# Threads that wait sleep: a step has many short waits, and the machine may be busy.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
PATH=$(cd "$D9D_BIN" && pwd):$PATH

step=0
heading() {
    step=$((step + 1))
    printf '\n-- %d. %s\n' $step "$*"
}
show() { # run a command after showing it
    printf '$ %s\n' "$*"
    "$@"
}
fail() {
    printf 'demo: %s\n' "$*" >&2
    exit 1
}
trap 'fail "step $step failed (see above); what was made so far is in $D9D_DEMO_DIR"' ERR

# The folder must be new or made by an earlier demo.
if [ -e "$D9D_DEMO_DIR" ]; then
    [ -e "$D9D_DEMO_DIR/.d9d-demo" ] || fail "$D9D_DEMO_DIR exists and is not a demo's; set D9D_DEMO_DIR"
    rm -rf "$D9D_DEMO_DIR"
fi
mkdir -p "$D9D_DEMO_DIR"
cd "$D9D_DEMO_DIR"
touch .d9d-demo
cp "$here"/*.json .

# Real text that every machine with a C compiler has, in an order that has nothing to do
# with the folders, as far as the size goes.  Other encodings than UTF-8 stay out.
headers() {
    local size=0 n name
    find /usr/include -name '*.h' -type f -size -24k -printf '%p %s\n' | LC_ALL=C sort |
        shuf --random-source=<(yes) | while read -r name n; do
        [ $((size + n)) -le "$D9D_DEMO_BYTES" ] || continue
        iconv -f UTF-8 -t UTF-8 "$name" >/dev/null 2>&1 || continue
        size=$((size + n))
        printf '%s\n' "$name"
    done
}

heading "Text: C headers of this machine"
mkdir text
headers | while read -r name; do cp "$name" "text/$(cut -c2- <<<"$name" | tr / _)"; done
printf '%d files, %d bytes in text/\n' "$(find text -type f | wc -l)" "$(cat text/* | wc -c)"

heading "A HuggingFace checkpoint with random weights"
show d9d-map init --model model.json --seed 1 hf
cp "$tokenizer/tokenizer.json" "$tokenizer/tokenizer_config.json" hf

heading "Text to dataset: tokens, an index, one document in twenty held out"
printf '$ d9d-shard --tokenizer hf/tokenizer.json --out data --format text ... text/*\n'
d9d-shard --tokenizer hf/tokenizer.json --out data --format text --append-eos '<|endoftext|>' \
    --max-length 128 --overflow split --split train=0.95,valid=0.05 --jobs "$(nproc)" text/*
show d9d-shard inspect data

heading "HuggingFace checkpoint to d9d's layout"
show d9d-map --to d9d hf ckpt

heading "Perplexity of the held-out text before training"
show d9d-infer infer.json --json | tee before.json

heading "Training"
show d9d-train train.json

heading "The exported HuggingFace checkpoint, mapped back"
show d9d-map verify export
show d9d-map --to d9d export back

heading "Perplexity of the same text after training"
show d9d-infer infer.json --json --set trainer.model_stage_factory.source_checkpoint=back | tee after.json

heading "What the run looked like"
show d9d-metrics summary run
show d9d-metrics plot run -o curves.svg
show d9d-metrics plot run -o curves.png || [ $? -eq 2 ] # a build without cairo
show d9d-lrplot train.json -o schedule.svg

perplexity() { sed -nE 's/.*"perplexity": *([0-9.eE+]+).*/\1/p' "$1" | tail -n 1; }
before=$(perplexity before.json)
after=$(perplexity after.json)
{ [ -n "$before" ] && [ -n "$after" ]; } || fail "d9d-infer printed no perplexity"

cat <<TEXT

== Done ==========================================================================
Perplexity of text the model never saw: $before before, $after after training.

In $PWD:
  text/                  the C headers it was trained on
  data/                  the dataset: tokens, index, manifest     d9d-shard
  hf/, ckpt/             the model before, in both layouts        d9d-map
  run/                   checkpoints, metrics.jsonl, config       d9d-train
  export/                the trained model, for transformers:
                         AutoModelForCausalLM.from_pretrained("export")
  back/                  the same, mapped back                    d9d-map
  before.json after.json the two perplexities                     d9d-infer
  curves.svg curves.png  loss, gradient norm, learning rate       d9d-metrics
  schedule.svg           the planned learning rate                d9d-lrplot

Next: remove export/, write more steps into train.json, and run d9d-train train.json
in that folder: it goes on where it stopped.  On a cluster: slurm/pipeline.sh --help.
TEXT
LC_ALL=C awk -v a="$before" -v b="$after" 'BEGIN { exit !(b > 0 && a >= 4 * b) }' ||
    fail "perplexity fell from $before to $after; at least a factor of 4 was expected"
