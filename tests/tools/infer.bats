#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# d9d-infer: log-probabilities and perplexity, interruption and resuming.

load train_bench

@test "logprobs: a line a sample, in order, nothing else left" {
    number='-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?'
    run -0 --separate-stderr d9d-infer i.json
    [[ "$output" =~ ^'perplexity '[0-9.]+', loss '[0-9.]+' over 672 tokens of 80 samples'$ ]]
    [ "$(wc -l <out.jsonl)" = 80 ]
    run grep -vE "^\{\"sample\": [0-9]+, \"logprobs\": \[$number(, $number)*\], \"loss\": $number, \"tokens\": [0-9]+\}\$" out.jsonl
    assert_output ''
    [ "$(sed -E 's/.*"sample": ([0-9]+),.*/\1/' out.jsonl | tr '\n' ' ')" = "$(seq -s ' ' 0 79) " ]
    sed -n 1p out.jsonl | grep -q '"logprobs": \[-6\.16076'
    [ "$(echo ./out*)" = './out.jsonl' ]
}

@test "perplexity: the mean over all targets, as text, as JSON, into a file" {
    task='task={"name": "perplexity"}'
    run -0 --separate-stderr d9d-infer --set "$task" i.json
    text=$output
    run -0 --separate-stderr d9d-infer -q --json --set "$task" i.json
    [ -z "$stderr" ]
    for part in '"samples": 80' '"first_sample": 0' '"tokens": 672' '"loss": 5.' '"perplexity": ' '"tokens_per_s": '; do
        [[ "$output" == *"$part"* ]]
    done
    loss=$(sed -nE 's/.*"loss": ([0-9.]+),?/\1/p' <<<"$output") ppl=$(sed -nE 's/.*"perplexity": ([0-9.]+),?/\1/p' <<<"$output")
    awk -v a="$loss" -v b="$ppl" 'BEGIN { exit !(exp(a) / b - 1 < 1e-12 && b / exp(a) - 1 < 1e-12) }'
    [[ "$text" == "perplexity ${ppl:0:6}"* ]]
    # Every log-probability weighs the same.
    d9d-infer -q i.json
    awk -F'"logprobs": \\[|\\], "loss"' '{ n = split($2, a, ", "); for (i = 1; i <= n; i++) { s -= a[i]; t++ } }
        END { print s / t }' OFMT=%.6f out.jsonl >mean
    [ "$(cat mean)" = "$(printf %.6f "$loss")" ]
    d9d-infer -q --set 'task={"name": "perplexity", "output": "p.json"}' i.json
    grep -qE '^\{"perplexity": [0-9.]+, "loss": [0-9.]+, "tokens": 672, "samples": 80\}$' p.json
}

@test "a method of context parallelism that only plans choose is refused" {
    run -2 d9d-infer --set mesh.context_parallel_method=auto i.json
    assert_output --partial 'mesh.context_parallel_method "auto" is for d9d-train, which plans: here it must name a method'
    [ ! -e out.jsonl ]
}

@test "micro-batches and threads: the same values, the same bytes" {
    d9d-infer -q --set trainer.batching.microbatch_size=1 i.json
    for micro in 7 80 1000; do
        d9d-infer -q --set trainer.batching.microbatch_size=$micro --set task.output=$micro.jsonl i.json
        paste <(tr -d '{}[]",:a-z' <out.jsonl) <(tr -d '{}[]",:a-z' <$micro.jsonl) | awk '{
            for (i = 1; i <= NF / 2; i++) { d = $i - $(i + NF / 2); if (d * d > 1e-10) exit 1 } }'
    done
    OMP_NUM_THREADS=3 d9d-infer -q --set task.output=three.jsonl --set trainer.batching.microbatch_size=7 i.json
    cmp three.jsonl 7.jsonl
}

