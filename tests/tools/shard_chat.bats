#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# d9d-shard with chats: truncation, malformed lines, which tokens are trained.

setup() {
    load helper
    work=$(workplace)
    cd "$work" || return 1
    tok=$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json
    template=$BATS_TEST_DIRNAME/../../examples/chat/qwen3.jinja
    chats=(-t "$tok" --format chat --template "$template")
}
teardown() { cd / && rm -rf "$work"; }

# chat TURNS: a chat of so many questions and answers, each about as long as the next.
chat() {
    local i sep=''
    printf '{"messages": ['
    for ((i = 1; i <= $1; i++)); do
        printf '%s{"role": "user", "content": "question %d"}, ' "$sep" "$i"
        printf '{"role": "assistant", "content": "int answer_%d; int more_%d; int last_%d;"}' "$i" "$i" "$i"
        sep=', '
    done
    printf ']}\n'
}
# Members of a report on a line, one blank between them.
flat() { "$@" | tr -s ' \n' ' '; }
# How many positions the only chat of a file has.
positions() {
    d9d-shard -q "${chats[@]}" --force -o whole "$1"
    d9d-shard inspect whole --sample 0 --json | sed 's/.*"length": \([0-9]*\).*/\1/'
}

@test "a chat that is too long is cut behind the last trained turn that fits" {
    chat 6 >six.jsonl
    chat 3 >three.jsonl
    fits=$(positions three.jsonl)
    for option in --pack --max-length; do
        for n in "$fits" $((fits + 9)); do
            run -0 --separate-stderr flat d9d-shard --json "${chats[@]}" --force -o cut $option "$n" six.jsonl
            [[ "$output" == *'"truncated": 1, "split": 0, "turns_lost": 6, '* ]]
            [[ "$stderr" == *'1 truncated, 0 split, 6 turns and '*' targets lost'* ]]
            d9d-shard inspect cut --sample 0 --text >got
            diff <(d9d-shard inspect whole --sample 0 --text) got
        done
        # One token less: the third answer does not fit.
        run -0 --separate-stderr flat d9d-shard --json "${chats[@]}" --force -o cut $option $((fits - 1)) six.jsonl
        [[ "$output" == *'"turns_lost": 8, '* ]]
        run -0 d9d-shard inspect cut --sample 0 --text
        [[ "$output" == *'last_2;<|im_end|>⟧' ]]
    done
    [[ "$(flat cat cut/manifest.json)" == *'"turns_lost": 8, "targets_lost": '* ]]
}

@test "no piece of a packed chat begins or ends in an answer" {
    for n in 9 2 7 1 12 3 30; do chat $n; done >c.jsonl
    d9d-shard -q "${chats[@]}" -o packed --pack 300 c.jsonl
    for ((k = 0; ; k++)); do
        d9d-shard inspect packed --sample $k --text >text 2>/dev/null || break
        [ "$(grep -c '<|im_start|>user' text)" = "$(grep -c '<|im_end|>⟧' text)" ]
        ! grep -B1 -e '^--------$' text | grep -v -e '^--' -e '<|im_end|>⟧$' || false
        ! grep -A1 -e '^--------$' text | grep -v -e '^--' -e '^<|im_start|>user$' || false
    done
    [ $k -ge 2 ]
}

@test "a chat of which nothing trained fits is dropped and counted; drop and split are for the asking" {
    chat 2 >c.jsonl
    chat 1 >one.jsonl
    n=$(positions one.jsonl)
    run -1 --separate-stderr d9d-shard "${chats[@]}" -o none --max-length $((n - 1)) c.jsonl
    [[ "$stderr" == *'no samples: of 1 document in 1 input, '*' 1 were dropped'* ]]
    cat one.jsonl c.jsonl >both.jsonl
    run -0 --separate-stderr flat d9d-shard --json "${chats[@]}" -o drop --overflow drop --max-length "$n" both.jsonl
    [[ "$output" == *'"dropped": 1, "truncated": 0, "split": 0, "turns_lost": 0, "targets_lost": '[1-9]* ]]
    run -0 --separate-stderr flat d9d-shard --json "${chats[@]}" -o split --overflow split --max-length "$n" both.jsonl
    [[ "$output" == *'"dropped": 0, "truncated": 0, "split": 1, "turns_lost": 0, "targets_lost": 0, '* ]]
    run -0 --separate-stderr d9d-shard "${chats[@]}" -o concat --pack 40 --pack-mode concat both.jsonl
    [[ "$stderr" == *'concat cuts chats where a sample is full'* ]]
}

