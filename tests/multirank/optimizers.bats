#!/usr/bin/env bats
# shellcheck disable=SC2034,SC2154 # variables of bats and of topology.bash
# Groups of parameters, rates of layers, Lion and Muon on meshes: losses, norms and weights of one rank.

load ../slurm/helper
layers=4 steps=4 eps=1e-3
load topology

# optimized MODEL MESH OPTIMIZER
optimized() {
    rm -rf run alone
    d9d-train -q --device cpu --set trainer.run.dir=alone --set "optimizer=$3" "$1.json"
    train "$1" "$2" run --set "optimizer=$3"
    same run alone
}

# Stages of a pipeline have groups without a parameter of theirs, and count the layers of all.
@test "groups and rates of layers, sharded, tensor and pipeline parallel" {
    groups='"layer_lr_decay": 0.5, "groups": [{"pattern": "model\\.embed_tokens\\..*", "lr_scale": 3}, {"pattern": ".*norm.*", "weight_decay": 0.5, "eps": 0.01}, {"pattern": "lm_head.*", "betas": [0.5, 0.9]}]'
    optimized dense "1 2 1 1 1 1 2" "{\"name\": \"adamw\", \"lr\": 3e-3, \"eps\": 1e-3, $groups}"
    optimized moe "1 1 1 1 2 1 2" "{\"name\": \"adam\", \"lr\": 3e-3, \"eps\": 1e-3, $groups}"
}

# A rate so small that the sign of a rounding error does not show.
@test "Lion, sharded and expert parallel" {
    optimized moe "1 2 1 1 1 2" '{"name": "lion", "lr": 1e-6, "weight_decay": 10}'
}

# Matrices whose slices are rows, columns, experts and copies, and whose owners are other ranks.
muon='{"name": "muon", "lr": 1e-3, "adjust_lr_fn": "match_rms_adamw", "ns_dtype": "float32", "adamw": {"eps": 1e-3}}'

@test "Muon, sharded, replicated and tensor parallel" {
    optimized dense "1 2 1 1 1 1" "$muon"
    optimized dense "2 1 1 1 2 1" "$muon"
    optimized dense "1 2 1 1 2 1 2" "$muon"
    train dense "1 2 1 1 2 1 2" again --set "optimizer=$muon"
    cmp run/export/model.safetensors again/export/model.safetensors
    optimized dense "1 1 1 1 8 1" "$muon"
}

@test "Muon, expert parallel" {
    optimized moe "1 2 1 1 1 2" "$muon"
    optimized moe "2 2 1 1 1 2" "$muon"
    optimized moe "1 2 1 1 2 4 2" "$muon"
}

# Factored moments of rows, columns, experts and copies; vectors whose shards some ranks lack.
adafactor='{"name": "adafactor", "lr": 1e-3, "weight_decay": 0.1, "scale_parameter": true, "relative_step": true, "eps1": 1e-4}'

@test "Adafactor, sharded, replicated, tensor and pipeline parallel" {
    optimized dense "1 2 1 1 1 1" "$adafactor"
    optimized dense "1 2 1 1 2 1 2" "$adafactor"
    rm -rf again
    train dense "1 2 1 1 2 1 2" again --set "optimizer=$adafactor"
    cmp run/export/model.safetensors again/export/model.safetensors
    optimized dense "2 2 1 1 2 1" "$adafactor"
}

@test "Adafactor, expert parallel" {
    optimized moe "1 2 1 1 1 2" "$adafactor"
    optimized moe "1 2 1 1 2 4 2" "$adafactor"
}

# A column's means are saved once, by one of the ranks that have them.
@test "Adafactor goes on from a checkpoint, bit for bit, and on another mesh" {
    train moe "1 2 1 1 2 2" whole --set "optimizer=$adafactor"
    train moe "1 2 1 1 2 2" parts --set "optimizer=$adafactor" --set trainer.run.steps=2
    rm -r parts/export
    cp -r parts other
    train moe "1 2 1 1 2 2" parts --set "optimizer=$adafactor"
    cmp whole/export/model.safetensors parts/export/model.safetensors
    train moe "1 4 1 1 1 1" other --set "optimizer=$adafactor"
    same other whole
}

