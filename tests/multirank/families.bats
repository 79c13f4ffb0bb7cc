#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# A model family's config.json: a plugin's family computes what it supports as transformers does.
# It rejects other fields by name before anything is computed.  The tools find the family by
# model_type.

golden=$BATS_TEST_DIRNAME/../golden

load workroom

setup_file() {
    workroom
    plugin plain_llama "$root/examples/plugins/plain_llama.c"
    for f in seed_oss glm4; do plugin $f "$root/examples/plugins/$f.c"; done
}

# infer CASE FAMILY [FLAG...]: checks the log-probabilities of golden CASE.
infer() {
    [ -d "data-$1" ] || d9d-shard -q --format tokens --out "data-$1" "$golden/$1/tokens.jsonl"
    rm -f "$1.jsonl"
    cat >infer.json <<JSON
{"plugin": "libplain_llama.so", "data": {"dataset": "data-$1"},
 "model_provider": {"name": "$2", "hf_config": "$golden/$1/config.json"},
 "trainer": {"batching": {"microbatch_size": 2}, "model_stage_factory": {"source_checkpoint": "$golden/$1"}},
 "task": {"name": "logprobs", "output": "$1.jsonl"}}
JSON
    d9d-infer -q --device cpu "${@:3}" infer.json
}
probs() { grep -oE "[-][0-9.]+(e-[0-9]+)?" "$1"; }

