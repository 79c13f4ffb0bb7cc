#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# Groups of parameters, rates of layers, Lion and Muon in runs: what is logged and planned, resumes, errors.

load train_bench

groups='optimizer.groups=[{"pattern": ".*norm.*", "weight_decay": 0}, {"pattern": "model\\.embed_tokens\\..*", "lr_scale": 0.1}]'
muon='optimizer={"name": "muon", "lr": 1e-3, "adjust_lr_fn": "match_rms_adamw"}'
lion='optimizer={"name": "lion", "lr": 1e-4, "weight_decay": 1}'

@test "the log and the plan say how many parameters each group has" {
    run -0 d9d-train --set trainer.run.steps=1 --set "$groups" --set optimizer.layer_lr_decay=0.5 c.json
    assert_output --regexp 'group "\.\*norm\.\*": [1-9][0-9]* parameters of [0-9]+ elements, lr_scale 1, weight_decay 0;'
    assert_output --regexp 'group "model..embed_tokens....": 1 parameter of [0-9]+ elements, lr_scale 0\.1; the others: [1-9][0-9]* parameters'
    assert_output --partial 'layer_lr_decay 0.5 over 2 layers: embedding 0.25, head 1'
    said=$(grep -o 'group "\.\*norm.*' <<<"$output" | head -1)
    run -0 d9d-train --plan --set "$groups" --set optimizer.layer_lr_decay=0.5 c.json
    assert_output --partial "$said"
    run -0 d9d-train --set trainer.run.steps=1 --set trainer.run.dir=other c.json
    refute_output --partial 'the others'
}

@test "a group that changes nothing leaves every bit" {
    d9d-train -q --set trainer.run.dir=plain --set trainer.run.steps=4 c.json
    d9d-train -q --set trainer.run.dir=same --set trainer.run.steps=4 \
        --set 'optimizer.groups=[{"pattern": ".*norm.*", "weight_decay": 0.1}, {"pattern": ".*_proj.*", "lr_scale": 1}]' c.json
    same_run plain same 00000004
    d9d-train -q --set trainer.run.dir=groups --set trainer.run.steps=4 --set "$groups" c.json
    run ! same_run plain groups 00000004
}

@test "a pattern without parameters and a key without use are refused before anything is spent" {
    says 2 'optimizer.groups[1].pattern "lm_head": of ' d9d-train --set \
        'optimizer.groups=[{"pattern": ".*"}, {"pattern": "lm_head"}]' c.json
    says 2 'optimizer.groups[0].eps: the optimizer lion has no eps' d9d-train --set \
        'optimizer={"name": "lion", "lr": 1e-4, "groups": [{"pattern": ".*", "eps": 1}]}' c.json
    [ ! -e run ]
}

@test "a run goes on with other groups, which is said" {
    d9d-train -q --set trainer.run.steps=2 --set "$groups" c.json
    rm -r run/export
    run -0 d9d-train --set trainer.run.steps=4 --set 'optimizer.groups=[]' c.json
    assert_output --partial 'optimizer.groups'
}

@test "Lion learns, keeps one state and resumes bitwise" {
    run -0 d9d-train --set "$lion" --set model_provider.dtype=bfloat16 --set trainer.run.dir=whole --set trainer.run.steps=8 c.json
    assert_output --partial 'lion: bfloat16 weights updated as float32 master weights; bytes a parameter: weights 2, gradients 4, exp_avg 4, master_residual 2, in all 12'
    d9d-train -q --set "$lion" --set model_provider.dtype=bfloat16 --set trainer.run.steps=4 c.json
    rm -r run/export
    d9d-train -q --set "$lion" --set model_provider.dtype=bfloat16 --set trainer.run.steps=8 c.json
    same_run whole run 00000008
    says 2 'its optimizer state is exp_avg, as of lion, and the optimizer adamw of this run keeps exp_avg, exp_avg_sq' \
        d9d-train --set model_provider.dtype=bfloat16 --set trainer.run.steps=9 c.json
}

