#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034 # variables of bats and of topology.bash
# Gradients that travel as bfloat16 (gradient_manager.reduce_dtype): near the run of one rank, the same bits
# each time, half the bytes.  Bytes between hosts are in network.bats.

load ../slurm/helper

batch=12 steps=6 eps=1e-5
load topology

narrow=(--set trainer.gradient_manager.reduce_dtype=bfloat16)

# near MODEL MESH: losses and norms are those of one rank but for the rounding of gradients, and differ from
# them, since something was rounded.
near() {
    rm -rf run
    if ! { train "$1" "$2" run "${narrow[@]}" "${@:3}" && close_to 1e-3 <(numbers loss run) <(numbers loss "$1") &&
        close_to 1e-2 <(numbers grad_norm run) <(numbers grad_norm "$1"); }; then
        echo "$1, mesh $2: not near the run of one rank"
        return 1
    fi
    ! cmp -s <(numbers grad_norm run) <(numbers grad_norm "$1")
}

@test "sharded, replicated, both, and odd numbers of ranks are near one rank" {
    near dense "1 3 1 1 1 1"
    near dense "3 1 1 1 1 1"
    near dense "2 3 1 1 1 1"
    near dense "1 2 1 2 1 1" --set trainer.gradient_manager.reduce=step
    near dense "2 2 1 1 2 1"
    near dense "1 2 2 1 1 1" --set trainer.gradient_manager.bucket_size_mb=1
}

@test "experts, which are sharded over fewer ranks, are near one rank" {
    near moe "2 2 1 1 1 2"
    near moe "1 4 1 1 1 2"
}

@test "every run has the same bits, and so has one that resumes" {
    rm -rf a b
    train dense "2 3 1 1 1 1" a "${narrow[@]}"
    train dense "2 3 1 1 1 1" b "${narrow[@]}" --set trainer.run.steps=3
    rm -r b/export
    train dense "2 3 1 1 1 1" b "${narrow[@]}"
    cmp a/export/model.safetensors b/export/model.safetensors
}

@test "ZeRO-1 and ZeRO-2 on odd meshes equal one rank" {
    for odd in "1 3 1 1 1 1" "2 3 1 1 1 1" "1 3 1 2 1 1"; do
        for reduce in micro_batch step; do
            rm -rf run
            train dense "$odd" run --set trainer.sharding.reshard_after_forward=false \
                --set trainer.sharding.reshard_after_backward=false --set trainer.gradient_manager.reduce=$reduce \
                --set trainer.sharding.prefetch=3
            same run dense
        done
    done
}

@test "types that would send more, or what is not accumulated in float32, are refused" {
    for dtypes in float32,bfloat16 bfloat16,null float32,null; do
        grad=${dtypes#*,}
        run -2 d9d-train --device cpu --set trainer.gradient_manager.reduce_dtype="${dtypes%,*}" \
            --set trainer.gradient_manager.grad_dtype="$grad" dense.json
        assert_output --partial "trainer.gradient_manager: reduce_dtype \"${dtypes%,*}\" with grad_dtype "
    done
    run -2 d9d-train --device cpu --set trainer.gradient_manager.reduce_dtype=bf16 dense.json
    assert_output --partial "reduce_dtype"
}
