#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034 # variables of bats and of topology.bash
# FSDP that gathers weights in 8 bits: every bit of a run is that of gathers in the model's type,
# after which all ranks quantise.

load ../slurm/helper
layers=4 eps=1e-3 steps=4
load topology

setup_file() {
    workroom
    d9d-shard -q --format tokens --out data "$golden/moe/train.jsonl"
    configure dense 64 '"intermediate_size": 96' >dense.json
    configure moe 32 '"intermediate_size": 48, "num_experts": 8, "experts_top_k": 3,
        "shared_expert": {"intermediate_size": 32, "enable_gate": true}' >moe.json
}

fp8() { printf 'trainer.fp8={"recipe": "%s", "experts": true, "fsdp_float8_all_gather": %s}' "$1" "$2"; }
history_of() { grep '"loss"' "$1/metrics.jsonl" | sed 's/, "step_ms".*//'; }
bits() { diff <(history_of "$1") <(history_of "$2") && diff -r "$1/export" "$2/export" && cmp "$1/samples.jsonl" "$2/samples.jsonl"; }

# changes_no_bit MODEL RECIPE MESH [OPTION...]
changes_no_bit() {
    local model=$1 recipe=$2 on=$3
    shift 3
    rm -rf wide narrow
    train "$model" "$on" wide --set "$(fp8 "$recipe" false)" "$@"
    train "$model" "$on" narrow --set "$(fp8 "$recipe" true)" "$@"
    bits narrow wide || { echo "mesh $on, $recipe $*"; return 1; }
}
schedule() { printf 'trainer.pipelining.schedule={"schedule": "%s"}' "$1"; }

@test "FSDP over 2, 4 and 8 ranks" {
    changes_no_bit dense rowwise "1 2 1 1 1 1"
    changes_no_bit dense tensorwise "1 4 1 1 1 1"
    changes_no_bit dense rowwise "1 8 1 1 1 1"
}

@test "shards of unequal size, over ranks of context parallelism" {
    changes_no_bit dense rowwise "1 1 3 1 1 1"
    changes_no_bit dense tensorwise "1 1 3 1 1 1"
}

@test "HSDP, tensor parallelism, pipelines" {
    changes_no_bit dense rowwise "2 2 1 1 1 1"
    changes_no_bit dense rowwise "1 2 1 1 2 1"
    changes_no_bit dense tensorwise "1 2 1 1 2 1"
    changes_no_bit dense rowwise "1 2 1 1 1 1 2" --set "$(schedule zero_bubble_v)"
}

@test "experts, divided along any dimension" {
    changes_no_bit moe rowwise "1 4 1 1 1 2"
    changes_no_bit moe tensorwise "1 2 1 1 1 1"
    changes_no_bit moe rowwise "1 3 1 1 1 1" --set trainer.batching.global_batch_size=6
    changes_no_bit moe rowwise "1 8 1 1 1 1"
}

@test "activation checkpointing reads copies that backward does not" {
    local of recipe
    for of in full selective; do
        for recipe in rowwise tensorwise; do
            changes_no_bit dense $recipe "1 2 1 1 1 1" --set model_provider.checkpointing=$of
        done
    done
    changes_no_bit moe rowwise "1 2 1 1 1 2" --set model_provider.checkpointing=full
}

@test "weights that stay unsharded for longer, and units ahead" {
    local -a sharding=(--set trainer.sharding.reshard_after_forward=false)
    changes_no_bit dense rowwise "1 2 1 1 1 1" "${sharding[@]}"
    changes_no_bit dense tensorwise "1 2 1 1 1 1" "${sharding[@]}" --set trainer.sharding.reshard_after_backward=false \
        --set trainer.gradient_manager.reduce=step
    changes_no_bit moe rowwise "1 2 1 1 1 2" --set trainer.sharding.prefetch=2
    D9D_P2P=force changes_no_bit dense rowwise "1 2 1 1 1 1" --set trainer.sharding.prefetch=0
}