@test "targets lost are those of the turns that go, whatever the turn before them then gets" {
    # Without the result behind it the call is the last turn, which has empty thoughts.
    printf '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}, {"role": "tool", "content": "%s"}]}\n' "$(seq -s ' ' 60)" >call.jsonl
    run -0 --separate-stderr flat d9d-shard --json "${chats[@]}" -o call --max-length 64 call.jsonl
    [[ "$output" == *'"truncated": 1, "split": 0, "turns_lost": 1, "targets_lost": 0, '* ]]
    d9d-shard -q verify call
    # The answer that goes is counted whole, its empty thoughts too.
    trained() {
        d9d-shard -q "${chats[@]}" --force -o whole "$1"
        flat d9d-shard inspect whole --json | sed 's/.*"targets": \([0-9]*\).*/\1/'
    }
    chat 1 >one.jsonl
    chat 2 >two.jsonl
    answer=$(trained one.jsonl)
    both=$(trained two.jsonl)
    run -0 --separate-stderr flat d9d-shard --json "${chats[@]}" -o cut --max-length "$(positions one.jsonl)" two.jsonl
    [ "$both" -lt $((2 * answer)) ] # the first of two has no empty thoughts
    [[ "$output" == *'"turns_lost": 2, "targets_lost": '"$answer"', '* ]]
}

@test "an answer of weight 0 is shown and not trained; other weights are refused" {
    weigh() {
        printf '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "int b;", "weight": %s}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "int d;", "weight": %s}]}\n' "$@" >w.jsonl
    }
    bracketed() { d9d-shard inspect w --sample 0 --text | tr '\n' ' ' | grep -o '⟦[^⟧]*⟧'; }
    weigh 0 1
    d9d-shard -q "${chats[@]}" -o w w.jsonl
    assert_equal "$(bracketed)" '⟦<think>  </think>  int d;<|im_end|>⟧'
    weigh 1.0 0.0
    d9d-shard -q "${chats[@]}" --force -o w w.jsonl
    assert_equal "$(bracketed)" '⟦int b;<|im_end|>⟧'
    weigh null 1
    d9d-shard -q "${chats[@]}" --force -o w w.jsonl
    [ "$(bracketed | wc -l)" = 2 ]
    # What is cut ends with a turn that is trained.
    weigh 1 0
    d9d-shard -q "${chats[@]}" --force -o w --max-length 26 w.jsonl
    assert_equal "$(bracketed)" '⟦<think>  </think>  int b;<|im_end|>⟧'
    for bad in 0.5 2 -1 '"0"' true; do
        weigh 1 "$bad"
        run -1 --separate-stderr d9d-shard "${chats[@]}" -o bad w.jsonl
        [[ "$stderr" == *'w.jsonl: line 1, byte '*': "weight" must be 0, which trains nothing of a message, or 1' ]]
    done
    weigh 0 0
    run -1 --separate-stderr d9d-shard "${chats[@]}" -o none w.jsonl
    [[ "$stderr" == *'no samples: of 1 document in 1 input, 1 are chats in which no message has a trained role'* ]]
}

