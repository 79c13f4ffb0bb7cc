#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2059 # variables of bats; bytes are printed by number
# Cast overflow: finite numbers outside a type's range never become infinite silently.

setup() {
    load helper
    load map_helper
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
    echo '{"schema": "d9d.mapper.v1", "stages": [], "rest": "keep"}' >keep.json
    # 1, 1e6, -7e4, inf; 2, 3, 3.4e38, 65504
    mkdir src
    st_file src/model.safetensors '{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[16,32]}}' 0
    printf '\0\0\x80\x3f\0\x24\x74\x49\0\xb8\x88\xc7\0\0\x80\x7f\0\0\0\x40\0\0\x40\x40\x9e\xc9\x7f\x7f\0\xe0\x7f\x47' >>src/model.safetensors
}

# last N FILE: its last bytes, as words of two in hexadecimal.
last() { tail -c "$1" "$2" | od -An -v -tx2 | tr -s ' \n' ' '; }

@test "a cast that has no room for a number is an error, before anything has its name" {
    for _ in 1 2; do # and no run goes on past it
        run -2 --separate-stderr d9d-map -q --mapper keep.json --dtype float16 src dst
        [[ "${stderr_lines[-1]}" == "d9d-map: invalid configuration: src: tensor a: 2 of 4 values are beyond float16, which ends at 65504; the largest is 1e+06; d9d-map --overflow saturate or inf accepts them" ]]
        [ ! -e dst ]
    done
    # 3.4e38 is beyond bfloat16, whose last number is 3.39e38.
    run -2 --separate-stderr d9d-map -q --mapper keep.json --dtype bfloat16 src dst
    [[ "${stderr_lines[-1]}" == *"src: tensor b: 1 of 4 values are beyond bfloat16, which ends at 3.38953e+38; the largest is 3.4e+38; "* ]]
    # What was infinite before, or fits, is nobody's overflow.
    d9d-map -q --mapper keep.json --dtype float32 src same
    # A description's own cast, on the way to a type that has room.
    echo '{"schema": "d9d.mapper.v1", "stages": [[{"op": "cast", "from": "b", "dtype": "float16"}]], "rest": "keep"}' >cast.json
    run -2 --separate-stderr d9d-map -q --mapper cast.json --dtype float32 src other
    [[ "${stderr_lines[-1]}" == *"tensor b: 1 of 4 values are beyond float16, which ends at 65504; the largest is 3.4e+38"* ]]
    d9d-map -q --mapper cast.json --dtype float32 --overflow saturate src other
    [ "$(last 16 other/model.safetensors)" = " 0000 4000 0000 4040 e000 477f e000 477f " ]
}

@test "--overflow accepts it, says how many, and is another conversion" {
    run -2 d9d-map -q --mapper keep.json --dtype float16 src dst
    run -0 --separate-stderr d9d-map -q --overflow saturate --mapper keep.json --dtype float16 src dst
    [[ "$stderr" == *"3 values are beyond their new types and become the largest of those; the largest is 3.4e+38, the first tensor with any is a"* ]]
    [ "$(last 16 dst/model.safetensors)" = " 3c00 7bff fbff 7c00 4000 4200 7bff 7bff " ]
    run -0 --separate-stderr d9d-map -q --force --overflow inf --mapper keep.json --dtype float16 src dst
    [[ "$stderr" == *"3 values are beyond their new types and become infinite; "* ]]
    [ "$(last 16 dst/model.safetensors)" = " 3c00 7c00 fc00 7c00 4000 4200 7c00 7bff " ]
    run -1 d9d-map verify -q dst
    run -2 d9d-map -q --overflow maybe --mapper keep.json --dtype float16 src dst
}

@test "weights that a model's type has no room for are not trained, and not exported" {
    d9d-shard -q --format tokens --out data "$golden/dense_untied/train.jsonl"
    cp -r "$golden/dense_untied" model && chmod -R u+w model
    grep -aq F32 model/model.safetensors
    # The last weight, if it is float32: 3.4e38.
    printf '\x9e\xc9\x7f\x7f' | dd of=model/model.safetensors bs=1 seek=$(($(stat -c %s model/model.safetensors) - 4)) conv=notrunc status=none
    cat >c.json <<JSON
{"data": {"dataset": "data"},
 "model_provider": {"name": "qwen3_dense", "hf_config": "model/config.json", "dtype": "bfloat16"},
 "trainer": {"run": {"name": "small", "dir": "run", "steps": 1},
   "batching": {"global_batch_size": 2, "microbatch_size": 1},
   "model_stage_factory": {"source_checkpoint": "model"}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
    run -2 --separate-stderr d9d-train -q c.json
    [[ "$stderr" == *"model: tensor "*": 1 of "*" values are beyond bfloat16, which ends at 3.38953e+38; the largest is 3.4e+38"* ]]
    run -2 --separate-stderr d9d-map -q --dtype bfloat16 model out
    run -0 --separate-stderr d9d-map -q --dtype bfloat16 --overflow saturate model out
    d9d-map verify -q out
}

@test "a random model whose deviation has no room is refused" {
    sed 's/"initializer_range": [0-9.]*/"initializer_range": 1e38/' "$golden/dense_untied/config.json" >m.json
    grep -q 1e38 m.json
    run -2 --separate-stderr d9d-map init -q -m m.json new
    [[ "$stderr" == *"initializer_range: 1e+38 is not at most 1000"* ]]
    [ ! -e new ]
}
