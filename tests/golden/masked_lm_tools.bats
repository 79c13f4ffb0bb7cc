#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# Masked language models through the tools, against transformers (make_encoders.py): files, steps
# with given masks, exports; what the task masks, and what it refuses.

load workplace

setup_file() {
    golden_workplace "$BATS_TEST_DIRNAME/masked_lm"
    # A text of one token makes a sample only where it has a label.
    grep -v '"input_ids": .[0-9]*\]' "$BATS_TEST_DIRNAME/encoders/modernbert/texts.jsonl" >texts.jsonl
    d9d-shard -q --format tokens --out texts texts.jsonl
    sed 's/, "labels".*/}/' texts.jsonl >plain.jsonl
    d9d-shard -q --format tokens --out plain plain.jsonl
    for c in $(cases); do
        d9d-shard -q --format tokens --out "rows-$c" "$golden/$c/train.jsonl"
        configure "$c"
    done
}
setup() { cd "$work" || return 1; }

cases() { (cd "$golden" && printf '%s\n' *); }

# configure CASE: CASE.json, which masks texts, and CASE.infer.json, which scores given masks
configure() {
    cat >"$1.json" <<JSON
{"data": {"dataset": "texts", "epochs": 4, "order": "sequential"},
 "model_provider": {"name": "auto", "hf_config": "$golden/$1/config.json"},
 "trainer": {"run": {"name": "$1", "dir": "run-$1", "steps": 6},
   "batching": {"global_batch_size": 8, "microbatch_size": 4},
   "model_stage_factory": {"source_checkpoint": "$golden/$1"}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.95]},
 "task": {"name": "masked_lm", "mask_token_id": 3, "special_ids": [0, 1, 2]}}
JSON
    cat >"$1.infer.json" <<JSON
{"data": {"dataset": "rows-$1"}, "model_provider": {"name": "auto", "hf_config": "$golden/$1/config.json"},
 "trainer": {"batching": {"microbatch_size": 2}, "model_stage_factory": {"source_checkpoint": "$golden/$1"}},
 "task": {"name": "masked_lm", "output": "out.jsonl", "mlm_probability": 0}}
JSON
}
train() {
    local dir=$1
    shift
    d9d-train -q --device cpu --set trainer.run.dir="$dir" "$@"
}
numbers() { grep -oE "\"$1\": *[-+0-9.e]+" "$2" | grep -oE '[-+0-9.e]+$'; }
# close A B [TOLERANCE]: numbers, one a line
close() {
    paste "$1" "$2" | awk -v e="${3:-1e-5}" 'NF != 2 || ($1 - $2) ^ 2 > (e * (1 + $2 * $2)) ^ 2 { print NR ": " $0; exit 1 }
        END { if (NR == 0) exit 1 }'
}
# says STATUS TEXT COMMAND...
says() {
    local want=$1 text=$2
    shift 2
    run "$@"
    if [ "$status" -ne "$want" ] || [[ "$output" != *"$text"* ]]; then
        echo "$status: $output" && return 1
    fi
}

@test "the suite's layout and back loses no byte of a tensor, nor of config.json" {
    for c in $(cases); do
        d9d-map -q --to d9d "$golden/$c" "own-$c"
        d9d-map -q "own-$c" "back-$c"
        d9d-map -q diff "$golden/$c" "back-$c"
        cmp {"$golden/$c","back-$c"}/config.json
        d9d-map -q init --model "$golden/$c/config.json" --seed 3 "new-$c"
        d9d-map -q init --to d9d --model "$golden/$c/config.json" --seed 3 "new-own-$c"
        d9d-map -q "new-own-$c" "again-$c"
        d9d-map -q diff "new-$c" "again-$c"
    done
}

