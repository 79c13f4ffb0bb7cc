#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034,SC2030,SC2031 # variables of bats and of topology.bash
# FP8 on meshes.  Scales are powers of two, so an element rounds to the same value under any scale
# under which it is not subnormal.  A mesh that cuts rows or columns, and so their maxima, changes
# only elements below 2^-14 of these, by less than 2^-18 of them: one step is that of one rank as
# nearly as in float32.  Later a sum in another order may put a weight or an activation on the other
# side of a rounding's tie, which is 2^-4 of one element and some 1e-4 of a loss.

load ../slurm/helper
layers=4 eps=1e-3 steps=4
load topology

setup_file() {
    workroom
    d9d-shard -q --format tokens --out data "$golden/moe/train.jsonl"
    configure dense 64 '"intermediate_size": 64' >dense.json
    configure moe 32 '"intermediate_size": 32, "num_experts": 8, "experts_top_k": 3,
        "shared_expert": {"intermediate_size": 32, "enable_gate": true}' >moe.json
    for recipe in rowwise tensorwise; do one dense "$recipe" && one moe "$recipe"; done
}

fp8() { printf 'trainer.fp8={"recipe": "%s", "experts": true}' "$1"; }
one() { d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set "$(fp8 "$2")" --set trainer.run.dir="$1-$2" "$1.json"; }

# near A B: losses and norms of step 1 to 1e-6, of the others to 1e-3 and 2e-2.
near() {
    paste <(grep '"loss"' "$1/metrics.jsonl") <(grep '"loss"' "$2/metrics.jsonl") |
        sed -E 's/"[a-z_]+": |[{},]//g' | awk -v steps=$steps '
        function far(a, b, to) { return !((a - b) ^ 2 <= (to * b) ^ 2) }
        { n++; half = NF / 2
          if ($1 != $(half + 1) || far($2, $(half + 2), n == 1 ? 1e-6 : 1e-3) || far($3, $(half + 3), n == 1 ? 1e-6 : 2e-2)) {
              print "step " $1 ": loss " $2 ", norm " $3 "; alone " $(half + 2) ", " $(half + 3)
              bad = 1 } }
        END { exit bad || n != steps }' && cmp "$1/samples.jsonl" "$2/samples.jsonl"
}

# equals_one_rank MODEL RECIPE MESH...
equals_one_rank() {
    local model=$1 recipe=$2 on
    shift 2
    for on; do
        rm -rf run
        train "$model" "$on" run --set "$(fp8 "$recipe")"
        near run "$model-$recipe" || { echo "mesh $on"; return 1; }
    done
}

@test "DDP, FSDP and HSDP: a step in FP8 is that of one rank" {
    equals_one_rank dense rowwise "2 1 1 1 1 1" "1 2 1 1 1 1" "2 2 1 1 1 1"
    equals_one_rank dense tensorwise "1 2 1 1 1 1"
}

@test "tensor and context parallel, which cut rows and columns: a step in FP8 is that of one rank" {
    equals_one_rank dense rowwise "1 1 1 1 2 1" "1 1 2 1 1 1" "1 1 1 2 1 1" "1 2 1 1 2 1"
    equals_one_rank dense tensorwise "1 1 1 1 2 1"
}

@test "experts in FP8, on several ranks or with FSDP, tensor or context parallel: a step is that of one rank" {
    equals_one_rank moe rowwise "1 2 1 1 1 2" "1 2 1 1 1 1" "1 1 2 1 1 2" "1 1 1 1 2 2" "1 1 1 2 1 1"
    equals_one_rank moe tensorwise "1 2 1 1 1 2"
}

@test "pipeline stages change no bit" {
    rm -rf run
    train dense "1 1 1 1 1 1 2" run --set "$(fp8 rowwise)" --set 'trainer.pipelining.schedule={"schedule": "1f1b"}'
    near run dense-rowwise
    diff -r run/export dense-rowwise/export
    rm -rf run # with dgrad and wgrad of their own actions
    train dense "1 1 1 1 1 1 2" run --set "$(fp8 rowwise)" --set 'trainer.pipelining.schedule={"schedule": "zero_bubble_v"}'
    near run dense-rowwise
    diff -r run/export dense-rowwise/export
}

# bits A B: losses and weights of two runs.
bits() { diff <(history_of "$1") <(history_of "$2") && diff -r "$1/export" "$2/export"; }
history_of() { grep '"loss"' "$1/metrics.jsonl" | sed 's/, "step_ms".*//'; }

@test "two runs, activation checkpointing and a resumed run have the same bits" {
    local on="1 2 1 1 2 1" of
    rm -rf whole run
    train dense "$on" whole --set "$(fp8 rowwise)" --set trainer.checkpointing.period_steps=2
    for of in off full selective; do
        rm -rf run
        train dense "$on" run --set "$(fp8 rowwise)" --set model_provider.checkpointing=$of
        bits run whole
    done
    rm -rf run && cp -r whole run && rm -r run/export run/checkpoints/step-00000004
    train dense "$on" run --set "$(fp8 rowwise)" --set trainer.checkpointing.period_steps=2
    diff -r run/export whole/export
}

@test "experts: activation checkpointing, a resumed run and pipeline stages have the same bits" {
    local of on="1 2 1 1 1 2"
    rm -rf whole run
    train moe "$on" whole --set "$(fp8 rowwise)" --set trainer.checkpointing.period_steps=2
    for of in full selective; do
        rm -rf run
        train moe "$on" run --set "$(fp8 rowwise)" --set model_provider.checkpointing=$of
        bits run whole
    done
    rm -rf run && cp -r whole run && rm -r run/export run/checkpoints/step-00000004
    train moe "$on" run --set "$(fp8 rowwise)" --set trainer.checkpointing.period_steps=2
    diff -r run/export whole/export
    rm -rf run
    train moe "1 1 1 1 1 1 2" run --set "$(fp8 rowwise)" --set 'trainer.pipelining.schedule={"schedule": "zero_bubble_v"}'
    diff -r run/export moe-rowwise/export
}

@test "gradients once a step, weights kept unsharded and buffers of peers change a step no more" {
    rm -rf run
    train dense "1 2 1 1 1 1" run --set "$(fp8 rowwise)" --set trainer.gradient_manager.reduce=step \
        --set trainer.sharding.reshard_after_forward=false
    near run dense-rowwise
    export D9D_P2P=force
    rm -rf run
    train dense "1 1 1 1 2 1" run --set "$(fp8 rowwise)" --set model_provider.checkpointing=true
    near run dense-rowwise
}

@test "matrices that tensor parallelism cuts to rows of no multiple of 16 are refused before anything is written" {
    rm -rf run
    run -2 --separate-stderr mpi -n 2 d9d-train --device cpu --set "$(fp8 rowwise)" --set mesh.tensor_parallel=2 \
        --set model_provider.model.layer.intermediate_size=48 --set trainer.run.dir=run dense.json
    [[ "$stderr" == *"trainer.fp8: model.layers.0.mlp.gate_proj.weight is 24 x 32 on each rank of mesh.tensor_parallel, and the dimensions of products in FP8 are multiples of 16"* ]]
    [ ! -e run ]
}
