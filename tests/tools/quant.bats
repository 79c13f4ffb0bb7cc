#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Quantised checkpoints are decoded when they are read: by d9d-map, and by a job that loads them.

setup() {
    load helper
    golden=$BATS_TEST_DIRNAME/../golden
    fp8=$golden/quant/deepseek_v3 plain=$golden/quant/deepseek_v3_bf16
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
}

# copy FROM TO: a folder that may be changed.
copy() { cp -r "$1" "$2" && chmod -R u+w "$2"; }
# hide PART FILE: calls that part of one matrix by a name of the same length, which is a model's own.
hide() { sed -i "s/\(gate_proj\.[a-z.]*\)$1\"/\1${1//?/z}\"/" "$2"; }

@test "FP8 becomes the same files as its decoded twin, in every layout and type" {
    run --separate-stderr d9d-map "$fp8" own
    assert_success
    [[ "$stderr" == *"$fp8: 40 tensors are decoded from fp8; config.json is written without quantization_config"* ]]
    d9d-map -q --to hf "$fp8" hf
    d9d-map -q diff hf "$plain"
    cmp {hf,"$plain"}/config.json
    d9d-map -q "$plain" own-plain
    d9d-map -q diff own own-plain
    run -1 grep quantization_config own/config.json
    d9d-map -q own back
    d9d-map -q diff back "$plain"
    cmp {back,"$plain"}/config.json
    for dir in own hf back; do d9d-map -q verify $dir; done
}

@test "quantised text models of multimodal checkpoints become their decoded twins" {
    for c in mistral3:fp8:1 qwen3_5_moe:fp8:1 kimi_k25:compressed-tensors:2; do
        IFS=: read -r c method vision <<<"$c"
        run --separate-stderr d9d-map --to hf "$golden/quant/$c" "$c"
        assert_success
        [[ "$stderr" == *" tensors are decoded from $method; "*"$vision tensor"*" of the vision model "*" left out: "* ]]
        d9d-map -q diff "$c" "$golden/quant/${c}_bf16"
        cmp {"$c","$golden/quant/${c}_bf16"}/config.json
    done
}

@test "what bitsandbytes, GPTQ and AWQ wrote becomes what they decode" {
    for c in bnb4:bitsandbytes bnb8:bitsandbytes gptq:gptq awq:awq; do
        IFS=: read -r c method <<<"$c"
        run --separate-stderr d9d-map --to hf "$golden/quant/qwen3_$c" "$c"
        assert_success
        [[ "$stderr" == *"qwen3_$c: 14 tensors are decoded from $method; config.json is written without quantization_config"* ]]
        d9d-map -q diff "$c" "$golden/quant/qwen3_${c}_bf16"
        run -1 grep quantization_config "$c/config.json"
        d9d-map -q "$golden/quant/qwen3_$c" "own-$c"
        d9d-map -q verify "own-$c"
    done
}

@test "what AutoFP8, FBGEMM, modelopt and compressed-tensors wrote for serving becomes what they decode" {
    for c in autofp8:fp8 fbgemm:fbgemm_fp8 modelopt_fp8:modelopt modelopt_nvfp4:modelopt \
        modelopt_mixed:modelopt nvfp4:compressed-tensors mxfp4:compressed-tensors int4:compressed-tensors int8:compressed-tensors; do
        IFS=: read -r c method <<<"$c"
        run --separate-stderr d9d-map --to hf "$golden/quant/qwen3_$c" "$c"
        assert_success
        [[ "$stderr" == *"qwen3_$c: 14 tensors are decoded from $method; config.json is written without quantization_config"* ]]
        d9d-map -q diff "$c" "$golden/quant/qwen3_${c}_bf16"
        cmp {"$c","$golden/quant/qwen3_${c}_bf16"}/config.json
        [ ! -e "$c/hf_quant_config.json" ]
        d9d-map describe "$golden/quant/qwen3_$c" | grep -q "; decoded from $method when they are read$"
    done
}

