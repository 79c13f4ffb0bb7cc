#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# The counts of metrics and of a task across restarts in the middle of a window: 100,000 known
# predictions, on one rank and several, compared with d9d-metrics eval of all of them.

load workroom

setup_file() {
    workroom
    plugin recite "$BATS_TEST_DIRNAME/known_predictions_plugin.c"
    samples 5 | d9d-shard -q --format tokens --out five -
    samples 2 | d9d-shard -q --format tokens --out two -
    config >train.json
    d9d-train -q --device cpu --set trainer.run.dir=whole --set task.write=five.jsonl train.json
    mv counted counted.whole
}
setup() { enter && rm -f counted; }

# samples CLASSES: 1000 samples of 100 positions; the class of a sample follows from its number.
samples() {
    awk -v c="$1" 'BEGIN { x = 7; for (i = 0; i < 1000; i++) {
        printf "{\"input_ids\": ["
        for (j = 0; j < 100; j++) { x = x * 16807 % 2147483647; printf "%s%d", j ? ", " : "", x % 90 }
        printf "], \"labels\": ["
        for (j = 0; j < 100; j++) { x = x * 16807 % 2147483647; printf "%s%d", j ? ", " : "", int(x / 7) % c }
        print "]}" } }'
}

# 20 steps; records after 8, 16 and 20, checkpoints after 3, 6, 9, ...
config() {
    cat <<JSON
{"plugin": "librecite.so", "data": {"dataset": "five"}, "task": {"name": "recite"},
 "model_provider": {"name": "qwen3_dense", "model": {"num_hidden_layers": 2,
   "layer": {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8},
   "max_position_ids": 128, "split_vocab_size": {"all": 97}, "split_vocab_order": ["all"]}},
 "trainer": {"run": {"name": "metric-state"}, "batching": {"global_batch_size": 48, "microbatch_size": 4},
  "logging": {"period_steps": 8}, "checkpointing": {"period_steps": 3}},
 "optimizer": {"name": "adamw", "lr": 1e-3},
 "metrics": [{"name": "accuracy", "problem": "multiclass", "num_classes": 5},
  {"name": "f1", "problem": "multiclass", "num_classes": 5, "average": "macro"},
  {"name": "confusion_matrix", "problem": "multiclass", "num_classes": 5}]}
JSON
}
mesh() {
    local pp=$1 dp=$2 ds=$3 cp=$4 tp=$5
    shift 5
    mpi -n $((pp * dp * ds * cp * tp)) d9d-train -q --device cpu --set mesh.pipeline_parallel="$pp" \
        --set mesh.data_parallel_replicate="$dp" --set mesh.data_parallel_shard="$ds" \
        --set mesh.context_parallel_shard="$cp" --set mesh.tensor_parallel="$tp" "$@" train.json
}

# values DIR: the metrics of every record, all digits.
values() { grep '"loss"' "$1/metrics.jsonl" | grep -oE '"(step|(accuracy|f1|confusion_matrix|binary_auroc)[^ ]*)": [^,}]*'; }

# half DIR STEP: restores DIR to its state after the checkpoint of STEP, as if the process had died.
half() {
    rm -rf "$1/export"
    for c in "$1"/checkpoints/step-*; do [ "${c##*-}" -le "$2" ] || rm -rf "$c"; done
    awk -v s="$2" -F'[:,]' '/"end"/ { next } $2 <= s' "$1/metrics.jsonl" >"$1/m" && mv "$1/m" "$1/metrics.jsonl"
}

# of_all METRIC FILE: METRIC over all rows of FILE, by d9d-metrics eval.
of_all() { d9d-metrics -q eval --json -m "$1" "$2" | sed -nE 's/.*"value": ([-0-9.e]+).*/\1/p'; }
# last NAME DIR: the value of NAME in the last record.
last() { values "$2" | sed -nE 's/^"'"$1"'": //p' | tail -n 1; }
macro=f1,problem=multiclass,num_classes=5,average=macro

@test "a recorded metric equals d9d-metrics eval on the predictions of its window" {
    # The last window: steps 17 to 20, 48 samples of 100 each.
    tail -n 19200 five.jsonl >last.jsonl
    [ "$(last f1 whole)" = "$(of_all $macro last.jsonl)" ]
    [ "$(last accuracy whole)" = "$(of_all accuracy,problem=multiclass,num_classes=5 last.jsonl)" ]
    [[ $(last f1 whole) =~ ^0\.[0-9]{10} ]]
    [ "$(wc -l <five.jsonl)" -eq 96000 ]
}

@test "metrics of the same name have distinct keys, which d9d-metrics reads" {
    local two='{"name": "accuracy", "problem": "multiclass", "num_classes": 5, "top_k": 2}'
    local each='{"name": "f1", "problem": "multiclass", "num_classes": 5, "average": "none"}'
    run -0 d9d-train -q --device cpu --set "metrics=[${two/, \"top_k\": 2/}, $two, ${each/none/macro}, $each, $each]" \
        --set trainer.run.dir=alike --set trainer.run.steps=16 --set "evaluation={\"data\": {\"dataset\": \"five\"}, \"samples\": 8, \"metrics\": [$two, $two]}" train.json
    run -0 grep -oE '"(accuracy|f1)[^"]*"' alike/metrics.jsonl
    assert_equal "$(sort -u <<<"$output" | tr '\n' ' ')" \
        "$(printf '"%s"\n' accuracy 'accuracy[1]' f1 f1/{0..4} 'f1[4]/'{0..4} | sort | tr '\n' ' ')"
    run -0 grep -oE '"valid/accuracy[^"]*"' alike/metrics.jsonl
    [ "${lines[*]}" = '"valid/accuracy" "valid/accuracy[1]"' ]
    run -0 --separate-stderr d9d-metrics export --to csv alike
    [[ "${lines[0]}" == *'accuracy[1]'* ]]
    values whole | grep -m 1 '"accuracy"' >all
    values alike | grep -m 1 '"accuracy"' | cmp - all
}