@test "ten steps with given masks are transformers', and the export is of its class" {
    for c in $(cases); do
        train "given-$c" --set data.dataset="rows-$c" --set data.epochs=10 --set trainer.run.steps=10 \
            --set trainer.batching.global_batch_size=3 --set trainer.batching.microbatch_size=3 \
            --set 'task={"name": "masked_lm", "mlm_probability": 0}' "$c.json"
        for f in loss grad_norm; do
            close <(numbers $f "given-$c/metrics.jsonl") <(numbers $f "$golden/$c/train.json")
        done
        grep -q '"ModernBertForMaskedLM"' "given-$c/export/config.json"
        cmp <(d9d-map plan --all "given-$c/export" | grep -oE '< [^ ]+' | sort) \
            <(d9d-map plan --all "$golden/$c" | grep -oE '< [^ ]+' | sort)
    done
}

@test "a tied model whose files have the decoder too is the same model" {
    echo '{"schema": "d9d.mapper.v1", "rest": "keep", "stages": [[{"op": "duplicate",
        "from": "model.embeddings.tok_embeddings.weight",
        "to": ["model.embeddings.tok_embeddings.weight", "decoder.weight"]}]]}' >copy.json
    d9d-map -q --mapper copy.json "$golden/modernbert" copied
    d9d-map -q --to d9d copied copied-own
    d9d-map -q copied-own copied-back
    d9d-map -q diff copied copied-back
}

@test "masks depend on neither micro-batch nor workers, and a resumed run goes on with them" {
    train whole modernbert.json
    for more in trainer.batching.microbatch_size=8 trainer.batching.microbatch_size=1 trainer.data_loading.num_workers=3; do
        rm -rf other
        train other --set $more modernbert.json
        close <(numbers loss other/metrics.jsonl) <(numbers loss whole/metrics.jsonl) 2e-6
        cmp <(numbers tokens other/metrics.jsonl) <(numbers tokens whole/metrics.jsonl)
    done
    train parts --set trainer.checkpointing.period_steps=2 --set trainer.run.steps=4 modernbert.json
    rm -r parts/export
    train parts --set trainer.checkpointing.period_steps=2 modernbert.json
    cmp <(numbers loss parts/metrics.jsonl) <(numbers loss whole/metrics.jsonl)
    # Each epoch has other masks, another seed too.
    train epochs --set optimizer.lr=1e-30 --set optimizer.weight_decay=0 --set trainer.run.steps=4 \
        --set trainer.batching.global_batch_size=15 --set trainer.batching.microbatch_size=15 modernbert.json
    [ "$(numbers loss epochs/metrics.jsonl | sort -u | wc -l)" -eq 4 ]
    train seed --set task.seed=1 modernbert.json
    [ "$(numbers loss seed/metrics.jsonl)" != "$(numbers loss whole/metrics.jsonl)" ]
}

@test "labels that a dataset has are not what is masked" {
    train labelled modernbert.json
    train unlabelled --set data.dataset=plain modernbert.json
    cmp <(numbers loss labelled/metrics.jsonl) <(numbers loss unlabelled/metrics.jsonl)
}

@test "an evaluation has the same masks each time" {
    train eval --set optimizer.lr=1e-30 --set optimizer.weight_decay=0 \
        --set 'evaluation={"data": {"dataset": "texts"}, "period_steps": 2}' modernbert.json
    [ "$(numbers valid/loss eval/metrics.jsonl | wc -l)" -eq 3 ]
    [ "$(numbers valid/loss eval/metrics.jsonl | sort -u | wc -l)" -eq 1 ]
}

