#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2059 # variables of bats and of the helper; bytes are printed by number
# Requests that d9d-map must reject: exit status and message, and nothing is written.

setup() {
    load helper
    load map_helper
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
    cp -r "$golden/dense_tied" src && chmod -R u+w src
    rm src/*golden* src/batch* src/final* src/train* src/generate.jsonl
}

# refused CODE SENTENCE [OPTION...]: converting src ends so and leaves nothing behind.
refused() {
    local code=$1 sentence=$2
    shift 2
    run "-$code" --separate-stderr d9d-map -q "$@" src dst
    echo "$stderr"
    [ "${stderr_lines[-1]}" = "d9d-map: $sentence" ]
    [ "$(ls)" = src ]
}

# edit SED-SCRIPT: config.json.
edit() { sed -i -e "$1" src/config.json; }

@test "damaged weights" {
    size=$(stat -c %s src/model.safetensors)
    truncate -s -1 src/model.safetensors
    run -1 --separate-stderr d9d-map -q src dst
    [[ "$stderr" =~ ^"d9d-map: malformed data: src/model.safetensors: tensor model.norm.weight ends at "[0-9]+", the file has "[0-9]+" bytes of tensors"$ ]]
    truncate -s $((size + 1)) src/model.safetensors
    run -1 --separate-stderr d9d-map -q src dst
    [[ "$stderr" == "d9d-map: malformed data: src/model.safetensors: the tensors end at "* ]]
    truncate -s 5 src/model.safetensors
    refused 1 "malformed data: src/model.safetensors: 5 bytes are too few for a safetensors file"
    printf '\377\377\377\377\377\377\377\177' >src/model.safetensors
    refused 1 "malformed data: src/model.safetensors: header of 9223372036854775807 bytes, at most 100000000 are allowed"
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n' >src/model.safetensors
    refused 1 "malformed data: src/model.safetensors: is a pointer of Git LFS, and git lfs pull brings the file"
    st_file src/model.safetensors '{"x":{"dtype":"F32","shape":[2305843009213693952,8],"data_offsets":[0,0]}}' 0
    refused 1 "malformed data: src/model.safetensors: tensor x: the size of F32 [2305843009213693952, 8] overflows"
    rm src/model.safetensors
    refused 2 "not found: src: neither model.safetensors nor model.safetensors.index.json is there"
}

@test "a layout of experts that the result has not is no option" {
    refused 2 "invalid configuration: src: goes to the layout d9d, which has experts in one way alone; --expert-layout is of --to hf" \
        --expert-layout fused
}

@test "a file of a checkpoint is no checkpoint" {
    for file in model.safetensors config.json; do
        for command in "plan src/$file" "src/$file dst" "--model src src/$file dst"; do
            read -ra words <<<"$command"
            run -2 --separate-stderr d9d-map "${words[@]}"
            assert_equal "$stderr" "d9d-map: unusable path: src/$file: is a file, must be the directory of a checkpoint"
        done
    done
    [ "$(ls)" = src ]
}

@test "the directory of a run is no checkpoint" {
    mkdir run
    printf '{"schema": "d9d.run.v1"}\n' >run/manifest.json
    run -1 --separate-stderr d9d-map diff src run
    [ "$stderr" = 'd9d-map: malformed data: run/manifest.json: "schema" is "d9d.run.v1", this build reads "d9d.checkpoint.v1"' ]
}

@test "an index that lies" {
    index() { printf '{"metadata": {}, "weight_map": {%s}}' "$1" >src/model.safetensors.index.json; }
    index '"a": "../model.safetensors"'
    run -1 --separate-stderr d9d-map -q src dst
    [[ "$stderr" == "d9d-map: malformed data: src/model.safetensors.index.json"*"../model.safetensors"* ]]
    for name in /etc/passwd a/b .. . '' 'a\u0000b'; do
        index "\"a\": \"$name\""
        run -1 --separate-stderr d9d-map -q src dst
        [[ "$stderr" == "d9d-map: malformed data: src/model.safetensors.index.json"* ]]
    done
    index '"a": "model.safetensors"'
    refused 1 "malformed data: src/model.safetensors.index.json: tensor a should be in model.safetensors, which lacks it"
    index '"model.norm.weight": "model.safetensors"'
    refused 1 "malformed data: src/model.safetensors.index.json: tensor model.embed_tokens.weight of src/model.safetensors is not listed"
    index '"a": "m", "a": "m"'
    refused 1 "malformed data: src/model.safetensors.index.json: tensor a is listed twice"
    echo '{"metadata": {}}' >src/model.safetensors.index.json
    refused 1 "malformed data: src/model.safetensors.index.json: no weight_map"
    index ''
    refused 1 "malformed data: src/model.safetensors.index.json: weight_map names no tensor"
    run -1 d9d-map verify -q --no-manifest src
    assert_output --partial "src/model.safetensors.index.json: weight_map names no tensor"
}

@test "a weight of integers is no weight" {
    sed -i "s/\"BF16\"/\"I16\"/; s/\"F32\"/\"I32\"/" src/model.safetensors
    run -2 --separate-stderr d9d-map -q src dst
    [[ "$stderr" == *"tensor "*" is I32, qwen3 needs floating point"* ]]
    [ "$(ls)" = src ]
}

@test "tensors that do not fit are listed before any is read" {
    h=$(sed -n 's/.*"hidden_size": \([0-9]*\).*/\1/p' src/config.json)
    st_file src/model.safetensors '{"model.norm.weight":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"extra":{"dtype":"U8","shape":[1],"data_offsets":[12,13]}}' 13
    run -2 --separate-stderr d9d-map -q src dst
    [[ "$stderr" == *"tensor model.embed_tokens.weight is missing"* ]]
    [[ "$stderr" == *"tensor model.layers.0.self_attn.q_proj.weight is missing"* ]]
    [[ "$stderr" == *"tensor model.norm.weight is F32 [3], qwen3 needs F32 [$h]"* ]]
    [[ "$stderr" == *"tensor extra is not used (src/model.safetensors)"* ]]
    [[ "${stderr_lines[-1]}" == "d9d-map: does not match: src and qwen3: "*" missing, 1 unused, 1 mis-shaped tensors: "* ]]
    [ "$(ls)" = src ]
}