@test "adapters, and evaluations of weights and of their average" {
    local -a valid=(--set 'evaluation=[{"data": {"dataset": "data"}, "period_steps": 2, "samples": 6, "microbatch_size": 2}]')
    adapter() { printf 'peft={"kind": "%s", "module_name_pattern": "all-linear", "params": {"r": 3, "alpha": 12}}' "$1"; }
    changes_no_bit moe rowwise "1 2 1 1 1 2" --set "$(adapter lora)"
    changes_no_bit dense tensorwise "1 2 1 1 2 1" --set "$(adapter dora)" # whose norms read the matrices
    changes_no_bit dense rowwise "1 2 1 1 1 1" "${valid[@]}" --set 'trainer.ema={"decay": 0.5, "start_step": 1}'
    evaluations_of() { grep '"evaluation"' "$1/metrics.jsonl" | sed 's,/ms": .*,,'; }
    evaluations_of wide | grep -q valid/loss
    diff <(evaluations_of narrow) <(evaluations_of wide)
}

@test "a run in bfloat16 that resumes, on other ranks too" {
    local -a keep=(--set trainer.checkpointing.period_steps=2 --set model_provider.dtype=bfloat16)
    changes_no_bit dense rowwise "1 4 1 1 1 1" "${keep[@]}"
    rm -rf narrow/export narrow/checkpoints/step-00000004
    train dense "1 4 1 1 1 1" narrow --set "$(fp8 rowwise true)" "${keep[@]}"
    diff -r narrow/export wide/export
    rm -rf narrow/export narrow/checkpoints/step-00000004
    train dense "1 1 1 1 1 1" narrow --set "$(fp8 rowwise true)" "${keep[@]}" # nothing is gathered
}

@test "answers that are sampled while a model trains, from latent caches too" {
    local examples=$BATS_TEST_DIRNAME/../../examples
    sh "$examples/grpo/sums.sh" >sums.jsonl
    d9d-shard -q -t "$examples/tokenizer/tokenizer.json" --template "$examples/grpo/plain.jinja" --format chat -o sums sums.jsonl
    small_deepseek latent 2 4 2048
    cat >answers.json <<'JSON'
{"data": {"dataset": "sums", "order": "shuffled"},
 "task": {"name": "grpo", "num_generations": 4, "max_completion_length": 5, "log_completions": 8,
   "rewards": [{"name": "length", "target": 3}]},
 "model_provider": {"name": "auto", "hf_config": "latent", "dtype": "float32"},
 "trainer": {"run": {"name": "answers", "steps": 3}, "batching": {"global_batch_size": 8, "microbatch_size": 2}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
    changes_no_bit answers rowwise "1 2 1 1 1 1"
    cmp narrow/completions.jsonl wide/completions.jsonl
    changes_no_bit answers tensorwise "1 2 1 1 2 2"
}

@test "--plan has the memory of copies that are gathered, to the byte" {
    local recipe of
    awk 'BEGIN { for (i = 0; i < 32; i++) {
        for (j = 0; j < 65; j++) printf "%s%d", j ? ", " : "{\"input_ids\": [", (7 * i + j * j) % 157; print "]}" } }' |
        d9d-shard -q --format tokens --out even -
    for recipe in rowwise tensorwise; do
        for of in off full; do
            local -a options=(--set "$(fp8 $recipe true)" --set data.dataset=even --set "model_provider.checkpointing=$of")
            rm -rf run
            train dense "1 4 1 1 1 1" run "${options[@]}"
            run -0 --separate-stderr d9d-train --plan --gpu cpu --json "${options[@]}" --set mesh.data_parallel_shard=4 dense.json
            assert_equal "$recipe $of $(sed -n 's/^ *"peak": \([0-9]*\),$/\1/p' <<<"$output")" "$recipe $of $(numbers mem_bytes run | sort -n | tail -n 1)"
        done
    done
}

@test "--plan counts a layer's buffers in 8 bits" {
    local all=$((2 * 64 * 32 + 2 * 32 * 32 + 3 * 96 * 32))
    buffers() { # RECIPE GATHERS-8-BITS
        d9d-train --plan --gpu cpu --json --set "$(fp8 "$1" "$2")" --set mesh.data_parallel_shard=4 \
            --set model_provider.dtype=bfloat16 dense.json | sed -n 's/^ *"fsdp_buffers": \([0-9]*\),$/\1/p'
    }
    assert_equal $(($(buffers rowwise false) - $(buffers rowwise true))) $all # a byte an element in place of two
    assert_equal "$(buffers tensorwise false)" "$(buffers tensorwise true)"   # the bytes and their transpose
}
