#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# File names that are not UTF-8 or contain terminal control characters: the work is done, and the
# names are printed as well as possible.

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
    for k in 0 1; do d9d-shard -q --unit-size 512 --task $k/2 -t "$tok" -o "p$k" docs.jsonl; done
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
    [ ! -e data ]
    [ ! -e data.partial ]
    # The name of an input is only said: U+FFFD stands for what is none.
    cp docs.jsonl "$bad.jsonl"
    d9d-shard -q -t "$tok" -o data "$bad.jsonl"
    d9d-shard verify -q data
    grep -q $'caf\xef\xbf\xbd.jsonl' data/manifest.json
}

@test "control characters of a name do not reach the terminal" {
    esc=$'e\033[31mvil'
    d9d-shard -q -t "$tok" -o "$esc" docs.jsonl
    for command in "d9d-shard inspect" "d9d-shard inspect -n 0" "d9d-map verify -q --no-manifest" "d9d-map plan"; do
        cp -r "$golden/dense_tied" src && chmod -R u+w src && mv src "$esc.m"
        name=$esc
        [[ "$command" != d9d-map* ]] || name=$esc.m
        read -ra words <<<"$command"
        run -0 --separate-stderr "${words[@]}" "$name"
        [[ "$output" != *$'\033'* ]]
        rm -r "$esc.m"
    done
}

@test "no name makes a line of its own in what is said" {
    cp "$BATS_TEST_DIRNAME/../../examples/qwen3/train.json" c.json
    for name in $'a\nd9d-train: done' $'a\rb' $'a\xc2\x9bb'; do
        cp docs.jsonl "$name"
        for command in "d9d-shard -q -t $tok -o out -f" "d9d-shard -q -o out -t" "d9d-shard inspect" "d9d-shard -q -o out -t $tok docs.jsonl x" \
            "d9d-map -q out2" "d9d-map plan" "d9d-map verify" "d9d-train" "d9d-train c.json --plan --gpu" "d9d-infer" "d9d-lrplot" \
            "d9d-metrics show" "d9d-metrics summary" "d9d-metrics flight" "d9d-metrics show -k loss"; do
            # shellcheck disable=SC2086
            run --separate-stderr $command "$name"
            [[ "$stderr" != *$'\nd9d-train: done'* && "$stderr" != *$'\r'* && "$stderr" != *$'\xc2\x9b'* ]] ||
                { echo "$command: $stderr"; false; }
            [ "$status" -ne 0 ] || { echo "$command: $output"; false; }
            rm -rf out out2 out.partial
        done
        rm -f "$name"
    done
}

@test "the reason of an error stays, however long the path" {
    deep=$(printf '%0200d/' {1..15})
    run -2 --separate-stderr d9d-map -q "$deep" out
    [[ "$stderr" == "d9d-map: not found: 00000"*"..."*"15/: cannot open: No such file or directory" ]]
}

@test "what a retry cannot help is exit 2" {
    d9d-shard -q -t "$tok" -o data docs.jsonl
    run -2 --separate-stderr d9d-shard inspect -n 99999999999 data
    [[ "$stderr" == *'data: sample 99999999999 of the split "train", which has 1' ]]
    run -2 --separate-stderr d9d-map -q "$golden/none" out
    cat >c.json <<JSON
{"data": {"dataset": "data"}, "model_provider": {"name": "qwen3_dense", "hf_config": "$golden/dense_tied/config.json"},
 "trainer": {"run": {"name": "x", "dir": "run", "steps": 1}, "batching": {"global_batch_size": 1, "microbatch_size": 1}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
    run -2 --separate-stderr d9d-train -d cpu@0 c.json
    [[ "$stderr" == *'device "cpu@0": a limit of 0 bytes leaves nothing' ]]
}