# turn FILE NAME: exchanges both sizes of a matrix.
turn() { LC_ALL=C sed -i -E 's/("'"$2"'":\{"dtype":"F32","shape":\[)([0-9]+),([0-9]+)\]/\1\3,\2]/' "$1"; }

@test "a tensor of another shape is listed once, whatever is made of it" {
    turn src/model.safetensors model.layers.0.mlp.down_proj.weight
    needs="qwen3: 0 missing, 0 unused, 1 mis-shaped tensors: tensor model.layers.0.mlp.down_proj.weight is F32 [50, 36], qwen3 needs F32 [36, 50]"
    for layout in hf d9d; do refused 2 "does not match: src and $needs" --to $layout; done
    rm -r src
    cp -r "$golden/moe" src && chmod -R u+w src
    turn src/model.safetensors model.layers.0.mlp.experts.3.gate_proj.weight
    needs="qwen3_moe: 0 missing, 0 unused, 1 mis-shaped tensors: tensor model.layers.0.mlp.experts.3.gate_proj.weight is F32 [32, 20], qwen3_moe needs F32 [20, 32]"
    for layout in hf d9d; do refused 2 "does not match: src and $needs" --to $layout; done
}

@test "a missing head of an untied model is missed" {
    edit 's/"tie_word_embeddings": true/"tie_word_embeddings": false/'
    refused 2 "does not match: src and qwen3: 1 missing, 0 unused, 0 mis-shaped tensors: tensor lm_head.weight is missing"
}

@test "configurations that cannot be served" {
    check() { # STATUS SENTENCE SED-SCRIPT
        cp src/config.json "$BATS_RUN_TMPDIR/config.saved"
        edit "$3"
        refused 2 "$1: src/config.json: $2"
        cp "$BATS_RUN_TMPDIR/config.saved" src/config.json
    }
    check "invalid configuration" 'attention_bias: expected true or false, got a string ("yes")' 's/"attention_bias": false/"attention_bias": "yes"/'
    check "not supported" "sliding_window: 0 is not supported" 's/"sliding_window": null/"sliding_window": 0/; s/"use_sliding_window": false/"use_sliding_window": true/'
    check "not supported" 'layer_types: "chunked_attention" is not supported' 's/"full_attention"/"chunked_attention"/'
    check "invalid configuration" "layer_types has sliding_attention, and no sliding_window is in use" 's/"full_attention"/"sliding_attention"/'
    check "not supported" 'hidden_act: "gelu" is not supported' 's/"hidden_act": "silu"/"hidden_act": "gelu"/'
    check "not supported" 'rope_scaling: "proportional" is not supported' 's/"model_type"/"rope_scaling": {"rope_type": "proportional"}, "model_type"/; s/"rope_scaling": null,//'
    cp src/config.json "$BATS_RUN_TMPDIR/config.saved"
    edit 's/"model_type": "qwen3"/"model_type": "bloom"/'
    run -2 --separate-stderr d9d-map -q src dst
    [[ ${stderr_lines[-1]} == 'd9d-map: not supported: src/config.json: model_type: "bloom" is not supported; there are qwen3, '*', and plugins bring others (man d9d-plugin)' ]]
    cp "$BATS_RUN_TMPDIR/config.saved" src/config.json
    check "invalid configuration" "model_type is missing" 's/"model_type": "qwen3"/"model_typo": "qwen3"/'
    check "not supported" "hidden_sighs: 32: qwen3 does not know this field, which may change what the model computes" 's/"hidden_size": [0-9]*/"hidden_sighs": 32/'
    check "invalid configuration" "hidden_size: required key is missing (width of the residual stream)" 's/"hidden_size": [0-9]*,//'
    check "invalid configuration" "hidden_size: -4 is below the minimum of 1" 's/"hidden_size": [0-9]*/"hidden_size": -4/'
    check "invalid configuration" "num_hidden_layers: 9999999 is above the maximum of 65536" 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 9999999/'
    check "invalid configuration" "rope_theta: expected a number, got \"big\"" 's/"rope_theta": [0-9.]*/"rope_theta": "big"/'
    cp src/config.json "$BATS_RUN_TMPDIR/config.saved"
    edit 's/"rope_theta": [0-9.]*/"rope_theta": 0/'
    refused 2 "invalid configuration: src/config.json: rope_theta: 0 is not above 0"
    cp "$BATS_RUN_TMPDIR/config.saved" src/config.json
    edit 's/"rms_norm_eps": [0-9e.-]*/"rms_norm_eps": -1/'
    refused 2 "invalid configuration: src/config.json: rms_norm_eps: -1 is not above 0"
    echo '[]' >src/config.json
    refused 1 "malformed data: src/config.json: must be an object"
    echo '{' >src/config.json
    run -1 --separate-stderr d9d-map -q src dst
    [[ "$stderr" == "d9d-map: malformed data: src/config.json"* ]]
    rm src/config.json
    run -2 --separate-stderr d9d-map -q src dst
    [[ "$stderr" == "d9d-map: not found: src/config.json"* ]]
}