@test "Muon learns, keeps one state of matrices and two of the rest, and resumes bitwise" {
    run -0 d9d-train --set "$muon" --set model_provider.dtype=bfloat16 --set trainer.run.dir=whole --set trainer.run.steps=8 c.json
    assert_output --regexp 'muon: bfloat16 weights updated as float32 master weights; bytes a parameter: weights 2, gradients 4, momentum_buffer 4, master_residual 2, in all 12, for [0-9]+ parameters of [0-9]+ elements'
    assert_output --regexp 'adamw: bfloat16 weights updated .* exp_avg 4, exp_avg_sq 4, master_residual 2, in all 16, for [0-9]+ parameters'
    history_of whole | sed 's/.*"loss": \([0-9.]*\),.*/\1/' | awk 'NR == 1 { first = $1 } END { exit !($1 < first - 0.1) }'
    d9d-train -q --set "$muon" --set model_provider.dtype=bfloat16 --set trainer.run.steps=4 c.json
    rm -r run/export
    d9d-train -q --set "$muon" --set model_provider.dtype=bfloat16 --set trainer.run.steps=8 c.json
    same_run whole run 00000008
    says 2 'its optimizer state is exp_avg, exp_avg_sq, momentum_buffer, as of muon, and the optimizer adamw of this run keeps exp_avg, exp_avg_sq;' \
        d9d-train --set model_provider.dtype=bfloat16 --set trainer.run.steps=9 c.json
}

@test "a plan prices Muon: one state of matrices, two of the rest" {
    d9d-train --plan --json --set "$muon" c.json >muon.json
    of() { grep -o "in all $1, for [0-9]* parameters of [0-9]*" muon.json | head -n 1 | sed 's/.* //'; }
    [ "$(sed -n 's/.*"optimizer": \([0-9]*\),$/\1/p' muon.json | head -n 1)" -eq $((4 * $(of 12) + 8 * $(of 16))) ]
}

@test "Muon wants a rate for AdamW, and matrices" {
    says 2 'set adamw.lr, or adjust_lr_fn match_rms_adamw' d9d-train --set 'optimizer={"name": "muon", "lr": 0.02}' c.json
    says 2 'Muon updates matrices and stacks of them, and ' d9d-train --set "$muon" \
        --set 'optimizer.groups=[{"pattern": ".*norm.*", "kind": "muon"}]' c.json
    [ ! -e run ]
}

adafactor='optimizer={"name": "adafactor", "lr": 1e-3}'

@test "Adafactor learns, keeps a number a row and a column, and resumes bitwise" {
    run -0 d9d-train --set "$adafactor" --set model_provider.dtype=bfloat16 --set trainer.run.dir=whole --set trainer.run.steps=8 c.json
    assert_output --regexp 'adafactor: bfloat16 weights updated as float32 master weights; bytes a parameter: weights 2, gradients 4, row_var 0\.[0-9]+, col_var 0\.[0-9]+, variance 0\.[0-9]+, master_residual 2, in all 8\.'
    history_of whole | sed 's/.*"loss": \([0-9.]*\),.*/\1/' | awk 'NR == 1 { first = $1 } END { exit !($1 < first - 0.1) }'
    d9d-train -q --set "$adafactor" --set model_provider.dtype=bfloat16 --set trainer.run.steps=4 c.json
    rm -r run/export
    d9d-train -q --set "$adafactor" --set model_provider.dtype=bfloat16 --set trainer.run.steps=8 c.json
    same_run whole run 00000008
    says 2 'its optimizer state is row_var, col_var, variance, as of adafactor, and the optimizer adamw of this run keeps exp_avg, exp_avg_sq' \
        d9d-train --set model_provider.dtype=bfloat16 --set trainer.run.steps=9 c.json
}

@test "a plan prices Adafactor's moments as a training run has them" {
    d9d-train --plan --json --set "$adafactor" c.json >plan.json
    d9d-train -q --set "$adafactor" --set trainer.run.steps=1  c.json
    bytes=$(jq '[.tensors[] | select(.group == "optimizer") | .shape | reduce .[] as $d (4; . * $d)] | add' \
        run/checkpoints/step-00000001/manifest.json)
    [ "$(sed -n 's/.*"optimizer": \([0-9]*\),$/\1/p' plan.json | head -n 1)" -eq "$bytes" ]
}

free='optimizer={"name": "schedule_free_adamw", "lr": 2e-3, "warmup_steps": 2}'
valid='evaluation=[{"name": "valid", "data": {"dataset": "data"}, "period_steps": 2, "samples": 8}]'
ema='trainer.ema={"decay": 0.5}'

