#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# bfloat16 weights: they learn as float32 weights do, resume exactly, and report their type.

load train_bench

bfloat16=(--set model_provider.dtype=bfloat16)
# 320 steps of a small rate, over other samples than those of the bench.
long=(--set data.epochs=16 --set trainer.run.steps=320 --set optimizer.lr=2e-5)

# gained DIR: from the mean loss of the first twenty steps to that of the last, in units of 1e-6.
gained() {
    grep '"loss"' "$1/metrics.jsonl" | sed 's/.*"loss": \([^,]*\),.*/\1/' |
        awk '{ v[NR] = $1 } END { for (i = 1; i <= 20; i++) s += v[i] - v[NR - 20 + i]; printf "%d", s / 20 * 1e6 }'
}

@test "bfloat16 learns as float32 does by default, and rounded to nearest it does not" {
    d9d-train -q "${long[@]}" --set trainer.run.dir=f32 c.json
    d9d-train -q "${bfloat16[@]}" "${long[@]}" --set trainer.run.dir=master c.json
    d9d-train -q "${bfloat16[@]}" "${long[@]}" --set trainer.run.dir=nearest \
        --set optimizer.weight_update=nearest --set optimizer.state_dtype=bfloat16 c.json
    f32=$(gained f32) master=$(gained master) nearest=$(gained nearest)
    echo "gained: float32 $f32, master $master, nearest $nearest"
    ((f32 > 10000))
    ((master > f32 * 97 / 100 && master < f32 * 103 / 100))
    ((nearest < f32 * 80 / 100))
}

@test "how weights are updated and what is kept for them is said once" {
    run -0 d9d-train "${bfloat16[@]}" --set trainer.run.steps=2 c.json
    assert_output --partial 'adamw: bfloat16 weights updated as float32 master weights; bytes a parameter: weights 2, gradients 4, exp_avg 4, exp_avg_sq 4, master_residual 2, in all 16'
    [ "$(grep -c 'bytes a parameter' <<<"$output")" = 1 ]
}

# What an older version left has weights and moments of bfloat16 and nothing beside: as this has.
@test "an older checkpoint goes on with masters of its weights, which is said" {
    d9d-train -q "${bfloat16[@]}" --set trainer.run.steps=4 --set optimizer.weight_update=nearest \
        --set optimizer.state_dtype=bfloat16 c.json
    rm -r run/export
    run -0 d9d-train "${bfloat16[@]}" --set trainer.run.steps=6 c.json
    assert_output --partial 'has no master_residual: float32 master weights begin as its bfloat16 weights'
    assert_output --partial 'its optimizer state is bfloat16, and float32 from here on'
    grep -q '"name": "[^"]*master_residual", "group": "optimizer", "dtype": "I16"' run/checkpoints/step-00000006/manifest.json
    rm -r run/export
    run -0 d9d-train "${bfloat16[@]}" --set trainer.run.steps=8 c.json
    refute_output --partial 'begin as its bfloat16 weights'
    refute_output --partial 'from here on'
}

@test "masters are not dropped unasked" {
    d9d-train -q "${bfloat16[@]}" --set trainer.run.steps=2 c.json
    rm -r run/export
    for set in weight_update=nearest weight_update=stochastic; do
        says 2 'has float32 master weights, of which this run keeps no master_residual: set optimizer.weight_update to "master"' \
            d9d-train "${bfloat16[@]}" --set trainer.run.steps=4 --set optimizer.$set c.json
        says 2 'has float32 master weights' \
            d9d-train "${bfloat16[@]}" --set trainer.run.steps=4 --set optimizer.$set \
            --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true c.json
    done
}

@test "another optimizer is named, also where checkpoints have a part of the model" {
    part=(--set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true)
    d9d-train -q "${part[@]}" --set trainer.run.steps=2 c.json
    rm -r run/export
    says 2 'its optimizer state is exp_avg, exp_avg_sq, as of adamw, adam, stochastic_adamw, and the optimizer sgd of this run keeps none' \
        d9d-train "${part[@]}" --set trainer.run.steps=4 --set 'optimizer={"name": "sgd", "lr": 1}' c.json
    says 2 'and the optimizer sgd of this run keeps momentum_buffer' \
        d9d-train "${part[@]}" --set trainer.run.steps=4 --set 'optimizer={"name": "sgd", "lr": 1, "momentum": 0.9}' c.json
}

@test "the plan prices what is kept for weights" {
    run -0 d9d-train --plan "${bfloat16[@]}" c.json
    assert_output --partial 'bytes a parameter: weights 2, gradients 4, exp_avg 4, exp_avg_sq 4, master_residual 2, in all 16'
    d9d-train --plan --json "${bfloat16[@]}" c.json >master.json
    d9d-train --plan --json "${bfloat16[@]}" --set optimizer.weight_update=stochastic c.json >stochastic.json
    number() { sed -n "s/.*\"$1\": \([0-9]*\),\$/\1/p" "$2.json" | head -n 1; }
    parameters=$(number parameters master)
    (($(number optimizer master) == 10 * parameters && $(number master_residual master) == 2 * parameters))
    (($(number optimizer stochastic) == 8 * parameters && $(number master_residual stochastic) == 0))
}
