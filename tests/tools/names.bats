#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Names that are no UTF-8, or control a terminal: the work is done, and said as well as it can be.

setup() {
    load helper
    load map_helper
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
    tok=$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json
    echo '{"text": "some words"}' >docs.jsonl
    bad=$'caf\xe9'
}

# says KEY: the last report has the name with U+FFFD.
says() { [[ "$output" == *"\"$1\": \""*$'caf\xef\xbf\xbd\"'* ]]; }

@test "--json with a name that is no UTF-8" {
    run -0 --separate-stderr d9d-shard -q --json -t "$tok" -o "$bad" docs.jsonl
    says dataset
    run -0 --separate-stderr d9d-shard -q --json verify "$bad"
    says dataset
    for k in 0 1; do d9d-shard -q --part-size 8 --task $k/2 -t "$tok" -o "p$k" docs.jsonl; done
    run -0 --separate-stderr d9d-shard -q --json merge "m$bad" p0 p1
    says dataset
    run -0 --separate-stderr d9d-map -q --json "$golden/dense_tied" "k$bad"
    says path
    run -0 --separate-stderr d9d-map -q --json init -m "$golden/dense_tied/config.json" "i$bad"
    says path
    run -0 --separate-stderr d9d-map -q --json verify "k$bad"
    # A run that was moved.
    mkdir "r$bad"
    cat >"r$bad/metrics.jsonl" <<'JSON'
{"schema": "d9d.metrics.v1", "step": 1, "time": 1.0, "loss": 2.0}
{"schema": "d9d.metrics.v1", "step": 2, "time": 2.0, "loss": 1.5}
JSON
    for c in summary show spikes; do
        run --separate-stderr d9d-metrics $c --json "r$bad"
        [ "$status" -eq 0 ] || { echo "$c: $stderr"; false; }
        says run
    done
    run -0 --separate-stderr d9d-metrics compare --json "r$bad" "r$bad"
    says run
}

@test "a name that a manifest cannot hold is refused before the work" {
    run -2 --separate-stderr d9d-shard -q -t "$tok" -o data --split "$bad=0.5,b=0.5" docs.jsonl
    [[ "$stderr" == *"it is not UTF-8"* ]]
    [ ! -e data ] && [ ! -e data.partial ]
    # The name of an input is only said: U+FFFD stands for what is none.
    cp docs.jsonl "$bad.jsonl"
    d9d-shard -q -t "$tok" -o data "$bad.jsonl"
    d9d-shard verify -q data
    grep -q $'caf\xef\xbf\xbd.jsonl' data/manifest.json
}
