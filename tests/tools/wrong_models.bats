#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Folders of wrong, mixed and unknown models: each is refused by one sentence that names the field or
# the tensor, and nothing is written.

setup() {
    load helper
    load map_helper
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
}

# folder CASE: a copy of a golden model in src.
folder() {
    rm -rf src && mkdir src
    cp "$golden/families/$1"/{config.json,model.safetensors} src
    chmod -R u+w src
}

# set_field KEY VALUE: of src/config.json; a new one stands before the others.
set_field() {
    drop_field "$1"
    sed -i "1s|{|{\n  \"$1\": $2,|" src/config.json
}
drop_field() {
    sed -i "/^  \"$1\": [^{[]*\$/d" src/config.json
    sed -i -z 's/,\n}/\n}/' src/config.json
}
edit() { sed -i -e "$1" "src/$2"; }

# refused STATUS PATTERN: of the last line; "*" is any text.
refused() {
    local want=${2//[/\\[}
    run "-$1" --separate-stderr d9d-map -q src dst
    echo "want: $2" "got:  ${stderr_lines[-1]}"
    # shellcheck disable=SC2053 # a pattern
    [[ "${stderr_lines[-1]}" == "d9d-map: "${want//]/\\]} ]]
    [ "$(ls)" = src ]
}

# Each line: a case, a field, its value, and the sentence behind the file's name.
fields() {
    local case field value sentence n=0
    while IFS='|' read -r case field value sentence; do
        folder "$case"
        if [ "$value" = - ]; then drop_field "$field"; else set_field "$field" "$value"; fi
        refused 2 "*: src/config.json: $sentence"
        n=$((n + 1))
    done
    [ $n -gt 0 ]
}

@test "wrong types, missing fields, sizes that cannot be" {
    fields <<'LIST'
llama|hidden_size|"24"|hidden_size: expected an integer, got a string ("24")
llama|num_hidden_layers|2.5|num_hidden_layers: expected an integer, got a number (2.5)
llama|num_attention_heads|true|num_attention_heads: expected an integer, got true
llama|vocab_size|[53]|vocab_size: expected an integer, got a list
llama|tie_word_embeddings|"no"|tie_word_embeddings: expected true or false, got a string ("no")
qwen3_moe|d9d|{"router": {"gruops": 4}}|d9d.router.gruops is unknown
qwen3_moe|d9d|{"router": {"groups": 1, "top_groups": 2}}|d9d.router has the best 2 of 1 group of experts
llama|vocab_size|-|vocab_size: required key is missing (ids of the vocabulary)
llama|hidden_size|-|hidden_size: required key is missing (width of the residual stream)
llama|intermediate_size|-28|intermediate_size: -28 is below the minimum of 1
llama|num_hidden_layers|0|num_hidden_layers: 0 is below the minimum of 1
llama|vocab_size|4294967296|vocab_size: 4294967296 is above the maximum of 2147483647
llama|attention_dropout|2|attention_dropout: 2 is not below 1
llama|num_key_value_heads|3|num_attention_heads 4 is not a multiple of num_key_value_heads 3
llama|dtype|"int4"|dtype: "int4" is no floating-point type of weights
llama|dtype|"int8"|dtype: "int8" is no floating-point type of weights
llama|torch_dtype|32|torch_dtype: 32 is no floating-point type of weights
llama|torch_dtype|"float32"|dtype is "bfloat16" and torch_dtype is "float32"
mixtral|num_experts_per_tok|0|num_experts_per_tok: 0 is below the minimum of 1
mixtral|num_experts_per_tok|9|num_experts_per_tok is 9, of num_local_experts 6
mixtral|num_local_experts|1|num_experts_per_tok is 2, of num_local_experts 1
gpt_oss|num_experts_per_tok|7|num_experts_per_tok is 7, of num_local_experts 6
deepseek_v3|n_group|3|n_group (router.groups) is 3: at most 32 groups, which divide n_routed_experts 8
deepseek_v3|topk_group|5|topk_group (router.top_groups) is 5, of n_group (router.groups) 4
deepseek_v3|num_experts_per_tok|5|topk_group (router.top_groups) 2 of n_group (router.groups) 4 have 4 experts of n_routed_experts 8, and num_experts_per_tok is 5
qwen3_next|linear_num_value_heads|3|linear_num_value_heads 3 is not a multiple of linear_num_key_heads 2
qwen3_next|linear_conv_kernel_dim|9|linear_conv_kernel_dim: 9 is above the maximum of 8
ministral|sliding_window|null|layer_types has sliding_attention, and no sliding_window is in use
llama|rms_norm_eps|0|rms_norm_eps: 0 is not above 0
qwen3_moe|rms_norm_eps|-0.0|rms_norm_eps: -0 is not above 0
deepseek_v3|qk_rope_head_dim|3|3 features of a head are rotated, which must be even and above 0 (qk_rope_head_dim 3)
llama|rope_scaling|{"rope_type": "linear", "factor": 0}|rope_scaling.factor (linear): 0 is not at least 1
llama|rope_scaling|{"rope_type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 3}|rope_scaling.beta_fast (yarn): 1 is not at least beta_slow
deepseek_v3|num_key_value_heads|2|num_key_value_heads is 2: of latent attention it must be num_attention_heads, 4
LIST
    folder llama
    edit 's/"hidden_size": [0-9]*/"hidden_size": 99999999999999999999/' config.json
    refused 1 'malformed data: src/config.json: line *too big integer*'
    folder qwen3_next_types
    set_field num_hidden_layers 9
    refused 2 '*: src/config.json: layer_types has * layers, num_hidden_layers is 9'
    while IFS='|' read -r case field sentence; do
        folder "$case"
        sed -i -z "s/\"$field\": *\[[^]]*\]/\"$field\": []/" src/config.json
        refused 2 "*: src/config.json: $sentence"
    done <<'LIST'
ministral|layer_types|layer_types has 0 layers, num_hidden_layers is 3
smollm3_list|no_rope_layers|no_rope_layers has 0 layers, num_hidden_layers is 3
LIST
    folder smollm3_window
    edit 's/"use_sliding_window": true/"use_sliding_window": false/' config.json
    refused 2 '*: src/config.json: layer_types has sliding_attention, and no sliding_window is in use'
    folder llama
    edit 's/"head_dim": [0-9]*/"head_dim": 7/' config.json
    refused 2 '*: src/config.json: 7 features of a head are rotated, which must be even and above 0 (head_dim 7, *'
}

@test "kinds of models that are not built" {
    fields <<'LIST'
llama|model_type|"bert"|model_type: "bert" is not supported; there are qwen3, *, and plugins bring others (man d9d-plugin)
llama|model_type|"llava"|model_type: "llava" is not supported; there are *
llama|model_type|3|model_type: must be a text
llama|model_type|"gemma3"|text_config of model_type "gemma3" is missing
gpt2|n_head|5|n_head 5 does not divide n_embd 24, and head_dim is not given
llama|model_type|"lama"|model_type: "lama" is not supported; there are *
llama|model_type|-|model_type is missing
llama|model_type|null|model_type is missing
llama|is_encoder_decoder|true|is_encoder_decoder: true is not supported
llama|add_cross_attention|true|add_cross_attention: true is not supported
llama|vision_config|{"hidden_size": 3}|vision_config: {"hidden_size": 3}: llama does not know this field, which may change what the model computes
llama|logit_softcap|30.0|logit_softcap: 30.0: llama does not know this field, which may change what the model computes
llama|hidden_act|"relu2"|hidden_act: unknown word "relu2"; expected silu, swish, gelu, gelu_pytorch_tanh, gelu_new or gelu_fast
llama|rope_scaling|3|rope_scaling: 3 is not supported
llama|rope_scaling|{"rope_type": "spiral", "factor": 2.0}|rope_scaling: "spiral" is not supported
llama|rope_scaling|{"rope_type": "longrope"}|short_factor of scaled rotary embedding is missing
llama|rope_scaling|{"rope_type": "dynamic"}|factor of scaled rotary embedding is missing
llama|rope_scaling|{"rope_type": "dynamic", "factor": "x"}|factor: expected a number, got "x"
llama|rope_scaling|{"rope_type": 5}|rope_scaling: 5 is not supported
llama|quantization_config|{"quant_method": "hqq", "nbits": 4}|quantization_config.quant_method: "hqq" is not supported; "fp8", "mxfp4", "compressed-tensors", "bitsandbytes", "gptq", "awq", "fbgemm_fp8" and "modelopt" are decoded when they are read, of others take the unquantised weights
llama|quantization_config|{"quant_method": "compressed-tensors"}|quantization_config.format: null is not decoded, only "pack-quantized" of 2, 4 and 8 bits, symmetric "int-quantized" and "float-quantized" of 8, "nvfp4-pack-quantized" and "mxfp4-pack-quantized"; of others take the unquantised weights
llama|quantization_config|4|quantization_config: must be an object
LIST
    folder llama
    edit 's/LlamaForCausalLM/LlamaForQuestionAnswering/' config.json
    refused 2 '*: src/config.json: architectures: ["LlamaForQuestionAnswering"] is not supported'
}

@test "the model_type of one family and the tensors of another" {
    fields <<'LIST'
llama|model_type|"qwen3"|mlp_bias: false: qwen3 does not know this field, which may change what the model computes
llama|model_type|"phi3"|pretraining_tp: 1: phi3 does not know this field, which may change what the model computes
LIST
    folder llama
    edit 's/LlamaForCausalLM/Qwen2ForCausalLM/' config.json
    refused 2 'invalid configuration: src/config.json: architectures: "Qwen2ForCausalLM" is a class of qwen2, and model_type is "llama"'
    run -1 d9d-map describe src
    assert_output --partial 'architectures: "Qwen2ForCausalLM" is a class of qwen2, and model_type is "llama"'
    folder mistral
    edit 's/MistralForCausalLM/MixtralForCausalLM/' config.json
    set_field model_type '"mixtral"'
    refused 2 'does not match: src and mixtral: * missing, * unused, 0 mis-shaped tensors: tensor model.layers.0.block_sparse_moe.gate.weight is missing; *'
    folder llama
    cp "$golden/families/phi3/model.safetensors" src
    refused 2 'does not match: src and llama: * missing, * unused, *'
    folder llama
    cp "$golden/families/mixtral/model.safetensors" src
    refused 2 'does not match: src and llama: * missing, * unused, *'
}

@test "tensors that are missing, too many, of another shape or type" {
    folder llama
    set_field num_hidden_layers 1
    refused 2 'does not match: src and llama: 0 missing, 9 unused, 0 mis-shaped tensors: tensor model.layers.1.input_layernorm.weight is not used (src/model.safetensors)*'
    folder llama
    set_field num_hidden_layers 3
    refused 2 'does not match: src and llama: 9 missing, 0 unused, 0 mis-shaped tensors: tensor model.layers.2.input_layernorm.weight is missing*'
    folder llama
    set_field vocab_size 54
    refused 2 'does not match: src and llama: 0 missing, 0 unused, 2 mis-shaped tensors: tensor model.embed_tokens.weight is BF16 [53, 24], llama needs BF16 [54, 24]*'
    folder llama_odd
    set_field tie_word_embeddings false
    refused 2 'does not match: src and llama: 1 missing, 0 unused, 0 mis-shaped tensors: tensor lm_head.weight is missing'
    folder mixtral
    set_field num_local_experts 7
    refused 2 'does not match: src and mixtral: 6 missing, 0 unused, 2 mis-shaped tensors: tensor model.layers.0.block_sparse_moe.gate.weight is BF16 [6, 24], mixtral needs BF16 [7, 24]*'
    folder llama
    edit 's/model.norm.weight/model.norm.wieght/' model.safetensors
    refused 2 'does not match: src and llama: 1 missing, 1 unused, 0 mis-shaped tensors: tensor model.norm.weight is missing; tensor model.norm.wieght is not used (src/model.safetensors)'
    folder llama
    edit '1s/"BF16"/"I16" /' model.safetensors
    refused 2 'does not match: *tensor * is I16, llama needs floating point'
    folder llama
    edit '1s/"BF16"/"BF17"/' model.safetensors
    refused 1 'malformed data: src/model.safetensors: tensor *: unknown dtype "BF17"'
    folder llama
    edit 's/layers.1.input_layernorm.weight/layers.0.input_layernorm.weight/' model.safetensors
    refused 1 'malformed data: src/model.safetensors: tensor model.layers.0.input_layernorm.weight is there twice'
}

@test "a tied model whose files have another head" {
    local sentence='src/model.safetensors: tensor lm_head.weight is not model.embed_tokens.weight, and tie_word_embeddings says that they are one: set it to false, or take the tensor away'
    folder llama
    set_field tie_word_embeddings true
    refused 2 "does not match: $sentence"
    run -1 d9d-map describe src
    assert_output --partial "refused        $sentence"
    cat >job.json <<'JSON'
{"model_provider": {"name": "auto", "hf_config": "src"},
 "trainer": {"batching": {"microbatch_size": 1}, "model_stage_factory": {"source_checkpoint": "src"}},
 "task": {"name": "generate", "prompts": "prompts.jsonl", "max_new_tokens": 1, "output": "out.jsonl"}}
JSON
    echo '{"input_ids": [1, 2]}' >prompts.jsonl
    run -2 d9d-infer -q --device cpu job.json
    assert_output "d9d-infer: does not match: $sentence"
    [ ! -e out.jsonl ]
}

@test "what d9d-map refuses, describe refuses" {
    folder llama
    edit 's/"model.layers.1.input_layernorm.weight"/"lm_head.weight_scale_inv"             /' model.safetensors
    refused 2 'does not match: src: tensor lm_head.weight_scale_inv is of weights that are quantised (fp8), and src/config.json has no quantization_config that says so'
    run -1 d9d-map describe src
    assert_output --partial 'refused        src: tensor lm_head.weight_scale_inv is of weights'
}

@test "files that are damaged, absent, or of another format" {
    folder llama
    truncate -s -100 src/model.safetensors
    refused 1 'malformed data: src/model.safetensors: tensor * ends at *, the file has * bytes of tensors'
    truncate -s 64 src/model.safetensors
    refused 1 'malformed data: src/model.safetensors: header of * bytes, the file has 64'
    folder llama
    printf '{"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}' >src/model.safetensors.index.json
    refused 2 'not found: src/model-00001-of-00002.safetensors: cannot open: No such file or directory'
    folder llama
    rm src/model.safetensors
    refused 2 'not found: src: neither model.safetensors nor model.safetensors.index.json is there'
    for name in pytorch_model.bin model-q4.gguf consolidated.00.pth consolidated.safetensors; do
        folder llama
        mv src/model.safetensors src/$name
        refused 2 "not found: src: neither model.safetensors nor model.safetensors.index.json is there; $name is not read: save the model as safetensors"
    done
    folder llama
    rm src/model.safetensors
    for of in "adapter_config.json adapters, which are read beside the checkpoint of their base" "index.lmdb a dataset" \
        "metrics.jsonl a run, whose model is in export/ and whose states are in checkpoints/"; do
        touch "src/${of%% *}"
        refused 2 "not found: src: no checkpoint is there, but ${of#* }"
        # which has no config.json of a model either
        mv src/config.json "$BATS_TEST_TMPDIR/kept"
        refused 2 "not found: src: no checkpoint is there, but ${of#* }"
        run -2 d9d-map describe src
        assert_output "d9d-map: not found: src: no checkpoint is there, but ${of#* }"
        mv "$BATS_TEST_TMPDIR/kept" src/config.json
        rm "src/${of%% *}"
    done
    folder llama
    echo '{' >src/config.json
    refused 1 'malformed data: src/config.json: line *'
    folder llama
    edit 's/^  "hidden_size": [0-9]*,/&&/' config.json
    refused 1 'malformed data: src/config.json: *duplicate object key near *hidden_size*'
}