@test "hf_quant_config.json says what config.json does not" {
    copy "$golden/quant/qwen3_modelopt_fp8" m
    sed -i 's/"FP8"/"W4A8_AWQ"/' m/hf_quant_config.json
    run -2 --separate-stderr d9d-map --to hf m out
    assert_equal "$stderr" 'd9d-map: not supported: m/hf_quant_config.json: quantization.quant_algo: "W4A8_AWQ" is not decoded, only "FP8", "NVFP4" and "W4A16_NVFP4" in groups of 16, and "MIXED_PRECISION" of these; of others take the unquantised weights'
    rm m/hf_quant_config.json
    run -2 --separate-stderr d9d-map --to hf m out
    [[ "$stderr" == *" is of weights that are quantised (fp8, compressed-tensors, fbgemm_fp8 or modelopt), and m/config.json has no quantization_config that says so" ]]
    for text in '[]' '{"quantization": 3}' '{"quantization": {"quant_algo": '; do
        echo "$text" >m/hf_quant_config.json
        run -1 --separate-stderr d9d-map --to hf m out
        [[ "$stderr" == "d9d-map: malformed data: m/hf_quant_config.json: "* ]]
    done
    assert_equal "$(echo '{"quantization": 3}' >m/hf_quant_config.json; d9d-map --to hf m out 2>&1)" \
        'd9d-map: malformed data: m/hf_quant_config.json: "quantization" must be an object'
    copy "$golden/quant/qwen3_modelopt_fp8_bf16" caches # which alone are quantised
    echo '{"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}}' >caches/hf_quant_config.json
    d9d-map -q --to hf caches plain
    d9d-map -q diff caches plain
    cmp {caches,plain}/config.json
}

@test "an old folder whose quantiser wrote a file of its own is refused with what is missing" {
    copy "$golden/quant/qwen3_gptq" old
    cp "$golden/quant/qwen3_gptq_bf16/config.json" old
    echo '{"bits": 4, "group_size": 32, "desc_act": false}' >old/quantize_config.json
    run -2 --separate-stderr d9d-map --to hf old out
    [[ "$stderr" == *" is of weights that are quantised (gptq or awq), and old/config.json has no quantization_config that says so; give it the members of quantize_config.json and quant_method" ]]
    rm old/quantize_config.json
    run -2 --separate-stderr d9d-map --to hf old out
    [[ "$stderr" == *" has no quantization_config that says so" ]]
}

@test "quantised weights that lack a part are refused by its name" {
    for c in bnb4:absmax bnb4:quant_map bnb8:SCB gptq:scales gptq:qzeros awq:qzeros autofp8:weight_scale \
        autofp8:weight fbgemm:weight_scale modelopt_fp8:weight_scale \
        modelopt_nvfp4:weight_scale_2 nvfp4:weight_global_scale nvfp4:weight_packed mxfp4:weight_scale \
        int4:weight_zero_point int8:weight_scale; do
        IFS=: read -r c part <<<"$c"
        copy "$golden/quant/qwen3_$c" "less-$c-$part"
        hide "$part" "less-$c-$part/model.safetensors"
        run -1 --separate-stderr d9d-map --to hf "less-$c-$part" out
        [[ "$stderr" == *" is quantised ("*"), and model.layers.0.mlp.gate_proj."*"$part is not there"* ]] || { echo "$c $part: $stderr" && false; }
    done
}

