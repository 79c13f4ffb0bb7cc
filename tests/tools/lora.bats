#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# Fine-tuning: adapters trained, saved, merged and read again; some modules trained alone.

load train_bench

setup_file() {
    workshop
    cd "$shared" || return 1
    export lora='{"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 4, "alpha": 12}}'
    d9d-train -q --set trainer.run.dir=lora --set "peft=$lora" --set optimizer.lr=1e-2 c.json
    d9d-train -q --set trainer.run.dir=base --set trainer.run.steps=1 c.json
}

setup() {
    bench
    ln -s "$shared/lora" "$shared/base" .
}

# first_loss DIR: of its first record.
first_loss() { sed -nE '1s/.*"loss": ([^,]+),.*/\1/p' "$1/metrics.jsonl"; }

# loss_of CONFIG-OPTION...: of the samples, by d9d-infer.
loss_of() { d9d-infer -q --json --set 'task={"name": "perplexity"}' "$@" i.json | sed -nE 's/.*"loss": ([^,]+),/\1/p'; }

# near A B LIMIT: |A - B| <= LIMIT.
near() { awk -v a="$1" -v b="$2" -v l="$3" 'BEGIN { exit !((a - b) ^ 2 <= l ^ 2) }' || { echo "$1 is not $2"; false; }; }


# refused SENTENCE OPTION...: exit 2, before anything is made.
refused() {
    says 2 "$1" d9d-train -q "${@:2}" c.json
    [ ! -e run ]
}

@test "an untrained adapter changes no bit: the first loss is the base model's" {
    [ -n "$(first_loss base)" ]
    [ "$(first_loss lora)" = "$(first_loss base)" ]
    # and of a whole dataset, with adapters in the model and nothing learned
    d9d-train -q --set trainer.run.dir=still --set "peft=$lora" --set optimizer.lr=1e-30 c.json
    d9d-map diff "$golden/moe" still/export
}

@test "frozen parameters stay, have no optimizer state, and adapters learn" {
    [ "$(grep -c '"loss"' lora/metrics.jsonl)" = 20 ]
    run d9d-map diff "$golden/moe" lora/export
    [[ "$output" == *"norm.weight"* ]] && return 1
    [[ "$output" == *"q_proj.weight: values"* ]]
    run grep -oE '"name": "[^"]*\.exp_avg"' lora/checkpoints/step-00000020/manifest.json
    [ "${#lines[@]}" = 28 ]
    [[ "$output" != *'proj.weight.'* ]]
}

@test "the exported model is the trained one: its loss is that of base and adapter" {
    whole=$(loss_of --set trainer.model_stage_factory.source_checkpoint=lora/export)
    both=$(loss_of --set trainer.model_stage_factory.source_adapter=lora/adapter)
    [ "$whole" = "$both" ]
    # a step that learns nothing, of the model with its adapters
    d9d-train -q --set trainer.run.dir=again --set "peft=$lora" --set optimizer.lr=1e-30 \
        --set trainer.model_stage_factory.source_adapter=lora/adapter \
        --set trainer.batching.global_batch_size=80 c.json
    near "$(first_loss again)" "$whole" 2e-6
    near "$(first_loss base)" "$whole" 2e-6 && return 1
    cmp lora/adapter/adapter_model.safetensors again/adapter/adapter_model.safetensors
}

@test "d9d-map merges the adapter in every layout, to the bits of the export" {
    d9d-map -q --adapter lora/adapter --to hf "$golden/moe" hf
    d9d-map diff hf lora/export
    d9d-map -q --adapter lora/adapter --to hf "$golden/moe_fused" fused
    d9d-map -q --to hf --expert-layout fused lora/export wanted
    d9d-map diff fused wanted
    d9d-map -q --to d9d "$golden/moe" own
    d9d-map -q --adapter lora/adapter --to hf own from_own
    d9d-map diff from_own lora/export
    d9d-map -q --adapter lora/adapter --dtype bfloat16 --to hf "$golden/moe_sharded" half
    d9d-map -q --dtype bfloat16 --to hf --shard-size 1kB lora/export wanted_half
    d9d-map diff half wanted_half
}