weights_of() { cat "$1/export"/*.safetensors | sha256sum; }

@test "schedule-free AdamW resumes bitwise, and evaluations change no bit of the training" {
    run -0 d9d-train --set "$free" --set model_provider.dtype=bfloat16 --set trainer.run.dir=whole --set trainer.run.steps=8 c.json
    assert_output --partial 'schedule_free_adamw: bfloat16 weights updated as float32 master weights; bytes a parameter: weights 2, gradients 4, z 4, exp_avg_sq 4, master_residual 2, in all 16'
    history_of whole | sed 's/.*"loss": \([0-9.]*\),.*/\1/' | awk 'NR == 1 { first = $1 } END { exit !($1 < first - 0.1) }'
    d9d-train -q --set "$free" --set model_provider.dtype=bfloat16 --set trainer.run.steps=4 --set "$valid" c.json
    rm -r run/export
    d9d-train -q --set "$free" --set model_provider.dtype=bfloat16 --set trainer.run.steps=8 --set "$valid" c.json
    same_run whole run 00000008
    [ "$(weights_of whole)" = "$(weights_of run)" ]
}

@test "a moving average is exported and evaluated by choice, and changes no bit of the training" {
    d9d-train -q --set trainer.run.dir=plain --set trainer.run.steps=4 --set "$valid" c.json
    d9d-train -q --set trainer.run.dir=ema --set trainer.run.steps=4 --set "$valid" --set "$ema" c.json
    cmp <(history_of plain | grep -o '"loss": [^,]*') <(history_of ema | grep -o '"loss": [^,]*')
    [ "$(weights_of plain)" != "$(weights_of ema)" ]
    d9d-train -q --set trainer.run.dir=other --set trainer.run.steps=4 --set "$valid" --set "$ema" \
        --set trainer.ema.export=false --set trainer.ema.evaluate=false c.json
    [ "$(weights_of plain)" = "$(weights_of other)" ]
    d9d-train -q --set trainer.run.dir=now --set trainer.run.steps=4 --set "$ema" --set trainer.ema.decay=0 c.json
    [ "$(weights_of plain)" = "$(weights_of now)" ]
    d9d-train -q --set trainer.run.dir=late --set trainer.run.steps=4 --set "$ema" --set trainer.ema.start_step=4 c.json
    [ "$(weights_of plain)" = "$(weights_of late)" ]
}

@test "a moving average that begins earlier than the run was told first begins where it goes on" {
    early=(--set "$ema" --set trainer.run.steps=6 --set trainer.ema.start_step=3)
    d9d-train -q "${early[@]}" --set trainer.run.dir=three c.json
    d9d-train -q "${early[@]}" --set trainer.run.steps=3 --set trainer.ema.start_step=100 c.json
    rm -r run/export
    d9d-train -q "${early[@]}" --set trainer.ema.start_step=1 c.json
    [ "$(weights_of three)" = "$(weights_of run)" ]
}

@test "a moving average resumes bitwise, in bfloat16 too, and a plan counts it" {
    for dtype in float32 bfloat16; do
        d9d-train -q --set "$ema" --set trainer.ema.dtype=$dtype --set trainer.run.dir=whole-$dtype --set trainer.run.steps=6 c.json
        d9d-train -q --set "$ema" --set trainer.ema.dtype=$dtype --set trainer.run.dir=part-$dtype --set trainer.run.steps=3 c.json
        rm -r part-$dtype/export
        d9d-train -q --set "$ema" --set trainer.ema.dtype=$dtype --set trainer.run.dir=part-$dtype --set trainer.run.steps=6 c.json
        [ "$(weights_of whole-$dtype)" = "$(weights_of part-$dtype)" ]
    done
    [ "$(weights_of whole-float32)" != "$(weights_of whole-bfloat16)" ]
    bytes() { d9d-train --plan --json "$@" c.json | sed -n 's/.*"optimizer": \([0-9]*\),$/\1/p' | head -n 1; }
    [ $((2 * ($(bytes --set "$ema") - $(bytes)))) -eq "$(bytes)" ]
}

@test "an average of an average is refused, and so is a run that goes on without its average" {
    says 2 'trainer.ema: the optimizer schedule_free_adamw averages the weights itself' \
        d9d-train --set "$free" --set "$ema" c.json
    d9d-train -q --set "$ema" --set trainer.run.steps=2 c.json
    rm -r run/export
    says 2 'its optimizer state is ' d9d-train --set trainer.run.steps=4 c.json
}
