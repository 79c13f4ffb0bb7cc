#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# Every family through the tools, against transformers (make_families.py): ten steps of AdamW, greedy
# generation with a cache, and the checkpoint to the suite's layout and back.

load workplace

setup_file() {
    golden_workplace "$BATS_TEST_DIRNAME/families"
}
setup() { cd "$work" || return 1; }

# section CASE: its part of a configuration.  Transformers does not move an expert's bias.
section() {
    local type router=
    type=$(sed -n 's/.*"model_type": "\(.*\)".*/\1/p' "$golden/$1/config.json")
    case $type in
    qwen3) type=qwen3_dense ;;
    gemma3_text) type=gemma3 ;;
    deepseek_v3 | glm4_moe | glm4_moe_lite | minimax_m2) router=', "router": {"bias_update_rate": 0}' ;;
    *_text) type=${type%_text} ;;
    esac
    echo "\"model_provider\": {\"name\": \"$type\", \"hf_config\": \"$golden/$1/config.json\"$router}"
}
cases() { (cd "$golden" && printf '%s\n' *); }

# far LIMIT GOT WANT: the first line of two lists of numbers that are further apart, relatively.
far() {
    paste "$2" "$3" | awk -v limit="$1" '{ d = $1 - $2; if (NF != 2 || (d < 0 ? -d : d) > limit * $2) { print; exit } }'
}