@test "checkpoints of adapters alone are small, and gone on with bit for bit" {
    only=(--set "peft=$lora" --set optimizer.lr=1e-2 --set trainer.checkpointing.period_steps=8
        --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true)
    d9d-train -q "${only[@]}" c.json
    same_run run lora
    [ "$(stat -c %s run/checkpoints/step-00000020/ranks-00000/model-r00000.safetensors)" -lt 60000 ]
    rm -rf run/checkpoints/step-00000020 run/checkpoints/step-00000016 run/export
    d9d-train -q "${only[@]}" c.json
    cmp run/export/model.safetensors lora/export/model.safetensors
    cmp run/adapter/adapter_model.safetensors lora/adapter/adapter_model.safetensors
}

@test "a run that goes on says what of its configuration is another one, and warns of what it learned with" {
    only=(--set trainer.run.steps=4 --set trainer.checkpointing.period_steps=2
        --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true)
    d9d-train -q --set "peft=$lora" "${only[@]}" c.json
    again() {
        rm -rf run/export run/adapter run/checkpoints/step-00000004
        run -0 --separate-stderr d9d-train "${only[@]}" "$@" c.json
    }
    again --set "peft=${lora/12/12.0}"
    [[ $stderr != *" was "* ]]
    again --set "peft=$lora" --set trainer.run.steps=5 --set optimizer.lr=3e-3
    [[ $stderr == *"run/config.json: trainer.run.steps was 4 and is 5"* ]]
    [[ $stderr == *"run/config.json: optimizer.lr was 0.001 and is 0.003"* && $stderr != *warning* ]]
    again -q --set "peft=${lora/12/24}"
    assert_equal "$stderr" "d9d-train: warning: run/config.json: peft.params.alpha was 12 and is 24; what was learned until now was learned with that"
    # A pattern that only one of them has, in a key of any JSON.
    again -q --set "peft=${lora/12/24}" --set 'peft.params.alpha_pattern={"q_proj": 3}'
    assert_equal "$stderr" "d9d-train: warning: run/config.json: peft.params.alpha_pattern.q_proj was absent and is 3; what was learned until now was learned with that"
    again -q --set "peft=${lora/12/24}"
    assert_equal "$stderr" "d9d-train: warning: run/config.json: peft.params.alpha_pattern.q_proj was 3 and is absent; what was learned until now was learned with that"
    d9d-map init -q --model "$golden/moe/config.json" --seed 9 base2
    rm -rf run/export run/adapter run/checkpoints/step-00000004
    says 2 'was trained over other weights than base2 has now: their identity was ' \
        d9d-train -q --set "peft=${lora/12/24}" "${only[@]}" --set trainer.model_stage_factory.source_checkpoint=base2 c.json
    cp -r "$golden/moe" base3
    again -q --set "peft=${lora/12/24}" --set trainer.model_stage_factory.source_checkpoint=base3
    [ -z "$stderr" ]
}

