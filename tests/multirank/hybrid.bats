#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# A hybrid model of linear attention and attention, examples/plugins/hybrid.c: training, resuming,
# ranks, generation.

golden=$BATS_TEST_DIRNAME/../golden/llama

load workroom

setup_file() {
    workroom
    plugin hybrid "$root/examples/plugins/hybrid.c"
    d9d-shard -q --format tokens --pack 96 --out data "$golden/tokens.jsonl"
    vocab=$(grep -oE '"vocab_size": *[0-9]+' "$golden/config.json")
    cat >hybrid.json <<JSON
{"model_type": "hybrid", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "full_attention_interval": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "linear_num_key_heads": 2,
 "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
 "linear_conv_kernel_dim": 4, $vocab, "max_position_embeddings": 128}
JSON
    cat >train.json <<JSON
{"plugin": "libhybrid.so", "data": {"dataset": "data", "epochs": 100},
 "model_provider": {"name": "hybrid", "hf_config": "hybrid.json"},
 "trainer": {"run": {"name": "hybrid", "steps": 20}, "batching": {"global_batch_size": 4},
  "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-2}}
JSON
}

train() { d9d-train -q --device cpu --set "trainer.run.dir=$1" "${@:2}" train.json; }
# train_single: the reference run of one rank.
train_single() { [ -d alone ] || train alone; }

@test "the hybrid model trains" {
    run -0 train_single
    numbers loss alone | awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(NR == 20 && last < 0.7 * first) }'
}

@test "a resumed run has the same bits" {
    train_single
    train part --set trainer.run.steps=9
    rm -rf part/export
    train part
    cmp {alone,part}/export/model.safetensors
}

@test "activation checkpointing has the same bits" {
    train_single
    for mode in full selective; do
        train again-$mode --set model_provider.checkpointing=$mode
        cmp {alone,again-$mode}/export/model.safetensors
    done
}

@test "several ranks equal one" {
    with_mpi
    train_single
    mpi -n 2 d9d-train -q --device cpu --set mesh.data_parallel_shard=2 --set trainer.run.dir=ranks \
        --set trainer.run.steps=5 train.json
    close_to 1e-5 <(numbers loss ranks) <(numbers loss alone | head -n 5)
}

@test "pipeline stages equal one rank" {
    with_mpi
    train_single
    mpi -n 2 d9d-train -q --device cpu --set mesh.pipeline_parallel=2 --set trainer.run.dir=stages \
        --set 'trainer.pipelining.schedule={"schedule": "zero_bubble_v"}' --set trainer.run.steps=5 train.json
    close_to 1e-5 <(numbers loss stages) <(numbers loss alone | head -n 5)
}

# The plan assumes documents of mean length, but the longest ones are measured.
@test "--plan covers the gated delta rule and the convolutions" {
    train_single
    measured=$(sed -n 's/.*"mem_bytes": \([0-9]*\).*/\1/p' alone/metrics.jsonl | sort -n | tail -n 1)
    planned=$(d9d-train --plan --gpu cpu --json train.json | sed -n 's/^ *"peak": \([0-9]*\),$/\1/p')
    echo "# planned $planned, measured $measured" >&3
    awk -v p="$planned" -v m="$measured" 'BEGIN { exit !(m > 0 && p <= 1.05 * m && p >= 0.95 * m) }'
}

@test "export merges adapters, also where HuggingFace has no name for a matrix" {
    for dropped in false true; do # checkpoints of all weights, or of trained ones only
        train tuned --set trainer.run.steps=2 --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=$dropped \
            --set 'peft={"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 2, "alpha": 16}}'
        [ -s tuned/export/model.safetensors ]
        rm -r tuned
    done
}

# generate OUT PROMPTS TOKENS RANKS [OPTION...]: decodes greedily with the weights of `alone`.
generate() {
    local out=$1 prompts=$2 tokens=$3 ranks=$4 launch=()
    train_single
    cat >g.json <<JSON
{"plugin": "libhybrid.so", "model_provider": {"name": "hybrid", "hf_config": "hybrid.json"},
 "trainer": {"batching": {"microbatch_size": 3},
   "model_stage_factory": {"source_checkpoint": "alone/export"}},
 "task": {"name": "generate", "output": "$out", "prompts": "$prompts", "max_new_tokens": $tokens,
   "stop_at_eos": false}}
JSON
    rm -f "$out"
    [ "$ranks" = 1 ] || launch=(mpi -n "$ranks")
    "${launch[@]}" d9d-infer -q --device cpu "${@:5}" g.json
}
# Prompts of 9, 17, 6, 12 and more tokens.
prompts() { head -n 5 "$golden/tokens.jsonl"; }
tokens() { sed 's/.*"tokens": \[//; s/\].*//' "$1"; }

@test "generation does not depend on the batch, and equals prefilling the grown prompt for each token" {
    prompts >p.jsonl
    generate three.jsonl p.jsonl 24 1
    [ "$(tokens three.jsonl | sort -u | wc -l)" -gt 1 ]
    generate one.jsonl p.jsonl 24 1 --set trainer.batching.microbatch_size=1
    cmp one.jsonl three.jsonl
    sed -n 2p p.jsonl >grown.jsonl
    for _ in 1 2 3 4 5 6; do
        generate next.jsonl grown.jsonl 1 1
        sed -i "s/\]}\$/, $(tokens next.jsonl)]}/" grown.jsonl
    done
    grep -qF "$(tokens three.jsonl | sed -n 2p | cut -d, -f1-6)]" grown.jsonl
}

@test "generation on several ranks and stages equals one rank" {
    with_mpi
    prompts >p.jsonl
    generate one.jsonl p.jsonl 24 1
    generate ranks.jsonl p.jsonl 24 2 --set mesh.data_parallel_shard=2
    cmp one.jsonl ranks.jsonl
    generate stages.jsonl p.jsonl 24 2 --set mesh.pipeline_parallel=2
    cmp one.jsonl stages.jsonl
}
