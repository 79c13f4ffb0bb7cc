#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of topology.bash
# Loss attribution: a step records the same documents on every mesh as on one rank.

load ../slurm/helper

# shellcheck disable=SC2034 # of topology.bash
steps=4
load topology

logging=(--set trainer.logging.documents=3)

# documents RUN: lines "STEP SAMPLE DOCUMENT TOKENS LOSS", largest loss first.
documents() {
    grep '^{"documents"' "$1/metrics.jsonl" | awk -F'[][]' '{ split($1, a, /[ ,]+/); n = split($2, d, /}, ?/)
        for (i = 1; i <= n; i++) { gsub(/[^0-9.e, +-]/, " ", d[i]); gsub(/,/, " ", d[i]); print a[2], d[i] } }' | tr -s ' '
}

# same_documents A B: compares documents exactly and losses to 1e-5.
same_documents() {
    paste -d' ' <(documents "$1") <(documents "$2") | awk '
        { n++; h = NF / 2
          for (i = 1; i < h; i++) if ($i != $(h + i)) bad = 1
          if (!(($h - $NF) ^ 2 <= (1e-5 * $NF) ^ 2)) bad = 1
          if (bad) { print; exit } }
        END { exit bad || n != 12 }'
}

# on MODEL OPTIONS MESH...: compares each mesh with one rank.
on() {
    local model=$1 mesh
    read -ra options <<<"$2"
    rm -rf alone
    d9d-train -q --device cpu --set trainer.run.dir=alone "${logging[@]}" "${options[@]}" "$model.json"
    for mesh in "${@:3}"; do
        rm -rf run
        train "$model" "$mesh" run "${logging[@]}" "${options[@]}"
        same_documents run alone || { echo "$model $2, mesh $mesh"; return 1; }
    done
}

@test "recorded documents equal one rank with context, pipeline and data parallelism" {
    d9d-shard -q --format tokens --pack 72 --out packed "$golden/moe/train.jsonl"
    on moe "--set data.dataset=packed --set data.epochs=null --set trainer.batching.microbatch_size=2 --set trainer.data_loading.pad_to_multiple_of=8" \
        "2 1 1 1 1 1" "1 1 2 1 2 4" "1 2 1 1 1 1 2" "1 1 1 2 1 1 2"
}

@test "recorded documents of a classification task equal one rank" {
    d9d-shard -q --format tokens --out texts "$golden/tasks/dense/texts.jsonl"
    on dense '--set data.dataset=texts --set task.name=classification --set task.num_labels=3 --set data.epochs=null' "1 1 2 1 1 1" "1 2 1 1 2 1"
}

@test "recording documents does not change training" {
    rm -rf a b
    train moe "1 2 1 1 1 2" a
    train moe "1 2 1 1 1 2" b "${logging[@]}" --set trainer.logging.period_steps=3
    cmp a/export/model.safetensors b/export/model.safetensors
    [ "$(grep -c '^{"documents"' b/metrics.jsonl)" = "$(grep -c '"loss"' b/metrics.jsonl)" ]
}
