#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of the helper
# A checkpoint saved on one mesh resumes on another (resharding) with identical results.

load ../slurm/helper
load topology

# Ten meshes; a few pairs of them by default, all with D9D_LONG=1.
meshes=("1 1 1 1 1 1" "2 1 1 1 1 1" "1 2 1 1 1 1" "1 1 1 1 2 1" "1 1 2 1 1 1"
    "1 2 1 1 2 2" "2 2 1 1 1 4" "1 3 1 1 1 1" "1 2 2 1 1 1" "1 1 1 2 2 1")
pairs=([0]="0 5" [5]="3" [6]="0" [7]="8")

# train_on MODEL NUMBER DIR: trains on mesh NUMBER; batches are divisible by 2 and 3.
train_on() {
    train "$1" "${meshes[$2]}" "$3" --set trainer.batching.global_batch_size=12 --set data.epochs=2 \
        --set trainer.checkpointing.period_steps=5
}

# half DIR: restores DIR to its state after the first checkpoint.
half() { rm -rf "$1/export" "$1/checkpoints/step-00000010"; }

# tidy DIR: keeps the last record of a step that was repeated, as readers of records do.
tidy() {
    tac "$1/metrics.jsonl" | awk -F'[:,]' '!/"loss"/ || !seen[$2]++' | tac >"$1/tidy" && mv "$1/tidy" "$1/metrics.jsonl"
}

# goes_on MODEL: resumes each mesh's run from the middle on other meshes, to the end.
goes_on() {
    local model=$1 from to n=0 bad=0
    for from in "${!meshes[@]}"; do
        [ -n "${D9D_LONG:-}" ] || [ -n "${pairs[$from]:-}" ] || continue
        rm -rf first && train_on "$model" "$from" first
        for to in "${!meshes[@]}"; do
            [ -n "${D9D_LONG:-}" ] || [[ " ${pairs[$from]} " == *" $to "* ]] || continue
            n=$((n + 1))
            rm -rf run && cp -r first run && half run
            if ! { train_on "$model" "$to" run && tidy run && same run first; }; then
                echo "saved on mesh ${meshes[$from]}, gone on with on ${meshes[$to]}: another run"
                bad=$((bad + 1))
            elif [ "$from" = "$to" ] && ! diff -r first/export run/export; then
                echo "mesh ${meshes[$from]}: not the same bits"
                bad=$((bad + 1))
            fi
        done
    done
    echo "# $model: $n pairs of meshes" >&3
    [ "$n" -gt 0 ] && [ "$bad" -eq 0 ]
}

@test "each rank opens only the checkpoint files that have its slices" {
    command -v strace >/dev/null || skip "no strace"
    mesh="1 2 1 1 1 1"
    train dense "$mesh" run --set trainer.checkpointing.period_steps=5
    half run
    traced=(strace -f -qq -e trace=openat -o "$PWD/calls")
    resume=(d9d-train -q --device cpu --set mesh.data_parallel_shard=2 --set trainer.run.dir=run dense.json)
    mpi -n 1 "${resume[@]}" : -n 1 "${traced[@]}" "${resume[@]}"
    grep -q 'step-00000005/ranks-00000/model-r00001' calls
    run ! grep -E 'step-00000005/ranks-00000/(model|optimizer)-r00000' calls
}

@test "a MoE checkpoint of any of ten meshes resumes on any" { goes_on moe; }
@test "a dense checkpoint of any of ten meshes resumes on any" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    for i in "${!meshes[@]}"; do meshes[i]="${meshes[i]% *} 1"; done # no experts
    goes_on dense
}