@test "a window with a restart in it is counted once, with the same bits" {
    for at in 3 9 18; do
        rm -rf again && cp -r whole again && half again $at
        run -0 d9d-train -q --device cpu --set trainer.run.dir=again train.json
        diff <(values again) <(values whole)
        cmp {again,whole}/export/model.safetensors
        diff counted counted.whole
        rm counted
    done
    [ -f whole/checkpoints/step-00000009/ranks-00000/state-r00000.safetensors ]
}

@test "a window of 100,000 predictions survives restarts between 1, 2 and 4 ranks" {
    with_mpi
    all=(--set trainer.batching.global_batch_size=40 --set trainer.batching.microbatch_size=5
        --set trainer.logging.period_steps=last_step --set trainer.checkpointing.period_steps=7)
    run -0 d9d-train -q --device cpu "${all[@]}" --set trainer.run.dir=one --set task.write=hundred.jsonl train.json
    [ "$(wc -l <hundred.jsonl)" -eq 100000 ]
    [ "$(last f1 one)" = "$(of_all $macro hundred.jsonl)" ]
    mv counted counted.one
    # The same predictions in an evaluation, which must not change the training metrics.
    measured='evaluation={"data": {"dataset": "five"}, "microbatch_size": 7, "metrics": [{"name": "f1", "problem": "multiclass", "num_classes": 5, "average": "macro"}]}'
    mesh 1 2 1 2 1 "${all[@]}" --set "$measured" --set trainer.run.dir=measured
    diff <(sed -nE 's|.*"valid/f1": ([^,}]+).*|\1|p' measured/metrics.jsonl) <(last f1 one)
    diff <(values measured | grep -v valid/) <(values one)
    rm -f counted
    froms=("1 1 2 1 1" "1 2 2 1 1") tos=("1 2 2 1 1")
    [ -z "${D9D_LONG:-}" ] || froms+=("2 1 1 2 1" "1 1 1 1 2") tos+=("1 1 1 1 1" "1 2 1 1 1")
    for from in "${froms[@]}"; do
        # shellcheck disable=SC2086 # words
        mesh $from "${all[@]}" --set trainer.run.dir=first
        diff <(values first) <(values one)
        rm -f counted
        for to in "${tos[@]}"; do
            rm -rf second && cp -r first second && half second 14
            # shellcheck disable=SC2086
            mesh $to "${all[@]}" --set trainer.run.dir=second
            diff <(values second) <(values one)
            # every tensor-parallel rank sees every row
            [ "${from##* }" -gt 1 ] || [ "$(awk '{ n += $1 } END { print n }' counted)" -eq 100000 ]
            rm -f counted
        done
        rm -rf first
    done
    diff counted.one - <<<"100000 89"
}

@test "AUC of 96,000 probabilities survives a restart on two ranks" {
    with_mpi
    auc=(--set data.dataset=two --set task.classes=1 --set 'metrics=[{"name": "binary_auroc"}]'
        --set trainer.logging.period_steps=last_step)
    run -0 d9d-train -q --device cpu "${auc[@]}" --set trainer.run.dir=auc --set task.write=two.jsonl train.json
    [ "$(last binary_auroc auc)" = "$(of_all binary_auroc two.jsonl)" ]
    mesh 1 2 1 1 1 "${auc[@]}" --set trainer.run.dir=auc2
    half auc2 9
    mesh 1 2 1 1 1 "${auc[@]}" --set trainer.run.dir=auc2
    diff <(values auc2) <(values auc)
}

@test "a checkpoint without rank state, and one of another metric, load with one notice" {
    rm -rf plain && cp -r whole plain && half plain 9
    run -0 d9d-train --device cpu --set trainer.run.dir=plain --set 'metrics=[{"name": "accuracy", "problem": "multiclass", "num_classes": 6}]' \
        --set task.classes=6 --set trainer.run.steps=10 train.json
    [ "$(grep -c "which starts from its initial state" <<<"$output")" -eq 1 ]
    d9d-train -q --device cpu --set trainer.run.dir=old --set task=null --set 'task={"name": "causal_lm"}' --set 'metrics=[]' \
        --set trainer.run.steps=6 train.json
    [ ! -e old/checkpoints/step-00000003/ranks-00000/state-r00000.safetensors ]
    run ! grep -q rank_state old/checkpoints/step-00000003/manifest.json
    half old 3
    run -0 d9d-train --device cpu --set trainer.run.dir=old --set trainer.run.steps=6 train.json
    [ "$(grep -c "start from their initial state" <<<"$output")" -eq 1 ]
}