@test "a run that goes on with another router warns, but not of what only steers training" {
    only=(--set trainer.run.steps=4 --set trainer.checkpointing.period_steps=2)
    d9d-train -q "${only[@]}" c.json
    again() {
        rm -rf on && cp -r run on && rm -rf on/export on/checkpoints/step-00000004
        run -0 --separate-stderr d9d-train -q --set trainer.run.dir=on "${only[@]}" "$@" c.json
    }
    for change in 'score was "softmax" and is "sigmoid"' 'scale was 1 and is 2' 'groups was 1 and is 2'; do
        key=${change%% *} value=${change##* }
        again --set "model_provider.router.$key=$value"
        [[ $stderr == *"warning: on/config.json: model_provider.router.$change; what was learned until now was learned with that"* ]]
    done
    again --set model_provider.router.aux_loss_coef=0.01 --set model_provider.checkpointing=true \
        --set trainer.logging.period_steps=2
    [ -z "$stderr" ]
}

@test "a base that was replaced at its path is refused; a checkpoint that names none goes on with a warning" {
    cp -r "$golden/moe" m && chmod -R u+w m && cp -r m was
    only=(--set trainer.run.steps=4 --set trainer.checkpointing.period_steps=2 --set "peft=$lora"
        --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true
        --set trainer.model_stage_factory.source_checkpoint=m)
    d9d-train -q "${only[@]}" c.json
    manifest=run/checkpoints/step-00000002/manifest.json
    grep -qE '^ *"source": "[0-9a-f]{32}"' $manifest
    rm -rf run/export run/adapter run/checkpoints/step-00000004
    cp -r run first
    d9d-map init -q --model "$golden/moe/config.json" --seed 9 -t hf other
    cp -f other/*.safetensors m/
    d9d-map diff -q "$golden/moe" m && false
    says 2 'was trained over other weights than m has now: their identity was ' d9d-train -q "${only[@]}" c.json
    [[ "$stderr" =~ 'was '([0-9a-f]{32})' and is '([0-9a-f]{32})';' && "${BASH_REMATCH[1]}" != "${BASH_REMATCH[2]}" ]]
    diff -r run first
    # Copied back, in other files: the same weights.
    rm -rf m && d9d-map -q --to hf --shard-size 10kB was m
    [ "$(find m -name '*.safetensors' | wc -l)" -gt 1 ]
    rm m/manifest.json
    d9d-train -q "${only[@]}" c.json
    [ -e run/export/model.safetensors ]
    # One that has all weights does not name them, nor do those of earlier versions.
    rm -rf run
    d9d-train -q "${only[@]}" --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=false c.json
    run ! grep '"source' $manifest
    rm -rf run/export run/adapter run/checkpoints/step-00000004
    run -0 --separate-stderr d9d-train -q "${only[@]}" c.json
    assert_equal "$stderr" "d9d-train: warning: run/checkpoints/step-00000002: does not say which weights it was trained over; m is taken"
}

@test "an hf_config that was replaced at its path is warned of where a run goes on" {
    cp "$golden/moe/config.json" h.json && chmod u+w h.json
    on=(--set trainer.run.steps=4 --set trainer.checkpointing.period_steps=2 --set model_provider.hf_config=h.json)
    d9d-train -q "${on[@]}" c.json
    rm -rf run/export run/checkpoints/step-00000004
    cp -r run again
    run -0 --separate-stderr d9d-train -q "${on[@]}" c.json
    [ -z "$stderr" ]
    sed -i 's/"rms_norm_eps": *[0-9.e-]*/"rms_norm_eps": 1e-3/' h.json
    run -0 --separate-stderr d9d-train -q --set trainer.run.dir=again "${on[@]}" c.json
    assert_equal "$stderr" "d9d-train: warning: again/checkpoints/step-00000002: h.json is another one than it was trained with; what was learned until now was learned with that"
}

# drops PATTERN OPTION...: adapters of these modules with dropout. The first loss is the base model's, since B is zero;
# recomputation changes no bit, and micro-batches nothing but the order of sums.
drops() {
    local drop="{\"kind\": \"lora\", \"module_name_pattern\": \"$1\", \"params\": {\"r\": 4, \"alpha\": 12, \"dropout\": 0.3}}" i
    shift
    rm -rf off full selective none micro
    for i in off full selective; do
        d9d-train -q --set trainer.run.dir=$i --set "peft=$drop" --set optimizer.lr=1e-2 \
            --set model_provider.checkpointing=$i "$@" c.json
        same_run off $i
    done
    [ "$(first_loss off)" = "$(first_loss base)" ]
    d9d-train -q --set trainer.run.dir=none --set "peft=${drop/0.3/0}" --set optimizer.lr=1e-2 "$@" c.json
    run ! cmp off/export/model.safetensors none/export/model.safetensors
    d9d-train -q --set trainer.run.dir=micro --set "peft=$drop" --set optimizer.lr=1e-2 \
        --set trainer.batching.microbatch_size=1 "$@" c.json
    near "$(sed -nE '20s/.*"loss": ([^,]+),.*/\1/p' micro/metrics.jsonl)" \
        "$(sed -nE '20s/.*"loss": ([^,]+),.*/\1/p' off/metrics.jsonl)" 1e-5
}

@test "dropout: other losses but the first, none in inference, the same bits when computed again" {
    drops '.*self_attn.*_proj'
    grep -q '"lora_dropout": 0.3' off/adapter/adapter_config.json
}

@test "dropout of what the adapters of experts read; peft has none beside their parameters" {
    drops '.*experts.*_proj'
    grep -q '"lora_dropout": 0.0' off/adapter/adapter_config.json
}

@test "some modules trained whole: the others keep their bits" {
    d9d-train -q --set 'peft={"kind": "full_tune", "module_name_pattern": "model\\.layers\\.1|model\\.norm"}' c.json
    run d9d-map diff "$golden/moe" run/export
    [[ "$output" == *"model.layers.1.self_attn.q_norm.weight: values"* && "$output" == *"model.norm.weight: values"* ]]
    [[ "$output" != *"layers.0"* && "$output" != *"lm_head"* && "$output" != *"embed"* ]]
    [ ! -e run/adapter ]
}

@test "a stack of methods: adapters in one place, whole modules in another" {
    d9d-train -q --set 'peft={"kind": "stack", "methods": [
        {"kind": "lora", "module_name_pattern": ".*\\.(q|v)_proj", "params": {"r": 2, "alpha": 2}},
        {"kind": "lora", "module_name_pattern": ".*\\.1\\.self_attn\\.o_proj", "params": {"r": 3, "alpha": 1.5}},
        {"kind": "full_tune", "module_name_pattern": "lm_head"}]}' c.json
    run d9d-map diff "$golden/moe" run/export
    [ "$(grep -c ': values' <<<"$output")" = 6 ]
    [[ "$output" == *lm_head* && "$output" == *layers.1.self_attn.o_proj* ]]
    grep -q '"model.layers.1.self_attn.o_proj": 3' run/adapter/adapter_config.json
    grep -q '"model.layers.1.self_attn.o_proj": 1.5' run/adapter/adapter_config.json
    # read again with its pattern: merged by d9d-map, the head too
    tr -d ' \n' <run/adapter/adapter_config.json | grep -q '"modules_to_save":\["lm_head"\]'
    d9d-map -q --adapter run/adapter --to hf "$golden/moe" merged
    d9d-map diff -q merged run/export
}

