#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# A model with a custom operation, examples/plugins/gelu.c: training, ranks, planning; and one whose
# operation cannot be planned, which is an error.

golden=$BATS_TEST_DIRNAME/../golden/llama

load workroom

setup_file() {
    workroom
    plugin gelu "$root/examples/plugins/gelu.c"
    d9d-shard -q --format tokens --pack 48 --out data "$golden/tokens.jsonl"
    model 32 >gelu.json
    cat >train.json <<JSON
{"plugin": "libgelu.so", "data": {"dataset": "data", "epochs": 100},
 "model_provider": {"name": "gelu", "hf_config": "gelu.json"},
 "trainer": {"run": {"name": "gelu", "steps": 12}, "batching": {"global_batch_size": 4, "microbatch_size": 2},
  "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-2}}
JSON
    sed 's/return d9d_device_launch(.*/(void)cost, (void)t; return kernel->cpu(NULL, a);/' \
        "$root/examples/plugins/gelu.c" >careless.c
    plugin careless careless.c
}
# model FEATURES: its config.json.
model() {
    echo '{"model_type": "gelu", "hidden_size": '"$1"', "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 97, "max_position_embeddings": 512}'
}
train() { d9d-train -q --device cpu --set "trainer.run.dir=$1" "${@:2}" train.json; }
train_single() { [ -d alone ] || train alone; }

@test "training, resuming and activation checkpointing give the same bits" {
    train_single
    numbers loss alone | awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(NR == 12 && last < 0.9 * first) }'
    grep -aq '"layers.1.act.gain"' alone/export/model.safetensors
    train part --set trainer.run.steps=5
    rm -r part/export
    train part
    cmp {alone,part}/export/model.safetensors
    train again --set model_provider.checkpointing=selective
    cmp {alone,again}/export/model.safetensors
}

@test "several ranks equal one" {
    with_mpi
    train_single
    for axis in data_parallel_shard pipeline_parallel; do
        mpi -n 2 d9d-train -q --device cpu --set mesh.$axis=2 --set trainer.run.dir=$axis train.json
        close_to 1e-5 <(numbers loss $axis) <(numbers loss alone)
    done
}

@test "--plan has the peak memory to the byte and the kernels' time" {
    train_single
    peak=$(numbers mem_bytes alone | sort -n | tail -n 1)
    run -0 d9d-train --plan --gpu cpu --json train.json
    assert_equal "$(sed -n 's/^ *"peak": \([0-9]*\),$/\1/p' <<<"$output")" "$peak"
}

@test "--plan allocates no arrays, so that it works for a model of any size" {
    model 2048 >large.json
    run -0 d9d-train --plan --gpu cpu --set model_provider.hf_config=large.json train.json
    run -0 d9d-train --plan --suggest 2 --gpu cpu -q --set model_provider.hf_config=large.json train.json
    run -2 d9d-train --plan --gpu h100 --set model_provider.hf_config=large.json train.json
    assert_output --partial "gelu: has no kernel for GPUs"
}

@test "--plan of an operation without a cost function is an error, whatever its size" {
    run -2 d9d-train --plan --gpu cpu --set plugin=libcareless.so train.json
    assert_output --partial 'libcareless.so: its operation "gelu" cannot be planned: what it computes does not go through d9d_device_launch()'
    model 2048 >large.json # with rows of 512: sixteen MB per array
    for option in "" "--suggest 2"; do
        # shellcheck disable=SC2086 # several options
        run -2 d9d-train --plan $option --gpu cpu --set plugin=libcareless.so \
            --set model_provider.hf_config=large.json --length 512 train.json
        assert_output --partial 'libcareless.so: an operation of it'
        assert_output --partial 'cannot be planned: it touches an array outside of d9d_device_launch()'
    done
    # Training works nevertheless.
    run -0 train careless --set plugin=libcareless.so --set trainer.run.steps=2
}
