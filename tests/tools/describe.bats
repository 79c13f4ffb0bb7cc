#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# d9d-map describe: what a model folder is, and every reason to refuse it.

setup() {
    load helper
    golden=$BATS_TEST_DIRNAME/../golden
    build=${D9D_BUILD:-$BATS_TEST_DIRNAME/../../build}
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
}

copy() {
    rm -rf m && mkdir m
    cp "$golden/$1"/{config.json,model.safetensors} m
    chmod -R u+w m
}
has() { grep -qxF -- "$1" out || { cat out && echo "no line: $1" && false; }; }
# number KEY: of the JSON in out.
number() { sed -n "s/^  \"$1\": \([^,]*\),*\$/\1/p" out; }
# saved KEY: of its "quantised".
saved() { sed -n "s/^    \"$1\": \([^,]*\),*\$/\1/p" out; }

@test "dense, a mixture, and one in FP8" {
    d9d-map describe "$golden/families/llama" >out
    has "model_type     llama"
    has "family         llama, Llama, causal_lm"
    has "dimensions     2 layers, hidden 24, 4 heads, 4 for keys, of 6 features, vocabulary 53, positions 64"
    has "weights        $(awk 'BEGIN { printf "%.1f", 22560 / 1000 }') kB, 21 tensors, files: 1; BF16 22.6 kB"
    has "tokenizer      none"
    run -1 grep refused out
    d9d-map describe "$golden/families/mistral" >out
    grep -q "^one value only .*hidden_act" out
    d9d-map describe "$golden/families/mixtral" >out
    has "parameters     30.6 k (30600), 14.5 k active for a token"
    grep -q "2 of 6 experts" out
    d9d-map describe "$golden/quant/deepseek_v3" >out
    grep -q "^weights .*F8_E4M3 10.2 kB; decoded from fp8 when they are read$" out
    grep -q "^fields read .*" out
    grep -q quantization_config out
}

@test "parameters are those of the files, in every family" {
    for c in "$golden"/families/*; do
        grep -q '"num_nextn_predict_layers": [1-9]' "$c/config.json" && continue
        d9d-map describe --json "$c" >out
        want=$(grep -a -o '"shape":\[[0-9,]*\]' "$c/model.safetensors" | grep -o '\[.*\]' | tr -d '[]' |
            awk -F, '{ n = 1; for (i = 1; i <= NF; i++) n *= $i; all += n } END { print all }')
        [ "$(number parameters)" = "$want" ] || { echo "$c: $(number parameters), $want" && false; }
        [ "$(number active_parameters)" -le "$want" ]
    done
}

@test "what quantising saves: rows of codes with scales, to multiples of 32 bytes" {
    mkdir m
    cat >m/config.json <<'JSON'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 640,
 "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000,
 "max_position_embeddings": 128, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "bfloat16",
 "attention_bias": false, "tie_word_embeddings": true}
JSON
    d9d-map describe --json m >out
    # Rows of 256: 256 + 4 or 128 + 4 + 8 bytes; of 640: 640 + 4 or 320 + 10 + 8.
    [ "$(saved fp8)" = $((3 * ((256 + 128 + 128 + 256 + 640 + 640) * (512 - 288) + 256 * (1280 - 672)))) ]
    [ "$(saved nf4)" = $((3 * ((256 + 128 + 128 + 256 + 640 + 640) * (512 - 160) + 256 * (1280 - 352)))) ]
    [ "$(saved head_fp8)" = $((1000 * (512 - 288))) ]
    [ "$(saved head_nf4)" = $((1000 * (512 - 160))) ]
    d9d-map describe m | grep -q "^quantised .* less than bfloat16 with layers in fp8, .* with layers in nf4, 224 kB with the head in fp8, 352 kB with the head in nf4$"
    d9d-map describe --json "$golden/families/mixtral" >out
    [ "$(saved fp8)" = null ]
    d9d-map describe "$golden/families/mixtral" >out
    run -1 grep "^quantised" out
}

@test "JSON is d9d.model.v1" {
    for c in families/mixtral quant/deepseek_v3 dense_tied heads/*/; do
        [ -e "$golden/$c/config.json" ] || continue
        d9d-map describe --json "$golden/$c" >out
        "$build/schemas/dump" d9d.model.v1 out
    done
    copy families/llama
    sed -i 's/"hidden_act": "silu"/"hidden_act": "gelu", "x": 1/' m/config.json
    run -1 --separate-stderr d9d-map describe --json m
    echo "$output" >out
    "$build/schemas/dump" d9d.model.v1 out
    grep -q '"rule": "refused"' out
}