@test "orders and epochs: the samples as the stream has them" {
    d9d-infer -q --set data.order=shuffled --set data.seed=1 --set data.epochs=2 i.json
    [ "$(wc -l <out.jsonl)" = 160 ]
    numbers() { sed -E 's/.*"sample": ([0-9]+),.*/\1/'; }
    [ "$(head -n 80 out.jsonl | numbers | sort -n | tr '\n' ' ')" = "$(seq -s ' ' 0 79) " ]
    [ "$(tail -n 80 out.jsonl | numbers | sort -n | tr '\n' ' ')" = "$(seq -s ' ' 0 79) " ]
    [ "$(head -n 80 out.jsonl | numbers | tr '\n' ' ')" != "$(seq -s ' ' 0 79) " ]
    d9d-infer -q --set data.order=bucketed --set task.output=bucketed.jsonl i.json
    [ "$(numbers <bucketed.jsonl | sort -n | tr '\n' ' ')" = "$(seq -s ' ' 0 79) " ]
}

@test "a sample without a target has no loss" {
    printf '{"input_ids": [1, 2], "labels": [-100, -100]}\n{"input_ids": [1, 2], "labels": [2, -100]}\n' |
        d9d-shard -q --format tokens --out none -
    d9d-infer -q --set data.dataset=none i.json
    [ "$(sed -n 1p out.jsonl)" = '{"sample": 0, "logprobs": [], "loss": null, "tokens": 0}' ]
    sed -n 2p out.jsonl | grep -q '"tokens": 1}'
    head -n 1 <<<'{"input_ids": [1, 2], "labels": [-100, -100]}' | d9d-shard -q --format tokens --out nothing -
    run -0 --separate-stderr d9d-infer -q --json --set data.dataset=nothing --set 'task={"name": "perplexity"}' i.json
    [[ "$output" == *'"loss": null'* && "$output" == *'"perplexity": null'* ]]
}

@test "packed documents do not see each other" {
    d9d-shard -q --format tokens --pack 40 --out packed "$golden/moe/train.jsonl"
    d9d-infer -q i.json
    d9d-infer -q --set data.dataset=packed --set task.output=packed.jsonl i.json
    [ "$(wc -l <packed.jsonl)" -lt 40 ]
    # The same log-probabilities, to the last digits, in another order.
    values() { sed 's/.*"logprobs": \[//; s/\].*//' "$1" | tr -s ', ' '\n' | sort -n; }
    [ "$(values out.jsonl | wc -l)" = 672 ]
    paste <(values out.jsonl) <(values packed.jsonl) | awk 'NF != 2 || ($1 - $2) ^ 2 > 1e-10 { exit 1 }'
}

# A call over 100 epochs that takes some seconds; its process is $pid.
start_long() {
    long=(--set data.epochs=100 --set trainer.batching.microbatch_size=1)
    d9d-infer "${long[@]}" i.json 2>log &
    pid=$!
    wait_for has_part 200
}

# interrupt: start_long, stopped after some lines, of which there are $done_before.
interrupt() {
    start_long
    kill -s TERM "$pid"
    ends 75
    done_before=$(wc -l <"$part")
}
# first_of OPTION...: the first sample that a call computed, which ends well.
first_of() { d9d-infer -q --json "$@" | sed -nE 's/.*"first_sample": ([0-9]+).*/\1/p'; }