@test "ten steps of AdamW are those of transformers" {
    for c in $(cases); do
        d9d-shard -q --format tokens --out "data-$c" "$golden/$c/train.jsonl"
        cat >train.json <<JSON
{"data": {"dataset": "data-$c", "epochs": 10, "order": "sequential"}, $(section "$c"),
 "trainer": {"run": {"name": "$c", "dir": "run-$c", "steps": 10},
  "batching": {"global_batch_size": 3, "microbatch_size": 3},
  "model_stage_factory": {"source_checkpoint": "$golden/$c"}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}
JSON
        d9d-train -q --device cpu train.json
        for what in loss grad_norm; do
            grep -oE "\"$what\": *[0-9.e+-]+" "$golden/$c/train.json" | grep -oE '[0-9.e+-]+$' >want
            grep -oE "\"$what\": *[0-9.e+-]+" "run-$c/metrics.jsonl" | grep -oE '[0-9.e+-]+$' >got
            [ "$(wc -l <got)" -eq 10 ]
            limit=1e-5
            [ "$what" = loss ] || limit=5e-5
            # Its gradients amplify rounding: transformers' own float32 is up to 2e-5 away from them,
            # and Adam makes of small gradients what it likes.
            [[ ! $c =~ ^qwen3_(next|5) ]] || { [ "$what" = loss ] && limit=1e-4 || limit=5e-3; }
            worst=$(far $limit got want)
            [ -z "$worst" ] || { echo "$c: $what: $worst" && false; }
        done
    done
}

@test "greedy generation with a cache is that of transformers" {
    for c in $(cases); do
        cat >generate.json <<JSON
{$(section "$c"), "trainer": {"batching": {"microbatch_size": 2},
  "model_stage_factory": {"source_checkpoint": "$golden/$c"}},
 "task": {"name": "generate", "prompts": "$golden/$c/generate.jsonl", "max_new_tokens": 6,
  "stop_at_eos": false, "output": "$c.jsonl"}}
JSON
        d9d-infer -q --device cpu generate.json
        diff <(sed 's/.*"tokens": \[//; s/\].*//' "$c.jsonl") <(sed 's/.*"tokens": \[//; s/\].*//' "$golden/$c/generate.jsonl") ||
            { echo "$c" && false; }
    done
}

@test "the suite's layout and back loses no byte" {
    for c in $(cases); do
        d9d-map -q "$golden/$c" "own-$c"
        d9d-map -q "own-$c" "back-$c"
        d9d-map -q diff "$golden/$c" "back-$c"
        cmp {"$golden/$c","back-$c"}/config.json
        d9d-map -q verify "own-$c"
    done
}

@test "a layout that files of a family do not have is refused" {
    run d9d-map -q --to hf --expert-layout fused own-mixtral none
    [ "$status" -eq 2 ]
    [[ $output == *"mixtral: its HuggingFace files have a tensor for each expert, and no fused layout"* ]]
    [ ! -e none ]
}

# Fused experts are of generation 5 of config.json, one tensor for each is of 4.
@test "mixtures of experts are the same in both layouts of files" {
    for c in qwen2_moe qwen3_moe qwen3_next qwen3_5_moe deepseek_v2 deepseek_v3 glm4_moe glm4_moe_lite; do
        d9d-map -q --to hf --expert-layout fused "$golden/$c" "fused-$c"
        d9d-map -q --to hf --expert-layout per-expert "fused-$c" "single-$c"
        d9d-map -q diff "$golden/$c" "single-$c"
        for at in fused single; do
            d9d-map -q --to d9d "$at-$c" "$at-own-$c"
            d9d-map -q diff "own-$c" "$at-own-$c"
        done
        # Only Qwen3's experts are counted by another name there, and no share of a head is lost.
        [[ $c == qwen3_moe ]] || ! grep -q num_local_experts "fused-$c/config.json"
        grep -o '"partial_rotary_factor": [0-9.]*' "$golden/$c/config.json" | tail -n 1 >want
        grep -o '"partial_rotary_factor": [0-9.]*' "single-$c/config.json" | tail -n 1 >got
        diff want got || { echo "$c" && false; }
    done
}

@test "layers of multi-token prediction are left out, with a word" {
    local three=$work/three
    mkdir -p "$three"
    sed -E 's/"num_hidden_layers": [0-9]+/"num_hidden_layers": 3/; s/"num_nextn_predict_layers": [0-9]+/"num_nextn_predict_layers": 1/' \
        "$golden/glm4_moe/config.json" >"$three/config.json"
    d9d-map -q init --model "$three/config.json" mtp
    sed -i 's/"num_hidden_layers": 3/"num_hidden_layers": 2/' mtp/config.json
    rm mtp/manifest.json
    run d9d-map --to d9d mtp mtp-own
    [ "$status" -eq 0 ]
    [[ $output == *"tensors of layers for multi-token prediction are left out: glm4_moe does not compute them"* ]]
    [ "$(d9d-map plan mtp-own | grep -c 'layers\.2')" -eq 0 ]
    # Of another family it is an error.
    sed 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' "$golden/llama/config.json" >"$three/config.json"
    cp "$golden/llama/model.safetensors" "$three"
    run d9d-map -q --to d9d "$three" mtp-none
    [ "$status" -ne 0 ]
    [[ $output == *unused* ]]
}

# first_loss SECTION: of one step on the model long/, with these keys of "model_provider" too.
first_loss() {
    rm -rf run-long
    cat >long.json <<JSON
{"data": {"dataset": "data-long", "order": "sequential"},
 "model_provider": {"name": "auto", "hf_config": "long/config.json"$1},
 "trainer": {"run": {"name": "long", "dir": "run-long", "steps": 1},
  "batching": {"global_batch_size": 3, "microbatch_size": 3},
  "model_stage_factory": {"source_checkpoint": "$golden/phi3_long"}},
 "optimizer": {"name": "sgd", "lr": 1e-9}}
JSON
    d9d-train -q --device cpu long.json && grep -oE '"loss": *[0-9.e+-]+' run-long/metrics.jsonl
}

@test "LongRoPE's factors are those of the longest sequence that a job may have" {
    d9d-shard -q --format tokens --out data-long "$golden/phi3_long/train.jsonl"
    mkdir -p long
    tr -d '\n ' <"$golden/phi3_long/config.json" |
        sed 's/"original_max_position_embeddings":3/"original_max_position_embeddings":20/g' >long/config.json
    as_long=$(first_loss "")
    as_short=$(first_loss ', "max_positions": 20')
    [ "$as_long" = "$(first_loss ', "max_positions": 21')" ]
    sed -i 's/"long_factor":[^]]*/"long_factor":[1.0,1.1,1.3/' long/config.json
    [ "$as_short" = "$(first_loss "")" ]
    [ "$as_short" != "$as_long" ]
    run first_loss ', "max_positions": 65'
    [[ $output == *"model_provider.max_positions: is 65, and the model has 64 positions"* ]]
    run first_loss ', "max_positions": 12' # and the rows have 13
    [ "$status" -ne 0 ]
}

# multimodal TYPE CASE PREFIX HEAD: the case as the text model of a checkpoint whose second layer is
# its vision model; a third is dropped.
multimodal() {
    local third=
    grep -q '"num_hidden_layers": 3' "$golden/$2/config.json" &&
        third='{"op": "drop", "from": "model.layers.2.{x:any}"},'
    cat >spec.json <<JSON
{"schema": "d9d.mapper.v1", "stages": [[ $third
 {"op": "rename", "from": "model.layers.1.{x:any}", "to": "model.visual.{x}"},
 {"op": "rename", "from": "model.layers.0.{x:any}", "to": "${3}layers.0.{x}"},
 {"op": "rename", "from": "model.norm.weight", "to": "${3}norm.weight"},
 {"op": "rename", "from": "model.embed_tokens.weight", "to": "${3}embed_tokens.weight"},
 {"op": "rename", "from": "lm_head.weight", "to": "${4}lm_head.weight"}]]}
JSON
    rm -rf multi multi-*
    d9d-map -q --mapper spec.json "$golden/$2" multi
    rm -f multi/manifest.json
    tr -d '\n' <"$golden/$2/config.json" |
        sed 's/"num_hidden_layers": [23]/"num_hidden_layers": 1/; s/\("layer_types": \[ *"[a-z_]*"\),[^]]*/\1/' >text.json
    echo "{\"model_type\": \"$1\", \"vision_config\": {\"depth\": 1}, \"image_token_id\": 3,
 $(grep -o '"tie_word_embeddings": [a-z]*' text.json), \"text_config\": $(cat text.json)}" >multi/config.json
}

@test "the text model of a multimodal one is read, and the rest left out, with a word" {
    while read -r type case prefix head; do
        multimodal "$type" "$case" "$prefix" "$head"
        run d9d-map --to d9d multi multi-own
        echo "$case: $output"
        [ "$status" -eq 0 ]
        [[ $output == *" tensors of the vision model are left out: "*" does not compute them"* ]]
        d9d-map -q --to hf multi-own multi-text
        grep -q "\"model_type\": \"$(sed 's/.*"model_type": "\([a-z0-9_]*\)".*/\1/' text.json)\"" multi-text/config.json
        run d9d-map diff "$golden/$case" multi-text
        echo "$output"
        [[ $output =~ [1-9][0-9]\ tensors\ equal ]]
        [ "$(grep -E '^(model|lm_head)' <<<"$output" | grep -vc '^model\.layers\.[12]\..*: only in A')" -eq 0 ]
    done <<LIST
qwen3_5 qwen3_5 model.language_model.
gemma3 gemma3_odd language_model.model. language_model.
mistral3 ministral3 language_model.model. language_model.
LIST
    sed -i 's/"vision_config"/"scale_of_text": 2, "vision_config"/' multi/config.json
    run d9d-map --to d9d multi multi-none
    [ "$status" -eq 2 ]
    [[ $output == *"scale_of_text: 2: mistral3 does not know this field"* ]]
}

# Trained weights are stood for by random ones, whose folder has a file more.
@test "weights go into the folder that they are a part of, whose rest stays as it is" {
    while read -r type case prefix head; do
        multimodal "$type" "$case" "$prefix" "$head"
        rm -rf new* back both both-*
        echo '{"of": "the folder"}' | tee multi/preprocessor_config.json >multi/generation_config.json
        d9d-map -q --to d9d multi multi-own
        d9d-map --into multi multi-own back 2>log
        grep -Eq '^d9d-map: multi: [1-9][0-9]* tensors of the vision model go along$' log
        d9d-map -q diff multi back
        for f in config.json preprocessor_config.json generation_config.json; do cmp "multi/$f" "back/$f"; done
        d9d-map -q --to hf multi-own multi-text
        for source in multi-own:d9d multi-text:hf; do
            rm -rf new both both-own
            d9d-map -q init --to "${source#*:}" --seed 5 --model multi-text/config.json new
            echo '{"of": "the weights"}' >new/generation_config.json
            d9d-map -q --into multi new both
            grep -q 'the weights' both/generation_config.json
            cmp multi/config.json both/config.json
            d9d-map -q --to d9d both both-own
            [ "${source#*:}" = d9d ] || d9d-map -q --to d9d new new-own
            d9d-map -q diff "$([ "${source#*:}" = d9d ] && echo new || echo new-own)" both-own
            run d9d-map diff multi both
            [ "$(grep -c 'only in' <<<"$output")" -eq 0 ]
            [ "$(grep -c 'model\.visual' <<<"$output")" -eq 0 ]
        done
    done <<LIST
qwen3_5 qwen3_5 model.language_model.
gemma3 gemma3_odd language_model.model. language_model.
mistral3 ministral3 language_model.model. language_model.
LIST
    # layers of multi-token prediction, experts in one tensor
    sed -E 's/"num_hidden_layers": [0-9]+/"num_hidden_layers": 3/; s/"num_nextn_predict_layers": [0-9]+/"num_nextn_predict_layers": 1/' \
        "$golden/glm4_moe/config.json" >three.json
    for experts in per-expert fused; do
        rm -rf mtp* into
        d9d-map -q init --expert-layout $experts --model three.json mtp
        sed -i 's/"num_hidden_layers": 3/"num_hidden_layers": 2/' mtp/config.json
        rm mtp/manifest.json
        d9d-map -q --to d9d mtp mtp-own
        d9d-map -q --into mtp mtp-own into
        d9d-map -q diff mtp into
        [ "$(d9d-map plan --into mtp mtp-own | grep -c '> .*layers\.2\.')" -gt 5 ]
    done
}

# other NAME SED: multi-own as another model.
other() {
    rm -rf "$1"
    cp -r multi-own "$1"
    sed -i "$2" "$1/config.json"
}

@test "weights that do not belong into a folder are refused" {
    multimodal qwen3_5 qwen3_5 model.language_model.
    d9d-map -q --to d9d multi multi-own
    d9d-map -q --to hf multi-own multi-text
    bats_require_minimum_version 1.5.0
    into() { run -"$1" --separate-stderr d9d-map -q "${@:3}" none && echo "$stderr" && [[ $stderr == *"$2"* ]] && [ ! -e none ]; }
    other theta 's/"rope_theta": [0-9.e]*/"rope_theta": 77/'
    into 2 'theta/config.json is of another model than multi/config.json: rope_theta is ' --into multi theta
    other eps 's/"rms_norm_eps": [0-9.e-]*/"rms_norm_eps": 0.5/'
    into 2 'rms_norm_eps is 1e-06 there, and 0.5 here' --into multi eps
    other same 's/"attention_dropout": [0-9.]*/"attention_dropout": 0.5/; s/"initializer_range": [0-9.]*/"initializer_range": 0.5/'
    d9d-map -q --into multi same fine
    d9d-map -q --to d9d "$golden/gemma3_odd" gemma
    into 2 'gemma/config.json is of gemma3, and multi/config.json of qwen3_5' --into multi gemma
    into 2 'not found: nowhere: is no folder of a model' --into nowhere multi-own
    into 2 'multi-own: has the layout d9d' --into multi-own multi-text
    into 2 '--into multi: the layout is that of this folder' --to d9d --into multi multi-text
    into 2 '--into multi: the layout is that of this folder' --expert-layout fused --into multi multi-own
    into 2 'spec.json: says what becomes of every tensor; --into multi' --mapper spec.json --into multi multi-own
    d9d-map -q --to d9d --dtype bfloat16 multi half
    d9d-map -q --dtype bfloat16 --into multi multi-own small
    d9d-map -q --to d9d small small-own
    d9d-map -q diff half small-own
    # types are the folder's
    d9d-map -q --to d9d --dtype float32 multi wide
    d9d-map -q --into multi wide wide-back
    d9d-map -q diff multi wide-back
    # a tensor that is of no part, and one that the folder lacks
    sed 's/model\.visual/model.audio/' spec.json >audio.json
    d9d-map -q --mapper audio.json "$golden/qwen3_5" audio
    cp multi/config.json audio/
    into 2 'audio: model.audio.' --into audio multi-own
    [[ $stderr == *' is no tensor of the model, nor of a part beside it' ]]
    sed 's/{"op": "rename", "from": "model.norm.weight".*/{"op": "drop", "from": "model.norm.weight"},/' spec.json >lacks.json
    d9d-map -q --mapper lacks.json "$golden/qwen3_5" lacks
    cp multi/config.json lacks/
    into 2 'lacks: has no tensor model.language_model.norm.weight' --into lacks multi-own
}

# losses_of CASE DATA STEPS LR SOURCE [MEMBER]: of a training run, one a line; its folder is run-few.
losses_of() {
    rm -rf run-few
    cat >few.json <<JSON
{"data": {"dataset": "$2", "epochs": 9, "order": "sequential"}, $(section "$1"), ${6:-}
 "trainer": {"run": {"name": "few", "dir": "run-few", "steps": $3},
  "batching": {"global_batch_size": $(d9d-shard inspect --json "$2" | sed -nE 's/.*"samples": ([0-9]+).*/\1/p' | head -n 1), "microbatch_size": 1},
  "checkpointing": {"period_steps": $3}, "model_stage_factory": {"source_checkpoint": "$5"}},
 "optimizer": {"name": "adamw", "lr": $4}}
JSON
    d9d-train -q --device cpu few.json >&2 && grep -oE '"loss": *[0-9.e+-]+' run-few/metrics.jsonl | grep -oE '[0-9.e+-]+$'
}

@test "positions begin anew in each document of a row" {
    for c in gpt2 gpt_neox llama; do
        d9d-shard -q --format tokens --out "rows-$c" "$golden/$c/train.jsonl"
        d9d-shard -q --format tokens --pack 39 --out "pack-$c" "$golden/$c/train.jsonl"
        losses_of "$c" "rows-$c" 2 1e-3 "$golden/$c" >want
        losses_of "$c" "pack-$c" 2 1e-3 "$golden/$c" >got
        [ "$(wc -l <got)" -eq 2 ]
        worst=$(far 1e-6 got want)
        [ -z "$worst" ] || { echo "$c: $worst" && false; }
    done
}

# The loss of step 5 is that of the model which four steps have made.
@test "adapters are in the exported model, however its tensors lie in the files" {
    lora='"peft": {"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 2, "alpha": 8}},'
    for c in gpt2 gpt_neox; do
        losses_of "$c" "rows-$c" 5 1e-2 "$golden/$c" "$lora" | tail -n 1 >want
        losses_of "$c" "rows-$c" 4 1e-2 "$golden/$c" "$lora" >none
        mv run-few/export "export-$c"
        losses_of "$c" "rows-$c" 1 1e-2 "export-$c" >got
        worst=$(far 1e-5 got want)
        [ -z "$worst" ] || { echo "$c: $worst" && false; }
    done
}

@test "GPT-2's files without a prefix, and with the masks of older ones, are those of its language model" {
    cat >spec.json <<JSON
{"schema": "d9d.mapper.v1", "rest": "drop", "stages": [[
 {"op": "rename", "from": "transformer.h.1.attn.c_proj.bias", "to": "h.0.attn.bias"},
 {"op": "rename", "from": "transformer.h.1.attn.c_attn.bias", "to": "h.0.attn.masked_bias"},
 {"op": "rename", "from": "transformer.h.0.{x:any}", "to": "h.0.{x}"},
 {"op": "rename", "from": "transformer.ln_f.{x:any}", "to": "ln_f.{x}"},
 {"op": "rename", "from": "transformer.wte.weight", "to": "wte.weight"},
 {"op": "rename", "from": "transformer.wpe.weight", "to": "wpe.weight"}]]}
JSON
    d9d-map -q --mapper spec.json "$golden/gpt2" bare
    rm -f bare/manifest.json
    sed 's/"n_layer": 2/"n_layer": 1/' "$golden/gpt2/config.json" >bare/config.json
    d9d-map -q --to d9d bare bare-own
    d9d-map -q --to hf bare-own bare-back
    run d9d-map diff "$golden/gpt2" bare-back
    echo "$output"
    [[ $output == *"16 tensors equal"* ]]
    grep -q GPT2LMHeadModel bare-back/config.json
    [ "$(grep -E '^(transformer|lm_head)' <<<"$output" | grep -vc '^transformer\.h\.1\..*: only in A')" -eq 0 ]
}

@test "random weights of every family load, and are those of the seed" {
    for c in $(cases); do
        d9d-map -q init --model "$golden/$c/config.json" --seed 3 "new-$c"
        run d9d-map -q diff "$golden/$c" "new-$c" # the same names, other numbers
        # New names of a config.json say that experts are fused, which transformers parts in files.
        [ "$(grep 'only in' <<<"$output" | grep -vc 'mlp\.experts\.')" -eq 0 ] || { echo "$c: $output" && false; }
        d9d-map -q init --to d9d --model "$golden/$c/config.json" --seed 3 "new-own-$c"
        d9d-map -q --to hf "new-own-$c" "again-$c"
        d9d-map -q diff "new-$c" "again-$c"
    done
}

@test "a loss that transformers adds for output_router_logits is missed aloud" {
    d9d-shard -q --format tokens --out data "$golden/mixtral/train.jsonl"
    for c in true false; do
        sed "s/\"output_router_logits\": [a-z]*/\"output_router_logits\": $c/" "$golden/mixtral/config.json" >"$c.json"
        grep -q "\"output_router_logits\": $c" "$c.json"
    done
    for router in 'true 0' 'true 0.01' 'false 0'; do
        cat >train.json <<JSON
{"data": {"dataset": "data"},
 "model_provider": {"name": "mixtral", "hf_config": "${router% *}.json", "router": {"aux_loss_coef": ${router#* }}},
 "trainer": {"run": {"name": "r", "dir": "run", "steps": 1}, "batching": {"global_batch_size": 1}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
        rm -rf run
        d9d-train --device cpu train.json 2>log
        grep -c 'true.json: output_router_logits is true, .*, model_provider.router.aux_loss_coef adds one' log >>said || true
    done
    diff <(printf '%s\n' 1 0 0) said
}
