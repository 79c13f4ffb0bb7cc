#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# The files that the tools write match schemas/, key by key.

setup() {
    load helper
    load train_helper
    cd "$BATS_TEST_TMPDIR" || return 1
}

# is FORMAT FILE...: each file is of that format.
is() { "${D9D_BUILD:-$BATS_TEST_DIRNAME/../../build}/schemas/dump" "$@"; }

# spoil FILE SED-EXPRESSION: what it makes of the file; it must change something.
spoil() { sed -E "$2" "$1" >spoilt && ! cmp -s "$1" spoilt && mv spoilt "spoilt.${1##*.}"; }

@test "datasets: of text, of tokens, with labels, packed" {
    printf '{"text": "a document %d"}\n' 1 2 3 4 >in.jsonl
    d9d-shard -q --tokenizer "$golden/../../examples/tokenizer/tokenizer.json" --max-length 8 \
        --bucket-edges 4,8 --shuffle-seed 1 --split train=0.5,valid=0.5 --out text in.jsonl
    echo '{"input_ids": [1, 2, 3], "labels": [2, 3, -100]}' >labels.jsonl
    d9d-shard -q --format tokens --out labels labels.jsonl
    d9d-shard -q --format tokens --pack 16 --out packed "$golden/moe/train.jsonl"
    echo '{"fields": [{"name": "x"}, {"name": "k", "dtype": "I32"}]}' >fields.json
    for i in 1 2 3 4 5 6 7 8 9; do echo "{\"input_ids\": [$i, 2], \"labels\": [-100, $i], \"x\": 0, \"k\": $i}"; done |
        d9d-shard -q --format tokens --fields fields.json --split valid=0.5 --out splits -
    grep -q field_ranges splits/manifest.json
    run -2 is d9d.dataset.v0 text/manifest.json
    is d9d.dataset.v1 {text,labels,packed,splits}/manifest.json
    # What a part says that it is, is said of nothing else.
    d9d-shard -q --format tokens --task 0/1 --out part labels.jsonl
    assert_equal "$(grep -ho '"schema": "[^"]*"' part/*.json | sort -u | tr '\n' ' ')" \
        '"schema": "d9d.dataset.v1" "schema": "d9d.part.v2" "schema": "d9d.unit.v2" '
}

@test "checkpoints: mapped, initialised" {
    d9d-map -q "$golden/moe" mapped
    d9d-map init -q --model "$golden/dense_tied/config.json" --seed 1 random
    is d9d.checkpoint.v1 {mapped,random}/manifest.json
}

@test "plans of mappings" {
    d9d-map plan --json "$golden/moe" >plan.json
    d9d-map plan --json --boxes --dtype bfloat16 "$golden/moe_fused" >boxes.json
    grep -q '"casts": \["bfloat16"\]' boxes.json
    is d9d.map-plan.v1 plan.json boxes.json
    spoil boxes.json 's/"stride"/"strides"/'
    run -2 is d9d.map-plan.v1 spoilt.json
}

@test "a run that was resumed: its manifest, configuration, records and checkpoints" {
    dataset data
    run_config >c.json
    set -- --set trainer.run.steps=4 --set trainer.checkpointing.period_steps=2
    d9d-train -q "$@" --set trainer.run.hparams='{"a": [1]}' c.json
    is d9d.run.v1 run/manifest.json
    rm -r run/export run/checkpoints/step-00000004
    set -- "$@" --set 'evaluation={"data": {"dataset": "data"}, "samples": 4}'
    d9d-train -q "$@" --set trainer.logging.experts=counts c.json
    grep -q '"restart"' run/metrics.jsonl
    grep -q '"expert_load/' run/metrics.jsonl
    grep -q '"evaluation"' run/metrics.jsonl
    is d9d.run.v1 run/manifest.json
    is d9d.train.v1 run/config.json
    is d9d.metrics.v1 run/metrics.jsonl
    is d9d.samples.v1 run/samples.jsonl
    is d9d.checkpoint.v2 run/checkpoints/step-*/manifest.json
    is d9d.checkpoint.v1 run/checkpoints/step-*/ranks-00000/manifest.json
    is d9d.checkpoint.v1 "$golden/../multirank/checkpoint_v1/step-00000001/manifest.json"

    # The page about files names all that a run may leave.
    d9d-train -q --set trainer.run.dir=all --set trainer.run.steps=1 --set trainer.profiling.period_steps=1 \
        --set 'trainer.logging.tracker={"provider": "tensorboard"}' \
        --set 'peft={"kind": "lora", "module_name_pattern": ".*q_proj", "params": {"r": 2, "alpha": 2}}' c.json
    left=(all/*)
    assert_equal ${#left[@]} 9
    for name in all/*; do grep -q "^| \`${name#all/}[\`/]" "$golden/../../docs/reference/formats.md" || { echo "$name" && false; }; done

    # And a key more or less is seen.
    spoil run/manifest.json 's/"hosts"/"host"/'
    run -2 is d9d.run.v1 spoilt.json
    spoil run/metrics.jsonl '1s/"tokens"/"token"/'
    run -2 is d9d.metrics.v1 spoilt.jsonl
    spoil run/metrics.jsonl '1s/"tokens": [0-9]+, //'
    run -2 is d9d.metrics.v1 spoilt.jsonl
    spoil run/metrics.jsonl 's/("expert_load[^:]*: )[^,}]*/\1"many"/'
    run -2 is d9d.metrics.v1 spoilt.jsonl
    spoil run/checkpoints/step-00000002/manifest.json '/"chunk_bytes":/d'
    run -2 is d9d.checkpoint.v2 spoilt.json
    assert_output --partial 'chunk_bytes: required key is missing'
}

@test "what 0.1 wrote under other names is still of its format" {
    printf '{"text": "a document %d"}\n' 1 2 3 4 >in.jsonl
    d9d-shard -q --tokenizer "$golden/../../examples/tokenizer/tokenizer.json" --out data in.jsonl
    spoil data/manifest.json 's/"unit_bytes"/"part_bytes"/'
    is d9d.dataset.v1 spoilt.json
    cat >former.jsonl <<'END'
{"pipeline": 2, "schedule": "1f1b", "micro_batches": 8, "rows": 1, "play_ms": 9.5, "bubble": 0.25, "busy_ms": [7, 8], "forward_ms": [1, 1], "input_ms": [1, 1], "weight_ms": [1, 1], "time": "2026-01-31T12:00:00Z"}
END
    is d9d.metrics.v1 former.jsonl
    spoil former.jsonl 's/play_ms/pipeline_ms/; s/busy/compute/; s/input/dgrad/; s/weight/wgrad/'
    is d9d.metrics.v1 spoilt.jsonl
    spoil spoilt.jsonl 's/"dgrad_ms"/"weight_ms"/'
    run -2 is d9d.metrics.v1 spoilt.jsonl
    assert_output --partial 'weight_ms: is the former name of wgrad_ms, which is given too'
    cat >flight.json <<'END'
{"schema": "d9d.flight.v1", "fault": "none", "sentence": "nothing waits", "waited_s": 0, "culprits": [], "ranks": [
 {"rank": 0, "where": "", "process": "lives", "node": "a", "seen_s_ago": 0.1, "said": null, "calls": [
  {"number": 1, "group": "tp", "seq": 1, "call": "all_reduce", "dtype": "float32", "count": 1, "what": "loss", "state": "done", "began_s_ago": 1, "took_ms": 1}]}]}
END
    is d9d.flight.v1 flight.json
    spoil flight.json 's/"sentence"/"diagnosis"/; s/"said"/"message"/; s/"what"/"label"/'
    is d9d.flight.v1 spoilt.json
}
