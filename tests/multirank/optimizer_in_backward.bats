#!/usr/bin/env bats
# shellcheck disable=SC2034,SC2154 # variables of bats and of topology.bash
# trainer.optimizer_in_backward on meshes: every bit of the same mesh without, in less memory.

load ../slurm/helper
layers=4 steps=3 eps=1e-3
load topology

free=(--set trainer.gradient_clipping.max_norm=null)
released=("${free[@]}" --set trainer.optimizer_in_backward=true)

# sizes RANKS: options of steps of one micro-batch, 8 samples in all.
sizes() { printf -- '--set\ntrainer.batching.microbatch_size=%s\n' $((8 / $1)); }

# history DIR: what steps found out, without times and memory; norms to the last digit.
history() { grep '"loss"' "$1/metrics.jsonl" | sed 's/, "step_ms".*//'; }

# unchanged MODEL MESH [OPTION...]: the same bits with and without.
unchanged() {
    local degrees micro
    read -ra degrees <<<"$2"
    mapfile -t micro < <(sizes $((degrees[0] * degrees[1])))
    rm -rf here released
    train "$1" "$2" here "${free[@]}" "${micro[@]}" "${@:3}"
    train "$1" "$2" released "${released[@]}" "${micro[@]}" "${@:3}"
    diff <(history here) <(history released)
    if [ -e here/export/model.safetensors ]; then
        cmp here/export/model.safetensors released/export/model.safetensors
    else
        cmp here/export/adapter_model.safetensors released/export/adapter_model.safetensors
    fi
}

bytes() { grep -o '"mem_bytes": [0-9]*' "$1/metrics.jsonl" | tail -1 | sed 's/.* //'; }

@test "updates within backward change no bit, sharded, replicated and both" {
    unchanged dense "1 2 1 1 1 1"
    (($(bytes released) < $(bytes here)))
    unchanged dense "2 1 1 1 1 1" --set trainer.gradient_manager.bucket_size_mb=1
    unchanged dense "2 2 1 1 1 1" --set model_provider.dtype=bfloat16 --set trainer.gradient_manager.reduce_dtype=bfloat16
    unchanged dense "1 4 1 1 1 1" --set trainer.gradient_manager.reduce=step --set trainer.sharding.reshard_after_forward=false
    unchanged dense "2 2 1 1 1 1" --set trainer.sharding.reshard_after_backward=false --set trainer.sharding.prefetch=2
}

@test "updates within backward change no bit, tensor, context and expert parallel" {
    unchanged dense "1 1 1 1 2 1"
    unchanged dense "1 2 1 1 2 1" --set model_provider.checkpointing=full
    unchanged dense "1 1 2 1 1 1"
    unchanged moe "1 2 1 1 1 2"
    unchanged moe "2 1 1 1 1 2" --set model_provider.checkpointing=selective
    unchanged moe "1 2 2 1 1 4" --set trainer.expert_replication='{"slots":1,"period_steps":1}'
}

@test "updates within backward with a tied embedding, LoRA, FP8, EMA, int8 states, groups and the host" {
    unchanged dense "2 2 1 1 1 1" --set model_provider.model.tie_word_embeddings=true
    unchanged dense "1 2 1 1 1 1" --set 'peft={"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 4, "alpha": 8, "dropout": 0.1}}'
    unchanged dense "1 2 1 1 1 1" --set trainer.fp8='{"fsdp_float8_all_gather": true}' --set model_provider.dtype=bfloat16
    unchanged dense "2 1 1 1 1 1" --set trainer.ema='{"decay": 0.9, "start_step": 1}' --set trainer.offload.optimizer=host
    unchanged dense "1 2 1 1 1 1" --set 'optimizer={"name": "adamw", "lr": 1e-3, "state_dtype": "int8", "layer_lr_decay": 0.5, "groups": [{"pattern": ".*norm.*", "weight_decay": 0.5}]}'
    unchanged dense "1 2 1 1 1 1" --set 'optimizer={"name": "schedule_free_adamw", "lr": 1e-3}' --set trainer.offload.activations=host
}

# The newest checkpoint is of a step that was updated within backward; so are the local ones.
@test "a run with checkpoints goes on without updates within backward, and back" {
    local micro=(--set trainer.batching.microbatch_size=4) saves=(--set trainer.checkpointing.period_steps=1)
    train dense "1 2 1 1 1 1" whole "${free[@]}" "${micro[@]}"
    train dense "1 2 1 1 1 1" run "${released[@]}" "${micro[@]}" "${saves[@]}" --set trainer.checkpointing.local_period_steps=1 \
        --set trainer.run.steps=1
    rm -rf run/export
    train dense "1 2 1 1 1 1" run "${free[@]}" "${micro[@]}" "${saves[@]}" --set trainer.run.steps=2
    rm -rf run/export
    train dense "1 2 1 1 1 1" run "${released[@]}" "${micro[@]}" "${saves[@]}"
    cmp whole/export/model.safetensors run/export/model.safetensors
    diff <(history whole) <(history run)
}

@test "checks of replicas and memory find nothing in updates within backward" {
    unchanged dense "2 1 1 1 1 1" --set trainer.integrity.period_steps=1 --set trainer.integrity.memory=true
}

@test "a self-test compares updates within backward with one rank" {
    run -0 mpi -n 2 d9d-train --selftest --device cpu --set mesh.data_parallel_shard=2 "${released[@]}" \
        --set trainer.batching.microbatch_size=4 --set trainer.run.dir=tested dense.json
    [[ "$output" == *"compute what one computes"* ]]
}
