#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# d9d-map --mapper: mappings described in a file.

setup() {
    load helper
    load map_helper
    examples=$BATS_TEST_DIRNAME/../../examples/mappers
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
}

# spec STAGES [MORE]: m.json with these stages and other keys.
spec() { echo "{\"schema\": \"d9d.mapper.v1\", \"stages\": $1${2:+, $2}}" >m.json; }

# refused SENTENCE: m.json on src is an error of usage, and nothing is left behind.
refused() {
    run -2 --separate-stderr d9d-map -q --mapper m.json src dst
    echo "$stderr"
    [ "${stderr_lines[-1]}" = "d9d-map: $1" ]
    [ ! -e dst ]
}

# two DIR: tensors a [2, 3] and b [3, 2] of float32, and n [2] of int64.
two() {
    mkdir "$1"
    st_file "$1/model.safetensors" '{"x.0.a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"x.1.a":{"dtype":"F32","shape":[2,3],"data_offsets":[24,48]},"n":{"dtype":"I64","shape":[2],"data_offsets":[48,64]}}' 64
}

@test "examples: a merge of q, k and v and its reverse" {
    sed 's/"hidden_size": [0-9]*/"hidden_size": 16/; s/"num_hidden_layers": [0-9]*/"num_hidden_layers": 2/
         s/"num_attention_heads": [0-9]*/"num_attention_heads": 16/; s/"head_dim": [0-9]*/"head_dim": 128/
         s/"num_key_value_heads": [0-9]*/"num_key_value_heads": 8/' "$golden/dense_tied/config.json" >c.json
    d9d-map init -q --model c.json --dtype bfloat16 src
    d9d-map -q --mapper "$examples/merge_qkv.json" src merged
    run -0 --separate-stderr d9d-map plan --all --mapper "$examples/merge_qkv.json" src
    [[ "$output" == *"> model.layers.1.self_attn.qkv_proj.weight BF16 [4096, 16]"* ]]
    d9d-map -q --jobs 3 --shard-size 100kB --mapper "$examples/split_qkv.json" merged back
    d9d-map diff -q src back
    spec '[]' '"rest": "keep"'
    d9d-map -q --mapper m.json src sorted
    d9d-map -q --mapper "$examples/split_qkv.json" merged again
    cmp sorted/model.safetensors again/model.safetensors
    cmp src/config.json again/config.json
}

@test "examples: a foreign model renamed, and its reverse" {
    for c in moe dense_tied dense_untied_bf16; do
        d9d-map -q --mapper "$examples/qwen3_to_torchtitan.json" "$golden/$c" "$c.tt"
        d9d-map -q --mapper "$examples/qwen3_from_torchtitan.json" "$c.tt" "$c.hf"
        d9d-map diff -q "$golden/$c" "$c.hf"
        cmp "$golden/$c/config.json" "$c.hf/config.json"
        d9d-map -q "$c.hf" "$c.d9d"
    done
    run -0 --separate-stderr d9d-map plan --all --mapper "$examples/qwen3_to_torchtitan.json" "$golden/moe"
    [[ "$output" == *"> layers.1.moe.experts.w2 F32 [8, 32, 20]"* ]]
    # However the source is cut into files.
    d9d-map -q --mapper "$examples/qwen3_to_torchtitan.json" "$golden/moe_sharded" sharded.tt
    cmp moe.tt/model.safetensors sharded.tt/model.safetensors
}

@test "examples: drop and cast" {
    d9d-map -q --mapper "$examples/slim.json" "$golden/dense_untied" slim
    d9d-map diff -q "$golden/dense_untied_bf16" slim
    grep -q '"torch_dtype": "bfloat16"' slim/config.json
    d9d-map verify -q slim
}

