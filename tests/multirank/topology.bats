#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034 # variables of bats and of topology.bash
# One training run on many meshes: losses, norms and weights are those of one rank.
#
# A mesh is a line "replicate shard context_shard context_replicate tensor expert".  A few run by
# default; D9D_LONG=1 runs all of up to 8 ranks that divide the models and the batch.

load ../slurm/helper

# Every step takes every path, and the second begins with what an update has left.
steps=5
[ -z "${D9D_LONG:-}" ] || steps=10 # an epoch
load topology

dense_meshes="2 1 1 1 1 1,1 2 1 1 1 1,1 1 1 1 2 1,1 1 1 1 8 1,1 1 2 1 1 1,2 2 1 1 1 1,1 2 1 1 2 1"
moe_meshes="1 2 1 1 1 2,2 1 1 1 1 2,2 2 1 1 1 2,2 4 1 1 1 2,2 2 1 1 1 1,1 1 1 2 2 4"

# divides MODEL: lists the meshes of up to 8 ranks that divide MODEL and batches of 8.
divides() {
    local r s cs cr tp ep n
    for r in 1 2 4 8; do for s in 1 2 4 8; do for cs in {1..8}; do for cr in {1..8}; do for tp in 1 2 4 8; do
        n=$((r * s * cs * cr * tp))
        ((n > 1 && n <= 8 && r * s <= 8)) || continue
        for ep in 1 2 4 8; do
            ((n % ep == 0)) || continue
            [ "$1" = moe ] || [ $ep = 1 ] || continue
            printf '%s,' "$r $s $cs $cr $tp $ep"
        done
    done; done; done; done; done
}

# all MODEL LIST: compares every mesh of LIST with one rank.
all() {
    local model=$1 list=$2 mesh n=0 bad=0
    [ -z "${D9D_LONG:-}" ] || list=$(divides "$model")
    while read -r mesh; do
        rm -rf run
        n=$((n + 1))
        if ! { train "$model" "$mesh" run && same run "$model"; }; then
            echo "mesh $mesh: not the run of one rank"
            bad=$((bad + 1))
        fi
    done < <(tr , '\n' <<<"$list" | sed '/^$/d')
    echo "# $model: $n topologies" >&3
    [ "$n" -gt 0 ] && [ "$bad" -eq 0 ]
}

@test "a dense model equals one rank on many meshes" { all dense "$dense_meshes"; }
@test "a MoE model equals one rank on many meshes" { all moe "$moe_meshes"; }

@test "gradient reduction, resharding and activation checkpointing options equal one rank" {
    rm -rf run
    train dense "1 2 1 1 1 1" run --set trainer.gradient_manager.reduce=step
    same run dense
    rm -rf run
    train dense "2 2 1 1 1 1" run --set trainer.sharding.reshard_after_forward=false
    same run dense
    rm -rf run
    train moe "2 2 1 1 1 2" run --set trainer.sharding.reshard_after_backward=false --set trainer.sharding.prefetch=3
    same run moe
    rm -rf run
    train dense "1 2 1 1 1 1" run --set trainer.sharding.reshard_after_backward=false \
        --set trainer.gradient_manager.reduce=step --set trainer.sharding.prefetch=0
    same run dense
    rm -rf run
    D9D_COMM_CHECK=1 train moe "2 2 1 1 1 4" run --set model_provider.checkpointing=true --set trainer.gradient_manager.bucket_size_mb=1
    same run moe
}

@test "heads exchanged for positions equal one rank, alone and with tensor parallelism and pipelines" {
    local method=(--set mesh.context_parallel_method=all_to_all) mesh
    for mesh in "1 1 2 1 1 1" "1 2 1 4 1 1" "1 1 8 1 1 1" "1 1 2 2 2 1" "1 1 2 1 1 1 2"; do
        rm -rf run
        train dense "$mesh" run "${method[@]}" --set model_provider.checkpointing=true
        same run dense
    done
    for mesh in "1 1 2 2 1 1" "1 1 2 4 1 1" "1 1 2 2 2 1"; do
        rm -rf run
        train dense "$mesh" run --set mesh.context_parallel_method=all_to_all+all_gather
        same run dense
    done
    rm -rf run
    D9D_COMM_CHECK=1 train moe "1 2 2 1 1 4" run "${method[@]}" --set mesh.expert_parallel_local=2
    same run moe
    rm -rf run
    run -2 train dense "1 1 3 1 1 1" run "${method[@]}"
    assert_output --partial 'mesh.context_parallel_method "all_to_all": 3 ranks of context parallelism x tensor_parallel 1 do not divide num_attention_heads 8'
    run -2 train moe "1 4 1 1 1 4" run --set mesh.expert_parallel_local=3
    assert_output --partial "mesh: expert_parallel_local 3 does not divide expert_parallel 4"
}

@test "ring attention equals one rank, alone and with recomputation, tensor parallelism and pipelines" {
    local method=(--set mesh.context_parallel_method=ring) mesh
    for mesh in "1 1 2 1 1 1" "1 2 1 4 1 1" "1 1 2 1 2 1 2"; do
        rm -rf run
        train dense "$mesh" run "${method[@]}" --set model_provider.checkpointing=true
        same run dense
    done
    rm -rf run
    train dense "1 1 2 2 1 1" run --set mesh.context_parallel_method=all_to_all+ring
    same run dense
    rm -rf run
    D9D_COMM_CHECK=1 train moe "1 2 2 1 1 4" run "${method[@]}"
    same run moe
    OMP_NUM_THREADS=3 train moe "1 2 2 1 1 4" again "${method[@]}"
    for dir in run again; do grep -oE '"(loss|grad_norm)": *[^,}]+' "$dir/metrics.jsonl" >"$dir.numbers"; done
    [ -s run.numbers ]
    cmp run.numbers again.numbers
    "$driver" run/export again/export
    for file in run/export/*.safetensors; do cmp "$file" "again/export/${file##*/}"; done
}

