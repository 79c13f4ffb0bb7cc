#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031,SC2154 # bats sets output and stderr
# d9d-shard --fields: named tensors of samples, made, packed, cut, merged, checked and refused.

setup() {
    load helper
    root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
    cat >fields.json <<'JSON'
{"fields": [{"name": "weight", "per": "target"},
            {"name": "kind", "per": "token", "dtype": "U8"},
            {"name": "source", "dtype": "I64"},
            {"name": "boxes", "shape": [2], "ragged": true, "dtype": "I32"}]}
JSON
}

# documents N: the weight of token k of document i is i + k / 100, its kind k, and so on.
documents() {
    awk -v n="$1" 'function draw() { return (state = state * 16807 % 2147483647) / 2147483647 }
        BEGIN { state = 1000003; for (i = 0; i < n; i++) {
        m = 2 + int(draw() * 11); ids = w = kinds = boxes = ""
        for (k = 0; k < m; k++) {
            c = k ? ", " : ""
            ids = ids c int(draw() * 50); w = w c sprintf("%d.%02d", i, k); kinds = kinds c k }
        for (k = 0; k < i % 3; k++) boxes = boxes (k ? ", " : "") sprintf("[%d, %d]", i, k)
        printf "{\"input_ids\": [%s], \"weight\": [%s], \"kind\": [%s], \"source\": 9007199254740%03d, \"boxes\": [%s]}\n", ids, w, kinds, 993 + 2 * i, boxes } }'
}

shard() { d9d-shard -q --format "${format:-tokens}" --fields fields.json "$@"; }
refused() { # CODE WORDS OPTION...
    run "-$1" shard --out no "${@:3}"
    [[ "$output" == *"$2"* ]] || { echo "$output"; return 1; }
    [ ! -e no ]
}

@test "a dataset has what the lines say, and inspect shows it" {
    documents 30 >d.jsonl
    shard --out d d.jsonl
    d9d-shard verify -q d
    run -0 d9d-shard inspect -q d
    [[ "$output" == *"field weight: F32 per target"$'\n'"field kind: U8 per token, from 0 to 11"$'\n'"field source: I64 per sample, from 9007199254740993 to 90071992547401051"$'\n'"field boxes: I32 per sample, 2, up to 2 rows, from 0 to 29"* ]]
    run -0 d9d-shard inspect -q --json --sample 2 d
    [[ "$output" == *'"fields": [{"weight": [2, 2.01'*'"kind": [0, 1, 2'*'"source": [9007199254740997], "boxes": [2, 0, 2, 1]}]}' ]]
    run -0 d9d-shard inspect -q --json d
    [[ "$(tr -d ' \n' <<<"$output")" == *'"fields":[{"name":"weight","dtype":"F32","per":"target","shape":[],"ragged":false,"pad":0.0,"allow_nan":false}'* ]]
}

# values DIR [SPLIT]: the fields of all documents, in order.
values() {
    local k n
    n=$(tr -d ' \n' <"$1/manifest.json" | sed -E "s/.*\"name\":\"${2:-train}\",\"first\":[0-9]+,\"samples\":([0-9]+).*/\1/")
    for ((k = 0; k < n; k++)); do
        d9d-shard inspect -q --json --split "${2:-train}" --sample $k "$1" | sed -E 's/.*"fields": \[(.*)\]\}$/\1/; s/\}, \{/}\n{/g'
    done
}

@test "packing moves documents with their fields" {
    documents 60 >d.jsonl
    shard --out d d.jsonl
    shard --pack 32 --out packed d.jsonl
    shard --pack 32 --split valid=2,train=1 --shuffle-seed 3 --out dealt d.jsonl
    d9d-shard verify -q packed
    d9d-shard verify -q dealt
    cmp <(values d | sort) <(values packed | sort)
    cmp <(values d | sort) <({ values dealt; values dealt valid; } | sort)
}

@test "a document that is cut keeps the rows of its tokens, and its arrays in each part" {
    echo '{"input_ids": [1, 2, 3, 4, 5], "weight": [0, 1, 2, 3, 4], "kind": [0, 1, 2, 3, 4], "source": 7, "boxes": [[1, 2]]}' >one.jsonl
    shard --max-length 2 --out cut one.jsonl
    cmp <(values cut) <(printf '{"weight": [%s], "kind": [%s], "source": [7], "boxes": [1, 2]}\n' "0, 1, 2" "0, 1, 2" "2, 3, 4" "2, 3, 4")
    shard --pack 3 --pack-mode concat --out concat one.jsonl
    cmp <(values concat) <(printf '{"weight": [%s], "kind": [%s], "source": [7], "boxes": [1, 2]}\n' "0, 1, 2, 3" "0, 1, 2, 3" "3, 4" "3, 4")
    shard --max-length 2 --overflow truncate --out short one.jsonl
    cmp <(values short) <(echo '{"weight": [0, 1, 2], "kind": [0, 1, 2], "source": [7], "boxes": [1, 2]}')
}

