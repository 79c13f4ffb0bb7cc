#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# d9d-infer's task "generate": the tokens of transformers, sampling, prompts of all kinds,
# interruption and resuming.

setup() {
    load helper
    load train_helper
    work=$(workplace)
    cd "$work" || return 1
}
teardown() { cd / && rm -rf "$work"; }

# config CASE [KEYS-OF-THE-TASK]
config() {
    local name=qwen3_dense
    [[ $1 != moe* ]] || name=qwen3_moe
    cat <<JSON
{"model_provider": {"name": "$name", "hf_config": "$golden/$1/config.json"},
 "trainer": {"batching": {"microbatch_size": 3},
   "model_stage_factory": {"source_checkpoint": "$golden/$1"}},
 "task": {"name": "generate", "output": "out.jsonl"${2:+, }$2}}
JSON
}
greedy() { config "$1" "\"prompts\": \"$golden/$1/generate.jsonl\", \"max_new_tokens\": 64, \"stop_at_eos\": false"; }

tokens() { sed 's/.*"tokens": \[//; s/\].*//' "$1"; }

@test "the tokens of transformers, whatever the rows beside" {
    for case in dense_untied dense_tied dense_mha dense_mqa_s1 moe moe_no_renorm moe_mixed_tied dense_window moe_window; do
        greedy $case >g.json
        for rows in 1 3 100; do
            rm -f out.jsonl
            d9d-infer -q --device cpu --set trainer.batching.microbatch_size=$rows g.json
            diff <(tokens out.jsonl) <(tokens "$golden/$case/generate.jsonl")
        done
    done
    run grep -vE '^\{"sample": [0-6], "prompt_tokens": [0-9]+, "tokens": \[[0-9]+(, [0-9]+){63}\], "finish": "length"\}$' out.jsonl
    assert_output ''
    [ "$(sed -E 's/.*"sample": ([0-9]+),.*/\1/' out.jsonl | tr '\n' ' ')" = "$(seq -s ' ' 0 6) " ]
    [ "$(sed -E 's/.*"prompt_tokens": ([0-9]+),.*/\1/' out.jsonl | tr '\n' ' ')" = '1 9 3 26 5 14 2 ' ]
}

@test "with an adapter: the tokens of the merged model; one that is not there is refused" {
    dataset data
    run_config moe >c.json
    d9d-train -q --set optimizer.lr=3e-2 \
        --set 'peft={"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 4, "alpha": 12}}' c.json
    greedy moe >g.json
    source=trainer.model_stage_factory.source
    d9d-infer -q g.json
    d9d-infer -q --set ${source}_checkpoint=run/export --set task.output=merged.jsonl g.json
    d9d-infer -q --set ${source}_adapter=run/adapter --set task.output=both.jsonl g.json
    run ! cmp -s out.jsonl merged.jsonl
    cmp both.jsonl merged.jsonl
    says 2 'nowhere/adapter_config.json' d9d-infer --set ${source}_adapter=nowhere --set task.output=x.jsonl g.json
    [ -z "$(ls x.jsonl* 2>/dev/null)" ]
}

@test "prompts are lines as d9d-shard reads them: other members say what they will, their own once" {
    config moe '"prompts": "p.jsonl", "max_new_tokens": 2' >g.json
    deep=$(printf '[%.0s' {1..200})$(printf ']%.0s' {1..200})
    {
        printf '\xef\xbb\xbf{"input_ids": [1, 2], "id": 123456789012345678901234567890}\n'
        printf '{"meta": 1e999, "meta": null, "input_ids": [3, 4, 5]}\r\n'
        printf '{"input_ids": [7], "deep": %s}' "$deep"
    } >p.jsonl
    d9d-shard -q --format tokens --out data p.jsonl
    d9d-infer -q --device cpu g.json
    [ "$(sed -E 's/.*"prompt_tokens": ([0-9]+),.*/\1/' out.jsonl | tr '\n' ' ')" = '2 3 1 ' ]
    rm out.jsonl
    bad() { # LINE SENTENCE
        printf '{"input_ids": [1]}\n%s\n' "$1" >p.jsonl
        says 1 "p.jsonl: line 2: $2" d9d-infer --device cpu g.json
        run -1 d9d-shard -q --format tokens --out bad p.jsonl
        assert_output --partial "${2#byte * }"
    }
    bad '{"input_ids": [1], "input_ids": [2]}' 'byte 32: "input_ids" is given twice'
    bad '{"input_ids": [123456789012345678901234567890]}' 'byte 15: an id must be an integer from 0 to'
    bad '{"input_ids": [1]} 2' 'byte 19: something follows the object'
    bad '[1]' 'byte 0: is not a JSON object but an array'
}

