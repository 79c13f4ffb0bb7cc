#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# Encoders through the tools, against transformers (make_encoders.py): pooled and hidden states,
# training of two tasks, checkpoints to the suite's layout and back, and what they refuse.

load workplace

setup_file() {
    golden_workplace "$BATS_TEST_DIRNAME/encoders"
    for c in $(cases); do
        d9d-shard -q --format tokens --out "data-$c" "$golden/$c/texts.jsonl"
        configure "$c"
    done
}
setup() { cd "$work" || return 1; }

cases() { (cd "$golden" && printf '%s\n' *); }

# configure CASE: CASE.train.json and CASE.infer.json
configure() {
    local model="\"model_provider\": {\"name\": \"auto\", \"hf_config\": \"$golden/$1/config.json\"}"
    local own="\"model_provider\": {\"name\": \"modernbert\", \"hf_config\": \"$golden/$1/own/config.json\"}"
    cat >"$1.train.json" <<JSON
{"data": {"dataset": "data-$1", "epochs": 3, "order": "sequential"}, $own,
 "trainer": {"run": {"name": "$1", "dir": "run-$1", "steps": 10},
   "batching": {"global_batch_size": 4, "microbatch_size": 2},
   "model_stage_factory": {"source_checkpoint": "$golden/$1/own"}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.999]},
 "task": {"name": "classification", "pooling": "cls"}}
JSON
    cat >"$1.infer.json" <<JSON
{"data": {"dataset": "data-$1"}, $model,
 "trainer": {"batching": {"microbatch_size": 3},
   "model_stage_factory": {"source_checkpoint": "$golden/$1"}},
 "task": {"name": "embedding", "output": "out.npy"}}
JSON
}
source_of() {
    printf '%s\n' --set "model_provider.hf_config=$1/config.json" --set "trainer.model_stage_factory.source_checkpoint=$1"
}

floats() { od -An -v -tf4 -w4 -j128 "$1"; }
golden_values() { sed -E "s/.*\"$2\": (\[+[^\"]*\]+).*/\1/" "$golden/$1/values.jsonl" | tr -d '[]}' | tr -s ', ' '\n' | grep .; }
numbers() { sed -nE "s/.*\"$1\": ([-+0-9.e]+).*/\1/p" "$2"; }
predictions() { sed -E 's/.*"prediction": \[([^]]*)\].*/\1/' "$1" | tr -s ', ' '\n'; }
# close A B [TOLERANCE]: numbers, one a line
close() {
    paste "$1" "$2" | awk -v e="${3:-1e-5}" 'NF != 2 || ($1 - $2) ^ 2 > (e * (1 + $2 * $2)) ^ 2 { print NR ": " $0; exit 1 }
        END { if (NR == 0) exit 1 }'
}
task() { printf 'task={"name": "%s", "output": "%s"%s}' "$1" "$2" "${3:+, $3}"; }
# says STATUS TEXT COMMAND...
says() {
    local want=$1 text=$2
    shift 2
    run "$@"
    if [ "$status" -ne "$want" ] || [[ "$output" != *"$text"* ]]; then
        echo "$status: $output" && return 1
    fi
}

