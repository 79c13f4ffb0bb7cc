#!/usr/bin/env bats
# Context parallelism: the result of all ranks together is that of each rank alone.

load ../slurm/helper
load launch

setup_file() { no_launcher; }

setup() { with_mpi; }

export D9D_COMM_CHECK=1

driver=$D9D_BUILD/tests/multirank/context_driver

@test "one rank holds all chunks" { all_well 1 "$driver" 1; }
@test "two ranks equal one" { all_well 2 "$driver" 1; }
@test "three ranks equal one" { all_well 3 "$driver" 1; }
@test "four ranks on two axes equal one" { all_well 4 "$driver" 2; }

@test "staging buffers in peer memory give the same results" {
    export D9D_P2P=force
    for n in 2 3; do all_well $n "$driver" 1; done
    D9D_COMM_CHECK=0 all_well 4 "$driver" 2
}

# log_probs OUTPUT OPTION...: scores packed rows, on as many ranks as `ranks` says.
log_probs() {
    local launch=()
    [ "${ranks:-1}" -eq 1 ] || launch=(mpi -n "$ranks")
    "${launch[@]}" d9d-infer -q --device cpu --set task.output="$1" "${@:2}" c.json
}

rows_to_score() {
    cd "$BATS_TEST_TMPDIR" || return 1
    golden=$BATS_TEST_DIRNAME/../golden/moe
    PATH=$D9D_BIN:$PATH
    d9d-shard -q --format tokens --pack 70 --out data "$golden/train.jsonl"
    cat >c.json <<JSON
{"data": {"dataset": "data"},
 "model_provider": {"name": "qwen3_moe", "hf_config": "$golden/config.json"},
 "trainer": {"batching": {"microbatch_size": 2},
   "model_stage_factory": {"source_checkpoint": "$golden"}},
 "task": {"name": "logprobs", "output": "unset.jsonl"}}
JSON
    log_probs one.jsonl
}

@test "log-probabilities of rows split over ranks have the bits of one rank" {
    rows_to_score
    for mesh in "2 shard=2 replicate=1" "3 shard=1 replicate=3"; do
        read -r ranks shard replicate <<<"$mesh"
        log_probs some.jsonl --set "mesh.context_parallel_$shard" --set "mesh.context_parallel_$replicate"
        cmp one.jsonl some.jsonl
        rm some.jsonl
    done
}

@test "log-probabilities of a ring are those of one rank" {
    rows_to_score
    ranks=3 log_probs ring.jsonl --set mesh.context_parallel_shard=3 --set mesh.context_parallel_method=ring
    paste <(grep -oE -e '-?[0-9]+\.[0-9e-]+' one.jsonl) <(grep -oE -e '-?[0-9]+\.[0-9e-]+' ring.jsonl) |
        awk '{ d = $1 - $2; n++; if ((d < 0 ? -d : d) > 1e-5 * (1 + ($1 < 0 ? -$1 : $1))) { print; bad = 1 } } END { exit bad || n < 100 }'
}
