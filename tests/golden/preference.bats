#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Preference training and distillation: a step's loss, gradient norm and rewards are TRL's
# (make_preference.py).

setup() {
    load ../tools/helper
    work=$(workplace)
    cd "$work" || return 1
    golden=$BATS_TEST_DIRNAME/preference
    ln -s "$golden/student" "$golden/teacher" .
    for format in preference:pairs unpaired:unpaired; do
        d9d-shard -q --format "${format%:*}" --template "$golden/chat.jinja" -o "${format#*:}" \
            -t "$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json" "$golden/${format#*:}.jsonl"
    done
}
teardown() { cd / && rm -rf "$work"; }

# step CASE-JSON [OPTION...]: one step over all records, in run/.
step() {
    jq '{data: {dataset: .data}, task: .task,
         metrics: (if .task.name == "preference" then [{name: "rewards"}] else [] end),
         model_provider: {name: "auto", hf_config: "student", dtype: "float32"},
         trainer: {run: {name: "golden", dir: "run", steps: 1},
           batching: {global_batch_size: 8, microbatch_size: 8},
           model_stage_factory: {source_checkpoint: "student"}},
         optimizer: {name: "sgd", lr: 1e-9}}' <<<"$1" >case.json
    rm -rf run
    d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" "${@:2}" case.json
}

# far CASE-JSON: what the step says that is not TRL's, to 1e-5; rewards, which are near 0, to 1e-5 of 1.
far() {
    jq -c --argjson case "$1" -n '[inputs | select(.loss)] | first as $got | $case.step | to_entries[]
        | (if .key == "kl" then "rewards/kl" else .key end) as $key
        | (if $key | startswith("rewards") then 1 else .value | fabs end) as $scale
        | select($got[$key] == null or (($got[$key] - .value) | fabs) > 1e-5 * $scale)
        | {case: $case.case, key: $key, trl: .value, d9d: $got[$key]}' run/metrics.jsonl
}

@test "a step's loss, gradient norm and rewards are TRL's" {
    n=0
    while read -r case; do
        step "$case"
        run -0 far "$case"
        [ -z "$output" ]
        n=$((n + 1))
    done < <(jq -c '.[]' "$golden/cases.json")
    [ "$n" -eq 9 ]
    # A planted fault: another beta is another loss.
    case=$(jq -c '.[0] | .task.beta = 0.11' "$golden/cases.json")
    step "$case"
    run -0 far "$case"
    [[ "$output" == *'"key":"loss"'* ]]
}

@test "packed records and logits of a few tokens at a time have the same step" {
    for format in preference:pairs unpaired:unpaired; do
        d9d-shard -q --force --format "${format%:*}" --template "$golden/chat.jinja" -o "${format#*:}" --pack 1024 \
            -t "$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json" "$golden/${format#*:}.jsonl"
    done
    while read -r case; do
        case=$(jq -c 'if .task.name == "distillation" then .task.chunk_tokens = 7 else . end' <<<"$case")
        step "$case" --set trainer.batching.global_batch_size=1 --set trainer.batching.microbatch_size=1
        run -0 far "$case"
        [ -z "$output" ]
    done < <(jq -c '.[] | select(.case | IN("ipo", "kto", "jsd_mixed"))' "$golden/cases.json")
}