@test "other weights, adapters, model or dataset at the same paths: begun anew" {
    source=trainer.model_stage_factory.source
    run_config moe >c.json
    d9d-train -q --set trainer.run.steps=2 --set optimizer.lr=1e-2 \
        --set 'peft={"kind": "lora", "module_name_pattern": ".*q_proj", "params": {"r": 4, "alpha": 12}}' c.json
    cp -r run/adapter adapter && cp -r "$golden/moe" m && cp -rL data d && cp "$golden/moe/config.json" h.json
    chmod -R u+w m d h.json
    sed -i "s|$golden/moe/config.json|h.json|; s|$golden/moe|m|; s|\"dataset\": \"data\"|\"dataset\": \"d\"|" i.json
    sed -i 's|"source_checkpoint": "m"|"source_checkpoint": "m", "source_adapter": "adapter"|' i.json
    interrupt
    # Equal content at other paths goes on.
    cp -r m m2 && cp -r adapter adapter2 && cp -r d d2 && cp h.json h2.json
    mkdir keep && cp out.jsonl.* keep
    first=$(first_of "${long[@]}" --set data.dataset=d2 --set model_provider.hf_config=h2.json \
        --set ${source}_checkpoint=m2 --set ${source}_adapter=adapter2 i.json)
    [ "$first" = "$done_before" ]
    mv out.jsonl ref.jsonl
    # One element in the middle of a matrix: sizes and headers are as they were.
    change() { # FILE: its middle byte
        local at=$(($(stat -c %s "$1") / 2))
        printf '\x3c\x3c' | dd of="$1" bs=1 conv=notrunc status=none seek=$at
    }
    for what in m/model.safetensors adapter/adapter_model.safetensors h.json d; do
        cp -r m adapter d h.json keep
        cp keep/out.jsonl.* .
        case $what in
        h.json) sed -i 's/"rope_theta": *[0-9.e]*/"rope_theta": 77.0/; s/"rms_norm_eps": *[0-9.e-]*/"rms_norm_eps": 1e-5/' h.json ;;
        d) rm -rf d && d9d-shard -q --format tokens --out d <(tac "$golden/moe/train.jsonl") ;;
        *) change $what ;;
        esac
        [ "$(first_of "${long[@]}" i.json 2>err)" = 0 ]
        grep -q "warning: $part: is of another configuration, or of weights, samples or other inputs that were replaced; beginning anew" err
        run ! cmp -s out.jsonl ref.jsonl
        rm -rf out.jsonl* m adapter d h.json
        cp -r keep/m keep/adapter keep/d keep/h.json .
    done
}

@test "a part that lost its end, has zeros or was edited is believed up to there" {
    d9d-infer -q --set data.epochs=100 --set trainer.batching.microbatch_size=1 --set task.output=ref.jsonl i.json
    interrupt
    size=$(stat -c %s "$part")
    head -c 4000 /dev/zero >>"$part"
    d9d-infer "${long[@]}" i.json 2>log &
    pid=$!
    wait_for has_part $((done_before + 100))
    kill -s TERM "$pid"
    ends 75
    run ! grep 'check out' log
    cmp -n "$size" "$part" ref.jsonl
    done_before=$(wc -l <"$part")
    dd if=/dev/zero of="$part" bs=1 seek=$((size + 10)) count=1000 conv=notrunc status=none
    run -0 --separate-stderr d9d-infer "${long[@]}" i.json
    [[ "$stderr" =~ "warning: $part: "([0-9]+)" of the $done_before samples that were written check out; going on behind these" ]]
    [ "${BASH_REMATCH[1]}" -gt 0 ]
    [ "${BASH_REMATCH[1]}" -lt "$done_before" ]
    cmp out.jsonl ref.jsonl
    [ "$(echo out*)" = out.jsonl ]
}

@test "a part of somebody else, or behind a link, is left alone" {
    interrupt
    rm out.jsonl.journal-*
    cp "$part" kept
    says 2 "$part: has $(stat -c %s "$part") bytes, and no out.jsonl.journal-" d9d-infer "${long[@]}" i.json
    cmp "$part" kept
    echo thesis >thesis
    ln -sf thesis "$part"
    says 2 "$part: is a symbolic link, which is not followed" d9d-infer "${long[@]}" i.json
    [ "$(cat thesis)" = thesis ]
    rm out.jsonl*
    ln -s nowhere out.jsonl
    says 2 'out.jsonl: exists already, as a link to nothing' d9d-infer i.json
    [ ! -e nowhere ]
}

@test "two calls with one output: who is first gets the name, the other keeps what it has" {
    start_long
    d9d-infer -q i.json
    ends 2
    [[ "$(tail -n 1 log)" == *"out.jsonl: was written by someone else meanwhile; what was to go there is $part" ]]
    [ "$(wc -l <out.jsonl)" = 80 ]
    [ "$(wc -l <"$part")" = 8000 ]
    mv out.jsonl first.jsonl
    run -0 --separate-stderr d9d-infer --json "${long[@]}" i.json
    [[ "$output" == *'"first_sample": 8000'* ]]
    [ "$(wc -l <out.jsonl)" = 8000 ]
}