@test "impossible requests" {
    run -2 d9d-map -q --dtype int8 src dst
    run -2 d9d-map -q --to nowhere src dst
    run -2 d9d-map -q src
    run -2 d9d-map -q nowhere dst
}

@test "a replaced directory does not take the source along" {
    mkdir dst && mv src dst/
    run -2 --separate-stderr d9d-map -q --force dst/src dst
    [ "$stderr" = "d9d-map: invalid configuration: dst: is to be replaced, but the input dst/src is in it" ]
    [ -s dst/src/model.safetensors ]
}

@test "memory stays bounded when a header is large and hostile" {
    ! ldd "$(command -v d9d-map)" | grep -q libasan || skip "the address sanitizer takes all addresses"
    mkdir big
    # 30 MB of nested brackets; then the most tensors that 30 MB can name, all without bytes.
    st_file big/model.safetensors "$(head -c 30000000 /dev/zero | tr '\0' '[')" 0
    run -1 bash -c 'ulimit -v 500000; d9d-map verify -q big'
    [[ "$output" == *"expected '{'"* ]]
    st_file big/model.safetensors "{$(seq -s, -f '"%.0f":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' 550000)}" 0
    run -0 bash -c 'ulimit -v 800000; d9d-map verify -q -j1 --no-manifest big'
    [[ "$output" == "big: 1 files, 550000 tensors, "*" bytes are sound"* ]]
}

@test "a full disk is exit 1 and names the path and the bytes; with room the work goes on" {
    command -v strace >/dev/null || skip "no strace"
    export ASAN_OPTIONS=detect_leaks=0 # which a traced process cannot
    d9d-map -q src whole
    for call in mkdir:when=2 ftruncate:when=1 pwrite64:when=1+ write:when=1 write:when=3; do
        run -1 --separate-stderr strace -f -qq -o /dev/null -e "inject=${call%%:*}:error=ENOSPC:${call#*:}" d9d-map -q -j1 src dst # calls are counted by thread
        [[ "$stderr" == "d9d-map: input/output error: dst.partial"*": No space left on device" ]]
        case $call in write* | pwrite*) [[ "$stderr" =~ "cannot write "[0-9]+" bytes" ]] ;; esac
        [ ! -e dst ]
        d9d-map -q src dst
        diff -r whole dst
        [ ! -e dst.partial ]
        rm -r dst
    done
}

@test "kill -9 at any system call leaves no destination or a complete one" {
    command -v strace >/dev/null || skip "no strace"
    mkdir src/1_Pooling && echo "{}" | tee src/1_Pooling/config.json >src/tokenizer.json
    d9d-map -q -j1 src whole
    tried=0
    for call in openat ftruncate write pwrite64 copy_file_range fsync mkdir rename close; do
        for n in 1 2 4 8 16 32; do
            strace -f -qq -o /dev/null -e "inject=$call:signal=KILL:when=$n" d9d-map -q -j1 src dst 2>/dev/null || true
            tried=$((tried + 1))
            if [ -e dst ]; then
                diff -r whole dst
                rm -r dst
            fi
            d9d-map -q -j1 src dst
            diff -r whole dst
            [ ! -e dst.partial ]
            rm -rf dst
        done
    done
    echo "# $tried crash points" >&3
}

@test "options of every command may stand before it, and a misspelt command is named" {
    d9d-map -q --json diff src src
    run -2 --separate-stderr d9d-map verfy src
    [[ "$stderr" == *'unknown command "verfy"; did you mean "verify"?'* ]]
    run -2 --separate-stderr d9d-shard inspct data
    [[ "$stderr" == *'unknown command "inspct"; did you mean "inspect"?'* ]]
    mv src verfy # what is there is meant
    d9d-map -q --to d9d verfy d9d
}