@test "the example trains" {
    sed -n 1,3p "$BATS_TEST_DIRNAME/../../examples/lora/train.json" | grep -q '"dataset": "data"'
    ln -s "$golden/moe" ckpt
    d9d-train -q --set trainer.run.steps=2 --set trainer.checkpointing.period_steps=1 "$BATS_TEST_DIRNAME/../../examples/lora/train.json"
    run d9d-map diff ckpt runs/tuned/export
    [[ "$output" == *"layers.1.self_attn.q_norm.weight: values"* && "$output" != *lm_head* && "$output" != *"mlp.gate."* ]]
    d9d-map -q --adapter runs/tuned/adapter --to hf ckpt merged
}

@test "what does not fit is refused with a name that would" {
    p() { printf -- '--set\npeft={"kind": "%s", "module_name_pattern": "%s"%s}' "$1" "$2" "${3:-}"; }
    params=', "params": {"r": 4, "alpha": 8}'
    mapfile -t o < <(p lora 'model\\\\.layers\\\\.0\\\\.self_atn\\\\.q_proj' "$params")
    refused 'of 18 modules it matches none; did you mean model.layers.0.self_attn.q_proj?' "${o[@]}"
    mapfile -t o < <(p lora '.*\\\\.q_prj' "$params")
    refused 'of 18 modules it matches none; did you mean q_proj?' "${o[@]}"
    mapfile -t o < <(p lora 'layers\\\\.0\\\\.self_attn\\\\.q_proj' "$params") # its end is right
    refused 'of 18 modules it matches none; did you mean model.layers.0.self_attn.q_proj?' "${o[@]}"
    mapfile -t o < <(p full_tune 'layer\\\\.1' '')
    refused 'did you mean model.layers.1?' "${o[@]}"
    mapfile -t o < <(p lora '.*norm' "$params")
    refused 'of 18 modules with a matrix to adapt it matches none; there are model.embed_tokens to lm_head' "${o[@]}"
    mapfile -t o < <(p full_tune 'modle' '')
    refused 'did you mean model?' "${o[@]}"
    mapfile -t o < <(p lora '(q_proj' "$params")
    refused 'missing closing parenthesis' "${o[@]}"
    mapfile -t o < <(p lora '(.*)*(.*)*(.*)*x' "$params")
    refused 'module_name_pattern' "${o[@]}"
    mapfile -t o < <(p lora '.*q_proj' ', "params": {"r": 0, "alpha": 8}')
    refused 'c.json: peft.params.r:' "${o[@]}"
    refused 'q_proj has an adapter already' --set 'peft={"kind": "stack", "methods": [
        {"kind": "lora", "module_name_pattern": ".*q_proj", "params": {"r": 2, "alpha": 2}},
        {"kind": "lora", "module_name_pattern": ".*", "params": {"r": 2, "alpha": 2}}]}'
}

