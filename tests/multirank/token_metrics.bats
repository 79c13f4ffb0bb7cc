#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Metrics of next tokens, whose logits training never has as a whole: on every mesh those of one
# rank, and not a bit of the training changes.

load workroom

# Every metric, some of them by two ways.
metrics='[{"name": "tokens", "top_k": 3}, {"name": "accuracy", "problem": "multiclass", "num_classes": 97},
    {"name": "accuracy", "problem": "multiclass", "num_classes": 97, "top_k": 3}, {"name": "f1", "problem": "multiclass", "num_classes": 97},
    {"name": "max"}, {"name": "tokens", "target_ids": [2, 4, 6]}]'

setup_file() {
    workroom
    samples 96 | d9d-shard -q --format tokens --out data -
    samples 23 | d9d-shard -q --format tokens --out other -
    config >train.json
    d9d-train -q --device cpu --set trainer.run.dir=plain train.json
    counting one
}

# samples N: texts of which every second token can be learnt.
samples() {
    awk -v n="$1" 'BEGIN { x = 7; for (i = 0; i < n; i++) {
        printf "{\"input_ids\": ["
        len = 8 + i * 5 % 13
        for (j = 0; j < len; j++) { x = x * 16807 % 2147483647; printf "%s%d", j ? ", " : "", j % 2 ? x % 90 : j }
        print "]}" } }'
}
config() {
    cat <<JSON
{"data": {"dataset": "data", "order": "shuffled", "epochs": 2},
 "model_provider": {"name": "qwen3_moe", "model": {"num_hidden_layers": 4,
   "layer": {"hidden_size": 16, "intermediate_size": 16, "num_experts": 4, "experts_top_k": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8},
   "max_position_ids": 64, "split_vocab_size": {"first": 50, "second": 47}, "split_vocab_order": ["first", "second"]}},
 "trainer": {"run": {"name": "tokens"}, "batching": {"global_batch_size": 8, "microbatch_size": 2},
  "logging": {"period_steps": 3}, "checkpointing": {"period_steps": 2}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-2}}
JSON
}
evaluation() { printf 'evaluation={"data": {"dataset": "other"}, "period_steps": 12, "metrics": %s}' "$metrics"; }
# counting DIR [OPTION...], or counting N DIR OPTION... on N ranks.
counting() {
    local n=
    if [[ $1 == [0-9]* ]]; then n=$1 && shift; fi
    ${n:+mpi -n $n} d9d-train -q --device cpu --set trainer.run.dir="$1" --set metrics="$metrics" --set "$(evaluation)" "${@:2}" train.json
}
# equals TOLERANCE RUN RUN
equals() {
    local field
    for field in tokens/{loss,accuracy,top_k,entropy,confidence,calibration_error} 'tokens\[5\]/'{loss,accuracy,entropy} accuracy 'accuracy\[2\]' f1 max \
        valid/tokens/{loss,accuracy,top_k,entropy} valid/accuracy valid/max; do
        close_to "$1" <(numbers "$field" "$2") <(numbers "$field" "$3") || { echo "$field"; return 1; }
    done
}

@test "metrics of next tokens do not change a bit of training" {
    diff <(numbers loss one) <(numbers loss plain)
    diff <(numbers grad_norm one) <(numbers grad_norm plain)
    cmp {one,plain}/export/model.safetensors
    awk 'NR == 1 { first = $1 } END { exit !($1 < first - 0.3) }' <(numbers tokens/loss one)
    awk 'NR == 1 { first = $1 } END { exit !($1 > first) }' <(numbers tokens/accuracy one)
}

@test "they are those of the losses and of the logits" {
    diff <(numbers tokens/accuracy one) <(numbers accuracy one)
    diff <(numbers tokens/top_k one) <(numbers 'accuracy\[2\]' one)
    counting each --set trainer.logging.period_steps=1
    close_to 1e-6 <(numbers tokens/loss each) <(numbers loss each)
    close_to 1e-6 <(numbers valid/tokens/loss one) <(numbers valid/loss one)
}

@test "the likeliest token alone is the same one" {
    d9d-train -q --device cpu --set trainer.run.dir=classes --set 'metrics=[{"name": "accuracy", "problem": "multiclass", "num_classes": 97}, {"name": "f1", "problem": "multiclass", "num_classes": 97}]' train.json
    diff <(numbers accuracy classes) <(numbers accuracy one)
    diff <(numbers f1 classes) <(numbers f1 one)
}