@test "d9d-infer scores the targets of given masks and of its own" {
    for c in $(cases); do
        d9d-infer -q --device cpu "$c.infer.json"
        # the mean of all targets is the loss of the first step
        close <(sed -E 's/.*"logprobs": \[([^]]*)\].*/\1/' out.jsonl | tr -s ', ' '\n' | awk '{ s -= $1; n++ } END { print s / n }' |
            tail -n 1) <(numbers loss "$golden/$c/train.json" | head -n 1) 1e-5
        # targets and their places are the labels
        [ "$(sed -E 's/.*"targets": \[([^]]*)\].*/\1/' out.jsonl | tr -d ' ')" = \
            "$(sed -E 's/.*"labels": \[([^]]*)\].*/\1/' "$golden/$c/train.jsonl" | tr -d ' ' | sed -E 's/-100,//g; s/,-100//g')" ]
        rm out.jsonl
    done
    own='{"name": "masked_lm", "output": "own.jsonl", "mask_token_id": 3, "special_ids": [0, 1, 2]}'
    d9d-infer -q --device cpu --set data.dataset=texts --set "task=$own" modernbert.infer.json
    mv own.jsonl one.jsonl
    d9d-infer -q --device cpu --set data.dataset=texts --set "task=$own" --set trainer.batching.microbatch_size=5 modernbert.infer.json
    cmp <(sed 's/"logprobs.*//' one.jsonl) <(sed 's/"logprobs.*//' own.jsonl)
    close <(numbers loss own.jsonl) <(numbers loss one.jsonl)
    [ "$(wc -l <own.jsonl)" -eq 15 ]
}

@test "fill_mask finds the tokens of transformers' pipeline fill-mask" {
    local task='{"name": "fill_mask", "output": "fill.jsonl", "mask_token_id": 3}'
    for c in $(cases); do
        for micro in 2 3; do
            rm -f fill.jsonl
            d9d-infer -q --device cpu --set "task=$task" --set trainer.batching.microbatch_size=$micro "$c.infer.json"
            for f in positions tokens; do
                diff <(sed -E "s/.*\"$f\": (\[[][0-9, ]*\]).*/\1/" fill.jsonl) \
                    <(sed -E "s/.*\"$f\": (\[[][0-9, ]*\]).*/\1/" "$golden/$c/fill_mask.jsonl")
            done
            close <(sed 's/.*"scores": //' fill.jsonl | tr -s '[]{}, ' '\n' | grep .) \
                <(sed 's/.*"scores": //' "$golden/$c/fill_mask.jsonl" | tr -s '[]{}, ' '\n' | grep .) 2e-6
        done
    done
    rm fill.jsonl
    # Samples without a mask, and more of them than a batch has.
    d9d-infer -q --device cpu --set "task=$task" --set task.top_k=2 --set data.dataset=texts modernbert.infer.json
    [ "$(wc -l <fill.jsonl)" -eq 15 ]
    grep -q '"positions": \[\], "tokens": \[\], "scores": \[\]}$' fill.jsonl
    [ "$(sed -E 's/.*"positions": \[([^]]*)\].*/\1/' fill.jsonl | tr -s ', ' '\n' | grep -c .)" -eq \
        "$(sed -E 's/.*"input_ids": \[([^]]*)\].*/\1/' texts.jsonl | tr -s ', ' '\n' | grep -cx 3)" ]
    says 2 "task.top_k is 60, and the model's vocabulary has 53 ids" d9d-infer -q --device cpu \
        --set "task=$task" --set task.output=none.jsonl --set task.top_k=60 modernbert.infer.json
    says 2 "task.mask_token_id: must be given" d9d-infer -q --device cpu \
        --set "task=$task" --set task.output=none.jsonl --set task.mask_token_id=null modernbert.infer.json
    [ ! -e none.jsonl ]
}

