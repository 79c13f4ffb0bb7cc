#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Soft labels and several heads: a step's loss and gradient norm are torch's (make_losses.py).

setup() {
    load ../tools/helper
    work=$(workplace)
    cd "$work" || return 1
    golden=$BATS_TEST_DIRNAME/losses
    d9d-shard -q --format tokens --fields "$golden/fields.json" -o data "$golden/documents.jsonl"
}
teardown() { cd / && rm -rf "$work"; }

# step CASE-JSON [OPTION...]: one step over all documents, in run/.
step() {
    jq --arg golden "$golden" '{data: {dataset: "data"}, task: .task,
         model_provider: {name: "auto", hf_config: $golden, dtype: "float32"},
         trainer: {run: {name: "golden", dir: "run", steps: 1},
           batching: {global_batch_size: 8, microbatch_size: 8},
           model_stage_factory: {source_checkpoint: $golden}},
         optimizer: {name: "sgd", lr: 1e-9}}' <<<"$1" >case.json
    rm -rf run
    d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" "${@:2}" case.json
}

@test "a step's loss and gradient norm are torch's" {
    n=0
    while read -r case; do
        for micro in 8 2; do
            step "$case" --set trainer.batching.microbatch_size=$micro
            run jq -e -n --argjson want "$case" --argjson have "$(grep '"loss"' run/metrics.jsonl)" \
                '["loss", "grad_norm"] | all(. as $k | ($have[$k] - $want[$k] | fabs) <= 1e-5 * $want[$k])'
            [ "$status" -eq 0 ] || { echo "$case: $(grep '"loss"' run/metrics.jsonl)"; return 1; }
        done
        n=$((n + 1))
    done <"$golden/cases.jsonl"
    [ "$n" -eq 4 ]
}