@test "what is printed, and the memory that is said beforehand" {
    greedy moe >g.json
    run -0 --separate-stderr d9d-infer --device cpu g.json
    [[ "$output" =~ ^'448 tokens of 7 samples, '[0-9.e+]+' tokens/s'$ ]]
    [[ "$stderr" == *'KV cache: 3 sequences of up to 90 tokens, 0.1 MB'* ]]
    run -0 --separate-stderr d9d-infer -q --json --set task.output=b.jsonl g.json
    [[ "$output" == *'"samples": 7'*'"first_sample": 0'*'"tokens": 448'*'"tokens_per_s": '* ]]
    [[ "$output" != *'"loss"'* ]]
}

@test "a cache that does not fit is refused before the weights are read" {
    greedy moe >g.json
    needs() { # LIMIT ROWS: the bytes that it says are needed
        run -1 d9d-infer -q --device "cpu@$1" --set trainer.batching.microbatch_size="$2" g.json
        [[ "$output" =~ 'out of memory: at least '([0-9]+)' bytes needed, limit '$1$ ]]
        bytes=${BASH_REMATCH[1]}
    }
    needs 1 1
    few=$bytes
    needs 1 100
    [ $((bytes - few)) -gt 1000000 ]
    needs $((bytes - 1)) 100
    [ ! -e out.jsonl ]
}

@test "a KV cache in fp8: less memory, the tokens that begin alike, the same for any rows" {
    for case in dense_untied moe; do
        greedy $case >g.json
        run -0 --separate-stderr d9d-infer --device cpu --set task.kv_cache_dtype=fp8 g.json
        [[ "$stderr" == *'KV cache: 3 sequences of up to 90 tokens, 0.'*' MB in fp8'* ]]
        diff <(tokens out.jsonl | cut -d, -f1-3) <(tokens "$golden/$case/generate.jsonl" | cut -d, -f1-3)
        for rows in 1 7; do
            d9d-infer -q --device cpu --set task.kv_cache_dtype=fp8 --set trainer.batching.microbatch_size=$rows \
                --set task.output=$case$rows.jsonl g.json
            cmp out.jsonl $case$rows.jsonl
        done
        rm out.jsonl
    done
    needs() { # DTYPE: the bytes that it says are needed
        run -1 d9d-infer -q --device cpu@1 --set trainer.batching.microbatch_size=1000 --set task.kv_cache_dtype="$1" g.json
        [[ "$output" =~ 'at least '([0-9]+)' bytes needed' ]]
        bytes=${BASH_REMATCH[1]}
    }
    needs auto
    wide=$bytes
    needs fp8
    [ $((wide - bytes)) -gt 1000000 ]
}

@test "a KV cache in fp8: latent features and unknown words are refused before the weights are read" {
    mla=$golden/families/deepseek_v3
    cat >g.json <<JSON
{"model_provider": {"name": "auto"}, "trainer": {"model_stage_factory": {"source_checkpoint": "$mla"}},
 "task": {"name": "generate", "output": "out.jsonl", "prompts": "$mla/generate.jsonl", "max_new_tokens": 4}}
JSON
    says 2 'deepseek_v3: its KV cache stores "latent" of each token, which cannot be in fp8; kv_cache_dtype auto' \
        d9d-infer --device cpu --set task.kv_cache_dtype=fp8 g.json
    says 2 'task.kv_cache_dtype' d9d-infer --device cpu --set task.kv_cache_dtype=int8 g.json
    [ ! -e out.jsonl ]
}