@test "fill_mask spells the tokens where the dataset has a tokenizer" {
    local vocab='"<0>": 0'
    for i in $(seq 52); do vocab+=", \"<$i>\": $i"; done
    cat >numbered.json <<JSON
{"version": "1.0", "added_tokens": [
   {"id": 3, "content": "<3>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
 "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
 "model": {"type": "WordLevel", "unk_token": "<0>", "vocab": {$vocab}}}
JSON
    sed -E 's/.*"input_ids": \[([^]]*)\].*/\1/; s/[0-9]+/<&>/g; s/,//g; s/.*/{"text": "&"}/' \
        "$golden/modernbert/fill_mask.jsonl" >spelled.jsonl
    d9d-shard -q --tokenizer numbered.json --out spelled spelled.jsonl
    d9d-infer -q --device cpu --set data.dataset=spelled \
        --set 'task={"name": "fill_mask", "output": "spelled-fill.jsonl", "mask_token": "<3>"}' modernbert.infer.json
    diff <(sed -E 's/.*"tokens": (\[\[.*\]\]), "scores".*/\1/; s/[0-9]+/"<&>"/g' spelled-fill.jsonl) \
        <(sed -E 's/.*"token_str": (.*)}$/\1/' spelled-fill.jsonl)
    diff <(sed -E 's/.*"tokens": (\[\[.*\]\]), "scores".*/\1/' spelled-fill.jsonl) \
        <(sed -E 's/.*"tokens": (\[\[.*\]\]), "scores".*/\1/' "$golden/modernbert/fill_mask.jsonl")
}

@test "the mask is the tokenizer's, and its special tokens are never masked" {
    cat >tokenizer.json <<'JSON'
{"version": "1.0", "added_tokens": [
   {"id": 0, "content": "[CLS]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
   {"id": 1, "content": "[MASK]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
 "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
 "model": {"type": "WordLevel", "unk_token": "[CLS]", "vocab": {"[CLS]": 0, "[MASK]": 1, "a": 2, "b": 3, "c": 4}}}
JSON
    for _ in 1 2 3 4 5 6 7 8; do echo '{"text": "[CLS] a b c a b c"}'; done >words.jsonl
    d9d-shard -q --tokenizer tokenizer.json --out words words.jsonl
    all='task={"name": "masked_lm", "mlm_probability": 1, "mask_replace_prob": 1, "random_replace_prob": 0}'
    train words-run --set data.dataset=words --set trainer.run.steps=2 --set "$all" modernbert.json
    [ "$(numbers tokens words-run/metrics.jsonl | xargs)" = "48 96" ]
    says 2 'task.mask_token: words: its tokenizer has no token "[mask]"' \
        train none --set data.dataset=words --set trainer.run.steps=2 \
        --set 'task={"name": "masked_lm", "mask_token": "[mask]"}' modernbert.json
}

@test "a base model gets a new head, and other tasks leave the head out" {
    base=$golden/../encoders/modernbert
    train new --set model_provider.hf_config="$base/config.json" \
        --set trainer.model_stage_factory.source_checkpoint="$base" modernbert.json
    grep -q '"ModernBertForMaskedLM"' new/export/config.json
    run d9d-map plan --all new/export
    [[ "$output" == *head.dense.weight*decoder.bias* ]]
    classifier=$golden/../encoders/modernbert_odd
    train classes --set model_provider.hf_config="$classifier/config.json" \
        --set trainer.model_stage_factory.source_checkpoint="$classifier" modernbert.json
    train pairs --set trainer.run.steps=1 --set 'task={"name": "embedding", "pooling": "mean"}' modernbert.json
    run d9d-map plan --all pairs/export
    [[ "$output" == *layers.1.attn.Wqkv.weight* && ! "$output" =~ decoder|head\. ]]
}

@test "what cannot be masked is refused in one sentence, before anything is done" {
    says 2 'task.mask_token_id: must be given: texts was made of ids, without a tokenizer' \
        train none --set 'task={"name": "masked_lm"}' modernbert.json
    says 2 "task.mask_token_id is 53, and the model's vocabulary has 53 ids" \
        train none --set task.mask_token_id=53 modernbert.json
    says 2 'task: mask_replace_prob 0.8 and random_replace_prob 0.3 are more than 1 together' \
        train none --set task.random_replace_prob=0.3 modernbert.json
    says 2 'task.mlm_probability is 0, and plain has no labels, which would be the targets then' \
        train none --set data.dataset=plain --set task.mlm_probability=0 modernbert.json
    llama=$golden/../families/llama
    says 2 'llama: no position sees those behind it, so there is no masked token to learn; give task causal_lm' \
        train none --set model_provider.hf_config="$llama/config.json" \
        --set trainer.model_stage_factory.source_checkpoint="$llama" modernbert.json
    says 2 'every position sees those behind it, so there is no next token to learn, score or generate; give task masked_lm' \
        train none --set 'task={"name": "causal_lm"}' modernbert.json
    [ ! -e none ]
}
