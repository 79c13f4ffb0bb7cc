#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# d9d-shard with records in other files than JSON lines, and with chats as other projects write them:
# the dataset is that of the same records as JSON lines.

setup() {
    load helper
    work=$(workplace)
    cd "$work" || return 1
    tok=$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json
    chats=(-t "$tok" --format chat --template "$BATS_TEST_DIRNAME/../../examples/chat/qwen3.jinja")
}
teardown() { cd / && rm -rf "$work"; }

# samples DIR: ids and labels of every sample of the dataset.
samples() {
    local k
    for ((k = 0; ; k++)); do d9d-shard inspect "$1" --sample $k --json 2>/dev/null || break; done |
        sed 's/.*\("input_ids": .*"labels": [^]]*\).*/\1/'
}
# same FILE [OPTION...]: the dataset of FILE has the samples of lines.jsonl's.
same() {
    d9d-shard -q --force -o want "${@:2}" lines.jsonl
    d9d-shard -q --force -o got "${@:2}" "$1"
    samples want >want.txt
    [ -s want.txt ]
    cmp want.txt <(samples got)
}
# records FORMAT N: N texts with quotes, line ends, separators and another alphabet, and classes.
records() {
    LC_ALL=C awk -v format="$1" -v n="$2" 'BEGIN {
        split("\"text\": \"int a%d; \\\"x\\\", b\\n\\t{[\\\\]} ж;\", \"label\": %d", json, "@")
        row["csv"] = "\"int a%d; \"\"x\"\", b\n\t{[\\]} ж;\",%d\r\n"
        row["tsv"] = "\"int a%d; \"\"x\"\", b\n\t{[\\]} ж;\"\t%d\n"
        row["lines"] = "{" json[1] "}\n"
        row["array"] = "%s {" json[1] "}"
        if (format == "array") printf "\xef\xbb\xbf ["
        if (format == "csv") printf "text,label\r\n"
        if (format == "tsv") printf "text\tlabel\n"
        for (i = 0; i < n; i++)
            if (format == "array") printf row[format], (i > 0 ? ",\n" : ""), i, i % 3
            else printf row[format], i, i % 3
        if (format == "array") print "\n]"
    }'
}
# all_forms N: the same records as lines.jsonl, array.json, table.csv and table.tsv.
all_forms() {
    records lines "$1" >lines.jsonl
    records array "$1" >array.json
    records csv "$1" >table.csv
    records tsv "$1" >table.tsv
}

@test "arrays, tables and their compressed forms have the samples of JSON lines" {
    all_forms 12
    gzip -k array.json
    zstd -q table.csv
    for f in array.json array.json.gz table.csv table.csv.zst table.tsv; do
        same "$f" -t "$tok"
        same "$f" -t "$tok" --label-key label
    done
    same - -t "$tok" <array.json
}

@test "frames of zstd may follow one to be skipped, as pzstd's, or have a window of 2 GB" {
    records lines 12 >lines.jsonl
    { printf '\x50\x2a\x4d\x18\x04\x00\x00\x00abcd' && zstd -qc lines.jsonl; } >skip.jsonl.zst
    zstd -qc --long=31 <lines.jsonl >window.jsonl.zst
    for f in skip.jsonl.zst window.jsonl.zst; do same "$f" -t "$tok"; done
}

@test "arrays and tables of many units have the samples of JSON lines, also after an end" {
    all_forms 30
    gzip -k array.json table.csv
    d9d-shard -q -t "$tok" -o want lines.jsonl
    samples want >want.txt
    for f in array.json table.csv.gz; do
        d9d-shard -q --force -t "$tok" --unit-size 512 -j 3 -o got "$f"
        cmp want.txt <(samples got)
        for n in 2 7; do
            rm -rf got
            d9d-shard -q -t "$tok" --unit-size 512 -o got "$f" &
            sleep "0.0$n"
            kill -KILL $! 2>/dev/null || true
            wait $! || true
            [ -d got ] || d9d-shard -q -t "$tok" --unit-size 512 -o got "$f"
            cmp want.txt <(samples got)
        done
    done
}

@test "chats of other projects have the samples of messages" {
    printf '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "int a;"}]}\n' >lines.jsonl
    while read -r chat; do
        printf '%s\n' "$chat" >other.jsonl
        same other.jsonl "${chats[@]}"
    done <<'CHATS'
{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "int a;"}]}
{"instruction": "q", "input": "", "output": "int a;"}
{"prompt": "q", "completion": "int a;"}
[{"instruction": "q", "context": "", "response": "int a;"}]
CHATS
    printf 'instruction,output\nq,int a;\n' >alpaca.csv
    same alpaca.csv "${chats[@]}"
}

@test "what is wrong in an array or a table is said with its place" {
    no() { # FILE SENTENCE
        run -1 --separate-stderr d9d-shard -q --force -t "$tok" -o x "$1"
        [[ "$stderr" == "d9d-shard: malformed data: $2" ]] || { echo "$stderr" && false; }
    }
    printf '[{"text": "a"},\n {"text": "b"}\n {"text": "c"}]' >x.json
    no x.json "x.json: line 2: ',' or ']' is expected after an element of the array"
    printf '[{"text": "a"},\n\n {"text": 7}]' >x.json
    no x.json 'x.json: line 3, byte 27: "text" is not a string'
    printf '[{"text": "a"}' >x.json
    no x.json 'x.json: line 1: the array has no end'
    printf '["a", "b"]' >x.json
    no x.json 'x.json: line 1: an element of the array is not an object'
    printf 'text,label\na,1\nb\n' >x.csv
    no x.csv 'x.csv: line 3, byte 15: has 1 fields, and the header 2'
    printf 'body\na\n' >x.csv
    no x.csv 'x.csv: line 2, byte 5: has no "text", but "body": --text-key names the member with the text'
    : >x.csv
    no x.csv 'x.csv: has no header'
    printf 'text,label\na,1\nb\n"c\nd",2\n' >x.csv
    run -0 --separate-stderr d9d-shard --on-error skip --json -t "$tok" -o skipped x.csv
    [[ "$(cat skipped/skipped.jsonl)" == *'"line": 3, "byte": 15, '*'"not_json"'* ]]
}