@test "pooled and hidden states are transformers', whatever stands beside a text" {
    for c in $(cases); do
        for p in last mean cls; do
            d9d-infer -q --device cpu --set "$(task embedding $p.npy "\"pooling\": \"$p\"")" "$c.infer.json"
            close <(floats $p.npy) <(golden_values "$c" $p)
        done
        d9d-infer -q --device cpu --set "$(task hidden_states states.npy '"pooling": "mean"')" "$c.infer.json"
        close <(floats states.npy) <(golden_values "$c" states)
        # The same bits in a batch without padding.
        d9d-infer -q --device cpu --set trainer.batching.microbatch_size=1 \
            --set "$(task embedding alone.npy '"pooling": "mean"')" "$c.infer.json"
        cmp mean.npy alone.npy
        rm ./*.npy
    done
}

@test "classes of the suite's head are torch's" {
    for c in $(cases); do
        mapfile -t own < <(source_of "$golden/$c/own")
        d9d-infer -q --device cpu "${own[@]}" --set "$(task classification out.jsonl '"pooling": "cls"')" "$c.infer.json"
        close <(predictions out.jsonl) <(golden_values "$c" prediction)
        rm out.jsonl
    done
}

@test "ten steps of classification are torch's, and are exported in the suite's layout" {
    for c in $(cases); do
        run d9d-train --device cpu "$c.train.json"
        [ "$status" -eq 0 ] || { echo "$output" && false; }
        [[ "$output" == *"modernbert: a HuggingFace checkpoint cannot have a classification head of one matrix; the model will be written in d9d's own layout"* ]]
        for f in loss grad_norm; do close <(numbers $f "run-$c/metrics.jsonl") <(numbers $f "$golden/$c/steps.jsonl"); done
        mapfile -t export < <(source_of "run-$c/export")
        d9d-infer -q --device cpu "${export[@]}" --set "$(task classification after.jsonl '"pooling": "cls"')" "$c.infer.json"
        [ "$(predictions after.jsonl | wc -l)" -eq 48 ]
        rm after.jsonl
    done
}

@test "a new head has the labels of the task" {
    mapfile -t base < <(source_of "$golden/modernbert")
    says 2 'task.num_labels: must be given' d9d-train --device cpu "${base[@]}" --set trainer.run.dir=new modernbert.train.json
    d9d-train -q --device cpu "${base[@]}" --set trainer.run.dir=new --set trainer.run.steps=2 --set task.num_labels=5 modernbert.train.json
    mapfile -t export < <(source_of new/export)
    d9d-infer -q --device cpu "${export[@]}" --set "$(task classification five.jsonl '"pooling": "cls"')" modernbert.infer.json
    [ "$(predictions five.jsonl | wc -l)" -eq 80 ]
}

@test "pairs: torch's losses and norms, exported as a base model that transformers reads" {
    for c in $(cases); do
        mapfile -t base < <(source_of "$golden/$c")
        d9d-train -q --device cpu "${base[@]}" --set trainer.run.dir="pairs-$c" --set trainer.run.steps=6 \
            --set 'task={"name": "embedding", "pooling": "mean", "temperature": 0.1}' \
            --set trainer.batching.global_batch_size=8 --set trainer.batching.microbatch_size=4 "$c.train.json"
        for f in loss grad_norm; do close <(numbers $f "pairs-$c/metrics.jsonl") <(numbers $f "$golden/$c/pairs.jsonl"); done
        grep -q '"ModernBertModel"' "pairs-$c/export/config.json"
        run d9d-map plan --all "pairs-$c/export"
        [[ "$output" == *layers.1.attn.Wqkv.weight* ]]
        [[ ! "$output" =~ classifier|decoder|head\. ]]
    done
}

@test "the suite's layout and back loses no byte of a base model" {
    d9d-map -q "$golden/modernbert" own
    d9d-map -q own back
    d9d-map -q diff "$golden/modernbert" back
    cmp {"$golden/modernbert",back}/config.json
    d9d-map -q verify own
}

@test "the prediction head of a classifier is left out, with a word, and the class with it" {
    local c=modernbert_odd n=4
    run d9d-map --to d9d "$golden/$c" "own-$c"
    [ "$status" -eq 0 ]
    [[ "$output" == *": $n tensors of the prediction head are left out: modernbert does not compute them"* ]]
    d9d-map -q --to hf "own-$c" "base-$c"
    grep -q '"ModernBertModel"' "base-$c/config.json"
    run d9d-map diff "$golden/$c" "base-$c"
    [ "$(grep -c 'only in A' <<<"$output")" -eq "$n" ] || { echo "$output" && false; }
    [[ "$output" != *"only in B"* && "$output" != *"differ"*model.* ]]
    d9d-infer -q --device cpu --set model_provider.hf_config="base-$c/config.json" \
        --set trainer.model_stage_factory.source_checkpoint="base-$c" \
        --set "$(task embedding "$c.npy" '"pooling": "mean"')" "$c.infer.json"
    close <(floats "$c.npy") <(golden_values "$c" mean)
}

@test "what needs a next token is refused in one sentence, before anything is done" {
    local no='modernbert: every position sees those behind it, so there is no next token to learn, score or generate'
    mapfile -t base < <(source_of "$golden/modernbert")
    says 2 "$no" d9d-train --device cpu "${base[@]}" --set trainer.run.dir=none --set 'task={"name": "causal_lm"}' modernbert.train.json
    [ ! -e none ]
    for t in '"perplexity"' '"logprobs", "output": "none.jsonl"'; do
        says 2 "$no" d9d-infer --device cpu --set "task={\"name\": $t}" modernbert.infer.json
    done
    sed "s/\"data\": {[^}]*}, //; s|\"task\": .*|\"task\": {\"name\": \"generate\", \"prompts\": \"$golden/modernbert/texts.jsonl\", \"output\": \"none.jsonl\"}}|" \
        modernbert.infer.json >generate.json
    says 2 "$no" d9d-infer --device cpu generate.json
    [ ! -e none.jsonl ]
    mkdir -p causal
    cp "$golden/modernbert/model.safetensors" causal
    sed 's/"ModernBertModel"/"ModernBertForCausalLM"/' "$golden/modernbert/config.json" >causal/config.json
    says 2 '["ModernBertForCausalLM"] is not supported' d9d-map -q causal none
    # A classifier of transformers has another head than that of the task.
    says 2 "task: cls_head.score.weight would be random: $golden/modernbert_odd does not have it, and it is not learned here" \
        d9d-infer --device cpu --set "$(task classification none.jsonl '"num_labels": 3')" modernbert_odd.infer.json
}

@test "context parallelism is planned" {
    d9d-train -q --device cpu --plan --set mesh.context_parallel_shard=2 modernbert.train.json
}

@test "random weights load, and are those of the seed" {
    for c in $(cases); do
        d9d-map -q init --model "$golden/$c/config.json" --seed 3 "new-$c"
        d9d-map -q init --to d9d --model "$golden/$c/config.json" --seed 3 "new-own-$c"
        d9d-map -q --to hf "new-own-$c" "again-$c"
        d9d-map -q diff "new-$c" "again-$c"
    done
}
