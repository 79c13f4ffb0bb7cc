#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Evaluation on a second dataset during training: on every mesh its results are those of one rank,
# and not a bit of the training changes.

load workroom

setup_file() {
    workroom
    samples 7 96 | d9d-shard -q --format tokens --out data -
    samples 8 23 | d9d-shard -q --format tokens --out other -
    config >train.json
    evaluating >eval.json
    d9d-train -q --device cpu --set trainer.run.dir=plain train.json
    d9d-train -q --device cpu --set trainer.run.dir=one eval.json
}

# samples SEED N: N samples of 8 to 20 tokens.
samples() {
    awk -v x="$1" -v n="$2" 'BEGIN { for (i = 0; i < n; i++) {
        printf "{\"input_ids\": ["
        len = 8 + i * 5 % 13
        for (j = 0; j < len; j++) { x = x * 16807 % 2147483647; printf "%s%d", j ? ", " : "", x % 90 }
        print "]}" } }'
}
config() {
    cat <<JSON
{"data": {"dataset": "data", "order": "shuffled"},
 "model_provider": {"name": "qwen3_moe", "model": {"num_hidden_layers": 4,
   "layer": {"hidden_size": 16, "intermediate_size": 16, "num_experts": 4, "experts_top_k": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8},
   "max_position_ids": 64, "split_vocab_size": {"all": 97}, "split_vocab_order": ["all"]}},
 "trainer": {"run": {"name": "eval"}, "batching": {"global_batch_size": 8, "microbatch_size": 1},
  "checkpointing": {"period_steps": 2}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-2}}
JSON
}
# Evaluates every 4 of 12 steps, before the first and after the last.
evaluating() {
    sed -e 's/^{/{"evaluation": [{"data": {"dataset": "other"}, "period_steps": 4, "at_start": true, "microbatch_size": 2}, {"name": "few", "data": {"dataset": "data", "order": "bucketed"}, "samples": 5}],\n/' train.json
}

same_training() {
    diff <(numbers loss "$1") <(numbers loss "$2")
    diff <(numbers grad_norm "$1") <(numbers grad_norm "$2")
    cmp {"$1","$2"}/export/model.safetensors
}

@test "evaluations do not change a bit of training" { same_training one plain; }

@test "evaluations do not change training with dropout or other random numbers" {
    local n=0 settings word words options
    for settings in "model_provider.dtype=bfloat16 optimizer.name=stochastic_adamw" \
        'peft={"kind":"lora","module_name_pattern":".*self_attn.*_proj","params":{"r":4,"alpha":12,"dropout":0.3}} trainer.batching.microbatch_size=2'; do
        n=$((n + 1))
        read -ra words <<<"$settings"
        options=()
        for word in "${words[@]}"; do options+=(--set "$word"); done
        for config in train eval; do
            run -0 d9d-train -q --device cpu "${options[@]}" --set trainer.run.dir="$config$n" --set trainer.run.steps=9 $config.json
        done
        same_training "train$n" "eval$n"
        run ! diff <(numbers loss "train$n") <(numbers loss plain | head -n 9)
    done
}

@test "evaluations happen at the configured steps, under their own names" {
    [ "$(grep -c '"evaluation": "valid"' one/metrics.jsonl)" -eq 4 ]
    [ "$(grep -oE '"evaluation": "valid", "step": [0-9]+' one/metrics.jsonl | grep -oE '[0-9]+$' | tr '\n' ' ')" = "0 4 8 12 " ]
    [ "$(grep -oE '"evaluation": "few", "step": [0-9]+' one/metrics.jsonl | grep -oE '[0-9]+$')" = 12 ]
    [ "$(numbers valid/samples one | sort -u)" = 23 ]
    [ "$(numbers few/samples one)" = 5 ]
    run -0 d9d-metrics show one
    run -0 d9d-metrics export --to csv one
    assert_output --partial "valid/loss"
    run -0 d9d-metrics summary one
    run -0 d9d-metrics spikes one
    d9d-train --device cpu --set trainer.run.dir=logged eval.json 2>log
    for step in 0 4 8 12; do grep -qE "evaluate valid: 23 samples in .*, step $step, loss [0-9.]+\$" log; done
}

@test "an evaluation equals d9d-infer on the same weights" {
    cat >infer.json <<JSON
{"data": {"dataset": "other"}, "model_provider": {"name": "qwen3_moe", "hf_config": "one/export/config.json"},
 "trainer": {"batching": {"microbatch_size": 3}, "model_stage_factory": {"source_checkpoint": "one/export"}},
 "task": {"name": "perplexity", "output": "perplexity.json"}}
JSON
    run -0 d9d-infer -q --device cpu infer.json
    close_to 1e-6 <(sed -nE 's/.*"loss": ([0-9.e+-]+).*/\1/p' perplexity.json) <(numbers valid/loss one | tail -n 1)
    [ "$(sed -nE 's/.*"tokens": ([0-9]+).*/\1/p' perplexity.json)" = "$(numbers valid/tokens one | tail -n 1)" ]
}

# ranks N DIR OPTION...: trains on N ranks.
ranks() {
    local n=$1 dir=$2
    shift 2
    mpi -n "$n" d9d-train -q --device cpu --set trainer.run.dir="$dir" "$@" eval.json
}