@test "adapters that are not of this model are refused, and what is no adapter" {
    adapter=--set=trainer.model_stage_factory.source_adapter
    refused 'adapter_config.json' "$adapter=$golden"
    cp -r lora/adapter bad && sed -i 's/"LORA"/"VERA"/' bad/adapter_config.json
    refused 'peft_type is "VERA"; "LORA", "IA3" and "PROMPT_TUNING" are read' "$adapter=bad"
    sed -i 's/"VERA"/"IA3"/' bad/adapter_config.json
    refused 'belong to this model; base_model' "$adapter=bad"
    cp -r lora/adapter dora && sed -i 's/"use_dora": false/"use_dora": true/' dora/adapter_config.json
    refused 'self_attn.q_proj has no magnitude (use_dora) of 48 features' "$adapter=dora"
    for set in 'init_lora_weights": "pissa_niter_4"' 'init_lora_weights": "olora"' 'init_lora_weights": "corda"' \
        'layer_replication": [[0, 1], [0, 1]]' 'alora_invocation_tokens": [5]' 'kasa_config": {"k": 1}' \
        'use_bdlora": {"nblocks": 2}' 'monteclora_config": {"n": 2}'; do
        rm -rf dora && cp -r lora/adapter dora
        sed -i -E "s/\"init_lora_weights\": true,/\"$set,/" dora/adapter_config.json
        refused "${set%%\"*} is " "$adapter=dora"
        for word in null false '[]' true '"gaussian"' '"eva"' '"orthogonal"'; do
            [[ $set == init* || $word == [nf[]* ]] || continue
            sed -i -E "s/\"${set%%\"*}\": [^\n]*,/\"${set%%\"*}\": $word,/" dora/adapter_config.json
            run -0 d9d-map -q --adapter dora --to d9d "$golden/moe" mapped
            rm -r mapped
        done
    done
    cp -r lora/adapter other
    sed -i -E 's/"r": [0-9]+/"r": 8/' other/adapter_config.json
    refused 'other/adapter_config.json says 8' "$adapter=other"
    cp -r lora/adapter pattern && sed -i -E 's/"rank_pattern": \{/&"q_proj": 5,/' pattern/adapter_config.json
    refused 'self_attn.q_proj has rank ' "$adapter=pattern"
    says 2 'q_proj are for a matrix [48, 32], the model' \
        d9d-map --adapter lora/adapter --to d9d "$golden/dense_untied" out
    sed 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' "$golden/moe/config.json" >smaller.json
    says 2 'of 24 tensors 12 belong to this model; base_model.model.model.layers.1' \
        d9d-map --adapter lora/adapter --to d9d --model smaller.json "$golden/moe" out
    says 2 'the adapter of the files has alpha / r = 3, that of the configuration 2' \
        d9d-train -q --set "peft=${lora/12/8}" --set trainer.model_stage_factory.source_adapter=lora/adapter c.json
    begin=(--set trainer.run.dir=none --set trainer.model_stage_factory.source_adapter=lora/adapter c.json)
    says 2 'the adapter of the files has rank 4, that of the configuration 8' \
        d9d-train -q --set "peft=${lora/4/8}" "${begin[@]}"
    says 2 'model.layers.0.self_attn.k_proj.weight: has an adapter in the files and none in the configuration' \
        d9d-train -q --set 'peft={"kind": "lora", "module_name_pattern": ".*(q|v|o|gate|up|down)_proj", "params": {"r": 4, "alpha": 12}}' "${begin[@]}"
    [ ! -e none ]
    says 2 'nothing that it could be merged into' \
        d9d-train -q --set trainer.run.dir=none --set trainer.model_stage_factory.source_checkpoint=null \
        --set trainer.model_stage_factory.source_adapter=lora/adapter c.json
    [ ! -e out ]
}

@test "an adapter that was trained over another model than it is added to says so" {
    grep -q '"base_model_name_or_path": ".*/moe"' lora/adapter/adapter_config.json
    cp -r lora/export merged
    ad=(--set trainer.model_stage_factory.source_adapter=lora/adapter --set 'task={"name": "perplexity"}')
    from=--set=trainer.model_stage_factory.source_checkpoint
    run -0 --separate-stderr d9d-infer -q "${ad[@]}" "$from=merged" i.json
    [[ "$stderr" == *"warning: lora/adapter/adapter_config.json: was trained over "*"/moe, and is added to merged" ]]
    run -0 --separate-stderr d9d-map -q --adapter lora/adapter merged twice
    [[ "$stderr" == *"warning: lora/adapter/adapter_config.json: was trained over "*"/moe, and is added to merged" ]]
    # The same by its name, wherever it is; a path of the Hub's cache; a name that says nothing.
    mkdir -p copy models--some--moe/snapshots
    cp -r "$golden/moe" copy/moe
    cp -r "$golden/moe" models--some--moe/snapshots/1a2b
    ln -s copy/moe link
    for base in copy/moe copy/moe/ models--some--moe/snapshots/1a2b link; do
        run -0 --separate-stderr d9d-infer -q "${ad[@]}" "$from=$base" i.json
        [ -z "$stderr" ]
    done
    cp -r lora/adapter named
    for name in null '""' '"/"'; do
        tr -d '\n' <lora/adapter/adapter_config.json |
            sed -E 's|"base_model_name_or_path": "[^"]*"|"base_model_name_or_path": '"$name|" >named/adapter_config.json
        run -0 --separate-stderr d9d-infer -q --set trainer.model_stage_factory.source_adapter=named \
            --set 'task={"name": "perplexity"}' "$from=merged" i.json
        [ -z "$stderr" ]
    done
}

@test "an adapter that lacks a module which its configuration names says so, and adds nothing there" {
    part='{"kind": "lora", "module_name_pattern": ".*layers\\.0\\.self_attn\\.q_proj", "params": {"r": 4, "alpha": 12}}'
    d9d-train -q --set trainer.run.dir=part --set "peft=$part" --set optimizer.lr=1e-2 c.json
    d9d-map --adapter part/adapter --to hf "$golden/moe" quiet 2>stderr
    run -1 grep warning stderr
    for targets in '["q_proj"]' '"all-linear"' '".*\\\\.q_proj"'; do
        cp -r part/adapter lacking
        tr -d '\n' <part/adapter/adapter_config.json |
            sed -E 's/"target_modules": \[[^]]*\]/"target_modules": '"$targets"'/' >lacking/adapter_config.json
        d9d-map --adapter lacking --to hf "$golden/moe" merged 2>stderr
        grep -qE 'lacking/adapter_model.safetensors: has no adapters? of model.layers.[01].self_attn.[qk]_proj' stderr
        d9d-map diff merged quiet
        rm -r lacking merged
    done
    # what the configuration leaves open is nobody's promise
    cp -r part/adapter lacking
    tr -d '\n' <part/adapter/adapter_config.json |
        sed -E 's/"target_modules": \[[^]]*\]/"target_modules": ["q_proj"], "layers_to_transform": [0]/' >lacking/adapter_config.json
    d9d-map --adapter lacking --to hf "$golden/moe" merged 2>stderr
    run -1 grep warning stderr
}
