#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# Special tokens of a tokenizer's post_processor around texts: d9d-shard, d9d-infer, and what is said
# of datasets that differ.  The templates themselves are in tests/golden/test_golden_post_processor.c.

setup() {
    load helper
    load train_helper
    work=$(workplace)
    cd "$work" || return 1
}
teardown() { cd / && rm -rf "$work"; }

# tokenizer FILE SINGLE PAIR: of the words a b c, with these templates.
tokenizer() {
    pieces() {
        local p out=''
        for p in $1; do
            case $p in
            A | B) out+=", {\"Sequence\": {\"id\": \"$p\", \"type_id\": 0}}" ;;
            *) out+=", {\"SpecialToken\": {\"id\": \"$p\", \"type_id\": 0}}" ;;
            esac
        done
        echo "[${out#, }]"
    }
    local i=3 t added='' special=''
    for t in '<s>' '</s>' '[CLS]' '[SEP]'; do
        added+=", {\"id\": $i, \"content\": \"$t\", \"special\": true, \"normalized\": false}"
        special+=", \"$t\": {\"id\": \"$t\", \"ids\": [$i], \"tokens\": [\"$t\"]}"
        i=$((i + 1))
    done
    cat >"$1" <<JSON
{"added_tokens": [${added#, }], "pre_tokenizer": {"type": "WhitespaceSplit"},
 "post_processor": {"type": "TemplateProcessing", "single": $(pieces "$2"), "pair": $(pieces "$3"),
   "special_tokens": {${special#, }}},
 "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1, "c": 2}}}
JSON
}
llama() { tokenizer "$1" '<s> A' '<s> A <s> B'; }
bert() { tokenizer "$1" '[CLS] A [SEP]' '[CLS] A [SEP] B [SEP]'; }

# shard [OPTION...]: a dataset of a.jsonl anew.
shard() {
    rm -rf data
    d9d-shard -t t.json -o data "$@" a.jsonl 2>log
}
# stored [N]: the tokens of a sample, ids and the last target.
stored() {
    d9d-shard inspect data --sample "${1:-0}" --json | tr -d ' \n' |
        sed -E 's/.*"input_ids":\[([^]]*)\].*"labels":\[([^]]*,)?(-?[0-9]+)\].*/\1,\3/'
}
recipe() { tr -d ' \n' <data/manifest.json | sed -E 's/.*"add_special_tokens":([a-z]*).*/\1/'; }

@test "texts have them unless told otherwise, and the manifest says so" {
    llama t.json
    printf '{"text": "a b c"}\n{"text": ""}\n' >a.jsonl
    shard
    [ "$(stored)" = 3,0,1,2 ]
    [ "$(recipe)" = true ]
    d9d-shard inspect data | grep -q '^vocabulary .*, its special tokens around texts$'
    grep -q '1 document too short' log # nothing stands around no text
    shard --add-special-tokens no
    [ "$(stored)" = 0,1,2 ]
    [ "$(recipe)" = false ]
    d9d-shard inspect data | grep -q '^vocabulary .*, no special tokens around texts$'
    shard --add-special-tokens yes --append-eos '</s>'
    [ "$(stored)" = 3,0,1,2,4 ]
    printf '{"input_ids": [2, 1]}\n' >a.jsonl
    shard --format tokens
    [ "$(stored)" = 2,1 ]
    run ! grep add_special_tokens data/manifest.json
    run -1 grep 'special tokens' <(d9d-shard inspect data)
    says 2 '--add-special-tokens yes: a.jsonl: its ids are given' \
        d9d-shard -t t.json -o x --format tokens --add-special-tokens yes a.jsonl
    printf '{"messages": []}\n' >a.jsonl
    says 2 "--add-special-tokens yes: a.jsonl: the template writes a chat's own" \
        d9d-shard -t t.json -o x --format chat --add-special-tokens yes a.jsonl
}

@test "an end that the tokenizer adds is not appended again" {
    tokenizer t.json '<s> A </s>' 'A B'
    printf '{"text": "a b"}\n' >a.jsonl
    shard --append-eos '</s>'
    [ "$(stored)" = 3,0,1,4 ]
    shard --append-eos '[SEP]'
    [ "$(stored)" = 3,0,1,4,6 ]
}

@test "pairs, classes, and both texts' shares of what is truncated" {
    bert t.json
    printf '{"text": "a b", "b": "c", "y": 1}\n' >a.jsonl
    shard --text-pair-key b
    [ "$(stored)" = 5,0,1,6,2,6 ]
    shard --text-pair-key b --add-special-tokens no
    [ "$(stored)" = 0,1,2 ]
    shard --text-pair-key b --label-key y --max-length 5 --overflow truncate
    run -0 d9d-shard inspect data --sample 0 --json
    [[ "$(tr -d ' \n' <<<"$output")" == *'"input_ids":[5,0,6,2,6],"labels":[-100,-100,-100,-100,1]'* ]]
    says 2 '--text-pair-key: a.txt is not JSON lines of texts' d9d-shard -t t.json -o x --text-pair-key b a.txt
    shard --max-length 2 --overflow truncate # positions: three tokens
    [ "$(stored)" = 5,0,6 ]
    grep -q '1 truncated, 0 split, 0 turns and 1 targets lost' log
    says 2 "a sample of 2 tokens has none left for a text beside the tokenizer's 2 special ones" \
        d9d-shard -t t.json -o x --max-length 1 --overflow truncate a.jsonl
}

@test "a document that is split has them at its ends, packed ones have their own" {
    tokenizer t.json '<s> A </s>' 'A B'
    printf '{"text": "a b c"}\n{"text": "c"}\n' >a.jsonl
    shard --max-length 2
    [ "$(stored 0) $(stored 1) $(stored 2)" = '3,0,1 1,2,4 3,2,4' ]
    shard --pack 16
    run -0 d9d-shard inspect data --sample 0 --json
    [[ "$(tr -d ' \n' <<<"$output")" == *'"input_ids":[3,0,1,2,3,2],'*'"position_ids":[0,1,2,3,0,1]'* ]]
}

@test "texts that have them already are counted" {
    llama t.json
    printf '{"text": "<s> a b"}\n{"text": "a b"}\n' >a.jsonl
    shard
    grep -q '1 of 2 texts begin with the special tokens that the tokenizer puts before every text' log
    shard --add-special-tokens no
    run ! grep twice log
}

@test "a template that HF cannot use is refused where it is used" {
    tokenizer t.json '<x> A' 'A B'
    printf '{"text": "a b", "b": "c"}\n' >a.jsonl
    says 2 't.json: post_processor: single[0]: "<x>" is not among special_tokens; without special tokens: --add-special-tokens no' \
        d9d-shard -t t.json -o x a.jsonl
    shard --add-special-tokens no
    shard --text-pair-key b
}

@test "prompts of text have them, and d9d-infer says how" {
    sed 's/"vocab_size": [0-9]*/"vocab_size": 7/' "$golden/dense_tied/config.json" >config.json
    d9d-map init -q --model config.json --seed 3 m
    cat >g.json <<'JSON'
{"model_provider": {"name": "qwen3_dense", "hf_config": "config.json"},
 "trainer": {"batching": {"microbatch_size": 3}, "model_stage_factory": {"source_checkpoint": "m"}},
 "task": {"name": "generate", "output": "out.jsonl", "prompts": "p.jsonl", "max_new_tokens": 4, "stop_at_eos": false}}
JSON
    llama m/tokenizer.json
    printf '%s\n' '{"prompt": "a b"}' '{"input_ids": [0, 1]}' '{"input_ids": [3, 0, 1]}' >p.jsonl
    answers() { sed -E 's/.*"tokens": \[([^]]*)\].*/\1/' out.jsonl | tr -d ' '; }
    d9d-infer g.json 2>log
    grep -q 'prompts of text are encoded as <s> $A' log
    run ! grep -i warning log
    [ "$(answers | sed -n 1p)" = "$(answers | sed -n 3p)" ]
    grep -q '"prompt_tokens": 3' <(sed -n 1p out.jsonl)
    rm out.jsonl
    d9d-infer --set task.add_special_tokens=false g.json
    [ "$(answers | sed -n 1p)" = "$(answers | sed -n 2p)" ]
    rm out.jsonl
    tokenizer m/tokenizer.json '<s> A </s>' 'A B'
    echo '{"prompt": "<s> a"}' >p.jsonl
    d9d-infer g.json 2>log
    grep -q 'ends each prompt of text with a special token' log
    grep -q '1 of 1 prompt begin with the special tokens that the tokenizer puts before each' log
    run -0 d9d-map describe m
    [[ "$output" == *'tokenizer.json, 7 ids, a text is <s> $A </s>'* ]]
}

@test "datasets that differ are said, in a blend and between training and evaluation" {
    llama t.json
    for _ in 1 2 3 4 5 6 7 8; do echo '{"text": "a b c a"}'; done >a.jsonl
    shard
    mv data with
    shard --add-special-tokens no
    mv data without
    said="with has the tokenizer's special tokens around its texts and without has none"
    d9d-infer --set 'data=[{"dataset": "with"}, {"dataset": "without"}]' - 2>log <<JSON
{"model_provider": {"name": "qwen3_dense", "hf_config": "$golden/dense_tied/config.json"},
 "trainer": {"batching": {"microbatch_size": 3}, "model_stage_factory": {"source_checkpoint": "$golden/dense_tied"}},
 "data": {"dataset": "with"}, "task": {"name": "perplexity"}}
JSON
    grep -q "$said" log
    run_config dense_tied >c.json
    d9d-train --set data.dataset=with --set trainer.run.steps=1 \
        --set 'evaluation=[{"name": "v", "data": {"dataset": "without"}}]' c.json 2>log
    grep -q "$said" log
    d9d-train --set data.dataset=with --set trainer.run.dir=alike --set trainer.run.steps=1 \
        --set 'evaluation=[{"name": "v", "data": {"dataset": "with"}}]' c.json 2>log
    run ! grep "around its texts" log
    # What is asked would begin otherwise than what is learnt.
    run ! grep "has texts as they are" log
    d9d-train --set data.dataset=without --set trainer.run.dir=bare --set trainer.run.steps=1 c.json 2>log
    grep -q 'warning: without has texts as they are, and its tokenizer encodes a prompt as <s> \$A' log
}

# What transformers 5.24 does: add_bos_token and add_eos_token beside a tokenizer.json are not read.
@test "tokenizer_config.json that says otherwise of special tokens is named, and tokenizer.json counts" {
    mkdir m
    printf '{"text": "a b c"}\n' >a.jsonl
    # config ADD VALUE [TOKENS]
    config() {
        local tokens=${3:-'"bos_token": "<s>", "eos_token": {"content": "</s>"}'}
        echo "{\"$1\": $2, $tokens}" >m/tokenizer_config.json
    }
    encoded() {
        rm -rf data
        d9d-shard -t m/tokenizer.json -o data "$@" a.jsonl 2>log
        stored
    }
    tokenizer m/tokenizer.json A 'A B'
    config add_bos_token true
    [ "$(encoded)" = 0,1,2 ]
    grep -q 'warning: m/tokenizer_config.json: add_bos_token is true, and the post_processor of tokenizer.json puts no "<s>" before a text; it counts, as in transformers 5' log
    [ "$(encoded --add-special-tokens no)" = 0,1,2 ]
    run ! grep tokenizer_config log
    config add_eos_token true
    [ "$(encoded)" = 0,1,2 ]
    grep -q 'add_eos_token is true, and the post_processor of tokenizer.json puts no "</s>" behind a text' log
    config add_bos_token false
    [ "$(encoded)" = 0,1,2 ]
    run ! grep tokenizer_config log
    llama m/tokenizer.json
    [ "$(encoded)" = 3,0,1,2 ]
    grep -q 'add_bos_token is false, and the post_processor of tokenizer.json puts "<s>" before a text' log
    for fits in 'add_bos_token true' 'add_eos_token false' 'add_bos_token null'; do
        # shellcheck disable=SC2086 # words
        config $fits
        [ "$(encoded)" = 3,0,1,2 ]
        run ! grep tokenizer_config log
    done
    config add_bos_token false '"bos_token": null'
    [ "$(encoded)" = 3,0,1,2 ]
    run ! grep tokenizer_config log
    config add_bos_token false
    sed 's/"vocab_size": [0-9]*/"vocab_size": 7/' "$golden/dense_tied/config.json" >config.json
    mv m files
    d9d-map init -q --model config.json --seed 3 m
    cp files/* m
    run -0 d9d-map describe m
    [[ "$output" == *'note           m/tokenizer_config.json: add_bos_token is false, '* ]]
    d9d-map -q --to hf m there
    d9d-map -q there own && d9d-map -q --to hf own back
    for f in tokenizer.json tokenizer_config.json; do cmp {m,back}/$f; done
    cat >g.json <<'JSON'
{"model_provider": {"name": "qwen3_dense", "hf_config": "config.json"},
 "trainer": {"batching": {"microbatch_size": 3}, "model_stage_factory": {"source_checkpoint": "m"}},
 "task": {"name": "generate", "output": "out.jsonl", "prompts": "p.jsonl", "max_new_tokens": 1, "stop_at_eos": false}}
JSON
    echo '{"prompt": "a b"}' >p.jsonl
    d9d-infer g.json 2>log
    grep -q 'warning: m/tokenizer_config.json: add_bos_token is false, ' log
}