@test "draws: the same for any rows, other seeds others; cold, or one token left, is greedy" {
    greedy moe >g.json
    warm=(--set task.temperature=1.5 --set task.seed=7)
    d9d-infer -q "${warm[@]}" g.json
    d9d-infer -q "${warm[@]}" --set task.repetition_penalty=1.3 --set task.output=penalised.jsonl g.json
    run ! cmp -s out.jsonl penalised.jsonl
    for rows in 1 7; do
        d9d-infer -q "${warm[@]}" --set trainer.batching.microbatch_size=$rows --set task.output=$rows.jsonl g.json
        cmp out.jsonl $rows.jsonl
        d9d-infer -q "${warm[@]}" --set task.repetition_penalty=1.3 --set trainer.batching.microbatch_size=$rows --set task.output=penalised-$rows.jsonl g.json
        cmp penalised.jsonl penalised-$rows.jsonl
    done
    d9d-infer -q "${warm[@]}" --set task.seed=8 --set task.output=other.jsonl g.json
    run ! cmp -s out.jsonl other.jsonl
    for one in task.top_k=1 task.top_p=1e-9; do
        d9d-infer -q "${warm[@]}" --set $one --set task.output=$one.jsonl g.json
        diff <(tokens $one.jsonl) <(tokens "$golden/moe/generate.jsonl")
    done
    d9d-infer -q "${warm[@]}" --set task.top_k=5 --set task.top_p=0.9 --set task.output=few.jsonl g.json
    [ "$(wc -l <few.jsonl)" = 7 ]
    run ! cmp -s out.jsonl few.jsonl
}

@test "a token that ends a text: by the files beside the weights, or named" {
    greedy moe >g.json
    d9d-infer -q g.json
    # The 20th token of the 4th row ends rows that have it; no other token changes.
    end=$(sed -n 4p out.jsonl | sed 's/.*"tokens": \[//; s/\].*//' | tr -d ' ' | cut -d, -f20)
    d9d-infer -q --set "task.stop_tokens=[$end]" --set task.output=named.jsonl g.json
    says 2 'task.stop_tokens[1]: 157, and the model'"'"'s vocabulary has 157' \
        d9d-infer --set "task.stop_tokens=[$end, 157]" --set task.output=no.jsonl g.json
    sed -n 4p named.jsonl | grep -qE "$end\\], \"finish\": \"stop\"}\$"
    cp -r "$golden/moe" m
    chmod -R u+w m
    here=(--set trainer.model_stage_factory.source_checkpoint=m --set task.stop_at_eos=true)
    echo "{\"eos_token_id\": [156, $end]}" >m/generation_config.json
    d9d-infer -q "${here[@]}" --set task.output=beside.jsonl g.json
    paste -d '|' <(tokens out.jsonl) <(tokens named.jsonl) | while IFS='|' read -r whole part; do
        [ "${whole:0:${#part}}" = "$part" ]
        [[ ", $part, " != *", $end, "*[0-9]* ]]
    done
    grep -v ' 156\b' named.jsonl | grep -Fxf - beside.jsonl
    rm m/generation_config.json
    sed -i "s/\"eos_token_id\": 0/\"eos_token_id\": $end/" m/config.json
    d9d-infer -q "${here[@]}" --set task.output=config.jsonl g.json
    cmp named.jsonl config.jsonl
}

