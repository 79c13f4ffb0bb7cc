#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Foreign files in a tool's directories stay unchanged and are reported.

setup() {
    load helper
    load map_helper
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
    tok=$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json
    echo '{"text": "some words"}' >docs.jsonl
    cp -r "$golden/dense_tied" src && chmod -R u+w src
    mkdir home home/.git && echo thesis >home/thesis.tex
}

# MAKER OUT: both tools that work in OUT.partial.
make_model() { d9d-map -q src "$1"; }
make_dataset() { d9d-shard -q -t "$tok" docs.jsonl -o "$1"; }
makers=(make_model make_dataset)

# refused SENTENCE COMMAND...: exit 2, nothing changed.
refused() {
    local sentence=$1
    shift
    run -2 --separate-stderr "$@"
    [[ "${stderr_lines[-1]}" == *"$sentence"* ]]
    [ "$(cat home/thesis.tex)" = thesis ] && [ -d home/.git ]
}

@test "a link where the work is to be done is not followed" {
    for make in "${makers[@]}"; do
        ln -s home out.partial
        refused "out.partial: is a link" "$make" out
        [ -L out.partial ]
        [ ! -e out ]
        rm out.partial
    done
}

@test "a directory with files of others where the work is to be done is left as it is" {
    cp -r home out.partial
    for make in "${makers[@]}"; do
        refused "out.partial: is there already and is no unfinished " "$make" out
        diff -r home out.partial
        [ ! -e out ]
    done
    # A mark is a file of this name and content, and no link to one.
    echo mine >out.partial/.d9d-partial
    for make in "${makers[@]}"; do refused "out.partial: is there already" "$make" out; done
    rm out.partial/.d9d-partial
    printf 'd9d.partial.v1\n' >mark && ln -s ../mark out.partial/.d9d-partial
    for make in "${makers[@]}"; do refused "out.partial: is there already" "$make" out; done
    # An empty one has nothing to lose.
    for make in "${makers[@]}"; do
        rm -r out.partial 2>/dev/null || true
        rm -rf out && mkdir out.partial
        $make out
        [ ! -e out.partial ]
        [ ! -e out/.d9d-partial ]
    done
}

@test "what an earlier version had begun, without a mark, is gone on with" {
    command -v strace >/dev/null || skip "no strace"
    d9d-map -q --shard-size 50kB "$golden/moe" whole
    run ! strace -f -qq -o /dev/null -e inject=pwrite64:signal=KILL:when=5 d9d-map -q -j1 --shard-size 50kB "$golden/moe" dst
    grep -q '^d9d.partial.v1$' dst.partial/.d9d-partial
    rm dst.partial/.d9d-partial
    run -0 --separate-stderr d9d-map --shard-size 50kB "$golden/moe" dst
    [[ "$stderr" == *"dst.partial: going on with "[1-9]*" chunks"* ]]
    diff -r whole dst
    # A part of a dataset has plan.json.
    d9d-shard -q -t "$tok" -o ds --task 0/2 docs.jsonl
    mv ds ds.partial
    d9d-shard -q -t "$tok" -o ds docs.jsonl
    d9d-shard verify -q ds
}

@test "--force replaces what is of its kind, and nothing else" {
    refused "home: is no checkpoint, which alone --force replaces" d9d-map -q -f src home
    refused "home: is no dataset, which alone --force replaces" d9d-shard -q --force -t "$tok" -o home docs.jsonl
    d9d-map -q src ckpt
    d9d-shard -q -t "$tok" -o data docs.jsonl
    refused "data: is no checkpoint" d9d-map -q -f src data
    refused "ckpt: is no dataset" d9d-shard -q --force -t "$tok" -o ckpt docs.jsonl
    d9d-shard verify -q data
    d9d-map verify -q ckpt
    d9d-map -q -f --to d9d src ckpt
    d9d-shard -q --force -t "$tok" -o data docs.jsonl
    cp -r "$golden/dense_untied" theirs && chmod -R u+w theirs # HuggingFace's
    d9d-map -q -f src theirs
    d9d-map verify -q theirs
    # A project with a config.json of its own.
    echo '{"name": "app", "version": 1}' >home/config.json
    refused "home: is no checkpoint" d9d-map -q -f src home
    [ -z "$(find . -maxdepth 1 -name "*partial*")" ]
}

