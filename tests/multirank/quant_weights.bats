#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034 # variables of the helper and of topology.bash
# Adapters on a base in 8 or 4 bits: rows are quantised whole, so every mesh has the same base, and
# losses, norms and adapters are those of one rank; adapters saved on one mesh resume on another.
# So are losses and answers of quantised heads.

load ../slurm/helper
layers=2 steps=4 batch=6
load topology

setup_file() {
    workroom
    d9d-shard -q --format tokens --out data "$golden/moe/train.jsonl"
    configure dense 128 '"intermediate_size": 128' | sed 's/"hidden_size": 32/"hidden_size": 128/; s/"head_dim": 8/"head_dim": 16/' >dense.json
    d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir=first --set trainer.run.steps=1 dense.json
    mv first/export base
    d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir=second --set trainer.run.steps=1 \
        --set "$tied" dense.json
    mv second/export tied
    for i in $(seq 6); do echo "{\"input_ids\": [$i, $((9 * i)), $((i * i))]}"; done >prompts.jsonl
}
tied='model_provider.model.tie_word_embeddings=true'

lora='{"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 3, "alpha": 12}}'

# tune FORMAT MESH DIR [OPTION...]
tune() {
    train dense "$2" "$3" --set "peft=$lora" --set trainer.checkpointing.period_steps=2 \
        --set trainer.model_stage_factory.source_checkpoint=base \
        --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true \
        --set trainer.model_stage_factory.quantization="$1" "${@:4}"
}

# near A B: losses and norms to 1e-5, and adapters.
near() {
    local i
    for i in "$1" "$2"; do
        rm -rf "$i/export" && mkdir "$i/export" && cp "$i/adapter/adapter_model.safetensors" "$i/export/model.safetensors"
    done
    same "$1" "$2"
}

# equals_one_rank FORMAT MESH...
equals_one_rank() {
    local format=$1 on
    shift
    rm -rf alone
    tune "$format" "1 1 1 1 1 1" alone
    for on; do
        rm -rf run
        tune "$format" "$on" run
        near run alone || { echo "$format, mesh $on"; return 1; }
    done
}

@test "adapters on a base in 4 bits train the same on every mesh" {
    equals_one_rank nf4 "2 1 1 1 1 1" "1 2 1 1 1 1" "1 3 1 1 1 1" "1 1 1 1 2 1" "1 2 1 1 2 1" "1 1 1 1 1 1 2"
}

@test "adapters on a base in 8 bits train the same on every mesh" {
    equals_one_rank fp8 "1 2 1 1 1 1" "1 1 2 1 2 1"
}

@test "the base is quantised: losses differ from those of its elements, and of the other format" {
    local of
    rm -rf none nf4 fp8
    for of in none nf4 fp8; do tune $of "1 1 1 1 1 1" $of --set trainer.run.steps=1; done
    for of in none nf4 fp8; do grep -o '"loss": [0-9.]*' $of/metrics.jsonl | head -n 1 | cut -d' ' -f2; done |
        awk '{ v[NR] = $1 } END { d = v[2] - v[1]; e = v[3] - v[1]
            exit !(v[2] != v[1] && v[3] != v[1] && v[2] != v[3] && d * d < 0.01 && e * e < 0.001) }'
}

@test "adapters saved on one mesh resume on another; a checkpoint has no matrix of the base" {
    rm -rf whole run
    tune nf4 "1 1 1 1 1 1" whole
    tune nf4 "1 2 1 1 1 1" run --set trainer.run.steps=2
    [ "$(cat run/checkpoints/*/manifest.json | grep -c '"name": "[^"]*q_proj.weight"')" = 0 ]
    [ "$(cat run/checkpoints/*/manifest.json | grep -c '"name": "[^"]*q_proj.lora_A.weight"')" != 0 ]
    rm -rf run/adapter
    tune nf4 "1 1 1 1 2 1" run
    near run whole
}

@test "rows that tensor parallelism cuts within a block are refused before anything is written" {
    rm -rf run
    run -2 --separate-stderr mpi -n 4 d9d-train --device cpu --set "peft=$lora" --set mesh.tensor_parallel=4 \
        --set trainer.model_stage_factory.source_checkpoint=base \
        --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true \
        --set trainer.model_stage_factory.quantization=nf4 --set trainer.run.dir=run dense.json
    [[ "$stderr" == *'trainer.model_stage_factory.quantization "nf4": rows of model.layers.0.self_attn.o_proj.weight have 32 elements on each rank of mesh.tensor_parallel, and multiples of 64 are possible'* ]]
    [ ! -e run ]
}

# compute MESH SOURCE HEAD TASK: d9d-infer on a mesh, which is "tensor shard pipeline".
compute() {
    local on more=()
    read -ra on <<<"$1"
    [ "$2" = base ] || more=(--set "$tied")
    [[ $4 == *prompts* ]] || more+=(--set data.dataset=data)
    {
        echo '{'
        sed -n '/"model_provider"/,/"split_vocab_order"/p' dense.json
        echo '"trainer": {"batching": {"microbatch_size": 2}}, "task": '"$4}"
    } >infer.json
    mpi -n $((on[0] * on[1] * on[2])) d9d-infer -q --json --device "${D9D_TEST_DEVICE:-cpu}" "${more[@]}" \
        --set mesh.tensor_parallel="${on[0]}" --set mesh.data_parallel_shard="${on[1]}" --set mesh.pipeline_parallel="${on[2]}" \
        --set trainer.model_stage_factory.source_checkpoint="$2" --set trainer.model_stage_factory.head_quantization="$3" infer.json
}

# head_equals_one_rank SOURCE FORMAT MESH...: losses to 1e-5, answers exactly.
head_equals_one_rank() {
    local on alone loss answer='{"name": "generate", "output": "out.jsonl", "prompts": "prompts.jsonl", "max_new_tokens": 9, "stop_at_eos": false}'
    for on in "1 1 1" "${@:3}"; do
        compute "$on" "$1" "$2" '{"name": "perplexity"}' >summary
        loss=$(sed -nE 's/.*"loss": ([0-9.]+),?.*/\1/p' summary)
        rm -f out.jsonl
        compute "$on" "$1" "$2" "$answer" >summary
        if [ "$on" = "1 1 1" ]; then
            alone=$loss
            mv out.jsonl alone.jsonl
        else
            awk -v a="$alone" -v b="$loss" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 <= (1e-5 * a) ^ 2) }'
            cmp out.jsonl alone.jsonl
        fi
    done
}

@test "a head in 8 and 4 bits has the losses and answers of one rank on every mesh" {
    head_equals_one_rank base fp8 "2 1 1" "1 1 2"
    head_equals_one_rank base nf4 "1 2 1" "2 2 1"
}

@test "so has the embedding of a tied model" {
    head_equals_one_rank tied nf4 "2 1 1" "1 1 2"
    head_equals_one_rank tied fp8 "1 2 1" "2 2 1"
}