@test "on every mesh they equal one rank" {
    with_mpi
    local n=0 mesh
    for mesh in "data_parallel_replicate=2" "data_parallel_shard=2" "tensor_parallel=2" "context_parallel_shard=2" \
        "expert_parallel=2 data_parallel_shard=2" "pipeline_parallel=2" "tensor_parallel=2 data_parallel_shard=2" "pipeline_parallel=2 tensor_parallel=2"; do
        n=$((n + 1))
        meshed counting "$mesh" "mesh$n"
        equals 2e-4 "mesh$n" one
    done
}

@test "a run that resumes between two records counts each token once" {
    cp -r one again
    rm -rf again/export
    for c in again/checkpoints/step-*; do [ "${c##*-}" -le 10 ] || rm -rf "$c"; done
    counting again
    tail -n +"$(awk '/"restart"/ { print NR }' again/metrics.jsonl)" again/metrics.jsonl >rest
    for field in tokens/entropy 'accuracy\[2\]' max; do
        diff <(numbers "$field" rest) <(numbers "$field" one | tail -n "$(numbers "$field" rest | wc -l)")
    done
}

@test "a period leaves steps out, whose values are none" {
    counting some --set trainer.logging.period_steps=1 --set trainer.logging.token_metrics_period_steps=4
    counting all --set trainer.logging.period_steps=1
    [ "$(numbers tokens/entropy some | wc -l)" -eq 6 ]
    for step in 4 8 12 24; do
        diff <(grep "\"step\": $step, \"loss\"" some/metrics.jsonl | grep -oE '"tokens/.*"max": [^,]*') \
            <(grep "\"step\": $step, \"loss\"" all/metrics.jsonl | grep -oE '"tokens/.*"max": [^,]*')
    done
    cmp {some,all}/export/model.safetensors
}

@test "distillation, soft labels and adapters of the head have them too" {
    first=(--set trainer.logging.period_steps=1 --set trainer.run.steps=3)
    counting first "${first[@]}"
    counting taught "${first[@]}" --set 'task={"name": "distillation", "teacher": "start"}'
    counting smooth "${first[@]}" --set 'task={"name": "causal_lm", "label_smoothing": 0.1}'
    for run in taught smooth; do # they begin alike, and learn something else
        close_to 1e-6 <(numbers tokens/entropy $run | head -n 1) <(numbers tokens/entropy first | head -n 1)
        run ! diff <(numbers tokens/loss $run) <(numbers tokens/loss first)
    done
    head=(--set 'model_provider.model.split_vocab_size={"all": 97}' --set 'model_provider.model.split_vocab_order=["all"]' --set export_to=null
        --set 'peft={"kind": "lora", "module_name_pattern": "lm_head.*", "params": {"r": 4, "alpha": 8, "dropout": 0.0}}')
    counting adapted "${first[@]}" "${head[@]}"
    close_to 1e-6 <(numbers tokens/loss adapted) <(numbers loss adapted)
}

@test "what the metrics cannot be of is refused before anything is spent" {
    bad() { run -2 d9d-train -q --device cpu --set trainer.run.dir=none --set "$@" train.json; }
    bad 'metrics=[{"name": "accuracy", "problem": "multiclass", "num_classes": 96}]'
    assert_output --partial "metrics[0]: the model has 97 classes: accuracy: a prediction of 97 numbers, must be 96"
    bad 'metrics=[{"name": "accuracy"}]'
    assert_output --partial "metrics[0]: the model has 97 classes"
    bad 'metrics=[{"name": "tokens", "top_k": 0}]'
    assert_output --partial "top_k"
    awk 'BEGIN { for (i = 0; i < 40; i++) printf "{\"text\": \"%d\", \"label\": %d}\n", i, i % 5 }' |
        d9d-shard -q --tokenizer "$root/examples/tokenizer/tokenizer.json" --label-key label --out labelled -
    bad 'metrics=[{"name": "tokens"}]' --set data.dataset=labelled --set 'task={"name": "classification", "num_labels": 5}'
    assert_output --partial "metrics[0]: tokens is of a language model's next tokens, and the task has other predictions"
    [ ! -e none ]
}

@test "a plan has their memory and their products" {
    run -0 d9d-train --plan --device cpu train.json
    plain=$(grep -E '^gemm ' <<<"$output")
    run -0 d9d-train --plan --device cpu --set metrics="$metrics" train.json
    [ "$(grep -E '^gemm ' <<<"$output")" != "$plain" ]
}

@test "a NaN among the weights is what is said, whatever the metrics read" {
    cp -r one/export bad
    printf '\0\0\300\177' | dd of=bad/model.safetensors bs=1 conv=notrunc status=none \
        seek=$(($(stat -c %s bad/model.safetensors) - 4))
    run -1 counting harmed --set trainer.model_stage_factory.source_checkpoint=bad
    assert_output --regexp "step 1: the loss of samples .* is nan; .* is not finite at element "
}