@test "asked for float32, numbers are not rounded to bfloat16 first" {
    d9d-map -q --dtype float32 --to hf "$fp8" f32
    run -1 d9d-map -q diff f32 "$plain"
    grep -q '"dtype": "float32"' f32/config.json
    d9d-map -q --dtype bfloat16 f32 again
    d9d-map -q --to hf again rounded
    run -1 --separate-stderr d9d-map -q diff rounded "$plain" # a router's bias stays as it is
    [ "$output" = "model.layers.1.mlp.gate.e_score_correction_bias: dtype: F32 [8], BF16 [8]
52 tensors equal, 1 different" ]
}

@test "a description that keeps all decodes too, and takes a method that nobody decodes as it is" {
    echo '{"schema": "d9d.mapper.v1", "stages": [], "rest": "keep"}' >keep.json
    d9d-map -q --mapper keep.json "$fp8" out
    d9d-map -q diff out "$plain"
    run -1 grep quantization_config out/config.json
    copy "$fp8" hqq
    sed -i 's/"quant_method": "fp8"/"quant_method": "hqq"/' hqq/config.json
    d9d-map -q --mapper keep.json hqq raw
    d9d-map -q diff hqq raw
    grep -q '"quant_method": "hqq"' raw/config.json
}

@test "MXFP4 becomes what transformers makes of it" {
    mkdir mx && cp "$golden/quant/mxfp4.safetensors" mx/model.safetensors
    cat >decoded.json <<'JSON'
{"schema": "d9d.mapper.v1", "rest": "keep",
 "stages": [[{"op": "drop", "from": "bfloat16.{x:any}"}, {"op": "drop", "from": "float32.{x:any}"}]]}
JSON
    cat >golden.json <<'JSON'
{"schema": "d9d.mapper.v1", "rest": "keep",
 "stages": [[{"op": "drop", "from": ["{x:any}_blocks", "{x:any}_scales"]}, {"op": "drop", "from": "float32.{x:any}"},
   {"op": "rename", "from": "bfloat16.{x:any}", "to": "{x}"}]]}
JSON
    d9d-map -q --mapper golden.json mx want
    echo '{"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"}}' >mx/config.json
    d9d-map -q --mapper decoded.json mx got
    run --separate-stderr d9d-map -q diff want got
    assert_success
    assert_output "4 tensors equal, 0 different"
}

@test "MXFP4 experts of gpt-oss become the files that transformers loads" {
    local mxfp4=$golden/quant/gpt_oss twin=$golden/quant/gpt_oss_bf16
    run --separate-stderr d9d-map "$mxfp4" own
    assert_success
    [[ "$stderr" == *"$mxfp4: 4 tensors are decoded from mxfp4; config.json is written without quantization_config"* ]]
    d9d-map -q own back
    d9d-map -q --to hf "$mxfp4" hf
    d9d-map -q "$twin" own-plain
    d9d-map -q diff own own-plain
    for dir in hf back; do
        d9d-map -q diff $dir "$twin"
        cmp {$dir,"$twin"}/config.json
        d9d-map -q verify $dir
    done
}

@test "in several files, and under a plan of another rank's share" {
    d9d-map -q --to hf --shard-size 8kB "$plain" several-plain
    copy "$fp8" several
    cat >several.json <<'JSON'
{"schema": "d9d.mapper.v1", "stages": [], "rest": "keep"}
JSON
    sed -i 's/"quantization_config"/"_quantization_config"/' several/config.json
    d9d-map -q --shard-size 2kB --mapper several.json several raw
    sed -i 's/"_quantization_config"/"quantization_config"/' raw/config.json
    files=(raw/*.safetensors)
    [ ${#files[@]} -gt 3 ]
    d9d-map -q --to hf raw out
    d9d-map -q diff out several-plain
}

@test "random weights of a quantised model's config.json are plain" {
    d9d-map -q init --model "$fp8" out
    run -1 grep quantization_config out/config.json
    d9d-map -q verify out
}

# train NAME DIR DTYPE [MORE]: losses of two steps from the weights of DIR.
train() {
    cat >"$1.json" <<JSON
{"export_to": "export-$1", "data": {"dataset": "data", "epochs": 2, "order": "sequential"},
 "model_provider": {"name": "auto", "hf_config": "$2", "dtype": "$3"},
 "trainer": {"run": {"name": "$1", "dir": "run-$1", "steps": 2},
  "batching": {"global_batch_size": 3, "microbatch_size": 3},
  "model_stage_factory": {"source_checkpoint": "$2"}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
    d9d-train -q --device cpu "$1.json"
    run -1 grep quantization_config "export-$1/config.json"
    grep -oE '"(loss|grad_norm)": *[0-9.e+-]+' "run-$1/metrics.jsonl" >"$1.losses"
    [ "$(wc -l <"$1.losses")" -eq 4 ]
}

@test "a job that loads FP8 trains as one that loads its decoded twin" {
    d9d-shard -q --format tokens --out data "$golden/families/deepseek_v3/train.jsonl"
    d9d-map -q --dtype float32 --to hf "$fp8" f32
    train fp8 "$fp8" bfloat16
    train plain "$plain" bfloat16
    cmp fp8.losses plain.losses
    train fp8-f32 "$fp8" float32
    train f32 "$PWD/f32" float32
    cmp fp8-f32.losses f32.losses
    run -1 cmp fp8.losses fp8-f32.losses
}

@test "a job that loads MXFP4 trains as one that loads what transformers makes of it" {
    d9d-shard -q --format tokens --out data "$golden/families/gpt_oss/train.jsonl"
    train mxfp4 "$golden/quant/gpt_oss" bfloat16
    train plain "$golden/quant/gpt_oss_bf16" bfloat16
    cmp mxfp4.losses plain.losses
    cmp export-{mxfp4,plain}/model.safetensors
}

# several FROM TO: the same tensors in files of 4 kB, parts of a matrix in different ones.
several() {
    copy "$1" "$2.one"
    echo '{"schema": "d9d.mapper.v1", "stages": [], "rest": "keep"}' >keep.json
    sed -i 's/"quantization_config"/"_quantization_config"/' "$2.one/config.json"
    d9d-map -q --shard-size 4kB --mapper keep.json "$2.one" "$2"
    sed -i 's/"_quantization_config"/"quantization_config"/' "$2/config.json"
    [ "$(find "$2" -name '*.safetensors' | wc -l)" -gt 3 ]
}

# zero_biases DIR: a file with a bias of zeros for each quantised matrix, as auto_gptq gives it.
zero_biases() {
    local header="" at=0 name length
    for name in $(grep -aoE '"model[a-z0-9._]*\.qweight"' "$1/model.safetensors" | tr -d '"'); do
        length=$((2 * $(grep -aoE "\"$name\":\{[^}]*\"shape\":\[[0-9]+,[0-9]+\]" "$1/model.safetensors" |
            sed 's/.*,\([0-9]*\)\]$/\1/')))
        header+=",\"${name%qweight}bias\":{\"dtype\":\"F16\",\"shape\":[$((length / 2))],\"data_offsets\":[$at,$((at + length))]}"
        at=$((at + length))
    done
    header="{${header#,}}"
    {
        # shellcheck disable=SC2059 # bytes of the header's length
        printf "\\x$(printf %02x $((${#header} % 256)))\\x$(printf %02x $((${#header} / 256)))\\0\\0\\0\\0\\0\\0"
        printf %s "$header"
        head -c $at /dev/zero
    } >"$1/biases.safetensors"
    {
        echo '{"weight_map": {'
        for name in model biases; do
            grep -aoE '"[a-z0-9._]*":\{"dtype"' "$1/$name.safetensors" | sed "s/{\"dtype\"/\"$name.safetensors\",/"
        done | sed '$ s/,$//'
        echo '}}'
    } >"$1/model.safetensors.index.json"
}

@test "biases of zeros that auto_gptq added are left out beside an adapter too" {
    d9d-shard -q --format tokens --out data "$golden/families/deepseek_v3/train.jsonl"
    copy "$golden/quant/qwen3_gptq" gptq
    zero_biases gptq
    d9d-map describe gptq | grep -q " 81 tensors, files: 2; "
    d9d-map -q --to hf gptq plain
    d9d-map -q diff plain "$golden/quant/qwen3_gptq_bf16"
    train gptq "$PWD/gptq" bfloat16
    sed -i 's/"export_to": [^ ]* //' gptq.json
    d9d-train -q --device cpu --set trainer.run.dir=lora --set optimizer.lr=0.1 \
        --set 'peft={"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 4, "alpha": 8}}' gptq.json
    d9d-map -q --adapter lora/adapter --to hf gptq merged
    d9d-map -q --adapter lora/adapter --to hf "$golden/quant/qwen3_gptq_bf16" twin
    d9d-map -q diff merged twin
    run -1 d9d-map -q diff merged plain
    for base in gptq plain; do
        d9d-train -q --device cpu --set trainer.run.dir="on-$base" \
            --set trainer.model_stage_factory.source_checkpoint=$base \
            --set trainer.model_stage_factory.source_adapter=lora/adapter gptq.json
        grep -oE '"(loss|grad_norm)": *[0-9.e+-]+' "on-$base/metrics.jsonl" >"on-$base.losses"
    done
    cmp on-{gptq,plain}.losses
}

@test "jobs over what bitsandbytes, GPTQ and AWQ wrote: plain, adapters, requantised, from several files" {
    d9d-shard -q --format tokens --out data "$golden/families/deepseek_v3/train.jsonl"
    for c in bnb4 bnb8 gptq awq; do
        several "$golden/quant/qwen3_$c" "$c"
        train "$c" "$PWD/$c" bfloat16
        train "${c}_bf16" "$golden/quant/qwen3_${c}_bf16" bfloat16
        cmp {"$c","${c}_bf16"}.losses
        for base in "$c" "${c}_bf16"; do
            sed -i 's/"export_to": [^ ]* //' "$base.json"
            d9d-train -q --device cpu --set trainer.run.dir="lora-$base" --set trainer.model_stage_factory.quantization=nf4 \
                --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true \
                --set 'peft={"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 4, "alpha": 8}}' "$base.json"
            grep -oE '"(loss|grad_norm)": *[0-9.e+-]+' "lora-$base/metrics.jsonl" >"lora-$base.losses"
        done
        cmp lora-{"$c","${c}_bf16"}.losses
        [ -s "lora-$c.losses" ]
    done
}

@test "jobs over what is quantised for serving, from several files" {
    d9d-shard -q --format tokens --out data "$golden/families/deepseek_v3/train.jsonl"
    for c in autofp8 fbgemm modelopt_nvfp4 modelopt_mixed nvfp4 mxfp4 int4 int8; do
        several "$golden/quant/qwen3_$c" "$c"
        train "$c" "$PWD/$c" bfloat16
        train "${c}_bf16" "$golden/quant/qwen3_${c}_bf16" bfloat16
        cmp {"$c","${c}_bf16"}.losses
        cmp export-{"$c","${c}_bf16"}/model.safetensors
    done
}

@test "quantised tensors that do not fit are refused by one sentence" {
    refused() { # CODE SENTENCE
        run "-$1" --separate-stderr d9d-map -q bad out
        assert_equal "${stderr_lines[-1]}" "d9d-map: $2"
        [ ! -e out ]
    }
    copy "$fp8" bad
    sed -i 's/"quant_method": "fp8"/"quant_method": "hqq"/' bad/config.json
    refused 2 'not supported: bad/config.json: quantization_config.quant_method: "hqq" is not supported; "fp8", "mxfp4", "compressed-tensors", "bitsandbytes", "gptq", "awq", "fbgemm_fp8" and "modelopt" are decoded when they are read, of others take the unquantised weights'
    cp "$plain/config.json" bad/config.json
    refused 2 "does not match: bad: tensor model.layers.0.mlp.down_proj.weight_scale_inv is of weights that are quantised (fp8), and bad/config.json has no quantization_config that says so"
    sed 's/^ *16,$/32,/' "$fp8/config.json" >bad/config.json
    run -1 --separate-stderr d9d-map -q bad out
    [[ "$stderr" == "d9d-map: malformed data: bad/model.safetensors: tensor model."*" is F8_E4M3 "*" and model."*"_scale_inv is F32 "*", which must be F32 "* ]]
    cp "$fp8/config.json" bad/config.json
    sed -i 's/model.layers.0.mlp.down_proj.weight_scale_inv/model.layers.0.mlp.down_proj.weight_scale_inw/' bad/model.safetensors
    refused 1 "malformed data: bad/model.safetensors: tensor model.layers.0.mlp.down_proj.weight is quantised (fp8), and model.layers.0.mlp.down_proj.weight_scale_inv is not there"
}
