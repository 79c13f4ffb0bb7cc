#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# The task grpo: it learns, resumes bit for bit, scores by functions and programs, and refuses what it
# cannot do.

setup() {
    load helper
    work=$(workplace)
    cd "$work" || return 1
    examples=$BATS_TEST_DIRNAME/../../examples
    sh "$examples/grpo/sums.sh" >sums.jsonl
    d9d-shard -q -t "$examples/tokenizer/tokenizer.json" --template "$examples/grpo/plain.jinja" --format chat -o sums sums.jsonl
    ln -s "$BATS_TEST_DIRNAME/../golden/preference/student" .
    # Prompts of a random model: words with an e are what is wanted.
    cat >train.json <<JSON
{"data": {"dataset": "sums", "order": "shuffled", "epochs": null},
 "model_provider": {"name": "auto", "hf_config": "student", "dtype": "float32"},
 "task": {"name": "grpo", "num_generations": 4, "max_completion_length": 2, "stop_at_eos": false,
          "stop_tokens": $(jq -nc '[range(300)]'), "rewards": [{"name": "pattern", "pattern": "e"}]},
 "metrics": [{"name": "grpo"}],
 "trainer": {"run": {"name": "run", "dir": "run", "steps": 4},
   "batching": {"global_batch_size": 4, "microbatch_size": 2},
   "model_stage_factory": {"source_checkpoint": "student"}, "checkpointing": {"period_steps": 2}},
 "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0}}
JSON
}
teardown() { cd / && rm -rf "$work"; }

train() { d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" "$@"; }
# values DIR KEY: of each step.
values() { jq -c --arg key "$2" 'select(.loss != null) | .[$key]' "$1/metrics.jsonl"; }
# weights DIR: a hash of what was exported.
weights() { cat "$1"/export/*.safetensors | sha256sum; }

@test "a random model learns what is rewarded" {
    train --set trainer.run.steps=25 --set trainer.batching='{"global_batch_size": 4, "microbatch_size": 4}' \
        --set task.num_generations=8 --set task.stop_tokens='[]' --set optimizer.lr=0.02 train.json
    values run grpo/reward | awk 'NR <= 5 { first += $1 / 5 } NR > 20 { last += $1 / 5 }
        END { exit !(first < 0.6 && last > 0.8) }'
    # The same without rewards of any difference learns nothing.
    train --set trainer.run.dir=flat --set task.rewards='[{"name": "pattern", "pattern": "$"}]' train.json
    [ "$(values flat grpo/frac_reward_zero_std | awk '$1 == 1' | wc -l)" -eq 4 ]
    [ "$(values flat grad_norm | awk '$1 == 0' | wc -l)" -eq 4 ]
}

@test "a round begins with ratios of 1, and its further steps have others" {
    train --set task.num_iterations=2 --set task.epsilon=1e-3 train.json
    [ "$(values run grpo/clip_ratio/region_mean | awk '{ print ($1 > 0) }' | xargs)" = "0 1 0 1" ]
    [ "$(values run samples | xargs)" = "4 4 8 8" ]
    "${D9D_BUILD:-$BATS_TEST_DIRNAME/../../build}/schemas/dump" d9d.completions.v1 run/completions.jsonl
    # The sampler's log-probabilities are training's, to rounding, also in the second step.
    values run grpo/sampling/sampling_logp_difference/mean | awk '!($1 > 0 && $1 < 1e-5) { exit 1 }'
}

@test "a resumed run is the uninterrupted one, bit for bit" {
    for iterations in 1 2; do
        train --set trainer.run.dir=whole$iterations --set task.num_iterations=$iterations --set task.beta=0.1 train.json
        train --set trainer.run.dir=parts --set task.num_iterations=$iterations --set task.beta=0.1 train.json
        rm -rf parts/export parts/checkpoints/step-*4
        train --set trainer.run.dir=parts --set task.num_iterations=$iterations --set task.beta=0.1 train.json
        [ "$(weights whole$iterations)" = "$(weights parts)" ]
        cmp whole$iterations/completions.jsonl parts/completions.jsonl
        rm -rf parts
    done
    [ "$(weights whole1)" != "$(weights whole2)" ]
}

@test "a run goes on where a round begins, or says that it would not" {
    train train.json
    rm -r run/export
    more=(--set trainer.run.steps=12 --set trainer.checkpointing.period_steps=last_step)
    run -2 train "${more[@]}" --set task.num_iterations=3 train.json
    assert_output --partial 'task.num_iterations is 3, and the run goes on after step 4, which is no multiple of it'
    train "${more[@]}" --set task.num_iterations=2 train.json
    [ "$(values run samples | tail -n 1)" -eq 32 ] # 4 rounds of a step and 4 of two, of 4 prompts
}

@test "a signal ends the run at the end of a round" {
    d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.steps=100000 --set task.num_iterations=2 --set trainer.checkpointing.period_steps=disable train.json 2>log 3>&- &
    pid=$!
    begun() { grep -qs '"step": 3,' run/metrics.jsonl; }
    wait_for begun
    kill -TERM "$pid"
    rc=0
    wait "$pid" || rc=$?
    [ "$rc" -eq 75 ]
    saved=$(sed -nE 's/.*saved after step ([0-9]+) of.*/\1/p' log)
    [ $((saved % 2)) -eq 0 ]
    [ "$(printf "%s\n" run/checkpoints/step-* | sed "s/.*step-0*//" | tail -n 1)" = "$saved" ]
}

@test "completions depend on the seed, and on no batch" {
    texts() { jq -c '[.step, .sample, .completion, .reward]' "$1/completions.jsonl"; }
    log=(--set task.log_completions=4 --set trainer.run.steps=1)
    train "${log[@]}" train.json
    train "${log[@]}" --set trainer.run.dir=other --set task.generation_batch_size=3 --set trainer.batching.microbatch_size=1 train.json
    cmp <(texts run) <(texts other)
    train "${log[@]}" --set trainer.run.dir=seed --set task.seed=1 train.json
    run ! cmp -s <(texts run) <(texts seed)
}

@test "a prompt is prefilled once for all its completions" {
    # prefilled MODEL ROWS: completions and tokens of prompts that a step decoded, from a debug log.
    prefilled() {
        D9D_DEBUG=1 d9d-train --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.steps=1 --set task.max_completion_length=9 \
            --set task.generation_batch_size="$2" --set model_provider.hf_config="$1" --set trainer.model_stage_factory.source_checkpoint=null \
            --set trainer.run.dir=run-"$1-$2" train.json 2>&1 | sed -nE 's/.*generated ([0-9]+) completions of [0-9]+ tokens from ([0-9]+) prompts of ([0-9]+) tokens.*/\1 \2 \3/p'
    }
    # Keys and values, and recurrent states, which a completion changes.
    mkdir mixed
    jq '.vocab_size = 2048' "$BATS_TEST_DIRNAME/../golden/families/qwen3_next/config.json" >mixed/config.json
    for model in student mixed; do
        # Prompts "2+5=" have four tokens: 16 completions of each would be 64 a prompt, not 4.
        for rows in 1 3 64; do [ "$(prefilled $model $rows)" = "16 4 16" ]; done
        values run-$model-64 grpo/sampling/sampling_logp_difference/mean | awk '!($1 < 1e-5) { exit 1 }'
        cmp run-$model-1/completions.jsonl run-$model-64/completions.jsonl
        cmp run-$model-3/completions.jsonl run-$model-64/completions.jsonl
    done
}

@test "rewards see what follows a zero byte" {
    train --set trainer.run.steps=1 --set task.num_generations=64 --set task.max_completion_length=64 --set task.temperature=1000000 \
        --set task.stop_tokens='[]' --set task.log_completions=4 train.json
    # Of 16384 random tokens some eight are zero bytes; 64 tokens have some 200 characters.
    [ "$(jq '.completion | length' run/completions.jsonl | sort -n | head -n 1)" -gt 100 ]
}

@test "a program's rewards are those of the function that it is" {
    cat >score.sh <<'SH'
#!/bin/sh
jq -r 'if .completion | test("e") then 1 else 0 end'
SH
    chmod +x score.sh
    train train.json
    train --set trainer.run.dir=program --set task.rewards='[{"name": "command", "command": ["./score.sh"]}]' train.json
    [ "$(weights run)" = "$(weights program)" ]
    # Weights: half of twice the same.
    train --set trainer.run.dir=twice --set task.rewards='[{"name": "command", "command": ["./score.sh"]}, {"name": "pattern", "pattern": "e"}]' \
        --set task.reward_weights='[0.25, 0.75]' train.json
    [ "$(weights run)" = "$(weights twice)" ]
}

@test "what a program does wrong is said in one sentence" {
    wrong() { # SCRIPT SENTENCE
        printf '#!/bin/sh\n%s\n' "$1" >score.sh
        chmod +x score.sh
        rm -rf run
        run -1 --separate-stderr train --set trainer.run.steps=1 --set task.rewards='[{"name": "command", "command": ["./score.sh"], "timeout": 2}]' train.json
        [[ "$stderr" == *"reward command: ./score.sh: $2"* ]] || { echo "$stderr"; return 1; }
    }
    wrong 'exit 3' 'ended with status 3'
    wrong 'kill -9 $$' 'ended by signal 9'
    wrong 'echo 1' 'was given 16 completions and wrote 1 line'
    wrong 'jq -r 1; echo 2' 'was given 16 completions and wrote more than 16 lines'
    wrong 'sed s/.*/good/' 'line 1 of its answer is no number: "good"'
    wrong 'sed s/.*/inf/' 'line 1 of its answer is no number: "inf"'
    wrong 'sleep 60' 'has not answered within 2 s'
    printf '#!/bin/sh\nsed s/.*/1e300/\n' >score.sh
    rm -rf run
    run -1 --separate-stderr train --set task.rewards='[{"name": "command", "command": ["./score.sh"]}]' train.json
    [[ "$stderr" == *'reward command: a completion of sample 39 is worth 1e+300'* ]]
    run -2 --separate-stderr train --set task.rewards='[{"name": "command", "command": ["./none"]}]' --set trainer.run.dir=other train.json
    [[ "$stderr" == *'./none: cannot be started: No such file or directory'* ]]
}

@test "what cannot be learned is refused before anything is spent" {
    refused() { # SENTENCE OPTION...
        local sentence=$1
        shift
        run -2 --separate-stderr train "$@" train.json
        [[ "$stderr" == *"$sentence"* ]] || { echo "$stderr"; return 1; }
        [ ! -e run ]
    }
    refused 'task.num_generations' --set task.num_generations=1
    refused 'reward_weights: 2 for 1 rewards' --set task.reward_weights='[1, 2]'
    refused 'reference: beta is 0' --set task.reference=start
    refused 'is no extended regular expression' --set task.rewards='[{"name": "pattern", "pattern": "("}]'
    refused 'unknown' --set task.rewards='[{"name": "pattern", "patern": "a"}]'
    refused 'task.stop_tokens[0]: 2048, and the model' --set task.stop_tokens='[2048]'
    jq '.vocab_size = 1048577 | .hidden_size = 2' student/config.json >large.json
    d9d-map init -q --model large.json large
    refused 'has 1048577 tokens, and sampling draws from up to 1048576' --set model_provider.hf_config=large.json \
        --set trainer.model_stage_factory.source_checkpoint=large
    jq 'del(.max_window_layers, .use_sliding_window) | .model_type = "gemma2" | .final_logit_softcapping = 3
        | .query_pre_attn_scalar = 8 | .architectures = ["Gemma2ForCausalLM"]' student/config.json >capped.json
    d9d-map init -q --model capped.json capped
    refused 'the head of gemma2 has a soft cap: only 1 is supported' --set task.temperature=0.7 \
        --set model_provider.hf_config=capped.json --set trainer.model_stage_factory.source_checkpoint=capped
    refused 'a checkpoint is of the end of a round' --set task.num_iterations=4
    refused 'no multiple of task.num_iterations, 3' --set task.num_iterations=3 --set trainer.checkpointing.period_steps=disable
    refused 'evaluate its checkpoints with d9d-infer' --set evaluation='{"data": {"dataset": "sums"}, "period_steps": 2}'
    refused 'another rank cannot repeat' --set trainer.integrity.rerun_period_steps=2
    d9d-shard -q -t "$examples/tokenizer/tokenizer.json" --template "$examples/grpo/plain.jinja" --format chat --pack 32 -o packed sums.jsonl
    refused 'samples of packed documents are no prompts' --set data.dataset=packed
    echo '{"input_ids": [1, 2, 3], "labels": [-100, -100, 3]}' >ids.jsonl
    d9d-shard -q --format tokens -o ids ids.jsonl
    refused 'has no tokenizer, and rewards are of texts' --set data.dataset=ids
}

@test "the example learns sums" {
    mkdir base
    cp "$examples/tutorial/model.json" base/config.json
    few=(--set trainer.run.steps=2) least=-1
    [ -z "${D9D_LONG:-}" ] || few=() least=0.8
    train "${few[@]}" "$examples/grpo/sft.json"
    train "${few[@]}" "$examples/grpo/grpo.json"
    values runs/grpo grpo/reward | awk -v least=$least '{ at[NR] = $1 } END { for (i = NR - 9; i <= NR; i++) last += (i > 0 ? at[i] : 0) / (NR < 10 ? NR : 10); exit !(NR > 1 && last > least) }'
    [ "$(head -n 1 runs/grpo/completions.jsonl | jq -r '.prompt | test("^[0-9]\\+[0-9]=$")')" = true ]
}

@test "a plan has the cache and the time of generation" {
    run -0 --separate-stderr d9d-train --plan --json train.json
    [ "$(jq '.stages[0].kv_cache > 0 and .generation_s > 0 and .rows == 8 and .step_s > .generation_s' <<<"$output")" = true ]
    # A suggestion has prompts, not completions, in its micro-batch.
    d9d-train --plan --suggest 2 --json train.json | jq -e '[.suggestions[].rows] | max <= 4' >/dev/null
    long=$(d9d-train --plan --json --set task.max_completion_length=64 train.json)
    [ "$(jq -n --argjson a "$output" --argjson b "$long" '$b.stages[0].kv_cache > $a.stages[0].kv_cache and $b.generation_s > 2 * $a.generation_s')" = true ]
    # A token passes through the stages one by one, and each prompt is prefilled once.
    staged=$(d9d-train --plan --json --set mesh.pipeline_parallel=2 train.json)
    eight=$(d9d-train --plan --json --set task.num_generations=8 --set task.generation_batch_size=8 train.json)
    jq -e -n --argjson a "$output" --argjson b "$staged" --argjson c "$eight" '$b.generation_s > 0.8 * $a.generation_s and $b.step_s > $b.generation_s
        and $c.stages[0].kv_cache == $a.stages[0].kv_cache and $c.generation_s > 1.2 * $a.generation_s'
    # Several stages of a rank have as much cache as one with all their layers.
    mkdir deep
    jq '.num_hidden_layers = 8 | .max_window_layers = 8 | del(.layer_types)' student/config.json >deep/config.json
    deep() { # RANKS SCHEDULE
        d9d-train --plan --json --set mesh.pipeline_parallel="$1" --set trainer.pipelining.schedule="$2" --set trainer.batching.microbatch_size=1 \
            --set model_provider.hf_config=deep --set trainer.model_stage_factory.source_checkpoint=null train.json
    }
    jq -e -n --argjson whole "$(deep 1 '{"schedule": "1f1b"}')" --argjson a "$(deep 2 '{"schedule": "1f1b"}')" \
        --argjson b "$(deep 2 '{"schedule": "zero_bubble_v"}')" --argjson c "$(deep 2 '{"schedule": "1f1b", "num_stages_per_rank": 4}')" '
        all($a, $b, $c; [.stages[].kv_cache] == [$whole.stages[0].kv_cache / 2, $whole.stages[0].kv_cache / 2])
        and $b.generation_s > $a.generation_s and $c.generation_s > $b.generation_s'
}