@test "the model's generation_config.json says what a job leaves open; what is not done is named" {
    greedy moe | sed 's/, "max_new_tokens": 64//' >g.json
    cp -r "$golden/moe" m
    chmod -R u+w m
    here=(--set trainer.model_stage_factory.source_checkpoint=m)
    run_with() { # FILE OUTPUT [OPTION...]: what is logged
        echo "$1" >m/generation_config.json
        d9d-infer "${here[@]}" --set task.output="$2" "${@:3}" g.json 2>&1 >/dev/null | grep generation_config
    }
    run -0 run_with '{"do_sample": true, "temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.5, "max_new_tokens": 20, "pad_token_id": 0}' file.jsonl
    assert_line --regexp ': m/generation_config.json: do_sample true, temperature 1.5, top_k 5, top_p 0.9, min_p 0.01, repetition_penalty 1.5, max_new_tokens 20$'
    rm m/generation_config.json
    d9d-infer -q "${here[@]}" --set task.output=own.jsonl --set task.temperature=1.5 --set task.top_k=5 --set task.top_p=0.9 \
        --set task.min_p=0.01 --set task.repetition_penalty=1.5 --set task.max_new_tokens=20 g.json
    cmp file.jsonl own.jsonl
    # do_sample alone is transformers' top_k of 50; what the job says comes first; greedy is greedy.
    run -0 run_with '{"do_sample": true}' file50.jsonl --set task.max_new_tokens=20
    d9d-infer -q --set task.output=own50.jsonl --set task.temperature=1 --set task.top_k=50 --set task.max_new_tokens=20 g.json
    cmp file50.jsonl own50.jsonl
    run -0 run_with '{"do_sample": true, "repetition_penalty": 1}' cold.jsonl --set task.temperature=0 --set task.max_new_tokens=64
    diff <(tokens cold.jsonl) <(tokens "$golden/moe/generate.jsonl")
    # The prompt counts in max_length, and one that fills it is refused.
    run -0 run_with '{"max_length": 30}' whole.jsonl
    [ "$(sed -E 's/.*"prompt_tokens": ([0-9]+), "tokens": \[([^]]*)\].*/\1 \2/; s/,//g' whole.jsonl | awk '{print $1 + NF - 1}' | sort -u)" = 30 ]
    echo '{"max_length": 26}' >m/generation_config.json
    says 2 'its longest prompt has 26 tokens, and max_length of m/generation_config.json is 26' d9d-infer "${here[@]}" --set task.output=no.jsonl g.json
    run -0 run_with '{"num_beams": 4, "typical_p": 1.0, "stop_strings": ["x"]}' named.jsonl
    assert_line --regexp 'warning: m/generation_config.json: has no effect here: num_beams 4, stop_strings \["x"\]$'
    for wrong in '{"temperature": "1"}' '{"top_k": -1}' '{"eos_token_id": "x"}' '{"do_sample": true, "temperature": 0}' '[1]' '{'; do
        echo "$wrong" >m/generation_config.json
        run d9d-infer "${here[@]}" --set task.output=no.jsonl g.json
        [[ "$status" = [12] && "$output" == *m/generation_config.json* ]]
    done
    [ ! -e no.jsonl ]
}

@test "rows that stop one after the other, their places taken at once: as each alone" {
    greedy moe >g.json
    stops=(--set "task.stop_tokens=[59,40,149]")
    d9d-infer -q "${stops[@]}" --set trainer.batching.microbatch_size=1 g.json
    [ "$(grep -c '"finish": "stop"' out.jsonl)" -ge 4 ]
    for rows in 2 3 7 100; do
        d9d-infer -q "${stops[@]}" --set trainer.batching.microbatch_size=$rows --set task.output=$rows.jsonl g.json
        cmp out.jsonl $rows.jsonl
        # One token left to draw is chosen on the host, a call at a time.
        d9d-infer -q "${stops[@]}" --set trainer.batching.microbatch_size=$rows --set task.output=drawn$rows.jsonl \
            --set task.temperature=1 --set task.top_k=1 g.json
        cmp out.jsonl drawn$rows.jsonl
    done
}

@test "rows end where the model has no more positions" {
    greedy dense_untied >g.json
    sed 's/"max_position_embeddings": 512/"max_position_embeddings": 26/' "$golden/dense_untied/config.json" >c.json
    d9d-infer -q --set model_provider.hf_config=c.json g.json
    [ "$(sed -n 4p out.jsonl)" = '{"sample": 3, "prompt_tokens": 26, "tokens": [], "finish": "length"}' ]
    for k in 1 2 3 5 6 7; do
        want=$(tokens "$golden/dense_untied/generate.jsonl" | sed -n ${k}p)
        [[ "$want" == "$(tokens out.jsonl | sed -n ${k}p)"* ]]
    done
    rm out.jsonl
    sed -i 's/"max_position_embeddings": 26/"max_position_embeddings": 25/' c.json
    says 2 'its longest prompt has 26 tokens and the model has 25 positions' d9d-infer --set model_provider.hf_config=c.json g.json
}