@test "text is cut as before, and what truncating loses is counted" {
    printf '{"text": "int a; int b; int c; int d;"}\n' >t.jsonl
    run -0 --separate-stderr flat d9d-shard --json -t "$tok" -o split --max-length 4 t.jsonl
    [[ "$output" == *'"truncated": 0, "split": 1, "turns_lost": 0, "targets_lost": 0, '* ]]
    all=${output##*\"positions\": }
    all=${all%%[!0-9]*}
    run -0 --separate-stderr flat d9d-shard --json -t "$tok" -o cut --overflow truncate --max-length 4 t.jsonl
    [[ "$output" == *'"truncated": 1, "split": 0, "turns_lost": 0, "targets_lost": '$((all - 4))', '* ]]
}

@test "a line that is something else says what it has and what reads it" {
    no() {
        printf '%s\n' "$2" >x.jsonl
        run -1 --separate-stderr d9d-shard -t "$tok" -o x "${@:3}" x.jsonl
        [[ "$stderr" == *"x.jsonl: line 1, byte "*": $1" ]] || { echo "$stderr" && false; }
    }
    no 'has no "text", but "id", "messages": --format chat reads messages' '{"id": 1, "messages": []}'
    no 'has no "text", but "body": --text-key names the member with the text' '{"body": "a"}'
    no 'has no "text", but "input_ids": --format tokens reads input_ids' '{"input_ids": []}'
    no 'has no "text", but "conversations": --format chat reads conversations' '{"conversations": [{"from": "human"}]}'
    no 'has no "text", but "instruction", "input", "output": --format chat reads instructions and outputs' \
        '{"instruction": "a", "input": "", "output": "b"}'
    no 'has no "text", but "prompt", "completion": --format chat reads prompts and completions' \
        '{"prompt": "a", "completion": "b"}'
    no 'has no "messages", but "text": --format jsonl reads text' '{"text": "a"}' --format chat --template "$template"
    no 'has no "messages", but "instruction": --format chat reads instructions and outputs' '{"instruction": "a"}' \
        --format chat --template "$template"
    no 'has no "text", but "a", "b", "c", "d", "e", "f", ...: --text-key names the member with the text' \
        '{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1}'
    no 'has no "text"' '{}'
}

@test "inspect counts what is trained" {
    chat 2 >c.jsonl
    d9d-shard -q "${chats[@]}" -o data c.jsonl
    n=$(d9d-shard inspect data --sample 0 --json | sed 's/.*"labels": \[\([^]]*\).*/\1/' | tr ',' '\n' | grep -vc -e -100)
    run -0 d9d-shard inspect data
    [[ "$output" == *"trained on $n of "*" positions ("*" %)"* ]]
    run -0 flat d9d-shard inspect data --json
    [[ "$output" == *'"targets": '"$n"* ]]
    printf '{"text": "int a;"}\n' >t.jsonl
    d9d-shard -q -t "$tok" -o plain t.jsonl
    run -0 d9d-shard inspect plain
    [[ "$output" != *'trained on'* ]]
}

@test "the example of fine-tuning on chats trains" {
    example=$BATS_TEST_DIRNAME/../../examples
    for n in 9 2 7 1 12 3 8 4 6 5; do chat $n; done >chats.jsonl
    d9d-shard -q "${chats[@]}" -o chats --pack 512 --split train=0.7,valid=0.3 --shuffle-seed 1 chats.jsonl
    d9d-map -q init --model "$example/demo/model.json" Qwen3-8B
    cp "$tok" Qwen3-8B
    one=(--set mesh.data_parallel_shard=1 --set trainer.batching.global_batch_size=2 --set trainer.run.dir=run)
    small=(--set model_provider.name=qwen3_moe) # what the demo trains
    d9d-train -q --device cpu "${one[@]}" "${small[@]}" "$example/chat/train.json"
    cmp "$tok" run/export/tokenizer.json
    grep -q '"valid/loss"' run/metrics.jsonl
    # It goes on where a question ends, with the same template.
    printf '{"messages": [{"role": "user", "content": "question 1"}]}\n' >p.jsonl
    d9d-infer -q --device cpu "${small[@]}" --set model_provider.hf_config=run/export/config.json \
        --set trainer.model_stage_factory.source_checkpoint=run/export --set task.chat_template="$template" \
        --set task.prompts=p.jsonl --set task.max_new_tokens=4 "$example/generate/infer.json"
    [ "$(wc -l <answers.jsonl)" = 1 ]
}

@test "a text beside a question that nothing reads is refused, one that the template reads is not" {
    printf '{"question": "q", "answer": "int a;", "id": "7", "context": "%s"}\n' '' 'int c;' >c.jsonl
    run -1 d9d-shard "${chats[@]}" -o data c.jsonl
    assert_output --partial 'c.jsonl: line 2, byte '
    assert_output --partial '"context" stands beside "question" and "answer", and nothing reads it: make it part of "question", or remove it'
    [ ! -e data ]
    run -0 d9d-shard "${chats[@]}" --on-error skip -o some c.jsonl
    assert_output --partial '1 of 2 records skipped: 1 bad_value'
    { printf '{{ context }}' && cat "$template"; } >reads.jinja
    d9d-shard -q -t "$tok" --format chat --template reads.jinja -o data c.jsonl
    run -0 d9d-shard inspect data --sample 1 --text
    assert_output --partial 'int c;'
}
