#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Generation on many ranks: the tokens of transformers, and of one rank, in the same order.

load ../slurm/helper

load topology

# infer CASE RANKS [OPTION...]: writes out.jsonl, by greedy decoding unless options change it.
infer() {
    local case=$1 ranks=$2 name=qwen3_dense
    shift 2
    [[ $case != moe* ]] || name=qwen3_moe
    [[ $case != families/* ]] || name=auto
    cat >g.json <<JSON
{"model_provider": {"name": "$name", "hf_config": "$golden/$case/config.json"},
 "trainer": {"batching": {"microbatch_size": 2},
   "model_stage_factory": {"source_checkpoint": "$golden/$case"}},
 "task": {"name": "generate", "output": "out.jsonl", "prompts": "$golden/$case/generate.jsonl",
   "max_new_tokens": 64, "stop_at_eos": false}}
JSON
    rm -f out.jsonl
    D9D_COMM_CHECK=1 mpi -n "$ranks" d9d-infer -q --device cpu "$@" g.json
}
tokens() { sed 's/.*"tokens": \[//; s/\].*//' "$1"; }
same() { diff <(tokens out.jsonl) <(tokens "$golden/$1/generate.jsonl"); }

@test "dense models, tied and untied, generate the same with tensor and data parallelism on four ranks" {
    infer dense_untied 4 --set mesh.tensor_parallel=2 --set mesh.data_parallel_shard=2
    same dense_untied
    infer dense_tied 4 --set mesh.tensor_parallel=4
    same dense_tied
    infer dense_untied 3 --set mesh.data_parallel_replicate=3
    same dense_untied
}

@test "a MoE model generates the same with tensor, expert and data parallelism on four ranks" {
    infer moe 4 --set mesh.tensor_parallel=2 --set mesh.data_parallel_shard=2 --set mesh.expert_parallel=4
    same moe
    infer moe 4 --set mesh.tensor_parallel=2 --set mesh.data_parallel_replicate=2 --set mesh.expert_parallel=2
    same moe
    infer moe_mixed_tied 3 --set mesh.data_parallel_shard=3 --set mesh.expert_parallel=3
    same moe_mixed_tied
}

@test "families with a norm over all heads or with scale factors generate the same with fewer and more ranks than key-value heads" {
    local of_families=(--set task.max_new_tokens=6)
    infer families/olmo2 2 "${of_families[@]}" --set mesh.tensor_parallel=2
    same families/olmo2
    infer families/olmo2 4 "${of_families[@]}" --set mesh.tensor_parallel=4
    same families/olmo2
    infer families/minimax_m2_one 4 "${of_families[@]}" --set mesh.tensor_parallel=4
    same families/minimax_m2_one
    infer families/granite 4 "${of_families[@]}" --set mesh.pipeline_parallel=2 --set mesh.tensor_parallel=2
    same families/granite
}

@test "a prefix mask generates the same with tensor, pipeline and data parallelism" {
    infer families/llama_prefix 4 --set task.max_new_tokens=6 --set mesh.tensor_parallel=2 --set mesh.pipeline_parallel=2
    same families/llama_prefix
    infer families/gpt_oss_prefix 3 --set task.max_new_tokens=6 --set mesh.data_parallel_shard=3
    same families/gpt_oss_prefix
}

# Sums of tensor parallelism are rounded otherwise, and so may a code be.
@test "a KV cache in fp8 has the tokens of one rank over a pipeline and shards, and over heads those that begin alike" {
    fp8=(--set task.kv_cache_dtype=fp8 --set task.max_new_tokens=20)
    infer dense_untied 1 "${fp8[@]}"
    mv out.jsonl one.jsonl
    infer dense_untied 4 "${fp8[@]}" --set mesh.pipeline_parallel=2 --set mesh.data_parallel_shard=2
    cmp out.jsonl one.jsonl
    infer dense_untied 2 "${fp8[@]}" --set mesh.tensor_parallel=2
    diff <(tokens out.jsonl | cut -d, -f1-3) <(tokens one.jsonl | cut -d, -f1-3)
}

@test "sampled tokens equal one rank, also with more ranks than samples" {
    warm=(--set task.temperature=1.2 --set task.top_p=0.9 --set task.seed=3)
    infer moe 1 "${warm[@]}"
    cp out.jsonl one.jsonl
    infer moe 4 "${warm[@]}" --set mesh.data_parallel_shard=4 --set mesh.expert_parallel=2
    cmp out.jsonl one.jsonl
    head -n 2 "$golden/moe/generate.jsonl" >two.jsonl
    infer moe 4 "${warm[@]}" --set mesh.data_parallel_shard=4 --set mesh.expert_parallel=2 --set task.prompts=two.jsonl
    diff out.jsonl <(head -n 2 one.jsonl)
    infer moe 1 "${warm[@]}" --set task.repetition_penalty=1.3
    cp out.jsonl one.jsonl
    infer moe 4 "${warm[@]}" --set task.repetition_penalty=1.3 --set mesh.data_parallel_shard=4 --set mesh.expert_parallel=2 --set task.prompts=two.jsonl
    diff out.jsonl <(head -n 2 one.jsonl)
}

@test "generation over pipeline stages equals one rank, alone and with tensor, data and expert parallelism" {
    infer dense_tied 2 --set mesh.pipeline_parallel=2
    same dense_tied
    # A configuration of training may have any schedule: two layers are no four stages.
    infer dense_tied 2 --set mesh.pipeline_parallel=2 --set trainer.pipelining.schedule.schedule=zero_bubble_v
    same dense_tied
    infer dense_untied 4 --set mesh.pipeline_parallel=2 --set mesh.tensor_parallel=2
    same dense_untied
    infer moe 4 --set mesh.pipeline_parallel=2 --set mesh.data_parallel_shard=2 --set mesh.expert_parallel=2
    same moe
    infer moe 1 --set task.temperature=1.2 --set task.seed=3 --set task.repetition_penalty=1.2
    cp out.jsonl one.jsonl
    infer moe 2 --set mesh.pipeline_parallel=2 --set task.temperature=1.2 --set task.seed=3 --set task.repetition_penalty=1.2
    cmp out.jsonl one.jsonl
}

@test "generation rejects context parallelism" {
    run infer moe 2 --set mesh.context_parallel_shard=2
    [ "$status" -eq 2 ]
    [[ "$output" == *'context parallelism is not supported'* ]]
}