@test "one process at a time writes an output" {
    start_long
    run -1 --separate-stderr d9d-infer -q "${long[@]}" i.json
    [ "$stderr" = "d9d-infer: input/output error: $part: another process is writing it; wait for its end, or name another" ]
    kill -TERM "$pid"
    ends 75
}

@test "stopped by signals, by kill -9, with a torn line: gone on with, the same bytes" {
    start_long
    kill -s TERM "$pid"
    ends 75
    done_before=$(wc -l <"$part")
    grep -q "^d9d-infer: interrupted: SIGTERM: $done_before of 8000 samples are done\$" log
    [ ! -e out.jsonl ]
    # Another configuration does not touch what this one has.
    cp "$part" kept
    d9d-infer -q --set trainer.batching.microbatch_size=2 --set task.output=other.jsonl i.json
    cmp "$part" kept
    d9d-infer "${long[@]}" i.json 2>log &
    pid=$!
    wait_for has_part $((done_before + 200))
    kill -9 "$pid"
    ends 137
    printf '{"sample": 17, "logpr' >>"$part"
    run -0 --separate-stderr d9d-infer --json "${long[@]}" i.json
    [[ "$output" =~ '"first_sample": '([0-9]+) ]]
    [ "${BASH_REMATCH[1]}" -gt "$done_before" ]
    mv out.jsonl resumed.jsonl
    d9d-infer -q "${long[@]}" i.json
    cmp out.jsonl resumed.jsonl
    [ -z "$(ls ./*.part-* 2>/dev/null)" ]
}

@test "near the end of a Slurm allocation it leaves with 75" {
    SLURM_JOB_ID=12 SLURM_JOB_END_TIME=$(($(date +%s) + 50)) run -2 --separate-stderr \
        d9d-infer --set trainer.timeout.save_margin=100 i.json
    [[ "$stderr" == *'s, and 100 s before its end there is no time but to save'* ]]
    SLURM_JOB_ID=12 near_end \
        d9d-infer "${long[@]}" --set data.epochs=30000 --set trainer.timeout.save_margin=1 i.json
    [ "$status" = 75 ]
    [[ "$stderr" == *'the end of the Slurm allocation: '*' samples are done'* ]]
    rm -f ./*.part-*
    d9d-infer -q --set trainer.timeout.save_margin=100 i.json
    [ "$(wc -l <out.jsonl)" = 80 ]
}

@test "dropout is of training alone" {
    sed 's/"attention_dropout": 0.0/"attention_dropout": 0.1/' "$golden/moe/config.json" >dropout.json
    d9d-infer -q i.json
    d9d-infer -q --set model_provider.hf_config=dropout.json --set task.output=dropout.jsonl i.json
    cmp out.jsonl dropout.jsonl
}

@test "an exported model is read like any other; both expert layouts say the same" {
    run_config moe_fused >c.json
    d9d-train -q --set trainer.run.steps=3 c.json
    exported=(--set model_provider.hf_config=run/export/config.json --set trainer.model_stage_factory.source_checkpoint=run/export)
    d9d-infer -q "${exported[@]}" i.json
    d9d-map -q --to hf --expert-layout per-expert run/export each
    d9d-infer -q --set model_provider.hf_config=each/config.json --set trainer.model_stage_factory.source_checkpoint=each \
        --set task.output=each.jsonl i.json
    cmp out.jsonl each.jsonl
    d9d-map -q run/export d9d
    d9d-infer -q --set model_provider.hf_config=d9d/config.json --set trainer.model_stage_factory.source_checkpoint=d9d \
        --set task.output=d9d.jsonl i.json
    cmp out.jsonl d9d.jsonl
}

@test "a NaN among the weights: exit 1, the sample named" {
    cp -r "$golden/moe" bad
    chmod -R u+w bad
    printf '\0\0\300\177' | dd of=bad/model.safetensors bs=1 conv=notrunc status=none \
        seek=$(($(stat -c %s bad/model.safetensors) - 4))
    says 1 'non-finite number: sample 0: its loss is nan' d9d-infer --set trainer.model_stage_factory.source_checkpoint=bad i.json
    [ ! -e out.jsonl ]
}

@test "--print-config says the same when it is read again; bfloat16 stays near" {
    d9d-infer --print-config i.json >a.json
    d9d-infer --print-config a.json | cmp - a.json
    d9d-infer --print-schema | grep -q '"d9d.infer.v1"'
    run -0 --separate-stderr d9d-infer -q --json --set 'task={"name": "perplexity"}' --set model_provider.dtype=bfloat16 i.json
    [[ "$output" == *'"loss": 5.'* ]]
}

@test "profiling writes the timeline of scoring and of generation" {
    run -0 --separate-stderr d9d-infer --set trainer.profiling.period_steps=10 --set trainer.profiling.active_steps=2 i.json
    run -0 find traces -type f
    assert_equal "$(sort <<<"$output" | tr '\n' ' ')" "traces/step-00000010/rank-0.json traces/step-00000020/rank-0.json "
    grep -q '"name": "step 9"' traces/step-00000010/rank-0.json
    refute grep -q '"name": "step 8"' traces/step-00000010/rank-0.json
    rm -r traces
    d9d-infer -q --set 'task={"name": "generate", "output": "made.jsonl", "max_new_tokens": 4, "prompt_tokens": 2}' \
        --set trainer.profiling.period_steps=1 --set 'trainer.profiling.traces_dir="mine"' i.json
    [ -e mine/step-00000001/rank-0.json ]
    says 2 'trainer.profiling: active_steps is 3, of period_steps 2' d9d-infer --set 'task.output="other"' \
        --set trainer.profiling.period_steps=2 --set trainer.profiling.active_steps=3 i.json
}

@test "metrics of losses: their figures, and none of classes" {
    figure() { sed -nE "s/.*\"$1\": ([-+0-9.e]+).*/\1/p" <<<"$output"; }
    run -0 d9d-infer -q --json --set 'task={"name": "perplexity"}' --set 'metrics=[{"name": "mean"}, {"name": "max"}, {"name": "sum"}]' i.json
    awk -v mean="$(figure mean)" -v loss="$(figure loss)" -v sum="$(figure sum)" -v max="$(figure max)" -v n="$(figure tokens)" \
        'BEGIN { exit !((mean - loss) ^ 2 < 1e-12 && (sum - mean * n) ^ 2 < 1e-6 && max > mean) }'
    says 2 "metrics[0]: the task has losses, and no classes" d9d-infer --set 'task={"name": "perplexity"}' \
        --set 'metrics=[{"name": "accuracy", "problem": "multiclass", "num_classes": 3}]' i.json
    says 2 "metrics: the task generate writes tokens" d9d-infer --set 'task={"name": "generate", "output": "x.jsonl"}' \
        --set 'metrics=[{"name": "mean"}]' i.json
}