@test "auto is one method on all ranks, which the log names" {
    local said
    rm -rf run
    mpi -n 4 d9d-train --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir=run --set mesh.context_parallel_shard=4 \
        --set mesh.context_parallel_method=auto dense.json >said 2>&1
    same run dense
    [ "$(grep -c 'context_parallel_method auto is [a-z_]*; all_gather: a step of ' said)" -eq 1 ]
    said=$(sed -n 's/.*context_parallel_method auto is \([a-z_]*\);.*/\1/p' said)
    rm -rf again
    train dense "1 1 4 1 1 1" again --set "mesh.context_parallel_method=$said"
    for dir in run again; do grep -oE '"(loss|grad_norm)": *[^,}]+' "$dir/metrics.jsonl" >"$dir.numbers"; done
    cmp run.numbers again.numbers
}

@test "tensor parallelism by staging buffers in peer memory equals one rank" {
    export D9D_P2P=force
    rm -rf run
    train dense "1 2 1 1 2 1" run --set model_provider.checkpointing=true
    same run dense
    rm -rf run
    train dense "1 1 1 1 8 1" run
    same run dense
    rm -rf run
    train moe "1 1 2 1 2 4" run
    same run moe
}

@test "fewer experts than ranks are sharded by rows" {
    few="--set model_provider.model.layer.num_experts=2 --set model_provider.model.layer.experts_top_k=1"
    # shellcheck disable=SC2086 # options
    d9d-train -q --device cpu --set trainer.run.dir=few $few moe.json
    for reduce in step micro_batch; do
        rm -rf run
        # shellcheck disable=SC2086
        train moe "1 4 1 1 1 1" run $few --set trainer.gradient_manager.reduce=$reduce
        same run few
    done
}

@test "a tied embedding equals one rank" {
    d9d-train -q --device cpu --set trainer.run.dir=tied --set model_provider.model.tie_word_embeddings=true dense.json
    for reduce in step micro_batch; do
        rm -rf run
        train dense "2 2 1 1 1 1" run --set model_provider.model.tie_word_embeddings=true \
            --set trainer.gradient_manager.reduce=$reduce
        same run tied
    done
}

@test "initial weights are the same bits on any mesh" {
    still="--set optimizer.lr=1e-30 --set trainer.run.steps=1"
    # shellcheck disable=SC2086 # options
    d9d-train -q --device cpu $still --set trainer.run.dir=init moe.json
    for mesh in "1 3 1 1 1 1" "1 2 1 1 2 2"; do
        rm -rf run
        # shellcheck disable=SC2086
        train moe "$mesh" run $still --set trainer.batching.global_batch_size=12
        cmp init/export/model.safetensors run/export/model.safetensors
    done
}

# At a learning rate too small to change weights, the master weights' residuals must stay the same.
@test "float32 master weights resume from mesh to mesh with the same bits" {
    on() { # MESH STEPS RATE
        rm -rf masters/export
        train dense "$1" masters --set model_provider.dtype=bfloat16 --set trainer.run.steps="$2" \
            --set "optimizer={\"name\": \"sgd\", \"lr\": $3}"
    }
    on "1 1 1 1 1 1" 4 0.1
    on "1 2 1 1 1 1" 5 1e-30
    on "2 1 1 1 2 1" 6 1e-30
    on "1 1 1 1 1 1" 7 1e-30
    for file in model optimizer; do
        cmp masters/checkpoints/step-0000000{4,7}/ranks-00000/$file-r00000.safetensors
    done
    LC_ALL=C grep -q master_residual masters/checkpoints/step-00000004/ranks-00000/optimizer-r00000.safetensors
    [ "$(tail -c 65536 masters/checkpoints/step-00000004/ranks-00000/optimizer-r00000.safetensors | tr -d '\0' | wc -c)" -gt 1000 ]
}

# Adam would turn gradients that are only rounding errors into full steps; a large eps prevents that.
@test "packed documents with context parallelism equal one rank" {
    pack="--set data.dataset=packed --set data.epochs=null --set trainer.batching.microbatch_size=2
        --set optimizer.eps=1e-6"
    d9d-shard -q --format tokens --pack 72 --out packed "$golden/moe/train.jsonl"
    # shellcheck disable=SC2086 # options
    for run in "dense 1 1 3 1 1 1" "moe 1 1 2 1 2 4"; do
        rm -rf alone run
        d9d-train -q --device cpu $pack --set trainer.run.dir=alone "${run%% *}.json"
        train "${run%% *}" "${run#* }" run $pack
        same run alone
    done
}

@test "sliding window layers with packed documents equal one rank" {
    d9d-shard -q --format tokens --pack 64 --out slides "$golden/dense_window/train.jsonl"
    sed -E "s|\"model\": \{.*|\"hf_config\": \"$golden/dense_window/config.json\"},|; /\"layer\": |\"rms_norm|\"rope_base|\"split_vocab/d" dense.json >window.json
    slides="--set data.dataset=slides --set data.epochs=null --set optimizer.eps=1e-6"
    # shellcheck disable=SC2086 # options
    d9d-train -q --device cpu $slides --set trainer.run.dir=slid window.json
    for mesh in "1 1 2 1 2 1" "1 2 1 1 1 1 2"; do
        rm -rf run
        # shellcheck disable=SC2086
        train window "$mesh" run $slides
        same run slid
    done
}
