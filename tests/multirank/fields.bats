#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Named tensors of samples on several ranks: what they weigh and teach is what one rank learns.

load ../slurm/helper

load topology

dense_meshes="2 1 1 1 1 1,1 2 1 1 1 1,1 1 2 1 1 1,1 1 1 1 2 1,1 1 1 1 1 1 2,1 2 2 1 1 1 2,1 1 1 2 2 1,2 2 1 1 2 1"
moe_meshes="1 2 1 1 1 2,1 2 1 1 2 4,1 2 1 1 1 2 2"

# Documents of 2 to 14 tokens, with a weight of each target, one of the document and probabilities.
documents() {
    awk 'function draw() { return (state = state * 16807 % 2147483647) / 2147483647 }
        BEGIN { state = 5000015; for (i = 0; i < 256; i++) {
        n = 2 + int(13 * draw()); ids = w = ""
        for (k = 0; k < n; k++) { ids = ids (k ? ", " : "") int(156 * draw()); w = w (k ? ", " : "") sprintf("%.3f", 2 * draw()) }
        p = draw(); q = (1 - p) * draw()
        printf "{\"input_ids\": [%s], \"weight\": [%s], \"importance\": %.3f, \"teacher\": [%.5f, %.5f, %.5f]}\n",
            ids, w, 2 * draw(), p, q, 1 - p - q } }'
}

setup_file() {
    workroom
    cat >fields.json <<'JSON'
{"fields": [{"name": "weight", "per": "target"}, {"name": "importance"}, {"name": "teacher", "shape": [3]}]}
JSON
    documents >documents.jsonl
    d9d-shard -q --format tokens --fields fields.json --out data documents.jsonl
    d9d-shard -q --format tokens --fields fields.json --pack 24 --out packed documents.jsonl
    # Of targets that weigh next to nothing gradients are rounding, which Adam would make as large as any.
    # shellcheck disable=SC2034 # of topology.bash
    eps=1e-5
    configure dense 48 '"intermediate_size": 48' >dense.json
    configure moe 24 '"intermediate_size": 24, "num_experts": 8, "experts_top_k": 3,
        "shared_expert": {"intermediate_size": 24, "enable_gate": true}' >moe.json
    for model in dense moe; do alone $model-weighed $model "${weighed[@]}"; done
    alone dense dense
    alone dense-packed dense "${packed[@]}" "${important[@]}"
    alone soft dense "${soft[@]}"
}

weighed=(--set 'task={"name": "causal_lm", "loss_weights": "weight"}')
important=(--set 'task={"name": "causal_lm", "loss_weights": "importance"}')
packed=(--set data.dataset=packed --set trainer.run.steps=6)
soft=(--set 'task={"name": "classification", "num_labels": 3, "soft_labels": "teacher"}')

alone() { d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir="$1" "${@:3}" "$2.json"; }

# everywhere REFERENCE MODEL MESHES OPTION...
everywhere() {
    local mesh
    while read -r mesh; do
        rm -rf run
        { train "$2" "$mesh" run --set trainer.batching.microbatch_size=2 "${@:4}" && same run "$1"; } || { echo "mesh $mesh"; return 1; }
    done < <(tr , '\n' <<<"$3")
}

@test "weights of targets change what is learned, and equal one rank on every mesh" {
    run ! same dense-weighed dense
    everywhere dense-weighed dense "$dense_meshes" "${weighed[@]}"
    everywhere moe-weighed moe "$moe_meshes" "${weighed[@]}"
}

@test "weights of documents in packed samples equal one rank" {
    steps=6 everywhere dense-packed dense "1 2 1 1 1 1,1 1 2 1 2 1,1 1 1 1 1 1 2" "${packed[@]}" "${important[@]}"
}

@test "soft labels equal one rank on every mesh" {
    everywhere soft dense "1 2 1 1 1 1,1 1 2 1 1 1,1 1 1 1 2 1,1 1 1 1 1 1 2,1 2 2 1 1 1 2" "${soft[@]}"
}

@test "classifier_dropout drops the same elements on every mesh" {
    dropped=("${soft[@]}" --set task.classifier_dropout=0.3 --set optimizer.eps=1e-5) # no step of noise
    alone dropped dense "${dropped[@]}"
    run ! same dropped soft
    everywhere dropped dense "1 2 1 1 1 1,1 1 2 1 2 1,1 1 1 1 1 1 2" "${dropped[@]}"
}

@test "a run with weights resumes to the bit, and on another mesh as one rank" {
    rm -rf part run
    train dense "1 2 1 1 1 1" part "${weighed[@]}" --set trainer.run.steps=3
    rm -r part/export
    cp -r part run
    train dense "1 2 1 1 1 1" part "${weighed[@]}"
    train dense "1 1 2 1 1 1" run "${weighed[@]}"
    close_to 1e-5 <(numbers loss run) <(numbers loss dense-weighed)
    rm -rf run
    train dense "1 2 1 1 1 1" run "${weighed[@]}"
    cmp {part,run}/export/model.safetensors
}

@test "--plan counts the fields: the peak memory to the byte" {
    alone all dense "${weighed[@]}" --set trainer.run.steps=32 # all samples, and so the longest
    run -0 d9d-train --plan --gpu cpu --json "${weighed[@]}" dense.json
    assert_equal "$(sed -n 's/^ *"peak": \([0-9]*\),$/\1/p' <<<"$output")" "$(numbers mem_bytes all | sort -n | tail -n 1)"
    d9d-train --plan --gpu h100 --length 64 -q "${weighed[@]}" dense.json
}

@test "a dataset without the field, or with another, is refused before anything is spent" {
    refused() {
        run -2 alone no dense --set "task={\"name\": \"causal_lm\", \"loss_weights\": \"$1\"}"
        assert_output --partial "$2"
        [ ! -e no ]
    }
    refused wieght 'task.loss_weights wants the field "wieght" of data, which has only "weight", "importance", "teacher"'
    refused teacher 'the field "teacher" of data has 3 numbers in a row, must have 1'
    d9d-shard -q --format tokens --out plain documents.jsonl
    run -2 alone no dense "${weighed[@]}" --set 'evaluation={"data": {"dataset": "plain"}}'
    assert_output --partial 'task.loss_weights wants the field "weight" of plain, which has none'
    run -2 alone no dense "${soft[@]}" --set task.num_labels=4
    assert_output --partial 'the field "teacher" of data has 3 numbers in a row, must have 4'
}

@test "weights of one are no weights, and weights of two are twice the loss" {
    for w in 1 2; do
        sed -E "s/\"importance\": [0-9.]+/\"importance\": $w/" documents.jsonl >w$w.jsonl
        d9d-shard -q --format tokens --fields fields.json --out w$w w$w.jsonl
        alone by-$w dense "${important[@]}" --set data.dataset=w$w
    done
    cmp {dense,by-1}/export/model.safetensors
    close_to 1e-6 <(numbers loss by-2 | head -n 1) <(numbers loss dense | head -n 1 | awk '{ printf "%.9f\n", 2 * $1 }')
}