@test "samples of a dataset: up to the first target, or so many tokens" {
    printf '{"input_ids": [1, 2, 3, 4], "labels": [-100, 3, 4, 5]}\n{"input_ids": [9, 8], "labels": [-100, -100]}\n{"input_ids": [6], "labels": [7]}\n' >s.jsonl
    d9d-shard -q --format tokens --out data s.jsonl
    config moe '"max_new_tokens": 5, "stop_at_eos": false' >g.json
    d9d-infer -q --set data.dataset=data g.json
    [ "$(sed -E 's/.*"prompt_tokens": ([0-9]+),.*/\1/' out.jsonl | tr '\n' ' ')" = '2 2 1 ' ]
    printf '{"input_ids": [1, 2]}\n{"input_ids": [9, 8]}\n{"input_ids": [6]}\n' >p.jsonl
    d9d-infer -q --set task.prompts=p.jsonl --set task.output=same.jsonl g.json
    cmp out.jsonl same.jsonl
    d9d-infer -q --set data.dataset=data --set task.prompt_tokens=3 --set task.output=three.jsonl g.json
    [ "$(sed -E 's/.*"prompt_tokens": ([0-9]+),.*/\1/' three.jsonl | tr '\n' ' ')" = '3 2 1 ' ]
    d9d-infer -q --set data.dataset=data --set data.skip_samples='"1"' --set task.output=skip.jsonl g.json
    [ "$(sed -n 2p skip.jsonl)" = '{"sample": 1, "prompt_tokens": 0, "tokens": [], "finish": "skipped"}' ]
    diff <(sed 2d skip.jsonl) <(sed 2d out.jsonl)
    says 2 'give either data or task.prompts, not both' d9d-infer --set data.dataset=data --set task.prompts=p.jsonl --set task.output=x.jsonl g.json
    says 2 'give data or task.prompts' d9d-infer --set task.output=x.jsonl g.json
    says 2 'data.dataset: name the samples' d9d-infer --set 'task={"name": "perplexity"}' g.json
}

# A model of random weights with the vocabulary of the example's tokenizer.
speaker() {
    sed 's/"vocab_size": [0-9]*/"vocab_size": 2048/' "$golden/dense_tied/config.json" >config.json
    d9d-map init -q --model config.json --seed 3 m
    cp "$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json" m
    config dense_tied '"max_new_tokens": 12, "prompts": "p.jsonl"' |
        sed "s|$golden/dense_tied/config.json|config.json|; s|$golden/dense_tied|m|" >g.json
}

