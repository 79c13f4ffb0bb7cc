#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# docs/howto/from-pytorch-examples.md on several ranks: parallelism, and what ranks tell each other.

load workroom

setup_file() {
    workroom
    awk 'BEGIN { for (a = 1; a < 300; a++) printf "{\"text\": \"%d and %d make %d.\"}\n", a, a + 1, 2 * a + 1 }' >corpus.jsonl
    d9d-shard -q --tokenizer "$root/examples/tokenizer/tokenizer.json" --out dataset corpus.jsonl
    sed -e 's/"split": "train", //' -e 's/"looped_bfs", "num_stages_per_rank": 1/"1f1b"/' -e 's/"tracker": {[^}]*}/"tracker": null/' \
        -e 's/"export_to": "model_export"/"export_to": null/' -e 's/"name": "qwen3-moe-pretrain",/"name": "x", "steps": 4,/' -e 's/"period_steps": 5/"period_steps": 1/' \
        -e 's/"name": "stochastic_adamw", "lr": 5e-03, "state_dtype": "bfloat16"/"name": "adamw", "lr": 5e-3/' -e 's/"save_dir": "saves", //' \
        "$root/examples/from-pytorch/pretrain.json" >train.json
    alone one
}
alone() { d9d-train -q --device cpu --set model_provider.dtype=float32 --set trainer.run.dir="$1" "${@:2}" train.json; }
# on N DIR [OPTION...]: trains on N ranks.
on() { mpi -n "$1" d9d-train -q --device cpu --set model_provider.dtype=float32 --set trainer.run.dir="$2" "${@:3}" train.json; }

@test "replicas, shards, both, experts and stages have the losses of one rank" {
    with_mpi
    local n=0 mesh
    for mesh in data_parallel_replicate=2 data_parallel_shard=2 "data_parallel_replicate=2 data_parallel_shard=2" \
        "data_parallel_shard=2 expert_parallel=2" pipeline_parallel=2; do
        n=$((n + 1))
        meshed on "$mesh" "mesh$n"
        close_to 1e-4 <(numbers loss "mesh$n") <(numbers loss one)
    done
}

@test "ranks gather texts and arrays, and an event carries the result" {
    plugin ranks "$root/examples/plugins/ranks.c"
    sed -i 's|^{|{"plugin": "libranks.so",|' train.json
    alone single
    [ "$(numbers ranks/sum single)" = 1.0 ] # 1
    run -0 d9d-metrics values single
    assert_output --partial "ranks/hosts"
    with_mpi
    meshed on tensor_parallel=2 two
    [ "$(numbers ranks/sum two)" = 4.0 ] # 1 + 1 + 2
    grep -q 'rank 0 is on .*\\nrank 1 is on ' two/metrics.jsonl
}

@test "the quickstart has the losses of one rank on two, replicated and sharded" {
    plugin regression "$root/examples/plugins/regression.c"
    sh "$root/examples/from-pytorch/points.sh" 4096 |
        d9d-shard -q --format arrays --fields <(echo '{"fields": [{"name": "x", "shape": [16]}, {"name": "y"}]}') --out points -
    cp "$root/examples/from-pytorch/quickstart.json" .
    quickstart() {
        ${3:+mpi -n "$1"} d9d-train -q --device cpu --set trainer.run.dir="$2" --set export_to=null --set trainer.checkpointing.save_dir=null \
            --set trainer.logging.period_steps=1 "${@:3}" quickstart.json
    }
    quickstart 1 quick
    awk 'NR == 1 { first = $1 } END { exit !(NR == 16 && $1 < 0.8 * first) }' <(numbers loss quick)
    with_mpi
    for mesh in data_parallel_replicate=2 data_parallel_shard=2; do
        meshed quickstart "$mesh" "quick-$mesh"
        close_to 1e-5 <(numbers loss "quick-$mesh") <(numbers loss quick)
    done
}