@test "tasks, threads and small shards make the same dataset" {
    documents 3000 >d.jsonl
    for options in "" "--pack 64 --split valid=9"; do
        opts=(--unit-size 40kB --shard-size 9kB)
        # shellcheck disable=SC2206
        opts+=($options)
        rm -rf whole p0 p1 merged
        shard "${opts[@]}" --jobs 4 --out whole d.jsonl
        [ "$(find whole -name 'fields-*' | wc -l)" -gt 5 ]
        shard "${opts[@]}" --task 0/2 --out p0 d.jsonl
        shard "${opts[@]}" --task 1/2 --out p1 d.jsonl
        d9d-shard merge -q merged p1 p0
        diff -r whole merged
        d9d-shard verify -q whole
    done
}

@test "arrays: samples of fields alone, with classes, and rows of NumPy files" {
    format=arrays
    cat >fields.json <<'JSON'
{"fields": [{"name": "image", "dtype": "U8", "shape": [2, 2], "npy": "images.npy"}, {"name": "x", "shape": [2]}]}
JSON
    printf '\x93NUMPY\x01\x00\x46\x00%-69s\n\1\2\3\4\5\6\7\10\11\12\13\14' "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 2, 2), }" >images.npy
    printf '{"image": %d, "x": [0.5, -1e2], "class": %d}\n' 2 1 0 0 1 4 >a.jsonl
    shard --label-key class --out a a.jsonl
    d9d-shard verify -q a
    cmp <(values a) <(printf '{"image": [%s], "x": [0.5, -100]}\n' "9, 10, 11, 12" "1, 2, 3, 4" "5, 6, 7, 8")
    run -0 d9d-shard inspect -q --json --sample 2 a
    [[ "$output" == *'"input_ids": [0], "labels": [4]'* ]]
    echo '{"image": 3, "x": [0, 0], "class": 0}' >b.jsonl
    refused 1 'b.jsonl: line 1, byte 10: "image" must have integers from 0 to 2' b.jsonl
    sed -i 's/"U8"/"I32"/' fields.json
    refused 2 'images.npy: an array of U8 in 3 dimensions; the field "image" is of I32' a.jsonl
}

@test "rows of a table may be samples" {
    format=arrays
    printf '{"fields": [{"name": "x"}, {"name": "n", "dtype": "I32"}]}' >fields.json
    printf 'x,n,class\n0.5,-3,1\n"2e1",4,0\n' >t.csv
    shard --label-key class --out t t.csv
    cmp <(values t) <(printf '{"x": [0.5], "n": [-3]}\n{"x": [20], "n": [4]}\n')
}

# line TEXT: a document whose members TEXT replaces.
line() { sed -E "$1" <<<'{"input_ids": [1, 2], "weight": [0, 1], "kind": [0, 1], "source": 7, "boxes": [[1, 2]]}' >bad.jsonl; }

@test "wrong values are one sentence with the line" {
    bad() {
        documents 3 >good.jsonl
        line "$1"
        cat good.jsonl bad.jsonl >d.jsonl
        refused 1 "$2" d.jsonl
        [[ "$output" == *"d.jsonl: line 4, byte "* ]]
    }
    bad 's/"weight": .0, 1.,//' 'has no "weight", but "input_ids", "kind"'
    bad 's/\[0, 1\]/[0]/' '"weight" has 1 row for 2 tokens'
    bad 's/\[0, 1\]/[0, null]/' '"weight" has null, which stands for NaN: it allows none'
    bad 's/\[0, 1\]/[0, NaN]/' '"weight" has something here that is no number'
    bad 's/\[0, 1\]/[0, 1e39]/' '"weight" must have finite numbers of float32'
    bad 's/\[0, 1\], "k/[0, "1"], "k/' '"weight" has something here that is no number'
    bad 's/"kind": .0, 1/"kind": [0, 256/' '"kind" must have integers from 0 to 255'
    bad 's/"kind": .0, 1/"kind": [0, 1.5/' '"kind" must have integers from 0 to 255'
    bad 's/7/7, "source": 7/' '"source" is given twice'
    bad 's/7/[7]/' '"source" has something here that is no number'
    bad 's/\[1, 2\]\]/[1, 2, 3]]/' '"boxes" has more than 2 elements in dimension 1, must have 2'
    bad 's/\[1, 2\]\]/[1]]/' '"boxes" has 1 elements in dimension 1, must have 2'
    bad 's/\[\[1, 2\]\]/[1, 2]/' '"boxes" has no array in dimension 1 of 2'
    documents 3 >d.jsonl
    cat bad.jsonl >>d.jsonl
    shard --on-error skip --out skipped d.jsonl
    [ "$(values skipped | wc -l)" = 3 ]
    [[ "$(cat skipped/skipped.jsonl)" == *'"line": 4, '*'"reason": "bad_value"'* ]]
}

