#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031,SC2154 # bats sets output and stderr
# d9d-shard --on-error skip: bad records are left out, counted and listed, never silently.

setup() {
    load helper
    root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    tok=$root/examples/tokenizer/tokenizer.json
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
}

# corpus N: N good lines, and the same with a bad line behind each fifth, of a kind after the other.
corpus() {
    awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++) {
        line = sprintf("{\"text\": \"Document %d: int x%d = %d;\"}", i, i % 97, i * 7919)
        print line > "good.jsonl"; print line > "bad.jsonl"
        if (i % 5 == 0) {
            k = int(i / 5) % 5
            print (k == 0 ? "{\"text\": \"cut" : k == 1 ? "{\"body\": \"b\"}" : k == 2 ? "{\"text\": 7}" : \
                   k == 3 ? "{\"text\": \"\xff\"}" : "[\"text\"]") > "bad.jsonl" } } }'
}

# same A B: tokens and index are alike.
same() {
    local f
    for f in "$1"/tokens-*.bin "$1"/index.lmdb; do cmp "$f" "$2/${f##*/}"; done
}

@test "by default a bad record ends the run, and stop says so" {
    corpus 10
    run -1 d9d-shard -q -t "$tok" -o d bad.jsonl
    [[ "$output" == *'bad.jsonl: line 2, byte '*': a string has no end' ]]
    run -1 d9d-shard -q -t "$tok" -o d --on-error stop bad.jsonl
    [[ "$output" == *'bad.jsonl: line 2, byte '*': a string has no end' ]]
    [ ! -e d ]
}

@test "skipped records are counted by reason and listed, and the others are as without them" {
    corpus 100
    for options in "--pack 64" "--split train=0.9,valid=0.1 --shuffle-seed 3" "--pack 64 --split valid=7"; do
        rm -rf good bad
        # shellcheck disable=SC2086 # options
        d9d-shard -q -t "$tok" -o good $options good.jsonl
        # shellcheck disable=SC2086
        run -0 --separate-stderr d9d-shard -q --json -t "$tok" -o bad --on-error skip $options bad.jsonl
        output=$(tr -s ' \n' ' ' <<<"$output")
        [[ "$output" == *'"documents": 120'* && "$output" == *'"skipped": { "not_utf8": 4, "not_json": 8, "no_member": 4, "bad_value": 4, '* ]]
        [[ "${stderr_lines[-1]}" == *"20 of 120 records skipped: 4 not_utf8, 8 not_json, 4 no_member, 4 bad_value; bad/skipped.jsonl lists them" ]]
        same good bad
        d9d-shard verify -q bad
    done
    [[ "$(tr -s ' \n' ' ' <bad/manifest.json)" == *'"skipped": { "not_utf8": 4, "not_json": 8, "no_member": 4, "bad_value": 4, "chat_not_rendered": 0, "not_tokenized": 0 }'* ]]
    [ "$(wc -l <bad/skipped.jsonl)" = 20 ]
    [[ "$(sed -n 1p bad/skipped.jsonl)" == '{"source": "bad.jsonl", "line": 2, "byte": '*', "reason": "not_json", "error": "a string has no end"}' ]]
    [[ "$(sed -n 4p bad/skipped.jsonl)" == *'"line": 20, '*'"reason": "not_utf8", "error": "0xff is not valid UTF-8"}' ]]
}

