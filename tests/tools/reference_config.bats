#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# Configurations of the reference framework, d9d for PyTorch 0.16 to 0.24, load as they are.
# tests/golden/reference_configs/keys.tsv has a line for each key of each pydantic model in its wheels:
#     model  field  versions  tool  path  value  verdict  detail
# accepted: the same name and meaning; noted: accepted, and the log says what becomes of it; translated: the log says
# its name here; code: an argument of its code, not of a configuration; file: a file format.

load train_bench

configs=$BATS_TEST_DIRNAME/../golden/reference_configs
keys=$configs/keys.tsv

# base TOOL PATH: a configuration without what the row at this path sets.
base() {
    local batching='"batching": {"global_batch_size": 8},'
    [ "$2" != data.global_batch_size ] || batching=
    if [ "$1" = infer ]; then
        echo '{"data": {"dataset": "data"}, "model_provider": {"name": "qwen3_moe", "hf_config": "config.json"},
               "task": {"name": "perplexity"}}'
    else
        echo "{\"data\": {\"dataset\": \"data\"}, \"model_provider\": {\"model\": {}, \"checkpointing\": false},
               \"trainer\": {$batching \"run\": {\"name\": \"small\"}}, \"optimizer\": {\"name\": \"adamw\", \"lr\": 1e-3}}" |
            sed 's/{"model": {}, /{"name": "qwen3_dense", "hf_config": "config.json", /'
    fi
}

@test "every key of the reference is accepted, noted or translated as the table says" {
    rows=0
    while IFS=$'\t' read -r model field _ tool path value verdict detail; do
        [ "$tool" != - ] || continue
        rows=$((rows + 1))
        base "$tool" "$path" >base.json
        said=$("d9d-$tool" --print-config --set "$path=$value" base.json 2>&1 >/dev/null) && case $verdict in
        accepted) [[ "$said" != *".$field: "* ]] ;;
        noted) [ "$detail" = "has no effect" ] || [[ "$said" == *"left out; "*"$detail"* ]] ;;
        translated) [ "$detail" = - ] || [[ "$said" == *"is $detail here"* ]] ;;
        *) false ;;
        esac || { echo "$model.$field: $path=$value, $verdict $detail: $said"; false; }
    done <"$keys"
    [ "$rows" -gt 200 ]
}

@test "keys that are accepted without an effect say so when a run begins" {
    run -0 d9d-train --set trainer.run.steps=1 --set trainer.gc.period_steps=10 --set trainer.data_loading.pin_memory=true c.json
    assert_output --partial "gc: accepted, but has no effect here"
    assert_output --partial "pin_memory: accepted, but has no effect here"
}

@test "the table has every key of the wheels" {
    [ -n "${D9D_REFERENCE_WHEELS:-}" ] || skip "D9D_REFERENCE_WHEELS names no directory of the reference's wheels"
    diff <(python3 "$BATS_TEST_DIRNAME/../golden/make_reference_keys.py" "$D9D_REFERENCE_WHEELS") <(cut -f1-3 "$keys")
}

@test "a training configuration of 0.16, of 0.19 and of 0.24 gives the same model, batches and steps" {
    for version in 0.16 0.19 0.24; do
        run -0 --separate-stderr d9d-train --print-config "$configs/train-$version.json"
        sed -E '/"(tracker|provider|project|tags|mode|entity|group|dir|repo|python|patience|log_system_params|capture_terminal_logs|system_tracking_interval)"/d; /"red"/d' \
            <<<"$output" | grep -vE '^ *[]}],?$' >"$version.json"
        echo "$stderr" >"$version.log"
    done
    diff 0.16.json 0.24.json
    diff 0.19.json 0.24.json
    run -0 grep -c ' here$\|left out' 0.24.log
    [ "$output" -ge 8 ]
}

@test "the training configurations of the reference train" {
    echo '{"text": "to be or not to be, that is the question"}' >texts.jsonl
    for i in {1..40}; do echo "{\"text\": \"line $i of a corpus that is small\"}"; done >>texts.jsonl
    d9d-shard -q --tokenizer "$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json" --max-length 16 --out data16 texts.jsonl
    for version in 0.16 0.24; do
        d9d-train -q --set trainer.run.dir="run-$version" --set data.dataset=data16 --set trainer.logging.tracker=null \
            --set trainer.checkpointing.save_dir="saves-$version" "$configs/train-$version.json"
        [ "$(records "run-$version")" = 3 ]
    done
    cmp <(history_of run-0.16) <(history_of run-0.24)
}