@test "wrong declarations are refused before anything is read" {
    documents 3 >d.jsonl
    declared() { echo "{\"fields\": [$1]}" >fields.json; refused 2 "$2" d.jsonl; }
    declared '{"name": "w", "tyep": "F32"}' 'fields[0].tyep: unknown key'
    declared '{"name": "w", "dtype": "F64"}' 'fields[0].dtype'
    declared '{"name": "labels"}' 'the field "labels": every sample has these already'
    declared '{"name": "A"}' 'the field "A": a name has small letters'
    declared '{"name": "w"}, {"name": "w", "key": "v"}' 'the field "w" is declared twice'
    declared '{"name": "w"}, {"name": "v", "key": "w"}' 'two fields are read from "w"'
    declared '{"name": "w", "per": "token", "ragged": true}' 'is ragged, and per token'
    declared '{"name": "w", "dtype": "U8", "pad": -1}' '-1 is no U8 to pad with'
    declared '{"name": "w", "shape": [65536, 65536, 65536]}' 'a shape has at most 4 dimensions'
    declared '{"name": "w", "npy": "none.npy"}' 'none.npy'
    echo '{"fields": [{"name": "w", "per": "token"}]}' >fields.json
    echo '{"text": "a", "w": [1]}' >t.jsonl
    format=jsonl
    refused 2 'the field "w" is per token, and t.jsonl has no ids to count' -t "$root/examples/tokenizer/tokenizer.json" t.jsonl
    format=text
    refused 2 '--fields: t.txt is not JSON lines' -t "$root/examples/tokenizer/tokenizer.json" t.txt
    run -2 d9d-shard -q --format arrays --out no d.jsonl
    [[ "$output" == *"--format arrays: has nothing but fields, which --fields declares"* ]]
}

@test "NaN is a value where it is allowed" {
    echo '{"fields": [{"name": "w", "shape": [2], "allow_nan": true}]}' >fields.json
    echo '{"w": [null, 1]}' >n.jsonl
    format=arrays shard --out n n.jsonl
    d9d-shard verify -q n
    cmp <(values n) <(echo '{"w": [null, 1]}')
}

@test "the range of integers is in the manifest, without ignored classes, whatever tasks and units made it" {
    echo '{"fields": [{"name": "tags", "per": "token", "dtype": "I32"}, {"name": "none", "dtype": "I32"}, {"name": "x"}]}' >fields.json
    awk 'BEGIN { for (i = 0; i < 500; i++) printf "{\"input_ids\": [1, 2], \"labels\": [-100, %d], \"tags\": [-100, %d], \"none\": -100, \"x\": 0}\n",
        3 + i % 7, i * 7919 % 500 - 3 }' >t.jsonl
    shard --unit-size 5kB --out t t.jsonl
    d9d-shard verify -q t
    ranges() { jq -c '[.fields[].range, .label_range]' "$1/manifest.json"; }
    assert_equal "$(ranges t)" '[[-3,496],null,null,[3,9]]'
    for i in 0 1 2; do shard --unit-size 5kB --task $i/3 --out part$i t.jsonl; done
    d9d-shard merge -q merged part2 part0 part1
    diff -r t merged
    shard --pack 16 --split valid=3 --out packed t.jsonl
    d9d-shard verify -q packed
    assert_equal "$(ranges packed)" "$(ranges t)"
    # A split has ranges of its own, unless it is of given size.
    [ "$(jq '[.splits[] | has("field_ranges") or has("label_range")] | any' t/manifest.json packed/manifest.json | sort -u)" = false ]
    awk '{ sub(/1, 2/, "1, " NR); print }' t.jsonl | head -n 60 >few.jsonl
    shard --unit-size 1kB --split valid=0.3 --out parts few.jsonl
    d9d-shard verify -q parts
    for split in train valid; do
        for ((k = 0; k < $(jq ".splits[] | select(.name == \"$split\").samples" parts/manifest.json); k++)); do
            d9d-shard inspect parts --split $split --sample $k --json
        done >$split.jsonl
        jq -c --arg s $split '.splits[] | select(.name == $s) | [.field_ranges, .label_range]' parts/manifest.json >ranges.$split
        jq -sc '[[.[].fields[].tags[] | select(. != -100)], [.[].labels[] | select(. != -100)]] | map([min, max]) |
            [[.[0], null, null], .[1]]' $split.jsonl | diff ranges.$split -
    done
    ! diff -q ranges.train ranges.valid || false
    for i in 0 1; do shard --unit-size 1kB --split valid=0.3 --task $i/2 --out half$i few.jsonl; done
    d9d-shard merge -q joined half1 half0
    diff -r parts joined
}

@test "damage is found" {
    documents 40 >d.jsonl
    shard --out d d.jsonl
    for f in fields documents; do
        cp -r d hurt
        printf '\377' | dd of="hurt/$f-00000.bin" bs=1 seek=20 conv=notrunc status=none
        run -1 d9d-shard verify -q hurt
        [[ "$output" == *"hurt/$f-00000.bin: its hash is"* ]]
        truncate -s -8 "hurt/$f-00000.bin"
        run -1 d9d-shard verify -q hurt
        [[ "$output" == *"hurt/$f-00000.bin: has "* ]]
        rm -r hurt
    done
}
