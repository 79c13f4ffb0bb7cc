#!/usr/bin/env bats
# shellcheck disable=SC2034,SC2046,SC2086,SC2154 # variables of bats and of topology.bash; options of several words
# Activations in the host's memory: the bits of the same mesh without, in every schedule and kind of
# parallelism.

load ../slurm/helper
layers=4 steps=3
load topology

away=(--set trainer.offload.activations=host)

# unchanged MODEL MESH [OPTION...]: the same bits with and without.
unchanged() {
    rm -rf here away
    train "$1" "$2" here "${@:3}"
    train "$1" "$2" away "${away[@]}" "${@:3}"
    cmp here/export/model.safetensors away/export/model.safetensors
    same here away
}

@test "activations in host memory change no bit, sharded, tensor, context and expert parallel" {
    unchanged dense "1 2 1 1 2 1" --set model_provider.checkpointing=selective
    unchanged moe "1 2 1 1 1 2"
    unchanged moe "2 1 1 1 1 1" --set model_provider.checkpointing=full --set trainer.batching.microbatch_size=2
    away+=(--set trainer.offload.activation_fraction=0.5 --set trainer.offload.activation_prefetch=2)
    unchanged dense "1 1 2 1 1 1"
}

# Several micro-batches are in flight on the first rank.
@test "activations in host memory change no bit under any schedule of a pipeline" {
    for schedule in gpipe 1f1b 1f1b:2:zero_bubble looped_bfs:2 zero_bubble_v dual_pipe_v; do
        unchanged dense "1 1 1 1 1 1 2" $(schedule_options $schedule)
    done
}

@test "activations in host memory change no bit in a pipeline with everything else" {
    unchanged moe "1 2 1 1 2 2 2" $(schedule_options dual_pipe_v) --set model_provider.checkpointing=selective
    unchanged dense "1 2 1 1 1 1 2" $(schedule_options 1f1b) --set model_provider.checkpointing=full \
        --set trainer.gradient_manager.reduce=step
}
