#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031,SC2154 # exports are of one test, which is a subshell; variables of bats and of the helper
# d9d-shard reads Parquet by DuckDB's library: a stand-in of it, and the real one where it is on the
# library path (with LD_PRELOAD=libpython3.x.so.1.0 that of PyPI's duckdb serves as libduckdb.so too).

setup() {
    load helper
    top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    tok=$top/examples/tokenizer/tokenizer.json
    golden=$top/tests/golden/parquet
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
}

# standin [FLAG...]: is the library that is found.
standin() {
    mkdir -p lib
    ${CC:-cc} -std=c11 -D_GNU_SOURCE ${D9D_SAN:+-fsanitize=$D9D_SAN} -I"$top/libcore" -I"$top/libcore/include" "$@" \
        -shared -fPIC -o lib/libduckdb.so "$BATS_TEST_DIRNAME/duckdb_standin.c"
    export LD_LIBRARY_PATH=$PWD/lib
}
# parquet ROWS FILE: JSON lines as a Parquet file of the stand-in.
parquet() { printf 'PAR1\x15%s\n' "$1" && cat "$2"; }

bad() {
    run -"$1" --separate-stderr d9d-shard "${@:3}"
    [[ "$stderr" == *"$2"* ]] || { echo "$stderr"; false; }
}

has_duckdb() {
    cat >probe.c <<'C'
#include <dlfcn.h>
int main(void) { return dlopen("libduckdb.so", RTLD_NOW) == 0; }
C
    ${CC:-cc} -o probe probe.c -ldl && ./probe
}

@test "without the library a Parquet file is refused with the cure" {
    mkdir lib && printf 'no library' >lib/libduckdb.so
    export LD_LIBRARY_PATH=$PWD/lib
    parquet 1 - <<<'{"text": "a b"}' >a.parquet
    bad 2 'a.parquet: is a Parquet file, which DuckDB'\''s library reads, and libduckdb.so is not on the library path; install it, or read JSON lines from a pipe: duckdb -c "copy' -t "$tok" -o data a.parquet
    standin -DNO_FETCH
    bad 2 'a.parquet: libduckdb.so, which reads Parquet, has no function duckdb_fetch_chunk' -t "$tok" -o data a.parquet
    [ ! -e data ]
}

@test "rows are documents, by name and on standard input" {
    standin
    d9d-shard -q -t "$tok" -o lines "$golden/rows.jsonl"
    parquet 50 "$golden/rows.jsonl" >rows.parquet
    d9d-shard -q -t "$tok" -o rows rows.parquet
    d9d-shard -q -t "$tok" -o input - <rows.parquet
    for name in rows input; do
        cmp lines/tokens-00000.bin $name/tokens-00000.bin
        cmp lines/index.lmdb $name/index.lmdb
    done
    bad 1 'standard input: is a Parquet file in a pipe; name the file' -t "$tok" -o data - < <(cat rows.parquet)
}

@test "a damaged file is an error, and nothing is made of it" {
    standin
    printf 'PAR1\x15 nothing' >bad.parquet
    bad 1 "bad.parquet: cannot be read as Parquet: no rows in 'bad.parquet' at all" -t "$tok" -o data bad.parquet
    parquet 7 - < <(head -n 5 "$golden/rows.jsonl" && echo '!Invalid Error: a page is damaged') >page.parquet
    bad 1 'page.parquet: cannot be read as Parquet: Invalid Error: a page is damaged' -t "$tok" -o data page.parquet
    parquet 51 "$golden/rows.jsonl" >few.parquet
    bad 1 'few.parquet: DuckDB gave 50 rows, and the file has 51' -t "$tok" -o data few.parquet
    [ ! -e data ]
}

@test "what DuckDB reads is what the same rows are as JSON lines" {
    has_duckdb || skip "libduckdb.so is not on the library path"
    for name in rows chats; do
        for from in jsonl parquet; do
            options=(--format jsonl)
            [ $name = rows ] || options=(--format chat --template "$top/examples/chat/qwen3.jinja")
            d9d-shard -q -t "$tok" "${options[@]}" -o $name.$from "$golden/$name.$from"
        done
        cmp $name.jsonl/tokens-00000.bin $name.parquet/tokens-00000.bin
        cmp $name.jsonl/index.lmdb $name.parquet/index.lmdb
    done
    cp "$golden/rows.parquet" '[r]*?.parquet' # a name, not a pattern
    d9d-shard -q -t "$tok" -o named '[r]*?.parquet'
    cmp named/tokens-00000.bin rows.jsonl/tokens-00000.bin
    head -c 9000 "$golden/rows.parquet" >cut.parquet
    bad 1 'cut.parquet: cannot be read as Parquet: ' -t "$tok" -o data cut.parquet
    [[ "$stderr" == *"'cut.parquet'"* && "$stderr" != */proc/* ]]
}

@test "numbers that are not finite and bytes are null" {
    has_duckdb || skip "libduckdb.so is not on the library path"
    echo '{"fields": [{"name": "real", "allow_nan": true}, {"name": "few", "allow_nan": true}]}' >fields.json
    for from in jsonl parquet; do
        d9d-shard -q -t "$tok" --on-error skip --fields fields.json -o null.$from "$golden/null.$from"
    done
    cmp null.jsonl/tokens-00000.bin null.parquet/tokens-00000.bin
    cmp null.jsonl/fields-00000.bin null.parquet/fields-00000.bin
    bad 1 '"bytes" is not a string' -t "$tok" --text-key bytes -o data "$golden/null.parquet"
}

@test "in lists, structs and maps they are null too" {
    has_duckdb || skip "libduckdb.so is not on the library path"
    { printf '{{ messages | tojson }}{{ maps | tojson }}' && cat "$top/examples/chat/qwen3.jinja"; } >all.jinja
    d9d-shard -q -t "$tok" --format chat --on-error skip --template all.jinja -o jsonl "$golden/null.jsonl"
    d9d-shard -q -t "$tok" --format chat --on-error skip --template all.jinja -o parquet "$golden/null.parquet"
    [ "$(d9d-shard inspect parquet --json | grep -o '"samples": [0-9]*' | head -n 1)" = '"samples": 11' ]
    cmp jsonl/tokens-00000.bin parquet/tokens-00000.bin
    run -0 d9d-shard inspect parquet --sample 0 --text
    assert_output --partial '"image": null'
    assert_output --partial '{"a": null, "b": null}'
}
