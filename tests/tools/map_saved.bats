#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# d9d-map reads a training checkpoint like any other.

load train_bench

# train CASE: a short run of a golden case on its samples, or on those of "moe", in ./run.
train() {
    [ ! -e "$golden/$1/train.jsonl" ] || { rm data && dataset data "$1"; }
    run_config "$1" >c.json
    d9d-train -q --set trainer.run.steps=4 c.json
}

@test "a training checkpoint becomes the model that the run exports" {
    for case in moe moe_fused dense_tied; do
        train "$case"
        d9d-map -q --to hf --model "$golden/$case/config.json" run/checkpoints/step-00000004 out
        diff -r run/export out
        rm -rf run out data && ln -s "$shared/data" data
    done
}

@test "it is verified, compared, planned, and a source of weights" {
    train moe
    step=run/checkpoints/step-00000004
    run -0 d9d-map diff --json "$step" run/checkpoints/step-00000004
    d9d-map -q --to d9d run/export same
    run -0 d9d-map diff "$step" same
    run -0 d9d-map plan --to hf --model "$golden/moe/config.json" "$step"
    assert_line --partial "model-r00000.safetensors"
    d9d-train -q --set trainer.run.steps=1 --set trainer.run.dir=next --set "trainer.model_stage_factory.source_checkpoint=$step" c.json
    d9d-train -q --set trainer.run.steps=1 --set trainer.run.dir=last --set trainer.model_stage_factory.source_checkpoint=run/export c.json
    diff -r next/export last/export
}

@test "without a configuration it says what to do" {
    train moe
    run -2 d9d-map run/checkpoints/step-00000004 out
    assert_output --partial "config.json: is not there; --model names the model's"
    [ ! -e out ]
}
