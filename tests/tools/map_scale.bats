#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# d9d-map on checkpoints of the size that people have: by `make test-long` alone, with 11 GB of disk
# under TMPDIR.

setup() {
    load helper
    [ -n "${D9D_LONG:-}" ] || skip "minutes, and gigabytes: make test-long"
    work=$(mktemp -d "${TMPDIR:-/tmp}/d9d-scale-XXXXXX")
    cd "$work" || return 1
}

teardown() { cd / && rm -rf "${work:-}"; }

# config HIDDEN INTERMEDIATE TIED: config.json of Qwen3-0.6B and 1.7B as they are published.
config() {
    cat <<JSON
{
  "architectures": [
    "Qwen3ForCausalLM"
  ],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 151643,
  "eos_token_id": 151645,
  "head_dim": 128,
  "hidden_act": "silu",
  "hidden_size": $1,
  "initializer_range": 0.02,
  "intermediate_size": $2,
  "max_position_embeddings": 40960,
  "max_window_layers": 28,
  "model_type": "qwen3",
  "num_attention_heads": 16,
  "num_hidden_layers": 28,
  "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "rope_theta": 1000000,
  "sliding_window": null,
  "tie_word_embeddings": $3,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.51.0",
  "use_cache": true,
  "use_sliding_window": false,
  "vocab_size": 151936
}
JSON
}

# there_and_back TENSORS BYTES SHARD-SIZE: ./hf by the d9d layout is ./hf again.
there_and_back() {
    d9d-map -q --to d9d hf d9d
    d9d-map -q --to hf --shard-size "$3" d9d back
    rm -r d9d
    run -0 --separate-stderr d9d-map diff -q hf back
    [ "$output" = "$1 tensors equal, 0 different" ]
    cmp hf/config.json back/config.json
    for f in hf/*.safetensors*; do cmp "$f" "back/${f#hf/}"; done
    run -0 --separate-stderr d9d-map plan --json back
    [[ "$output" == *"$2"* ]]
}

@test "Qwen3-0.6B, whose files have its tied head besides" {
    config 1024 3072 true >c.json
    d9d-map init -q --model c.json --seed 6 one
    echo '{"schema": "d9d.mapper.v1", "rest": "keep", "stages": [[{"op": "duplicate", "from": "model.embed_tokens.weight",
        "to": ["model.embed_tokens.weight", "lm_head.weight"]}]]}' >copy.json
    d9d-map -q --mapper copy.json one hf
    rm -r one
    there_and_back 311 1503264768 4GB
}

@test "Qwen3-1.7B, tied, in three files" {
    config 2048 6144 true >c.json
    d9d-map init -q --model c.json --seed 17 --shard-size 1.5GB hf
    [ "$(find hf -name 'model-*-of-00003.safetensors' | wc -l)" = 3 ]
    there_and_back 310 3441149952 1.5GB
}
