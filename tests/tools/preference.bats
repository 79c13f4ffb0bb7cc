#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# Answers by preference: records, the examples, what is refused, plans.

setup() {
    load helper
    work=$(workplace)
    cd "$work" || return 1
    examples=$BATS_TEST_DIRNAME/../../examples
    golden=$BATS_TEST_DIRNAME/../golden/preference
    shard=(d9d-shard -q -t "$examples/tokenizer/tokenizer.json" --template "$golden/chat.jinja")
}
teardown() { cd / && rm -rf "$work"; }

# documents DIR SAMPLE: how many documents a sample has; targets likewise.
documents() { d9d-shard inspect "$1" --sample "$2" --json | jq '[.position_ids[] | select(. == 0)] | length'; }
targets() { d9d-shard inspect "$1" --sample "$2" --json | jq '[.labels[] | select(. != -100)] | length'; }
train() { d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" "$@"; }

@test "a sample has the whole records that fit, of two documents or of four" {
    for format in preference:pairs:2 unpaired:unpaired:4; do
        IFS=: read -r name file width <<<"$format"
        "${shard[@]}" --format "$name" -o one "$golden/$file.jsonl"
        "${shard[@]}" --format "$name" -o packed --pack 160 "$golden/$file.jsonl"
        sum=0
        for ((i = 0; i < 8; i++)); do
            [ "$(documents one $i)" -eq "$width" ]
            sum=$((sum + $(targets one $i)))
        done
        n=$(jq .samples packed/manifest.json)
        [ "$n" -lt 8 ]
        for ((i = 0; i < n; i++)); do
            [ $(($(documents packed $i) % width)) -eq 0 ]
            sum=$((sum - $(targets packed $i)))
        done
        [ "$sum" -eq 0 ]
        rm -rf one packed
    done
}

@test "a record that is too long is dropped whole, and counted" {
    "${shard[@]}" --format preference -o all "$golden/pairs.jsonl"
    longest=$(jq '.splits[0].longest' all/manifest.json)
    run -0 --separate-stderr d9d-shard --json -t "$examples/tokenizer/tokenizer.json" --template "$golden/chat.jinja" \
        --format preference --max-length $((longest - 1)) -o less "$golden/pairs.jsonl"
    [ "$(jq '.documents.dropped' less/manifest.json)" -ge 1 ]
    [ "$(jq '.documents.truncated' less/manifest.json)" -eq 0 ]
    [ "$(jq '.documents.dropped + .samples' less/manifest.json)" -eq 8 ]
    run -2 "${shard[@]}" --format preference --overflow truncate --max-length 9 -o cut "$golden/pairs.jsonl"
    [[ "$output" == *'one side of a record would lose its end'* ]]
    run -2 "${shard[@]}" --format preference --pack 64 --pack-mode concat -o cut "$golden/pairs.jsonl"
    run -2 "${shard[@]}" --format preference --pack 64 --split valid=2 -o cut "$golden/pairs.jsonl"
    [ ! -e cut ]
}

@test "lists of messages have the prompt of texts, given or shared" {
    text='"prompt": "hi", "chosen": "int a;", "rejected": "int b;"'
    user='{"role": "user", "content": "hi"}'
    a='{"role": "assistant", "content": "int a;"}' b='{"role": "assistant", "content": "int b;"}'
    echo "{$text}" >text.jsonl
    echo "{\"prompt\": [$user], \"chosen\": [$a], \"rejected\": [$b]}" >given.jsonl
    echo "{\"chosen\": [$user, $a], \"rejected\": [$user, $b]}" >shared.jsonl
    for f in text given shared; do
        "${shard[@]}" --format preference -o $f $f.jsonl
        cmp text/tokens-00000.bin $f/tokens-00000.bin
        cmp text/labels-00000.bin $f/labels-00000.bin
    done
}

@test "bad records are named, or skipped" {
    head -1 "$golden/pairs.jsonl" >bad.jsonl
    while read -r line; do
        cp bad.jsonl in.jsonl
        echo "$line" >>in.jsonl
        run -1 "${shard[@]}" --format preference -o out in.jsonl
        [[ "$output" == *'in.jsonl: line 2'* ]]
        "${shard[@]}" --format preference --on-error skip -o out in.jsonl
        [ "$(jq .samples out/manifest.json)" -eq 1 ]
        rm -rf out
    done <<'JSON'
{"prompt": "a", "chosen": "b"}
{"prompt": "a", "chosen": "b", "rejected": [{"role": "assistant", "content": "c"}]}
{"chosen": "b", "rejected": "c"}
{"prompt": "a", "chosen": 1, "rejected": "c"}
{"chosen": [{"role": "user", "content": "c"}], "rejected": [{"role": "user", "content": "c"}]}
[1]
JSON
    echo '{"prompt": "a", "completion": "b", "label": "yes"}' >in.jsonl
    run -1 "${shard[@]}" --format unpaired -o out in.jsonl
    [[ "$output" == *'"label" is not true or false'* ]]
}

@test "a text beside a prompt that nothing reads is refused, one that the template reads is not" {
    refused() { # FORMAT LINE WORDS
        echo "$2" >in.jsonl
        run -1 "${shard[@]}" --format "$1" -o out in.jsonl
        [[ "$output" == *"$3"* ]]
        [ ! -e out ]
    }
    refused preference '{"prompt": "a", "chosen": "b", "rejected": "c", "context": "d"}' \
        '"context" stands beside "prompt" and "chosen", and nothing reads it'
    refused unpaired '{"prompt": "a", "completion": "b", "label": true, "input": "d"}' \
        '"input" stands beside "prompt" and "completion", and nothing reads it'
    echo '{"prompt": "a", "chosen": "b", "rejected": "c", "context": "int d;", "source": "web"}' >in.jsonl
    { printf '{{ context }}' && cat "$golden/chat.jinja"; } >reads.jinja
    d9d-shard -q -t "$examples/tokenizer/tokenizer.json" --template reads.jinja --format preference -o out in.jsonl
    [[ "$(d9d-shard inspect out --sample 0 --text)" == *'int d;'* ]]
}

@test "the examples learn what is preferred, and a student from that" {
    "$examples/preference/records.sh" 64 >pairs.jsonl
    "${shard[@]}" --format preference --pack 256 -o pairs pairs.jsonl
    mkdir small
    cp "$examples/tutorial/model.json" small/config.json
    jq '.num_hidden_layers = 1' small/config.json >half.json && mv half.json small/config.json
    mkdir base && cp "$examples/tutorial/model.json" base/config.json
    train --set model_provider.dtype=float32 --set model_provider.hf_config=base --set trainer.model_stage_factory.source_checkpoint=null \
        --set 'task={"name": "causal_lm"}' --set 'metrics=[]' --set trainer.run.steps=2 --set trainer.run.dir=sft \
        "$examples/preference/dpo.json"
    rm -rf base && mv sft/export base
    train --set model_provider.dtype=float32 "$examples/preference/dpo.json"
    run jq -s -e 'map(select(.loss)) | .[0].loss > 0.69 and .[-1].loss < 0.4 and .[-1]["rewards/accuracies"] > 0.9' runs/dpo/metrics.jsonl
    [ "$status" -eq 0 ]
    train --set model_provider.dtype=float32 --set trainer.run.dir=distilled "$examples/preference/distillation.json"
    run jq -s -e 'map(select(.loss)) | .[-1].loss < 0.7 * .[0].loss' distilled/metrics.jsonl
    [ "$status" -eq 0 ]
}

@test "the commands of the page, word for word" {
    ln -s "$examples" examples
    sed -n '/^    d9d-map init/,/distillation.json$/s/^    //p' "$examples/../docs/howto/preferences.md" >words.sh
    [ "$(wc -l <words.sh)" -eq 8 ]
    OMP_WAIT_POLICY=passive run -0 bash -e words.sh
    [[ "$output" == *"model in runs/dpo/export"*"rewards/margins"*"model in runs/distillation/export"* ]]
}

# config [OPTION...]: a run of the golden pairs beside the golden teacher.
config() {
    ln -sf "$golden/student" "$golden/teacher" .
    [ -d pairs ] || "${shard[@]}" --format preference -o pairs "$golden/pairs.jsonl"
    cat >run.json <<'JSON'
{"data": {"dataset": "pairs"}, "task": {"name": "preference"}, "metrics": [{"name": "rewards"}],
 "model_provider": {"name": "auto", "hf_config": "student", "dtype": "float32"},
 "trainer": {"run": {"name": "run", "dir": "run", "steps": 2}, "batching": {"global_batch_size": 4, "microbatch_size": 2},
   "model_stage_factory": {"source_checkpoint": "student"}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
}

@test "what does not go together is refused before anything is spent" {
    config
    d9d-shard -q --format tokens -o tokens "$BATS_TEST_DIRNAME/../golden/moe/train.jsonl"
    while IFS='|' read -r option says; do
        run -2 train --set "$option" run.json
        [[ "$output" == *"$says"* ]]
        [ ! -e run/checkpoints ]
    done <<'ROWS'
data.dataset="tokens"|is no dataset of d9d-shard --format preference
task.loss="kto"|is no dataset of d9d-shard --format unpaired
task.reference={"checkpoint": ""}|is null, "start" or {"checkpoint": "DIR"}
task.reference={"checkpoint": "x", "more": 1}|is null, "start" or {"checkpoint": "DIR"}
task={"name": "preference", "loss": "orpo", "reference": "start"}|the loss "orpo" has none
task={"name": "distillation", "teacher": null}|task.teacher: null
task={"name": "distillation", "teacher": "start", "divergence_weight": 0}|nothing is learned of the teacher
ROWS
    cp -r "$golden/teacher" other && chmod -R u+w other
    jq '.vocab_size = 1024' other/config.json >c && mv c other/config.json
    run -2 train --set 'task.reference={"checkpoint": "other"}' run.json
    [[ "$output" == *'other has a vocabulary of 1024, the model 2048'* ]]
    run -2 train --set 'peft={"kind": "stack", "methods": [{"kind": "lora", "module_name_pattern": ".*q_proj", "params": {"r": 2, "alpha": 2}}, {"kind": "full_tune", "module_name_pattern": ".*norm"}]}' run.json
    [[ "$output" == *'its reference "start" is the model without its adapters'* ]]
}

@test "adapters alone need no second copy, and learn the same beside one" {
    config
    lora='peft={"kind": "lora", "module_name_pattern": ".*(q|v|up|down)_proj", "params": {"r": 2, "alpha": 4}}'
    train --set "$lora" --set trainer.run.dir=without run.json
    train --set "$lora" --set trainer.run.dir=beside --set 'task.reference={"checkpoint": "student"}' run.json
    cmp without/export/model.safetensors beside/export/model.safetensors
    run -0 d9d-train --plan --gpu cpu --set "$lora" run.json
    [[ "$output" != *'frozen model'* ]]
}

# The teacher's logits are of the head, here the embedding, without its adapter, now and when backward computes them again.
@test "a head with an adapter learns from itself without it, with the same dropout in chunks of any size" {
    config
    distil() { # DIR TEACHER [OPTION...]
        train --set 'peft={"kind": "lora", "module_name_pattern": "model.embed_tokens|.*q_proj", "params": {"r": 2, "alpha": 4}}' \
            --set "task={\"name\": \"distillation\", \"teacher\": $2, \"cross_entropy_weight\": 0.5}" --set 'metrics=[]' \
            --set optimizer.lr=0.01 --set trainer.run.dir="$1" "${@:3}" run.json
    }
    learnt() { jq -r 'select(.loss) | .loss, .grad_norm' "$1/metrics.jsonl"; }
    distil without '"start"'
    distil beside '{"checkpoint": "student"}'
    cmp without/export/model.safetensors beside/export/model.safetensors
    distil whole '"start"' --set peft.params.dropout=0.3
    distil chunks '"start"' --set peft.params.dropout=0.3 --set task.chunk_tokens=7
    [ "$(learnt whole | wc -l)" -ge 4 ]
    paste <(learnt whole) <(learnt chunks) | awk '($1 - $2) ^ 2 > (1e-5 * $1) ^ 2 { print; exit 1 }'
    run ! diff <(learnt whole) <(learnt without)
}

@test "a plan has the frozen model, and refuses what does not fit" {
    config
    run -0 d9d-train --plan --gpu h100 run.json
    [[ "$output" == *'beside a frozen model of'* ]]
    with=$(d9d-train --plan --json --gpu h100 run.json | jq '.stages[0].weights, .frozen_parameters')
    without=$(d9d-train --plan --json --gpu h100 --set task.loss=orpo run.json | jq '.stages[0].weights, .frozen_parameters')
    [ "$(head -1 <<<"$with")" -eq $((2 * $(head -1 <<<"$without"))) ]
    [ "$(tail -1 <<<"$without")" -eq 0 ]
    run -2 d9d-train --plan --gpu h100 --memory 1GiB run.json
    [[ "$output" == *'it does not fit'* ]]
}

@test "evaluation and worst pairs are of pairs" {
    config
    train --set 'evaluation={"data": {"dataset": "pairs"}, "period_steps": 1}' --set trainer.logging.documents=2 run.json
    run jq -s -e '[.[] | select(.evaluation or .eval or (keys | any(test("eval"))))] | length > 0' run/metrics.jsonl
    [ "$status" -eq 0 ]
}

@test "d9d-infer scores answers as the reward model that training has exported" {
    for i in 1 2; do cat "$golden/pairs.jsonl"; done >pairs.jsonl
    "${shard[@]}" --format preference -o pairs pairs.jsonl
    config
    train --set 'task={"name": "reward"}' --set trainer.run.steps=30 --set data.epochs=10 --set optimizer.lr=3e-3 run.json
    score() { d9d-infer -q --device "${D9D_TEST_DEVICE:-cpu}" "$@"; }
    cat >score.json <<'JSON'
{"data": {"dataset": "pairs"}, "model_provider": {"name": "auto", "hf_config": "run/export", "dtype": "float32"},
 "trainer": {"batching": {"microbatch_size": 3}, "model_stage_factory": {"source_checkpoint": "run/export"}},
 "task": {"name": "reward", "output": "scores.jsonl"}}
JSON
    score score.json
    # What it has learned: the chosen answer has the larger score, as its last accuracies say.
    run jq -s -e 'length == 16 and [.[].sample] == [range(16)] and all(.margin > 0)
        and all((.chosen - .rejected - .margin) | fabs < 1e-5)' scores.jsonl
    [ "$status" -eq 0 ]
    jq -s -e '[.[] | select(.loss)] | .[-1]["rewards/accuracies"] == 1' run/metrics.jsonl
    # Texts have a score each.
    printf '{"text": "Hello there"}\n{"text": "A second, longer text."}\n' >texts.jsonl
    d9d-shard -q -t "$examples/tokenizer/tokenizer.json" -o texts texts.jsonl
    score --set data.dataset=texts --set task.output=texts.out score.json
    run jq -s -e 'length == 2 and all(.score | type == "number")' texts.out
    [ "$status" -eq 0 ]
    # Packed pairs have no line of their own, and answers without a partner no margin.
    "${shard[@]}" --format preference -o packed --pack 160 pairs.jsonl
    run -2 score --set data.dataset=packed --set task.output=no score.json
    assert_output --partial 'a line is one pair'
    "${shard[@]}" --format unpaired -o unpaired "$golden/unpaired.jsonl"
    run -2 score --set data.dataset=unpaired --set task.output=no score.json
    assert_output --partial 'unpaired is of --format unpaired'
    [ ! -e no ]
}

@test "kto says that its KL is over a micro-batch, in runs and plans, and warns where a run goes on with another" {
    config
    "${shard[@]}" --format unpaired -o unpaired "$golden/unpaired.jsonl"
    says='the KL of kto is over the 2 samples of a micro-batch: another trainer.batching.microbatch_size is another loss'
    kto=(--set 'data={"dataset": "unpaired", "epochs": null}' --set 'task={"name": "preference", "loss": "kto"}')
    run -0 --separate-stderr d9d-train --device "${D9D_TEST_DEVICE:-cpu}" "${kto[@]}" run.json
    [[ "$stderr" == *"$says"* ]]
    run -0 --separate-stderr d9d-train --plan --gpu h100 "${kto[@]}" run.json
    [[ "$output" == *"$says"* ]]
    [ "$(d9d-train --plan --suggest 2 --json --gpu h100 "${kto[@]}" run.json | jq -c '[.suggestions[].rows] | unique')" = '[2]' ]
    rm -rf run/export
    again=("${kto[@]}" --set trainer.run.steps=3)
    run -0 --separate-stderr d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" "${again[@]}" --set trainer.batching.microbatch_size=1 run.json
    [[ "$stderr" == *'warning: run/config.json: trainer.batching.microbatch_size was 2 and is 1; what was learned until now was learned with that'* ]]
    # Of pairs each is alone.
    rm -rf run
    run -0 --separate-stderr d9d-train --device "${D9D_TEST_DEVICE:-cpu}" run.json
    [[ "$stderr" != *'is over the'* ]]
}