# Evaluations of averages in between, whose weights are gathered anew.
free='{"name": "schedule_free_adamw", "lr": 1e-3, "eps": 1e-3, "warmup_steps": 2}'
valid='evaluation=[{"name": "valid", "data": {"dataset": "data"}, "period_steps": 2, "samples": 8}]'

# averaged MODEL MESH OPTION...
averaged() {
    rm -rf run alone
    d9d-train -q --device cpu --set trainer.run.dir=alone --set "$valid" "${@:3}" "$1.json"
    train "$1" "$2" run --set "$valid" "${@:3}"
    same run alone
}

@test "schedule-free AdamW, sharded, tensor, expert and pipeline parallel" {
    averaged dense "1 2 1 1 1 1" --set "optimizer=$free"
    averaged dense "1 2 1 1 2 1 2" --set "optimizer=$free"
    averaged moe "1 2 1 1 2 2" --set "optimizer=$free"
}

@test "a moving average of weights, sharded, tensor, expert and pipeline parallel" {
    averaged dense "1 2 1 1 2 1 2" --set 'trainer.ema={"decay": 0.5, "start_step": 1}'
    averaged moe "1 2 1 1 2 2" --set 'trainer.ema={"decay": 0.9, "every_steps": 2}'
}

# Codes and scales of shards, slices, experts; rounding is a function of the element alone.  The last bit of
# a gradient may decide a code, which shows little at a small rate.
int8='{"name": "adamw", "lr": 2e-5, "eps": 1e-3, "state_dtype": "int8"}'
wide() { sed 's/"hidden_size": 32/"hidden_size": 72/; s/"intermediate_size": 48/"intermediate_size": 128/' dense.json >wide.json; }

@test "states in 8 bits, sharded, tensor, expert and pipeline parallel" {
    wide
    optimized wide "1 4 1 1 1 1" "$int8"
    optimized wide "1 2 1 1 2 1 2" "$int8"
    optimized moe "1 2 1 1 2 4 2" "$int8"
}

# Two ranks' gradients have one sum, whoever adds them; their norm's last bit depends on who.
@test "states in 8 bits have the same bits, replicated and sharded" {
    local big=(--set "optimizer=${int8/2e-5/1e-2}" --set trainer.gradient_clipping.max_norm=null
        --set trainer.batching.microbatch_size=4)
    wide
    for model in wide moe; do
        rm -rf copies shards
        train $model "2 1 1 1 1 1" copies "${big[@]}"
        train $model "1 2 1 1 1 1" shards "${big[@]}"
        cmp copies/export/model.safetensors shards/export/model.safetensors
    done
}

@test "tensor parallelism that divides a block of states in 8 bits is refused" {
    run -2 train dense "1 1 1 1 2 1" divided --set "optimizer=$int8"
    [[ "$output" == *"mesh.tensor_parallel: 2 ranks divide rows of 48 elements of model.layers.0.mlp.down_proj.weight, and optimizer.state_dtype int8 needs multiples of 32 on each"* ]]
    [ ! -e divided ]
}

@test "so is one that divides such a block of an adapter" {
    run -2 train dense "1 1 1 1 2 1" divided --set "optimizer=$int8" \
        --set 'peft={"kind": "lora", "module_name_pattern": ".*down_proj", "params": {"r": 3, "alpha": 12}}'
    [[ "$output" == *"2 ranks divide rows of 48 elements of model.layers.0.mlp.down_proj.lora_A.weight, and"*"needs multiples of 32 on each"* ]]
    [ ! -e divided ]
}

@test "states in 8 bits go on from a checkpoint, bit for bit, in host memory and on another mesh" {
    rm -rf whole parts other
    train moe "1 2 1 1 2 2" whole --set "optimizer=$int8"
    train moe "1 2 1 1 2 2" parts --set "optimizer=$int8" --set trainer.run.steps=2
    rm -r parts/export
    cp -r parts other
    train moe "1 2 1 1 2 2" parts --set "optimizer=$int8" --set trainer.offload.optimizer=host
    cmp whole/export/model.safetensors parts/export/model.safetensors
    train moe "1 4 1 1 1 1" other --set "optimizer=$int8"
    same other whole
}
