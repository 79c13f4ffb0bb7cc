#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of topology.bash
# A rank of d9d-infer is killed or hangs.  The others end soon, the rank is named with its call, and
# a rerun resumes from what was written.

load ../slurm/helper

load ../multirank/topology

setup() { with_mpi && enter && struck d9d-infer; }

# infer OPTION...: runs d9d-infer on two ranks, which write out.jsonl.
infer() { mpi -n 2 d9d-infer -q --device cpu "$@" i.json; }

# figures: what a summary has of all samples.
figures() { jq -c 'del(.first_sample, .tokens_per_s)'; }

# each_way OPTION...: kills a rank, then stops one; each time the rerun's output equals an undisturbed run.
each_way() {
    local way end
    rm -f out.jsonl
    infer "$@" --json | figures >whole.json
    [ ! -e out.jsonl.flight ]
    mv out.jsonl whole.jsonl
    for way in "KILL gone 300" "STOP stopped 4"; do
        read -r signal state limit <<<"$way"
        rm -f pid.* out.jsonl*
        infer "$@" --set "trainer.timeout.init_timeout=$limit" 2>err &
        wait_for eval 'has_lines "$(echo out.jsonl.part-*)" 3'
        strike "$signal"
        end=0
        wait $! || end=$?
        [ $end -ne 0 ]
        [ ! -e out.jsonl ]
        d9d-metrics flight out.jsonl.flight >report
        [ "$signal" = STOP ] || named report "$state"
        [ "$signal" = KILL ] || named err "$state"
        cp out.jsonl.flight/rank-{0,2}.bin # as left by a run with more ranks
        infer "$@" --json --set "trainer.timeout.init_timeout=$limit" | figures >resumed.json
        cmp out.jsonl whole.jsonl
        cmp resumed.json whole.json
        [ "$(echo out.jsonl*)" = out.jsonl ]
    done
}

@test "a killed or hanging rank ends generation, and a rerun resumes" {
    for _ in $(seq 20); do cat "$golden/moe/generate.jsonl"; done >prompts.jsonl
    cat >i.json <<JSON
{"model_provider": {"name": "qwen3_moe", "hf_config": "$golden/moe/config.json"},
 "trainer": {"batching": {"microbatch_size": 2}, "model_stage_factory": {"source_checkpoint": "$golden/moe"}},
 "task": {"name": "generate", "output": "out.jsonl", "prompts": "prompts.jsonl", "max_new_tokens": 64,
   "stop_at_eos": false}}
JSON
    each_way --set mesh.tensor_parallel=2
}

@test "a killed or hanging rank ends scoring, and a rerun resumes" {
    cat >i.json <<JSON
{"data": {"dataset": "many"},
 "model_provider": {"name": "qwen3_moe", "hf_config": "$golden/moe/config.json"},
 "trainer": {"batching": {"microbatch_size": 2}, "model_stage_factory": {"source_checkpoint": "$golden/moe"}},
 "task": {"name": "logprobs", "output": "out.jsonl"}}
JSON
    for _ in $(seq 30); do cat "$golden/moe/train.jsonl"; done | d9d-shard -q --format tokens --out many -
    each_way --set mesh.data_parallel_shard=2 --set mesh.expert_parallel=2 --set 'metrics=[{"name": "mean"}, {"name": "max"}]'
}

@test "a file with the name of a progress record is not removed" {
    for _ in $(seq 4); do cat "$golden/moe/generate.jsonl"; done >prompts.jsonl
    cat >i.json <<JSON
{"model_provider": {"name": "qwen3_moe", "hf_config": "$golden/moe/config.json"},
 "trainer": {"batching": {"microbatch_size": 2}, "model_stage_factory": {"source_checkpoint": "$golden/moe"}},
 "task": {"name": "generate", "output": "out.jsonl", "prompts": "prompts.jsonl", "max_new_tokens": 4,
   "stop_at_eos": false}}
JSON
    rm -rf out.jsonl*
    mkdir out.jsonl.flight && echo mine >out.jsonl.flight/rank-2.bin
    infer --set mesh.tensor_parallel=2
    assert_equal "$(cat out.jsonl.flight/rank-2.bin)" mine
    rm -f out.jsonl && mv out.jsonl.flight/rank-{2,1}.bin
    run infer --set mesh.tensor_parallel=2
    assert_equal "$(cat out.jsonl.flight/rank-1.bin)" mine
}