@test "a link in an unfinished directory is not written through" {
    command -v strace >/dev/null || skip "no strace"
    run ! strace -f -qq -o /dev/null -e inject=pwrite64:signal=KILL:when=4 d9d-map -q -j1 src out
    for name in model.safetensors .d9d-chunks.0; do
        cp -r out.partial begun && mv "out.partial/$name" saved
        [ "$name" != .d9d-chunks.0 ] || cp saved home/thesis.tex # as if it were the journal
        cp home/thesis.tex before
        ln -sf ../home/thesis.tex "out.partial/$name"
        run -2 --separate-stderr d9d-map -q src out
        [[ "${stderr_lines[-1]}" == *"out.partial/$name: is a link, must be a file" ]]
        cmp before home/thesis.tex
        rm -r out.partial && mv begun out.partial
    done
    d9d-map -q src out
    rm -rf out out.partial && echo thesis >home/thesis.tex
    mkdir out.partial && printf 'd9d.partial.v1\n' >out.partial/.d9d-partial
    ln -s ../home/thesis.tex out.partial/plan.json
    d9d-shard -q -t "$tok" -o out docs.jsonl
    [ "$(cat home/thesis.tex)" = thesis ]
}

@test "a directory of another user's that could not be replaced is found out before the work" {
    [ "$(id -u)" -eq 0 ] && id nobody >/dev/null || skip "needs another user"
    command -v setpriv >/dev/null || skip "no setpriv"
    chmod 755 "$BATS_TEST_TMPDIR" . src
    chmod -R a+rX src
    mkdir common && chmod 1777 common
    d9d-map -q src common/out
    run -2 --separate-stderr setpriv --reuid=nobody --clear-groups "$(command -v d9d-map)" -q -f src common/out
    [[ "$stderr" == *"common/out: cannot be replaced: it is another user's"* ]]
    [ "$(ls common)" = out ]
    d9d-map verify -q common/out
}

@test "a pipe where a small file should be is refused, not waited for" {
    mv src/config.json config.json && mkfifo src/config.json
    for command in "d9d-map -q src out" "d9d-map plan src" "d9d-shard -q -t src/config.json -o out docs.jsonl" \
        "d9d-train --plan src/config.json" "d9d-infer src/config.json" "d9d-lrplot -t src/config.json" \
        "d9d-map -q --mapper src/config.json src out" "d9d-map -q --model src/config.json src out"; do
        read -ra words <<<"$command"
        run -2 --separate-stderr timeout 600 "${words[@]}"
        [[ "${stderr_lines[-1]}" == *"src/config.json: is a pipe, must be a file"* ]]
        [ ! -e out ]
    done
    # Streams of the process itself are read.
    d9d-lrplot -q -t <(echo '{"initial_multiplier": 1, "phases": [{"mode": "rest", "target_multiplier": 0}]}') >/dev/null
}

@test "a pipe beside a tokenizer, in a dataset or in a part is refused, not waited for" {
    mkdir tokenizer && cp "$tok" tokenizer/
    mkfifo tokenizer/special_tokens_map.json
    d9d-shard -q -t "$tok" -o data docs.jsonl
    d9d-shard -q -t "$tok" -o part --task 0/1 docs.jsonl
    pipe() { rm "$1" && mkfifo "$1"; }
    refused_pipe() { # FILE COMMAND...
        run --separate-stderr timeout 600 "${@:2}"
        [[ "$status" -eq 2 && "${stderr_lines[-1]}" == *"$1: is a pipe, must be a file" ]] ||
            { echo "$*: $status $stderr"; false; }
    }
    refused_pipe tokenizer/special_tokens_map.json d9d-shard -q -t tokenizer -o out docs.jsonl
    pipe data/index.lmdb
    refused_pipe data/index.lmdb d9d-shard -q inspect data
    for file in tokenizer.json unit-00000-0000.records unit-00000-0000.segments; do
        cp -r part broken && pipe "broken/$file"
        refused_pipe "broken/$file" d9d-shard -q merge out broken
        rm -r broken
        [ ! -e out ]
    done
}
