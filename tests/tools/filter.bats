#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# d9d-shard filter: what is kept is written as it was, whole or not at all; the report; inputs of all
# kinds; damage.

setup() {
    load helper
    load train_helper
    work=$(workplace)
    cd "$work" || return 1
}
teardown() { cd / && rm -rf "$work"; }

words() { seq -s ' ' -f "w$1_%g" "$2" "$3"; }

# corpus: a text, it again, nearly it, another one, and one of an evaluation.
corpus() {
    printf '{"id": 0, "text": "%s"}\n' "$(words a 1 200)"
    printf '{"text":  "%s", "id": 1}\n' "$(words a 1 200)"
    printf '{"id": 2, "text": "%s"}\n' "$(words a 2 200) and more"
    printf '{"id": 3, "text": "%s"}\n' "$(words b 1 200)"
    printf '{"id": 4, "text": "So: %s"}\n' "$(words q 1 40)"
}
ids() { sed -E 's/.*"id": ?([0-9]+).*/\1/' "${1:-out}/documents.jsonl" | xargs; }
removed() { tr -d ' \n' <"${2:-out}/report.json" | sed -E "s/.*\"rule\":\"$1\",\"threshold\":[^,]*,\"removed\":([0-9]+).*/\1/"; }

@test "duplicates and evaluations are removed, the rest is as it was" {
    corpus >a.jsonl
    printf '{"question": "%s?", "answer": 7}\n' "$(words Q 1 30)" >eval.jsonl
    run -0 --separate-stderr d9d-shard filter --json -o out --exact-duplicates --near-duplicates 0.7 \
        --decontaminate eval.jsonl a.jsonl
    [[ "$output" == *'"read": 5,'*'"kept": 2,'*'"contaminated": 1,'*'"exact_duplicate": 1,'*'"near_duplicate": 1'* ]]
    [[ "$stderr" == *'18 n-grams of 13 words from 1 text of evaluations'* ]]
    cmp out/documents.jsonl <(sed -n '1p;4p' a.jsonl)
    [ "$(removed contaminated) $(removed exact_duplicate) $(removed near_duplicate)" = '1 1 1' ]
    grep -q '"bands": 25' out/report.json
    [[ "$(tr -d ' \n' <out/report.json)" == *'"rule":"near_duplicate","threshold":null,"removed":1,"examples":[{"source":"a.jsonl","line":3,"text":"wa_2wa_3'*'"duplicate_of":{"source":"a.jsonl","line":1}}]'* ]]
    "${D9D_BUILD:-$BATS_TEST_DIRNAME/../../build}/schemas/dump" d9d.filter.v1 out/report.json
    [ "$(ls out)" = $'documents.jsonl\nreport.json' ]
    d9d-shard filter -q -o exact --exact-duplicates a.jsonl
    [ "$(ids exact)" = '0 2 3 4' ]
    # Of duplicates in several files the first one stays.
    sed -n '3p' a.jsonl >z.jsonl
    d9d-shard filter -q -o order --near-duplicates 0.7 z.jsonl a.jsonl
    [ "$(ids order)" = '2 3 4' ]
}

@test "arrays, tables, texts and compressed files become lines" {
    printf '[{"text": "a b",\n "id": 1},\n {"text": "c"}]' >a.json
    printf 'text,id\n"x ""y""",7\nc,8\n' >b.csv
    printf 'one\ntwo "q"\n' >c.txt
    gzip -k c.txt
    d9d-shard filter -q -o out --exact-duplicates a.json b.csv c.txt c.txt.gz
    diff <(tr -d ' ' <out/documents.jsonl) - <<'JSON'
{"text":"ab","id":1}
{"text":"c"}
{"text":"x\"y\"","id":"7"}
{"text":"one\ntwo\"q\"\n"}
JSON
    d9d-shard filter -q -o lines --format text --lines --exact-duplicates c.txt c.txt.gz
    [ "$(wc -l <lines/documents.jsonl)" = 2 ]
    d9d-shard -q -t "$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json" -o data out/documents.jsonl
}

@test "Gopher's rules, other thresholds, and the first rule counts" {
    { printf '{"id": 0, "text": "too short"}\n{"id": 1, "text": "%s"}\n' "$(for _ in {1..20}; do printf 'the ending of it and '; done)"
        printf '{"id": 2, "text": "%s"}\n' "the and of $(words abc 1 60)"; } >a.jsonl
    d9d-shard filter -q -o out --gopher-quality --gopher-repetition a.jsonl
    [ "$(ids) $(removed gopher_short_doc) $(removed top_2_gram)" = '2 1 1' ]
    d9d-shard filter -q -o loose --gopher-quality --threshold gopher_short_doc=0,gopher_enough_stop_words=0 a.jsonl
    [ "$(ids loose)" = '0 1 2' ]
    [[ "$(tr -d ' \n' <loose/report.json)" != *gopher_short_doc* ]]
    run -0 d9d-shard filter --rules x
    [[ "$output" == *dup_line_char_frac*0.2* ]]
}

@test "bad records: where they are, or how many were left out" {
    printf '{"text": "a b"}\n{"txt": 1}\n{"text": "\xff"}\n{"text": "  "}\n{"text": "c"}\n' >a.jsonl
    says 1 'a.jsonl: line 2: byte 10: has no "text"' d9d-shard filter -o out --exact-duplicates a.jsonl
    [ -z "$(ls -d out* 2>/dev/null)" ]
    d9d-shard filter -q -o out --on-error skip --exact-duplicates a.jsonl
    [ "$(wc -l <out/documents.jsonl) $(removed unreadable) $(removed empty)" = '2 2 1' ]
}

@test "whole or not at all, and nothing of somebody else's is replaced" {
    corpus >a.jsonl
    mkdir out
    echo mine >out/notes
    says 2 'out' d9d-shard filter -o out --exact-duplicates a.jsonl
    says 2 'out' d9d-shard filter -o out --force --exact-duplicates a.jsonl
    [ "$(cat out/notes)" = mine ]
    d9d-shard filter -q -o f --exact-duplicates a.jsonl
    says 2 'force' d9d-shard filter -o f --exact-duplicates a.jsonl
    d9d-shard filter -q -o f --force --near-duplicates 0.5 a.jsonl
    [ "$(ids f)" = '0 3 4' ]
    printf '{"text": " "}\n' >none.jsonl
    says 1 'none of 1 document is kept' d9d-shard filter -o x --exact-duplicates none.jsonl
    mkfifo pipe
    says 2 'pipe: inputs are read twice, so they must be files' d9d-shard filter -o x --exact-duplicates a.jsonl pipe
    : >eval.txt
    says 2 'eval.txt: has no text of 13 words' d9d-shard filter -o x --decontaminate eval.txt a.jsonl
    [ -z "$(ls -d x* 2>/dev/null)" ]
}

@test "rules are listed without an input" {
    run -0 --separate-stderr d9d-shard filter --rules
    [[ "${lines[2]}" == gopher_short_doc*50* ]] || { echo "$output"; false; }
    run -0 --separate-stderr d9d-shard filter --rules --json
    [ "$(jq '.rules | length' <<<"$output")" = "$(d9d-shard filter --rules | wc -l)" ]
}