@test "the schema describes the examples" {
    dump=${D9D_BUILD:-$BATS_TEST_DIRNAME/../../build}/schemas/dump
    for f in "$examples"/*.json; do "$dump" d9d.mapper.v1 "$f"; done
    sed 's/"op": "cast"/"op": "cats"/' "$examples/slim.json" >m.json
    run -2 --separate-stderr "$dump" d9d.mapper.v1 m.json
    [[ "$stderr" == *'m.json: stages[1][0].op: unknown word "cats"; did you mean "cast"?' ]]
}

@test "config.json is copied, patched or not there" {
    two src
    spec '[]' '"rest": "keep"'
    d9d-map -q --mapper m.json src plain
    [ ! -e plain/config.json ]
    d9d-map -q --dtype bfloat16 --mapper m.json src cast
    [ ! -e cast/config.json ]
    run -0 --separate-stderr d9d-map plan --all --dtype bfloat16 --mapper m.json src
    [[ "$output" == *"> n I64 [2]"* && "$output" == *"> x.1.a BF16 [2, 3]"* ]]
    printf '{"a": {"b": 1, "c": 2}, "d":   3}' >src/config.json
    d9d-map -q --mapper m.json src same
    cmp src/config.json same/config.json
    spec '[]' '"rest": "keep", "config": {"a": {"b": null, "e": [1]}, "f": {"g": 1}, "d": {}}'
    d9d-map -q --mapper m.json src patched
    tr -d ' \n' <patched/config.json >got
    [ "$(cat got)" = '{"a":{"c":2,"e":[1]},"d":{},"f":{"g":1}}' ]
}

@test "nothing is left over and nothing is missed, before a byte is read" {
    two src
    spec '[[{"op": "stack", "from": "x.{i}.a", "over": "i", "to": "x.a"}]]'
    run -2 --separate-stderr d9d-map -q --mapper m.json src dst
    [ "${stderr_lines[0]}" = "d9d-map: warning: tensor n is not used (src/model.safetensors)" ]
    refused "does not match: src and m.json: 0 missing, 1 unused, 0 mis-shaped tensors: tensor n is not used (src/model.safetensors)"
    spec '[[{"op": "stack", "from": "x.{i}.a", "over": "i", "to": "x.a", "count": 3}]]' '"rest": "drop"'
    refused "does not match: src and m.json: 1 missing, 0 unused, 0 mis-shaped tensors: tensor x.2.a is missing"
    spec '[[{"op": "concat", "from": ["x.{i}.a", "x.{i}.b"], "to": "x"}]]' '"rest": "drop"'
    refused 'invalid configuration: m.json: stages[0][0] (concat): no tensor matches "x.{i}.b"'
    spec '[[{"op": "rename", "from": "x.3.a", "to": "y"}]]' '"rest": "keep"'
    refused 'invalid configuration: m.json: stages[0][0] (rename): no tensor matches "x.3.a"; did you mean "x.0.a"?'
    spec '[[{"op": "rename", "from": "x.{i}.a", "to": "y"}]]' '"rest": "keep"'
    refused 'invalid configuration: m.json: stages[0][0] (rename): tensor y is given twice'
    spec '[[{"op": "rename", "from": "x.0.a", "to": "n"}]]' '"rest": "keep"'
    refused 'invalid configuration: m.json: stages[0]: gives tensor n, which is there and not taken'
    spec '[[{"op": "cast", "from": "n", "dtype": "float16"}]]' '"rest": "keep"'
    run -2 --separate-stderr d9d-map -q --mapper m.json src dst
    [[ "$stderr" == *"tensor n: cannot cast int64 to float16" ]]
    spec '[[{"op": "identity", "from": "{x:any}"}]]' '"expect": {"x.{i}.a": ["R", 3], "n": ["2*R"]}'
    refused 'does not match: m.json: expect: tensor n is I64 [2], expected [2*R] with R = 2 (x.0.a)'
}

@test "a description that is none" {
    two src
    echo '{"schema": "d9d.mapper.v2", "stages": []}' >m.json
    refused 'invalid configuration: m.json: "schema" is "d9d.mapper.v2", this build reads "d9d.mapper.v1"'
    spec '[]' '"rets": "keep"'
    refused 'invalid configuration: m.json: rets: unknown key; did you mean "rest"?'
    spec '[[{"op": "transpose", "from": "n", "dim": [0, 1]}]]'
    refused 'invalid configuration: m.json: stages[0][0].dim: unknown key; did you mean "dims"?'
    spec '[[{"op": "split", "from": "n", "to": ["a", "b"], "sizes": [1]}]]'
    refused 'invalid configuration: m.json: stages[0][0].sizes: has 1 sizes, to has 2 names'
    spec '[[{"op": "rename", "from": "{a}{b}", "to": "c"}]]'
    refused 'invalid configuration: m.json: stages[0][0] (rename): from "{a}{b}": {a} and {b} need text between them'
    rm m.json
    run -2 --separate-stderr d9d-map -q --mapper m.json src dst
    [[ "$stderr" == "d9d-map: invalid configuration: m.json"* ]]
    spec '[]' '"rest": "keep"'
    run -2 --separate-stderr d9d-map -q --mapper m.json --to hf src dst
    [[ "$stderr" == *"m.json: says what becomes of every tensor; a layout cannot be asked for besides" ]]
}

@test "shares of a mapping make up the whole" {
    stages='[[{"op": "shard", "total": 3, "current": K, "stages": [], "rest": "keep"}]]'
    for k in 0 1 2; do
        spec "${stages/K/$k}"
        d9d-map -q --mapper m.json "$golden/moe" "part$k"
    done
    spec '[]' '"rest": "keep"'
    all=$(d9d-map plan --json --mapper m.json "$golden/moe" | grep -c '"group"')
    n=0
    for k in 0 1 2; do
        n=$((n + $(d9d-map plan --json --mapper m.json "part$k" | grep -c '"group"')))
    done
    [ "$n" -eq "$all" ]
}

@test "what a mesh holds is cut and put together again" {
    d9d-map -q "$golden/moe" src
    for r in 0 1 2 3 4 5; do
        spec "[[{\"op\": \"distribute\", \"from\": \"{x:any}.grouped_experts.{p}.weight\", \"to\": \"rank$r.{x}.{p}\",
                 \"mesh\": [2, 3], \"placements\": [\"replicate\", \"shard(1)\"], \"coordinate\": [$((r / 3)), $((r % 3))]}]]" '"rest": "drop"'
        d9d-map -q --mapper m.json src "r$r"
        ln "r$r/model.safetensors" "rank$r.safetensors"
    done
    mkdir ranks
    mv rank*.safetensors ranks/
    spec '[]' '"rest": "keep"'
    (
        echo '{"metadata": {}, "weight_map": {'
        sep=
        for r in 0 1 2 3 4 5; do
            for n in $(d9d-map plan --json --mapper m.json "r$r" | grep -o '"inputs": \[{"name": "[^"]*"' | cut -d'"' -f6); do
                printf '%s"%s": "rank%s.safetensors"' "$sep" "$n" "$r"
                sep=,
            done
        done
        echo '}}'
    ) >ranks/model.safetensors.index.json
    spec '[[{"op": "gather", "from": "rank{r}.{x:any}.{p}", "over": "r", "to": "{x}.grouped_experts.{p}.weight", "mesh": [2, 3], "placements": ["replicate", "shard(1)"]}]]'
    d9d-map -q --mapper m.json ranks whole
    spec '[[{"op": "identity", "from": "{x:any}.grouped_experts.{p}.weight"}]]' '"rest": "drop"'
    d9d-map -q --mapper m.json src experts
    d9d-map diff -q experts whole
}

# plan_boxes DIR: the boxes of the tensors that m.json makes of it.
plan_boxes() { d9d-map plan --all --boxes --mapper m.json "$1" | grep -F '  | ['; }

@test "fused projections come apart, and together again" {
    d9d-map init -q --model "$golden/moe/config.json" --dtype bfloat16 --seed 1 src
    d9d-map -q src own
    # Rows of gate and up by turns, as GPT-OSS has them, from experts that are stacked [E, H, I].
    spec '[[{"op": "stack", "from": ["{x:any}.gate_proj.weight", "{x:any}.up_proj.weight"], "to": "{x}.gate_up_proj", "dim": 3}],
           [{"op": "flatten", "from": "{x:any}.gate_up_proj", "start_dim": 2, "end_dim": 3}]]' '"rest": "keep"'
    d9d-map -q --mapper m.json own fused
    run -0 plan_boxes own
    [[ "$output" == *":39:2] of "*"gate_proj.weight from element 0 by "* ]]
    spec '[[{"op": "unflatten", "from": "{x:any}.gate_up_proj", "dim": -1, "sizes": [-1, 2]}],
           [{"op": "unstack", "from": "{x:any}.gate_up_proj", "to": ["{x}.gate_proj.weight", "{x}.up_proj.weight"], "dim": 3, "count": 2}]]' '"rest": "keep"'
    d9d-map -q --mapper m.json fused back
    d9d-map diff -q own back
    # Heads of q, k and v by turns, as GPT-NeoX has them: 3 of 16 rows each.
    rm -r src
    d9d-map init -q --model "$golden/dense_mha/config.json" --seed 1 src
    spec '[[{"op": "unflatten", "from": "{x}.layers.{l}.self_attn.{p}_proj.weight", "to": "{l}.{p}", "sizes": [3, 1, -1]}],
           [{"op": "drop", "from": "{l}.o"}, {"op": "concat", "from": ["{l}.q", "{l}.k", "{l}.v"], "to": "{l}.qkv", "dim": 1}],
           [{"op": "flatten", "from": "{l}.qkv", "end_dim": 2}]]' '"rest": "drop"'
    d9d-map -q --mapper m.json src neox
    run -0 --separate-stderr d9d-map plan --all --mapper m.json src
    [[ "$output" == *"> 1.qkv F32 [144, 48]"* ]]
    spec '[[{"op": "unflatten", "from": "{l}.qkv", "sizes": [3, 3, 16]}],
           [{"op": "split", "from": "{l}.qkv", "to": ["{l}.q", "{l}.k", "{l}.v"], "sizes": [1, 1, 1], "dim": 1}],
           [{"op": "flatten", "from": "{l}.{p}", "to": "{l}.{p}_proj.weight", "end_dim": -2}]]'
    d9d-map -q --mapper m.json neox apart
    spec '[[{"op": "rename", "from": "{x}.layers.{l}.self_attn.{p}_proj.weight", "to": "{l}.{p}_proj.weight"}],
           [{"op": "drop", "from": "{l}.o_proj.weight"}]]' '"rest": "drop"'
    d9d-map -q --mapper m.json src plain
    d9d-map diff -q plain apart
}

@test "what cannot be unflattened" {
    d9d-map init -q --model "$golden/dense_mha/config.json" --seed 1 src
    spec '[[{"op": "unflatten", "from": "lm_head.weight", "sizes": [1, -1, 1000]}]]' '"rest": "drop"'
    run -2 --separate-stderr d9d-map -q --mapper m.json src dst
    echo "$stderr"
    [[ "$stderr" == *"lm_head.weight: cannot unflatten dimension 0 of F32 ["*"] into [1, -1, 1000]"* ]]
    spec '[[{"op": "unflatten", "from": "{x:any}", "sizes": [-1, -1]}]]'
    refused 'invalid configuration: m.json: stages[0][0] (unflatten): cannot unflatten lm_head.weight into 2 dimensions of size -1'
    spec '[[{"op": "unflatten", "from": "{x:any}", "sizes": []}]]'
    run -2 --separate-stderr d9d-map -q --mapper m.json src dst
    [[ "$stderr" == *"m.json: stages[0][0].sizes: "* ]]
}