@test "tasks, merging and an interruption count and list the same, lines of the whole file" {
    corpus 4000
    opts=(-q -t "$tok" --on-error skip --unit-size 20kB --pack 64)
    d9d-shard "${opts[@]}" -o whole bad.jsonl
    grep -n 'cut$\|^\[\|body\|: 7}\|'$'\xff' -a bad.jsonl | cut -d: -f1 >lines
    grep -o '"line": [0-9]*' whole/skipped.jsonl | cut -d' ' -f2 | cmp - lines
    for i in 0 1 2; do d9d-shard "${opts[@]}" -o "part$i" --task $i/3 bad.jsonl; done
    run -0 --separate-stderr d9d-shard merge merged part2 part0 part1
    [[ "${stderr_lines[-1]}" == *"800 of 4800 records skipped: "* ]]
    diff -r whole merged

    cp bad.jsonl save.jsonl
    d9d-shard "${opts[@]}" --jobs 1 -o cut bad.jsonl &
    pid=$!
    for ((i = 0; i < 500; i++)); do
        ls cut.partial/unit-00002-*.json >/dev/null 2>&1 && break
        sleep 0.01
    done
    kill -9 $pid 2>/dev/null || true
    wait $pid || true
    [ -e cut ] || d9d-shard "${opts[@]}" -o cut bad.jsonl
    diff -r whole cut
}

@test "a run that was interrupted when only cleaning up was left says the same" {
    corpus 20
    opts=(-q -t "$tok" --on-error skip)
    d9d-shard "${opts[@]}" --json -o data bad.jsonl >whole.json 2>whole.txt
    d9d-shard "${opts[@]}" -o part --task 0/1 bad.jsonl
    cp part/plan.json data/
    mv data data.partial
    d9d-shard "${opts[@]}" --json -o data bad.jsonl >again.json 2>again.txt
    cmp whole.json again.json
    cmp whole.txt again.txt
    grep -q '4 of 24 records skipped' again.txt
}

@test "the list is bounded, the counts are not" {
    { yes '{"text": "1' | head -n 1500; echo '{"text": "int main(void);"}'; } >a.jsonl
    run -0 --separate-stderr d9d-shard -q -t "$tok" --on-error skip -o d a.jsonl
    [[ "${stderr_lines[-1]}" == *"1500 of 1501 records skipped: 1500 not_json; d/skipped.jsonl lists the first 1000" ]]
    [ "$(wc -l <d/skipped.jsonl)" = 1000 ]
}

@test "when nothing is left the run fails and says what was skipped" {
    yes 'no' | head -n 3 >a.jsonl
    run -1 d9d-shard -q -t "$tok" --on-error skip -o d a.jsonl
    [[ "$output" == *"of 3 documents in 1 input,"*"3 skipped"* ]]
    [ ! -e d ]
}

@test "chats that the template refuses, ids above the vocabulary, and texts that are no UTF-8" {
    printf '%s\n' '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}' \
        '{"messages": [{"role": "nobody", "content": "a"}]}' \
        '{"messages": [{"role": "user"}]}' >chat.jsonl
    run -0 --separate-stderr d9d-shard -q --on-error skip --format chat -t "$tok" \
        --template "$root/examples/chat/qwen3.jinja" -o chat chat.jsonl
    [[ "${stderr_lines[-1]}" == *"2 of 3 records skipped: 1 no_member, 1 chat_not_rendered; "* ]]
    grep -q '"line": 2, .*qwen3.jinja: line [0-9]*: the template raised: the role \\"nobody\\" is none of' chat/skipped.jsonl

    printf '{"input_ids": [1, 2, 3]}\n{"input_ids": [1, 99999999]}\n' >ids.jsonl
    run -0 --separate-stderr d9d-shard -q --on-error skip --format tokens -o ids ids.jsonl
    [[ "${stderr_lines[-1]}" == *"1 of 2 records skipped: 1 bad_value; "* ]]

    printf 'int a;\n' >a.txt
    printf 'int b;\nint \xff;\n' >b.txt
    run -0 --separate-stderr d9d-shard -q --on-error skip -t "$tok" -o text a.txt b.txt
    [ "$(cat text/skipped.jsonl)" = '{"source": "b.txt", "line": 2, "byte": 11, "reason": "not_utf8", "error": "0xff is not valid UTF-8"}' ]

    gzip -c a.txt | head -c 12 >cut.txt.gz # more than a record
    run -1 d9d-shard -q --on-error skip -t "$tok" -o none cut.txt.gz
}