@test "texts and chats, by the tokenizer beside the weights" {
    speaker
    chat='{"messages": [{"role": "user", "content": "Hello <|im_end|>"}]}'
    printf '{"prompt": "static int"}\n\n%s\n{"note": [1], "input_ids": [7]}' "$chat" >p.jsonl
    d9d-infer -q --set task.chat_template="$BATS_TEST_DIRNAME/../../examples/chat/qwen3.jinja" g.json
    [ "$(wc -l <out.jsonl)" = 3 ]
    [ "$(grep -c '"text": "' out.jsonl)" = 3 ]
    # The same ids, as d9d-shard has them: the prompt of a chat whose answer is trained.
    printf '{"messages": [{"role": "user", "content": "Hello <|im_end|>"}, {"role": "assistant", "content": "x"}]}\n' >c.jsonl
    d9d-shard -q --format chat --template "$BATS_TEST_DIRNAME/../../examples/chat/qwen3.jinja" --tokenizer m/tokenizer.json --out chats c.jsonl
    d9d-infer -q --set task.prompts=null --set data.dataset=chats --set task.output=shard.jsonl g.json
    [ "$(sed 's/"sample": 0/"sample": 1/' shard.jsonl)" = "$(sed -n 2p out.jsonl)" ]
    # Without thinking the prompt ends in empty thoughts, four tokens.
    d9d-infer -q --set task.chat_template="$BATS_TEST_DIRNAME/../../examples/chat/qwen3.jinja" --set task.enable_thinking=false \
        --set task.output=brief.jsonl g.json
    of() { sed -n "2s/.*\"prompt_tokens\": \([0-9]*\).*/\1/p" "$1"; }
    [ "$(of brief.jsonl)" = $(($(of out.jsonl) + 4)) ]
    printf '{%% for m in messages %%}{{ m.content }}{%% endfor %%}{{ strftime_now("%%Y") if now }}' >plain.jinja
    says 2 'plain.jinja: does not use "enable_thinking", so that it changes nothing' \
        d9d-infer --set task.chat_template=plain.jinja --set task.enable_thinking=false --set task.output=x.jsonl g.json
    # Variables and the date; the wall clock is never asked.
    now=(--set task.chat_template=plain.jinja --set 'task.chat_template_kwargs={"now": true}' --set task.output=now.jsonl)
    says 1 'p.jsonl: line 3: plain.jinja: line 1: strftime_now: no date is given' d9d-infer "${now[@]}" g.json
    d9d-infer -q "${now[@]}" --set task.chat_template_date=1999-12-31 g.json
    # The template beside the tokenizer, where none is given.
    says 2 'p.jsonl: line 3: m/: has no chat_template.jinja and no tokenizer_config.json' \
        d9d-infer --set task.output=x.jsonl g.json
    cp "$BATS_TEST_DIRNAME/../../examples/chat/qwen3.jinja" m/chat_template.jinja
    d9d-infer -q --set task.output=beside.jsonl g.json
    cmp out.jsonl beside.jsonl
    rm m/tokenizer.json
    says 2 'p.jsonl: line 1: a prompt of text needs a tokenizer: tokenizer.json beside the model' d9d-infer --set task.output=x.jsonl g.json
}

@test "bad prompts: the file, the line, what is wrong" {
    speaker
    bad() { # STATUS SENTENCE LINE
        printf '{"input_ids": [1]}\n%b\n' "$3" >p.jsonl
        says "$1" "p.jsonl: line 2: $2" d9d-infer g.json
        [ -z "$(ls out.jsonl* 2>/dev/null)" ]
    }
    bad 1 'has no "prompt", "messages" or "input_ids"' '{"text": "a"}'
    bad 1 'the prompt has no token' '{"prompt": ""}'
    bad 1 'the prompt has no token' '{"input_ids": []}'
    bad 1 'byte 15: an id must be an integer from 0 to 2047' '{"input_ids": [2048]}'
    bad 1 'byte 11: "prompt" is not a string' '{"prompt": 3}'
    bad 1 'byte 12 is not valid UTF-8' '{"prompt": "\xff"}'
    bad 1 '' '{"prompt": "a"'
    bad 1 '' '[1]'
    : >p.jsonl
    says 1 'p.jsonl: has no prompts' d9d-infer g.json
    says 2 'nowhere.jsonl: cannot open: No such file' d9d-infer --set task.prompts=nowhere.jsonl g.json
    says 2 'task.top_p' d9d-infer --set task.top_p=0 g.json
    says 2 'task.temperature' d9d-infer --set task.temperature=-1 g.json
    says 2 'generate' d9d-infer --set task.name=generation g.json
    printf '{"input_ids": [1]}\n' >p.jsonl
    says 2 'are more than 2^31' d9d-infer --set trainer.batching.microbatch_size=1000000000 g.json
    says 1 'out of device memory' d9d-infer --device cpu@1MB --set trainer.batching.microbatch_size=100000 g.json
}

@test "a vocabulary above 2^20: greedy only, said before the weights are read" {
    jq '.vocab_size = 1048577 | .hidden_size = 2' "$golden/dense_tied/config.json" >config.json
    d9d-map init -q --model config.json --seed 3 m
    echo '{"input_ids": [1048576, 5]}' >p.jsonl
    config dense_tied '"max_new_tokens": 2, "prompts": "p.jsonl"' | sed "s|$golden/dense_tied|m|g" >g.json
    says 2 'has 1048577 tokens, and sampling draws from up to 1048576; task.temperature 0' d9d-infer --set task.temperature=1 g.json
    [ -z "$(ls out.jsonl* 2>/dev/null)" ]
    d9d-infer -q --set task.repetition_penalty=2 g.json
    grep -qE '"tokens": \[[0-9]+, [0-9]+\]' out.jsonl
}

@test "a NaN among the weights: exit 1, the sample and the position named" {
    greedy moe >g.json
    cp -r "$golden/moe" bad
    chmod -R u+w bad
    printf '\0\0\300\177' | dd of=bad/model.safetensors bs=1 conv=notrunc status=none \
        seek=$(($(stat -c %s bad/model.safetensors) - 4))
    says 1 'sample 1: position 9: the logit of token 0 is nan' d9d-infer --device cpu --set trainer.model_stage_factory.source_checkpoint=bad g.json
    [ ! -e out.jsonl ]
}

# A call that takes some seconds; its process is $pid.
start_long() {
    for ((i = 0; i < 80; i++)); do cat "$golden/moe/generate.jsonl"; done >long.jsonl
    long=(--device cpu --set task.prompts=long.jsonl --set task.temperature=1)
    d9d-infer "${long[@]}" g.json 2>log &
    pid=$!
    wait_for has_part 10
}

@test "stopped by signals, by kill -9, with a torn line: gone on with, the same bytes" {
    greedy moe >g.json
    start_long
    kill -s TERM "$pid"
    ends 75
    done_before=$(wc -l <"$part")
    grep -qE '^d9d-infer: interrupted: SIGTERM: [0-9]+ of 560 samples are done$' log
    [ ! -e out.jsonl ]
    d9d-infer "${long[@]}" g.json 2>log &
    pid=$!
    wait_for has_part $((done_before + 10))
    kill -9 "$pid"
    ends 137
    printf '{"sample": 17, "prom' >>"$part"
    run -0 --separate-stderr d9d-infer --json "${long[@]}" g.json
    [[ "$output" =~ '"first_sample": '([0-9]+) ]]
    [ "${BASH_REMATCH[1]}" -gt "$done_before" ]
    mv out.jsonl resumed.jsonl
    tokens=$(jq .tokens <<<"$output")
    run -0 --separate-stderr d9d-infer -q --json "${long[@]}" g.json
    assert_equal "$tokens" "$(jq .tokens <<<"$output")"
    cmp out.jsonl resumed.jsonl
    [ -z "$(ls ./*.part-* 2>/dev/null)" ]
}

@test "other prompts, tokenizer or end of a text: begun anew; copies go on" {
    speaker
    for ((i = 0; i < 600; i++)); do echo '{"prompt": "static int"}'; done >p.jsonl
    cp m/tokenizer.json t.json && sed 's/"max_new_tokens": 12/"max_new_tokens": 40, "temperature": 1, "tokenizer": "t.json"/' g.json >long.json
    d9d-infer --device cpu long.json 2>log &
    pid=$!
    wait_for has_part 10
    kill -s TERM "$pid"
    ends 75
    mkdir keep && cp out.jsonl.* keep
    first_of() { # OPTION...
        rm -f out.jsonl* && cp keep/* .
        d9d-infer -q --json --device cpu "$@" long.json | sed -nE 's/.*"first_sample": ([0-9]+).*/\1/p'
    }
    cp -r m m2 && cp p.jsonl p2.jsonl && cp t.json t2.json && cp config.json c2.json
    [ "$(first_of --set task.prompts=p2.jsonl --set task.tokenizer=t2.json --set model_provider.hf_config=c2.json \
        --set trainer.model_stage_factory.source_checkpoint=m2)" = "$(wc -l <"keep/$part")" ]
    echo '{"eos_token_id": [156]}' >m/generation_config.json
    [ "$(first_of)" = 0 ]
    rm m/generation_config.json
    echo >>t.json
    [ "$(first_of)" = 0 ]
    cp t2.json t.json
    sed -i '600s/int/float/' p.jsonl
    [ "$(first_of)" = 0 ]
}
