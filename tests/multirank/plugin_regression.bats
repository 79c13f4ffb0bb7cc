#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# A regression composed of operations, examples/plugins/regression.c: it learns, resumes, is planned,
# and ranks and recomputation change nothing.

load workroom

setup_file() {
    workroom
    plugin regression "$root/examples/plugins/regression.c"
    cat >train.json <<'JSON'
{"plugin": "libregression.so",
 "data": {"dataset": "surface", "source": {"name": "surface", "samples": 4096}, "order": "shuffled", "epochs": 100},
 "evaluation": {"data": {"dataset": "others", "source": {"name": "surface", "samples": 256, "seed": 1}}},
 "model_provider": {"name": "mlp", "features": 3, "hidden_size": 32},
 "task": {"name": "regression"},
 "trainer": {"run": {"name": "surface", "steps": 100}, "batching": {"global_batch_size": 64, "microbatch_size": 32}},
 "optimizer": {"name": "adamw", "lr": 1e-2, "weight_decay": 0}}
JSON
}
train() { d9d-train -q --device cpu --set "trainer.run.dir=$1" "${@:2}" train.json; }
train_single() { [ -d alone ] || train alone; }

@test "a regression learns points that it has not seen, and resumes to the bit" {
    train_single
    awk '{ exit !($1 < 0.02) }' <(numbers valid/loss alone)
    train part --set trainer.run.steps=40
    rm -r part/export
    train part
    cmp {alone,part}/export/model.safetensors
}

@test "Huber and bfloat16 learn too" {
    train huber --set task.huber=0.5 --set model_provider.dtype=bfloat16
    awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(NR == 100 && last < 0.1 * first) }' <(numbers loss huber)
}

@test "layers that add to what they read learn too" {
    train added --set model_provider.residual=true --set model_provider.num_hidden_layers=4
    awk '{ exit !($1 < 0.05) }' <(numbers valid/loss added)
}

@test "several ranks equal one" {
    with_mpi
    train_single
    train added-one --set model_provider.residual=true --set trainer.run.steps=10
    for axis in data_parallel_shard data_parallel_replicate; do
        mpi -n 2 d9d-train -q --device cpu --set mesh.$axis=2 --set trainer.run.dir=$axis train.json
        close_to 1e-5 <(numbers loss $axis) <(numbers loss alone)
        mpi -n 2 d9d-train -q --device cpu --set mesh.$axis=2 --set trainer.run.dir=added-$axis --set model_provider.residual=true \
            --set trainer.run.steps=10 train.json
        close_to 1e-5 <(numbers loss added-$axis) <(numbers loss added-one)
    done
}

@test "points of files are those of the plugin" {
    train_single
    cat >fields.json <<'JSON'
{"fields": [{"name": "x", "shape": [3]}, {"name": "y"}]}
JSON
    awk 'function draw() { return (state = state * 16807 % 2147483647) / 2147483647 }
        BEGIN { state = 2000006; for (i = 0; i < 4096; i++) {
        a = 2 * draw() - 1; b = 2 * draw() - 1; c = 2 * draw() - 1
        printf "{\"x\": [%.6f, %.6f, %.6f], \"y\": %.6f}\n", a, b, c, sin(2 * a) + b * c } }' >points.jsonl
    d9d-shard -q --format arrays --fields fields.json --out points points.jsonl
    train files --set data.source=null --set data.dataset=points
    awk '{ exit !($1 < 0.02) }' <(numbers valid/loss files)
    d9d-shard -q --format arrays --fields <(echo '{"fields": [{"name": "x", "shape": [3]}]}') --out halves points.jsonl
    run -2 train none --set data.source=null --set data.dataset=halves
    assert_output --partial 'task wants the field "y" of halves, which has only "x"'
    [ ! -e none ]
}

@test "predictions stand beside the fields of their samples, on one rank and two" {
    with_mpi
    train_single
    cat >infer.json <<'JSON'
{"plugin": "libregression.so",
 "data": {"dataset": "others", "source": {"name": "surface", "samples": 50, "seed": 1}},
 "model_provider": {"name": "mlp", "features": 3, "hidden_size": 32},
 "trainer": {"batching": {"microbatch_size": 4}, "model_stage_factory": {"source_checkpoint": "alone/export"}},
 "task": {"name": "regression", "output": "out.jsonl"}}
JSON
    d9d-infer -q --device cpu infer.json
    awk -F'[:,}]' 'function abs(x) { return x < 0 ? -x : x } { bad += abs($4 - $6) > 0.5 } END { exit !(NR == 50 && bad < 3) }' out.jsonl
    mv out.jsonl one.jsonl
    mpi -n 2 d9d-infer -q --device cpu --set mesh.data_parallel_replicate=2 infer.json
    cmp one.jsonl out.jsonl
}

@test "images of files are told apart" {
    # A bar at row or column k of 8 x 8 pixels, with noise: class k.
    awk 'function draw() { return (state = state * 16807 % 2147483647) / 2147483647 }
        BEGIN { state = 4000012; for (i = 0; i < 2048; i++) {
        k = int(16 * draw()); row = ""
        for (p = 0; p < 64; p++) {
            on = k < 8 ? int(p / 8) == k : p % 8 == k - 8
            row = row (p % 8 ? ", " : p ? "], [" : "[[") int(120 * draw() + 120 * on) }
        printf "{\"x\": %s]], \"bar\": %d}\n", row, k } }' >bars.jsonl
    d9d-shard -q --format arrays --label-key bar --split valid=256 --out bars bars.jsonl \
        --fields <(echo '{"fields": [{"name": "x", "dtype": "U8", "shape": [8, 8]}]}')
    train images --set data.source=null --set data.dataset=bars --set 'task={"name": "classes"}' --set evaluation.data.source=null \
        --set evaluation.data.dataset=bars --set evaluation.data.split=valid \
        --set model_provider.features=64 --set model_provider.outputs=16 --set model_provider.input_scale=0.004 \
        --set 'evaluation.metrics=[{"name": "accuracy", "problem": "multiclass", "num_classes": 16}]'
    awk '{ exit !($1 > 0.95) }' <(numbers valid/accuracy images)
}

@test "--plan has the peak memory to the byte, and plans for a GPU" {
    train_single
    peak=$(numbers mem_bytes alone | sort -n | tail -n 1)
    run -0 d9d-train --plan --gpu cpu --json train.json
    assert_equal "$(sed -n 's/^ *"peak": \([0-9]*\),$/\1/p' <<<"$output")" "$peak"
    run -0 d9d-train --plan --gpu h100 -q train.json
}