@test "all reasons, not the first alone" {
    copy families/mistral
    sed -i 's/"hidden_act": "silu"/"hidden_act": "gelu", "logit_softcap": 30, "vision_config": {}/' m/config.json
    sed -i 's/"num_key_value_heads": 2/"num_key_value_heads": 3/' m/config.json
    truncate -s -9 m/model.safetensors
    run -1 --separate-stderr d9d-map describe m
    assert_equal "$stderr" "d9d-map: verification failed: m: 5 reasons to refuse it"
    echo "$output" >out
    has 'refused        m/config.json: hidden_act: "gelu" is not supported'
    has 'refused        m/config.json: logit_softcap: 30: mistral does not know this field, which may change what the model computes'
    has 'refused        m/config.json: vision_config: {}: mistral does not know this field, which may change what the model computes'
    has 'refused        m/config.json: num_attention_heads 4 is not a multiple of num_key_value_heads 3'
    grep -q '^refused        m/model.safetensors: tensor .* ends at ' out
    copy families/llama
    sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' m/config.json
    run -1 --separate-stderr d9d-map describe m
    assert_equal "$stderr" "d9d-map: verification failed: m: 9 reasons to refuse it"
    [ "$(grep -c '^refused        tensor model.layers.2.* is missing$' <<<"$output")" -eq 9 ]
}

@test "without weights, of another kind, and what is no model" {
    mkdir m
    cp "$golden/families/llama/config.json" m
    chmod u+w m/config.json
    d9d-map describe m >out
    has "weights        none"
    d9d-map describe m/config.json >out
    has "family         llama, Llama, causal_lm"
    sed -i 's/"model_type": "llama"/"model_type": "bert"/' m/config.json
    run -1 --separate-stderr d9d-map describe m
    assert_equal "${lines[0]}" "model_type     bert"
    assert_equal "${lines[1]}" "family         none"
    [[ "$output" == *'refused        m/config.json: model_type: "bert" is not supported; there are '* ]]
    run -2 --separate-stderr d9d-map describe nothing
    [[ "$stderr" == "d9d-map: not found: nothing"* ]]
    run -2 d9d-map describe
    echo '[' >m/config.json
    run -1 --separate-stderr d9d-map describe m
    [[ "$stderr" == "d9d-map: malformed data: m/config.json: "* ]]
}

@test "tokenizer and chat template" {
    copy families/llama
    cp "$golden/../../examples/tokenizer/tokenizer.json" m
    echo '{"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}' >m/tokenizer_config.json
    d9d-map describe m >out
    grep -qE '^tokenizer      tokenizer.json, [0-9]+ ids$' out
    has "chat template  tokenizer_config.json"
    echo '{{ oops' >m/chat_template.jinja
    echo '{}' >m/tokenizer.json
    d9d-map describe m >out
    grep -q '^tokenizer      tokenizer.json, cannot be read: m/tokenizer.json: ' out
    grep -q '^chat template  chat_template.jinja, cannot be read: m/chat_template.jinja' out
    rm m/tokenizer.json
    touch m/tokenizer.model
    d9d-map describe m >out
    grep -q '^tokenizer      tokenizer.model, cannot be read: ' out
}

@test "families of plugins" {
    root=$BATS_TEST_DIRNAME/../..
    # shellcheck disable=SC2046 # words
    ${CC:-cc} -std=c11 -D_GNU_SOURCE ${D9D_SAN:+-fsanitize=$D9D_SAN} -shared -fPIC -o libseed_oss.so \
        -I"$root/libcore/include" -I"$root/kernels/include" $(pkg-config --cflags jansson) \
        "$root/examples/plugins/seed_oss.c" -L"$build/lib" -ld9d
    run -1 --separate-stderr d9d-map describe "$golden/plugins/seed_oss"
    [[ "$output" == *'refused '*' model_type: "seed_oss" is not supported; there are '*', and plugins bring others'* ]]
    d9d-map describe --plugin ./libseed_oss.so "$golden/plugins/seed_oss" >out
    grep -q '^family         seed_oss' out
    run -1 grep '^refused' out
}