@test "evaluations on every mesh equal one rank" {
    with_mpi
    local n=0 mesh
    for mesh in "data_parallel_replicate=2" "data_parallel_shard=4" "tensor_parallel=2" "context_parallel_shard=2" \
        "expert_parallel=2 data_parallel_shard=2" "pipeline_parallel=2" "pipeline_parallel=4 data_parallel_shard=2"; do
        n=$((n + 1))
        meshed ranks "$mesh" "mesh$n"
        for field in valid/loss few/loss loss; do close_to 1e-4 <(numbers $field "mesh$n") <(numbers $field one); done
        for field in valid/tokens few/tokens; do diff <(numbers $field "mesh$n") <(numbers $field one); done
    done
}

@test "evaluations equal one rank under every pipeline schedule and do not change training" {
    with_mpi
    local n=0 s
    for s in '{"schedule": "gpipe"}' '{"schedule": "1f1b", "num_stages_per_rank": 2, "zero_bubble": true}' \
        '{"schedule": "looped_bfs", "num_stages_per_rank": 2}' '{"schedule": "zero_bubble_v"}' '{"schedule": "dual_pipe_v"}'; do
        n=$((n + 1))
        ranks 2 "pipe$n" --set mesh.pipeline_parallel=2 --set trainer.pipelining.schedule="$s"
        close_to 1e-4 <(numbers valid/loss "pipe$n") <(numbers valid/loss one)
        mpi -n 2 d9d-train -q --device cpu --set trainer.run.dir="quiet$n" --set mesh.pipeline_parallel=2 \
            --set trainer.pipelining.schedule="$s" --set 'evaluation=[]' eval.json
        same_training "pipe$n" "quiet$n"
    done
}

# half DIR STEP: restores DIR to its state after the checkpoint of STEP, as if the process had died.
half() {
    rm -rf "$1/export"
    for c in "$1"/checkpoints/step-*; do [ "${c##*-}" -le "$2" ] || rm -rf "$c"; done
}

@test "a resumed run evaluates each step exactly once" {
    for at in 2 4 6; do
        rm -rf again && cp -r one again && half again $at
        run -0 d9d-train -q --device cpu --set trainer.run.dir=again eval.json
        tail -n +"$(awk '/"restart"/ { print NR }' again/metrics.jsonl)" again/metrics.jsonl >rest
        steps='8 12 '
        [ $at -ge 4 ] || steps="4 $steps"
        [ "$(grep -oE '"evaluation": "valid", "step": [0-9]+' rest | grep -oE '[0-9]+$' | tr '\n' ' ')" = "$steps" ]
        diff <(sed -nE 's|.*"valid/loss": ([^,]+).*|\1|p' rest) <(numbers valid/loss one | tail -n "$(wc -w <<<"$steps")")
        cmp {again,one}/export/model.safetensors
    done
}

@test "an evaluation interrupted by a signal is done when the run resumes" {
    # The signal arrives during the evaluation before the first step, which takes long.
    samples 9 20000 | d9d-shard -q --format tokens --out long -
    d9d-train --device cpu --set trainer.run.dir=cut --set 'evaluation={"data": {"dataset": "long"}, "at_start": true, "samples": 20000}' \
        eval.json 2>cut.log &
    pid=$!
    wait_for [ -e cut/metrics.jsonl ]
    sleep 0.3
    kill -TERM $pid
    rc=0
    wait $pid || rc=$?
    [ $rc -eq 75 ]
    run ! grep -q '"evaluation"' cut/metrics.jsonl
    run ! grep -E 'evaluate valid: [0-9]+ samples in .*loss [0-9]' cut.log
    grep -qE 'evaluate valid: [0-9]+ samples in .*, step 0, cut short: no loss$' cut.log
    run -0 d9d-train -q --device cpu --set trainer.run.dir=cut --set 'evaluation={"data": {"dataset": "long"}, "at_start": true, "samples": 50}' eval.json
    [ "$(grep -oE '"evaluation": "valid", "step": [0-9]+' cut/metrics.jsonl | grep -oE '[0-9]+$' | tr '\n' ' ')" = "0 12 " ]
    same_training cut plain
}

@test "a wrong evaluation section is an error before the model is loaded" {
    bad() { run -2 d9d-train -q --device cpu --set trainer.run.dir=none --set evaluation="$1" train.json; }
    bad '{"data": {"dataset": "nowhere"}}'
    assert_output --partial "nowhere"
    bad '{"data": {"dataset": "other"}, "samples": 24}'
    assert_output --partial "evaluation valid: samples is 24, and other has 23"
    bad '{"data": {"dataset": "other", "epochs": null}}'
    assert_output --partial "epochs is null"
    bad '[{"data": {"dataset": "other"}}, {"data": {"dataset": "data"}}]'
    assert_output --partial 'both called "valid"'
    bad '{"data": {"dataset": "other"}, "name": "a/b"}'
    assert_output --partial 'a/b'
    bad '{"data": {"dataset": "other"}, "metrics": [{"name": "accuracy", "problem": "multiclass", "num_classes": 4}]}'
    assert_output --partial "evaluation.valid.metrics[0]: the model has 97 classes: accuracy: a prediction of 97 numbers, must be 4"
    bad '{"dataset": "other"}'
    assert_output --partial "evaluation"
    [ ! -e none ]
}