# figures: what a summary has of all samples.
figures() { jq -c 'del(.first_sample, .tokens_per_s)' <<<"$output"; }

@test "a call that was interrupted has the tokens, the loss and the metrics of one that was not" {
    count=(--set 'metrics=[{"name": "mean"}, {"name": "max"}, {"name": "sum"}]')
    d9d-infer -q "${count[@]}" --json --set data.epochs=100 --set trainer.batching.microbatch_size=1 \
        --set task.output=whole.jsonl i.json >whole.json
    # The metrics are no part of what the lines depend on.
    interrupt
    run -0 --separate-stderr d9d-infer --json "${long[@]}" "${count[@]}" i.json
    [[ "$stderr" == *"warning: $part: is not known to have counted what is counted now: totals are of the samples from $done_before on"* ]]
    [ "$(jq .tokens <<<"$output")" -lt "$(jq .tokens whole.json)" ]
    rm out.jsonl
    for signal in TERM KILL; do
        d9d-infer "${long[@]}" "${count[@]}" i.json 2>log &
        pid=$!
        wait_for has_part "$((${before:-0} + 200))"
        kill -s "$signal" "$pid"
        wait "$pid" || true
        before=$(wc -l <"$part")
    done
    run -0 --separate-stderr d9d-infer --json "${long[@]}" "${count[@]}" i.json
    [ "$(jq .first_sample <<<"$output")" -gt 0 ]
    assert_equal "$(figures)" "$(output=$(cat whole.json) figures)"
    cmp out.jsonl whole.jsonl
}