@test "every family equals transformers" {
    for c in llama:plain_llama llama3:plain_llama mistral:plain_mistral; do
        infer ${c%:*} ${c#*:}
        close_to 1e-5 <(probs ${c%:*}.jsonl) <(probs "$golden/${c%:*}/logprobs.jsonl")
    done
}

@test "the rotary embedding of Llama 3.1 is read from rope_scaling and rope_parameters alike" {
    sed -e 's/"rope_parameters"/"rope_scaling"/' -e '/"rope_theta"/d' -e 's/"rope_type"/"type"/' \
        -e 's/"vocab_size"/"rope_theta": 500.0, &/' "$golden/llama3/config.json" |
        tr '\n' ' ' | sed 's/, *"type"/, "type"/' >old.json
    infer llama3 plain_llama --set model_provider.hf_config=old.json --set task.output=old.jsonl
    infer llama3 plain_llama
    cmp {old,llama3}.jsonl
}

@test "Mistral without sliding_window attends to all keys" {
    sed 's/"sliding_window": 7/"sliding_window": null/' "$golden/mistral/config.json" >open.json
    infer mistral plain_mistral --set model_provider.hf_config=open.json --set task.output=open.jsonl
    infer mistral plain_mistral --set task.output=seven.jsonl
    run ! cmp -s {open,seven}.jsonl
    sed 's/"sliding_window": 7/"sliding_window": 64/' "$golden/mistral/config.json" >wide.json
    infer mistral plain_mistral --set model_provider.hf_config=wide.json --set task.output=wide.jsonl
    cmp {open,wide}.jsonl
}

# with MEMBER: other.json, the golden Llama's config.json with a member changed or added.
with() {
    local name=${1%%:*}
    tr '\n' ' ' <"$golden/llama/config.json" | sed -E "s/$name: (\{[^}]*\}|[^,{}]*),//; s/^\{/{$1,/" >other.json
}

@test "fields that a family does not support are rejected by name" {
    n=0
    while IFS='|' read -r member says; do
        [ -n "$member" ] || continue
        echo "$member"
        with "$member"
        run -2 infer llama plain_llama --set model_provider.hf_config=other.json --set task.output=none.jsonl
        assert_output --partial "other.json: $says"
        [ ! -e none.jsonl ]
        n=$((n + 1))
    done <<'LIST'
"attention_bias": true|attention_bias: true is not supported
"mlp_bias": true|mlp_bias: true is not supported
"hidden_act": "gelu"|hidden_act: "gelu" is not supported
"attention_dropout": 0.1|attention_dropout: 0.1 is not supported
"model_type": "arcee"|model_type: "arcee" is not supported; llama is
"model_type": "bloom"|model_type: "bloom" is not supported; llama is
"model_type": 7|model_type: must be a text
"model_type": null|model_type is missing
"sliding_window": 4096|sliding_window: 4096: plain_llama does not know this field
"use_sliding_window": true|use_sliding_window: true: plain_llama does not know this field
"layer_types": ["sliding_attention", "full_attention"]|layer_types: ["sliding_attention", "full_attention"]: plain_llama does not know
"embedding_multiplier": 12.0|embedding_multiplier: 12.0: plain_llama does not know this field
"attention_multiplier": 0.0078125|attention_multiplier: 0.0078125: plain_llama does not know this field
"residual_multiplier": 0.22|residual_multiplier: 0.22: plain_llama does not know this field
"logits_scaling": 8.0|logits_scaling: 8.0: plain_llama does not know this field
"final_logit_softcapping": 30.0|final_logit_softcapping: 30.0: plain_llama does not know this field
"attn_logit_softcapping": 50.0|attn_logit_softcapping: 50.0: plain_llama does not know this field
"query_pre_attn_scalar": 256|query_pre_attn_scalar: 256: plain_llama does not know this field
"clip_qkv": 8|clip_qkv: 8: plain_llama does not know this field
"qk_layernorm": true|qk_layernorm: true: plain_llama does not know this field
"use_qk_norm": false|use_qk_norm: false: plain_llama does not know this field
"no_rope_layers": [1, 0]|no_rope_layers: [1, 0]: plain_llama does not know this field
"num_local_experts": 8|num_local_experts: 8: plain_llama does not know this field
"attention_chunk_size": 8192|attention_chunk_size: 8192: plain_llama does not know this field
"text_config": {"hidden_size": 32}|text_config: {"hidden_size": 32}: plain_llama does not know this field
"quantization_config": {"quant_method": "hqq"}|quantization_config.quant_method: "hqq" is not supported
"partial_rotary_factor": 0.5|partial_rotary_factor: 0.5 is not supported
"is_encoder_decoder": true|is_encoder_decoder: true is not supported
"add_cross_attention": true|add_cross_attention: true is not supported
"pruned_heads": {"0": [1]}|pruned_heads: {"0": [1]} is not supported
"rope_parameters": {"rope_type": "proportional", "factor": 2.0}|rope_parameters: "proportional" is not supported
"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0]}|short_factor of scaled rotary embedding is missing
"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0, 2.0]}|long_factor of scaled rotary embedding has 2 numbers, short_factor 1
"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "beta_fast": 32}|rope_parameters.beta_fast: 32: plain_llama does not know
"rope_parameters": {"rope_type": "llama3", "factor": 8.0}|high_freq_factor of scaled rotary embedding is missing
"rope_parameters": {"partial_rotary_factor": 0.5}|rope_parameters.partial_rotary_factor: 0.5 is not supported
"rope_parameters": {"full_attention": {"rope_theta": 5.0}}|rope_parameters.full_attention: {"rope_theta": 5.0}: plain_llama does not know
"rope_scaling": {"type": "default", "sections": [1, 1, 2]}|rope_scaling.sections: [1, 1, 2]: plain_llama does not know
"rope_scaling": 8|rope_scaling: 8 is not supported
LIST
    [ "$n" -ge 30 ]
    with '"model_type": "mixtral"'
    run -2 infer llama plain_llama --set model_provider.hf_config=other.json --set task.output=none.jsonl
    assert_output --partial 'model_provider.name: "plain_llama" does not read model_type "mixtral" of other.json; "mixtral" does'
    [ ! -e none.jsonl ]
}

@test "fields without influence are accepted, and null means absent" {
    with '"pretraining_tp": 2, "torch_dtype": "float32", "logits_scaling": null, "temperature": 0.6'
    infer llama plain_llama --set model_provider.hf_config=other.json --set task.output=taken.jsonl
    infer llama plain_llama
    cmp {taken,llama}.jsonl
}

@test "a built-in family declares its fields to every tool" {
    mkdir src
    sed 's/"hidden_act"/"logits_scaling": 8.0, &/' "$golden/dense_tied/config.json" >src/config.json
    ln "$golden"/dense_tied/*.safetensors src 2>/dev/null || cp "$golden"/dense_tied/*.safetensors src
    run -2 d9d-map -q src dst
    assert_output --partial "src/config.json: logits_scaling: 8.0: qwen3 does not know this field"
    mkdir unknown
    sed 's/"model_type": "llama"/"model_type": "bloom"/' "$golden/llama/config.json" >unknown/config.json
    cp "$golden"/llama/*.safetensors unknown
    run -2 d9d-map -q unknown dst
    assert_output --regexp 'config\.json: model_type: "bloom" is not supported; there are .*llama.*, and plugins bring others \(man d9d-plugin\)'
    sed 's/"model_type": "llama"/"model_type": "llama4", "text_config": {"model_type": "llama4_text"}/' \
        "$golden/llama/config.json" >unknown/config.json
    run -2 d9d-map -q unknown dst
    assert_output --partial 'config.json: model_type: "llama4" is not supported: it has a text_config, of more than text; save its text model alone with transformers (model_type "llama4_text")'
    run -2 infer llama qwen3_dense
    assert_output --partial 'model_provider.name: "qwen3_dense" does not read model_type "llama" of '
    assert_output --partial '; "llama" does'
    [ ! -e dst ]
}

@test "a family that declares no fields is not loaded" {
    sed '/\.model_types/d; s/\.stages = true, .*/.stages = true, \\/' "$root/examples/plugins/plain_llama.c" >silent.c
    plugin silent silent.c -Wno-unused
    run -2 infer llama plain_llama --set plugin=libsilent.so
    assert_output --partial 'libsilent.so: the model provider "plain_llama" has no model_types (which config.json it reads, and every field of it: d9d/model/hf/hf_fields.h)'
}

@test "a declared field that the family does not read is an error" {
    sed 's/D9D_HF_ONLY("mlp_bias", .*/D9D_HF_READ("mlp_bias"),/' "$root/examples/plugins/plain_llama.c" >bad_schedule_plugin.c
    plugin liar bad_schedule_plugin.c
    run -2 infer llama plain_llama --set plugin=libliar.so
    assert_output --partial 'mlp_bias: unknown key'
}

# --- a family as a plugin -------------------------------------------------------------------------

# plugins: every golden case of a family that is a plugin.  family CASE: its name.
plugins() { (cd "$golden/plugins" && printf '%s\n' *); }
family() { sed -n 's/.*"model_type": "\(.*\)".*/\1/p' "$golden/plugins/$1/config.json"; }

# job CASE PROVIDER: the beginning of a configuration for a golden case; "task" or "optimizer" follows.
job() {
    local data
    data=rows-$(basename "$1")
    [ -d "$data" ] || d9d-shard -q --format tokens --out "$data" "$golden/$1/train.jsonl"
    cat <<JSON
{"plugin": ["libglm4.so", "libseed_oss.so"], "data": {"dataset": "$data", "epochs": EPOCHS},
 "model_provider": {"name": "$2", "hf_config": "$golden/$1"},
 "trainer": {"batching": {BATCHING}, "model_stage_factory": {"source_checkpoint": "$golden/$1"} TRAINER},
JSON
}
# scores CASE PROVIDER OUTPUT [FLAG...]: writes the log-probability of each target.
scores() {
    job "$1" "$2" | sed 's/EPOCHS/1/; s/BATCHING/"microbatch_size": 2/; s/ TRAINER//' >scores.json
    echo ' "task": {"name": "logprobs", "output": "'"$3"'"}}' >>scores.json
    d9d-infer -q --device cpu "${@:4}" scores.json
}
# training CASE PROVIDER: a configuration of ten steps, each with all rows.
training() {
    job "$1" "$2" | sed 's/EPOCHS/10/; s/BATCHING/"global_batch_size": 3/
        s/ TRAINER/, "run": {"name": "rows", "steps": 10}, "gradient_clipping": {"max_norm": 1.0}/'
    echo ' "optimizer": {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}'
}
# learned RUN CASE: checks the losses and gradient norms of a run against transformers.
learned() {
    close_to 1e-4 <(numbers loss "$1") <(numbers loss "$golden/$2/train.json")
    close_to 1e-4 <(numbers grad_norm "$1") <(numbers grad_norm "$golden/$2/train.json")
}

@test "a plugin's family equals transformers" {
    for c in $(plugins); do
        scores "plugins/$c" "$(family "$c")" "$c.jsonl"
        close_to 1e-5 <(sed 's/"loss".*//' "$c.jsonl" | grep -oE "[-][0-9.]+(e-[0-9]+)?") <(probs "$golden/plugins/$c/logprobs.jsonl")
    done
}

@test "a plugin's family trains like transformers on every mesh" {
    for c in $(plugins); do
        training "plugins/$c" "$(family "$c")" >train.json
        run -0 d9d-train -q --device cpu --set "trainer.run.dir=$c" train.json
        learned "$c" "plugins/$c"
    done
    with_mpi
    for f in seed_oss glm4; do
        training plugins/$f $f >train.json
        for mesh in tensor_parallel pipeline_parallel context_parallel_shard; do
            mpi -n 2 d9d-train -q --device cpu --set mesh.$mesh=2 --set trainer.run.dir=$f-$mesh train.json
            learned $f-$mesh plugins/$f
        done
        six=(-q --device cpu --set trainer.batching.global_batch_size=6 --set data.epochs=20)
        d9d-train "${six[@]}" --set trainer.run.dir=$f-one train.json
        mpi -n 4 d9d-train "${six[@]}" --set mesh.data_parallel_shard=2 --set mesh.tensor_parallel=2 \
            --set trainer.run.dir=$f-four train.json
        close_to 1e-5 <(numbers loss $f-four) <(numbers loss $f-one)
    done
}

@test "a plugin's family generates like transformers, with a cache" {
    for c in $(plugins); do
        cat >generate.json <<JSON
{"plugin": "lib$(family "$c").so", "model_provider": {"name": "auto", "hf_config": "$golden/plugins/$c"},
 "trainer": {"batching": {"microbatch_size": 2}, "model_stage_factory": {"source_checkpoint": "$golden/plugins/$c"}},
 "task": {"name": "generate", "prompts": "$golden/plugins/$c/generate.jsonl", "max_new_tokens": 6,
  "stop_at_eos": false, "output": "$c-tokens.jsonl"}}
JSON
        d9d-infer -q --device cpu generate.json
        diff <(sed 's/.*"tokens": \[//; s/\].*//' "$c-tokens.jsonl") <(sed 's/.*"tokens": \[//; s/\].*//' "$golden/plugins/$c/generate.jsonl")
    done
}

@test "a plugin's family that says nothing of dropout is not trained with it, and one that does is" {
    sed 's/ \.dropout = true,//' "$root/examples/plugins/seed_oss.c" >undropped.c
    run ! cmp -s undropped.c "$root/examples/plugins/seed_oss.c"
    plugin undropped undropped.c
    training plugins/seed_oss seed_oss >train.json
    sed 's/libseed_oss\.so/libundropped.so/' train.json >undropped.json
    d9d-train -q --device cpu --set trainer.run.dir=plain train.json
    for key in attention_dropout residual_dropout; do
        sed "s/\"$key\": 0.0/\"$key\": 0.1/" "$golden/plugins/seed_oss/config.json" >dropout.json
        scores plugins/seed_oss seed_oss $key.jsonl --set model_provider.hf_config=dropout.json
        run -2 d9d-train -q --device cpu --set model_provider.hf_config=dropout.json --set trainer.run.dir=none undropped.json
        assert_output --partial "seed_oss: $key is 0.1, and the family is trained with 0"
        [ ! -e none ]
        d9d-train -q --device cpu --set model_provider.hf_config=dropout.json --set trainer.run.dir=$key train.json
        run ! cmp -s <(numbers loss plain) <(numbers loss $key)
    done
    # a rate that no family of the library has
    sed 's/    bool attention_bias,/    double embedding_dropout;\n&/; s/    D9D_FAMILY_RESIDUAL_DROPOUT.*/&\n    D9D_FAMILY_DROPOUT(config, embedding_dropout, embedding_dropout, "0.1", "of the embedding"),/' \
        undropped.c >dropping.c
    plugin dropping dropping.c
    run -2 d9d-train -q --device cpu --set plugin=libdropping.so --set trainer.run.dir=none train.json
    assert_output --partial "seed_oss: embedding_dropout is 0.1, and the family is trained with 0"
    sed '1s/{/{"embedding_dropout": 0,/' "$golden/plugins/seed_oss/config.json" >none.json
    d9d-train -q --device cpu --set plugin=libdropping.so --set model_provider.hf_config=none.json --set trainer.run.dir=dropping train.json
}

@test "d9d-map converts and initialises a plugin's model" {
    for c in $(plugins); do
        lib=lib$(family "$c").so
        from=$golden/plugins/$c
        rm -rf own back again theirs
        run -0 d9d-map -q --plugin "$lib" "$from" own
        run -0 d9d-map -q --plugin "./$lib" own back
        run -0 d9d-map diff "$from" back
        cmp {"$from",back}/config.json
        run -0 d9d-map -q --plugin "$lib" back again
        run -0 d9d-map -q --plugin "$lib" again theirs
        cmp {own,again}/model.safetensors
        cmp {back,theirs}/model.safetensors
    done
    run -0 d9d-map init -q --plugin libseed_oss.so --model "$golden/plugins/seed_oss" --seed 3 fresh
    scores plugins/seed_oss seed_oss fresh.jsonl --set trainer.model_stage_factory.source_checkpoint=fresh
    run -0 d9d-map plan --plugin libplain_llama.so --plugin libseed_oss.so --model "$golden/plugins/seed_oss"
    assert_output --partial "self_attn.q_proj.bias"
}

@test "d9d-map without the plugin, or with a library that is no plugin, is an error" {
    run -2 d9d-map -q "$golden/plugins/seed_oss" none
    assert_output --partial 'seed_oss/config.json: model_type: "seed_oss" is not supported; there are '
    run -2 d9d-map -q --plugin libplain_llama.so "$golden/plugins/seed_oss" none
    assert_output --partial 'model_type: "seed_oss" is not supported'
    run -2 d9d-map plan --plugin libabsent.so "$golden/plugins/seed_oss"
    assert_output --partial "libabsent.so: cannot open shared object file"
    run -2 d9d-map init --plugin "" --model "$golden/plugins/seed_oss" none
    assert_output --partial "--plugin: plugin: expected the name of a shared library"
    run -2 d9d-map -q --plugin libseed_oss.so --plugin ./libseed_oss.so "$golden/plugins/seed_oss" none
    assert_output --partial 'the model provider "seed_oss" is there already'
    [ ! -e none ]
}

@test "d9d-map with a plugin writes the same files on several ranks" {
    with_mpi
    d9d-map -q --plugin libseed_oss.so "$golden/plugins/seed_oss" one
    mpi -n 2 d9d-map -q --plugin libseed_oss.so "$golden/plugins/seed_oss" two
    cmp {one,two}/model.safetensors
}

@test "a plugin's family without a required part is rejected by name" {
    for part in class_name layer init forward; do
        sed -E "s/\.$part = [^,]*,//" "$root/examples/plugins/seed_oss.c" >lacking.c
        plugin lacking lacking.c -Wno-unused-function
        run -2 d9d-map --plugin liblacking.so "$golden/plugins/seed_oss" none
        assert_output --partial "liblacking.so: the family \"seed_oss\" has no $part"
    done
}

# --- a family that nobody names ---------------------------------------------------------------------

@test "model \"auto\" finds the family by model_type, built in or of a plugin" {
    for c in families/mistral:mistral families/qwen3:qwen3_dense families/qwen3_moe:qwen3_moe plugins/seed_oss:seed_oss; do
        scores ${c%:*} auto auto.jsonl
        scores ${c%:*} ${c#*:} named.jsonl
        cmp {auto,named}.jsonl
        rm {auto,named}.jsonl
        run -0 d9d-infer --print-config scores.json --set model_provider.name=auto
        assert_output --partial '"name": "auto"'
    done
}

@test "model \"auto\" trains like its family" {
    for c in families/mixtral:mixtral families/qwen3_moe:qwen3_moe plugins/seed_oss:seed_oss; do
        router=(--set model_provider.router.aux_loss_coef=0.1)
        rm -rf auto named
        training ${c%:*} auto >train.json
        run -0 d9d-train -q --device cpu --set trainer.run.dir=auto "${router[@]}" --set model_provider.checkpointing=full train.json
        training ${c%:*} ${c#*:} >train.json
        run -0 d9d-train -q --device cpu --set trainer.run.dir=named "${router[@]}" --set model_provider.checkpointing=full train.json
        cmp {auto,named}/export/model.safetensors
        run -0 d9d-train --plan --gpu cpu --set model_provider.name=auto --set trainer.run.dir=none train.json
    done
}

@test "model \"auto\" names what it does not support" {
    sed 's/"seed_oss"/"bloom"/' "$golden/plugins/seed_oss/config.json" >bloom.json
    run -2 scores plugins/seed_oss auto none.jsonl --set model_provider.hf_config=bloom.json
    assert_output --regexp 'bloom.json: model_type: "bloom" is not supported; there are .*llama.*, seed_oss, and plugins bring others'
    run -2 scores plugins/seed_oss auto none.jsonl --set plugin='[]'
    assert_output --partial 'model_type: "seed_oss" is not supported'
    run -2 scores plugins/seed_oss auto none.jsonl --set model_provider.hf_config=null
    assert_output --partial 'model_provider.hf_config: "auto" needs a config.json, which names the family'
    run -2 scores families/qwen3 auto none.jsonl --set model_provider.split_vocab_size.a=53
    assert_output --partial 'model_provider (qwen3_dense): split_vocab_size: unknown key'
    run -2 scores families/llama auto none.jsonl --set model_provider.split_vocab_size.a=52
    assert_output --partial 'split_vocab_size: has 52 ids, vocab_size is 53'
    [ ! -e none.jsonl ]
}
