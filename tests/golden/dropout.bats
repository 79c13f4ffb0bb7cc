#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# Training with dropout against transformers that drops the same (make_dropout.py): losses and norms;
# the same bits when activations are computed again and after a restart; nothing is dropped elsewhere.

load workplace

setup_file() {
    golden_workplace "$BATS_TEST_DIRNAME"
    for c in $(cases); do configure "$c"; done
}
setup() { cd "$work" || return 1; }

cases() { (cd "$golden/dropout" && printf '%s\n' *.json | sed 's/\.json$//'); }
member() { sed -nE "s/.*\"$1\": \"(.*)\".*/\1/p" "$2"; }

# configure CASE: $c.json, a training with the case's rates, and data-$c.
configure() {
    local from task='' config data=train rates=() rate type steps='"epochs": 10' batch='"global_batch_size": 3, "microbatch_size": 3'
    local betas='[0.9, 0.95]'
    from=$golden/$(member checkpoint "$golden/dropout/$1.json")
    type=$(member model_type "$from/config.json")
    if [ "$type" = modernbert ]; then
        data=texts steps='"epochs": 3' batch='"global_batch_size": 4, "microbatch_size": 2' betas='[0.9, 0.999]'
        task=', "task": {"name": "classification", "pooling": "cls"}'
    fi
    d9d-shard -q --format tokens --out "data-$1" "$from/$data.jsonl"
    [ "$type" != modernbert ] || from+=/own
    while read -r rate; do
        grep -q "\"${rate%%:*}\": 0\.0" "$from/config.json" || { echo "$1 has no ${rate%%:*}" && return 1; }
        rates+=(-e "s/\"${rate%%:*}\": 0\.0/\"${rate%%:*}\": ${rate#*:}/")
    done < <(sed -nE '/"rates"/,/\}/s/ *"([a-z_]+)": ([0-9.]+),?$/\1:\2/p' "$golden/dropout/$1.json")
    [ ${#rates[@]} -gt 0 ]
    mkdir -p "model-$1"
    sed "${rates[@]}" "$from/config.json" >"model-$1/config.json"
    type=${type%_text}
    config="\"model_provider\": {\"name\": \"$type\", \"hf_config\": \"model-$1/config.json\"$([ "$type" != deepseek_v3 ] || echo ', "router": {"bias_update_rate": 0}')}"
    cat >"$1.json" <<JSON
{"data": {"dataset": "data-$1", $steps, "order": "sequential"}, $config$task,
 "trainer": {"run": {"name": "$1", "dir": "run-$1", "steps": 10}, "batching": {$batch},
  "model_stage_factory": {"source_checkpoint": "$from"}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "betas": $betas, "eps": 1e-8, "weight_decay": 0.1}}
JSON
}
numbers() { grep -oE "\"$1\": *[0-9.e+-]+" "$2" | grep -oE '[0-9.e+-]+$'; }
train() { d9d-train -q --device cpu "$@"; }

@test "ten steps of AdamW are those of transformers with the same masks" {
    for c in $(cases); do
        train "$c.json"
        for what in loss grad_norm; do
            numbers $what "$golden/dropout/$c.json" >want
            numbers $what "run-$c/metrics.jsonl" >got
            [ "$(wc -l <got)" -eq 10 ]
            limit=1e-5
            [ "$what" = loss ] || limit=5e-5
            # See family_tools.bats.
            [[ ! $c =~ ^qwen3_5 ]] || { [ "$what" = loss ] && limit=1e-4 || limit=5e-3; }
            paste got want | awk -v limit=$limit -v what="$c: $what" \
                '{ d = $1 - $2; if ((d < 0 ? -d : d) > limit * $2) { print what ": " $0; exit 1 } }'
        done
    done
}

@test "the same bits when activations are computed again, near ones in smaller parts" {
    for c in gpt2 llama modernbert; do
        train --set trainer.run.dir=off "$c.json"
        for how in full selective; do
            train --set trainer.run.dir=$how --set model_provider.checkpointing=$how "$c.json"
            cmp {off,$how}/export/model.safetensors
            cmp <(numbers loss off/metrics.jsonl) <(numbers loss $how/metrics.jsonl)
        done
        train --set trainer.run.dir=parts --set trainer.batching.microbatch_size=1 "$c.json"
        paste <(numbers loss off/metrics.jsonl) <(numbers loss parts/metrics.jsonl) |
            awk '{ d = $1 - $2; if ((d < 0 ? -d : d) > 1e-5 * $2) { print; exit 1 } }'
        rm -r off full selective parts
    done
}

@test "a run that was interrupted drops what it would have dropped" {
    train --set trainer.run.dir=whole gpt2.json
    train --set trainer.run.dir=cut --set trainer.run.steps=6 gpt2.json
    rm -r cut/export
    train --set trainer.run.dir=cut gpt2.json
    cmp {whole,cut}/export/model.safetensors
    # Another seed drops others.
    train --set trainer.run.dir=other --set trainer.determinism.base_seed=1 gpt2.json
    run ! cmp -s {whole,other}/export/model.safetensors
}

@test "nothing is dropped where nothing is learned" {
    cat >infer.json <<JSON
{"data": {"dataset": "data-gpt2"}, "model_provider": {"name": "gpt2", "hf_config": "model-gpt2/config.json"},
 "trainer": {"batching": {"microbatch_size": 3}, "model_stage_factory": {"source_checkpoint": "$golden/families/gpt2"}},
 "task": {"name": "logprobs", "output": "drops.jsonl"}}
JSON
    d9d-infer -q --device cpu infer.json
    d9d-infer -q --device cpu --set "model_provider.hf_config=$golden/families/gpt2/config.json" --set task.output=plain.jsonl infer.json
    cmp {drops,plain}.jsonl
    # Nor in the evaluations of a training, which goes on as without them.
    valid='evaluation=[{"data": {"dataset": "data-gpt2"}, "period_steps": 3, "at_start": true}]'
    train --set trainer.run.dir=alone gpt2.json
    train --set trainer.run.dir=drops --set "$valid" gpt2.json
    train --set trainer.run.dir=plain --set trainer.run.steps=1 --set "$valid" \
        --set "model_provider.hf_config=$golden/families/gpt2/config.json" gpt2.json
    cmp {alone,drops}/export/model.safetensors
    [ "$(numbers valid/loss drops/metrics.jsonl | wc -l)" -ge 4 ]
    [ "$(numbers valid/loss drops/metrics.jsonl | head -n 1)" = "$(numbers valid/loss plain/metrics.jsonl | head -n 1)" ]
}

@test "a plan has the memory of training, to the byte" {
    for c in gpt2 deepseek_v3 modernbert; do
        train --set trainer.run.dir=measured "$c.json"
        numbers mem_bytes measured/metrics.jsonl | sort -n | tail -n 1 >want
        d9d-train --plan --gpu cpu --json "$c.json" | numbers peak /dev/stdin | head -n 1 >got
        [ "$(wc -l <want)" -eq 1 ]
        diff want got || { echo "$c" && false; }
        rm -r measured
    done
}