# {"mesh", "model", "lora", "data", "auto_data", ...}, which the programs of its documentation's guides read.
@test "the configurations of the reference's guides fine-tune a checkpoint, with LoRA too, and measure it" {
    for i in {1..40}; do echo "{\"text\": \"line $i of a corpus that is small\"}"; done >texts.jsonl
    cat >hf.json <<'JSON'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
 "max_position_embeddings": 128, "vocab_size": 2048, "tie_word_embeddings": false}
JSON
    d9d-map -q init --model hf.json --seed 1 start
    cp "$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json" start
    d9d-shard -q --tokenizer start/tokenizer.json --max-length 16 --split train=0.8,validation=0.2 --out data16 texts.jsonl
    run -0 d9d-train "$configs/guide.json"
    assert_output --partial "model: is model_provider.model here"
    assert_output --partial "auto_data: is data here"
    assert_output --partial "data.max_length: left out; d9d-shard --max-length has cut the samples"
    [ -e saves/step-00000004 ]
    lora='lora={"module_name_pattern": ".*self_attn\\.(q|k|v|o)_proj", "params": {"r": 16, "alpha": 32, "dropout": 0.0}}'
    run -2 d9d-train -q --set trainer.run.name=lora --set "$lora" "$configs/guide.json"
    assert_output --partial "give this run a trainer.checkpointing.save_dir of its own"
    run -0 d9d-train --set trainer.run.name=lora --set "$lora" --set trainer.checkpointing.save_dir=lora-saves --set export_to=lora-export \
        --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true "$configs/guide.json"
    assert_output --partial "lora: is peft here"
    [ -e runs/lora/adapter/adapter_config.json ]
    perplexity() {
        d9d-infer -q --json --set 'task={"name": "perplexity"}' --set "inference.model_stage_factory.source_checkpoint=$1" "$configs/guide-infer.json" |
            sed -nE 's/.*"loss": ([0-9.]+).*/\1/p'
    }
    awk '{ exit !($2 < $1 && $3 < $1) }' <<<"$(perplexity start) $(perplexity guide-export) $(perplexity lora-export)"
    run -2 d9d-train --set auto_data.shuffle=true --set data.shuffle=false "$configs/guide.json"
    assert_output --partial "auto_data.shuffle: is data.shuffle here, which is given too"
    run -2 d9d-train --set auto_data=3 "$configs/guide.json"
    assert_output --partial "auto_data: its keys are those of data here, and one is no object"
    run -2 d9d-train --set model_provider=3 "$configs/guide.json"
    assert_output --partial "model: is model_provider.model here, and a section of that path is no object"
    d9d-train -q --print-config --set model_provider=null "$configs/guide.json" >null.json
    cmp null.json <(d9d-train -q --print-config "$configs/guide.json")
}

@test "an inference configuration of 0.16 and of 0.24 gives the same job" {
    for version in 0.16 0.24; do
        d9d-infer -q --print-config --set 'task={"name": "perplexity"}' "$configs/infer-$version.json" >"$version.json"
    done
    job() { grep -v '"num_workers"\|pin_memory\|persistent\|global_batch_size' "$1" | sed 's/,$//'; }
    diff <(job 0.16.json) <(job 0.24.json)
}

@test "a key by both of its names, or misspelt, is a mistake" {
    run -2 d9d-train --set trainer.schedule.total_steps=3 --set trainer.run.steps=3 c.json
    assert_output --partial "trainer.schedule.total_steps: is trainer.run.steps here, which is given too"
    run -2 d9d-train --set data.shuffle=true --set data.order=sequential c.json
    assert_output --partial "data.shuffle: is data.order here, which is given too"
    run -2 d9d-train --set trainer.schedule.total_step=3 c.json
    assert_output --partial "trainer.schedule: unknown key"
    run -2 d9d-train --set trainer.data_prefetch.prefetch=3 c.json
    assert_output --partial "trainer.data_prefetch: unknown key"
}

@test "a named model keeps its own keys" {
    run -2 d9d-train --set model_provider.head.kind=causal_lm c.json
    assert_output --partial "model_provider.head: unknown key"
}

@test "embeddings of inference are normalised as the reference's head says" {
    echo '{"data": {"dataset": "data"}, "task": {"output": "vectors.npy"}, "model_provider": {"model":
        {"model": {"layer": {"hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
         "rms_norm_eps": 1e-6, "head_dim": 16}, "num_hidden_layers": 2, "rope_base": 10000, "max_position_ids": 128,
         "split_vocab_size": {"a": 100}, "split_vocab_order": ["a"]}, "embedding_dim": 8, "normalize": true}}}' >embed.json
    run -0 --separate-stderr d9d-infer --print-config embed.json
    assert_output --partial '"normalize": true'
    [[ "$stderr" == *"model_provider.model.normalize: is task.normalize here"* ]]
}
