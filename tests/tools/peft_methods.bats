#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# Methods of fine-tuning beside LoRA: DoRA, (IA)^3 and prompt tuning trained, saved, merged and read again, and how
# modules, layers, ranks and alphas are chosen.

load train_bench

setup_file() {
    workshop
    cd "$shared" || return 1
    export dora='{"kind": "dora", "module_name_pattern": "all-linear", "params": {"r": 4, "alpha": 12}}'
    export ia3='{"kind": "ia3", "module_name_pattern": ".*\\.(k|v|o)_proj", "feedforward_name_pattern": "o_proj"}'
    d9d-train -q --set trainer.run.dir=dora --set "peft=$dora" --set optimizer.lr=1e-2 c.json
    d9d-train -q --set trainer.run.dir=ia3 --set "peft=$ia3" --set optimizer.lr=1e-1 c.json
    d9d-train -q --set trainer.run.dir=base --set trainer.run.steps=1 c.json
}

setup() {
    bench
    ln -s "$shared/dora" "$shared/ia3" "$shared/base" .
}

first_loss() { sed -nE '1s/.*"loss": ([^,]+),.*/\1/p' "$1/metrics.jsonl"; }
loss_of() { d9d-infer -q --json --set 'task={"name": "perplexity"}' "$@" i.json | sed -nE 's/.*"loss": ([^,]+),/\1/p'; }
near() { awk -v a="$1" -v b="$2" -v l="$3" 'BEGIN { exit !((a - b) ^ 2 <= l ^ 2) }' || { echo "$1 is not $2"; false; }; }

# refused SENTENCE PEFT [OPTION...]: exit 2, before anything is made.
refused() {
    says 2 "$1" d9d-train -q --set "peft=$2" "${@:3}" c.json
    [ ! -e run ]
}

words_tokenizer() {
    cat >words.json <<'JSON'
{"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": [],
 "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 5, "b": 6, "c": 7, "d": 8}}}
JSON
}

# lora MEMBERS [PARAMS]: a section.
lora() { echo "{\"kind\": \"lora\", $1, \"params\": {\"r\": 4, \"alpha\": 8${2:+, $2}}}"; }

@test "untrained, a method changes nothing" {
    near "$(first_loss dora)" "$(first_loss base)" 1e-6
    [ "$(first_loss ia3)" = "$(first_loss base)" ]
}

@test "the export is base and adapter merged, in every layout, and computes what they do" {
    for i in dora ia3; do
        run d9d-map diff "$golden/moe" $i/export
        [[ "$output" == *"v_proj.weight: values"* && "$output" != *norm* && "$output" != *expert* ]]
        d9d-map -q --adapter $i/adapter --to hf "$golden/moe" hf-$i
        d9d-map diff hf-$i $i/export
        d9d-map -q --to d9d "$golden/moe" own-$i
        d9d-map -q --adapter $i/adapter --to hf --shard-size 1kB own-$i from-own-$i
        d9d-map diff from-own-$i $i/export
        whole=$(loss_of --set trainer.model_stage_factory.source_checkpoint=$i/export)
        [ "$whole" = "$(loss_of --set trainer.model_stage_factory.source_adapter="$i/adapter")" ]
        # A step that learns nothing, of the model with its adapters, and what it saves.
        peft=$dora
        [ $i = dora ] || peft=$ia3
        d9d-train -q --set trainer.run.dir=again-$i --set "peft=$peft" --set optimizer.lr=1e-30 \
            --set trainer.model_stage_factory.source_adapter=$i/adapter --set trainer.batching.global_batch_size=80 c.json
        near "$(first_loss again-$i)" "$whole" 2e-6
        near "$(first_loss base)" "$whole" 2e-6 && return 1
        cmp $i/adapter/adapter_model.safetensors again-$i/adapter/adapter_model.safetensors
    done
}

@test "checkpoints are gone on with, bit for bit" {
    for i in dora ia3; do
        peft=$dora lr=1e-2
        [ $i = dora ] || peft=$ia3 lr=1e-1
        only=(--set "peft=$peft" --set "optimizer.lr=$lr" --set trainer.checkpointing.period_steps=8
            --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true)
        rm -rf run
        d9d-train -q "${only[@]}" c.json
        rm -rf run/checkpoints/step-00000020 run/checkpoints/step-00000016 run/export
        d9d-train -q "${only[@]}" c.json
        cmp run/export/model.safetensors $i/export/model.safetensors
    done
}

@test "a bfloat16 base is merged in float32, and stays so where that is asked for" {
    d9d-map -q --to hf --dtype bfloat16 "$golden/moe" half
    d9d-map -q --to hf --dtype float32 half single
    for i in dora ia3; do
        d9d-map -q --adapter $i/adapter --to hf --dtype float32 half merged-$i 2>/dev/null
        d9d-map -q --adapter $i/adapter --to hf single wanted-$i 2>/dev/null
        d9d-map diff merged-$i wanted-$i
        d9d-map -q --adapter $i/adapter --to hf half rounded-$i 2>/dev/null
        d9d-map -q --to hf --dtype bfloat16 wanted-$i once-$i
        d9d-map diff rounded-$i once-$i
    done
}

@test "layers, ranks and alphas by patterns" {
    d9d-train -q --set trainer.run.steps=2 --set "peft=$(lora '"module_name_pattern": ".*(q|v)_proj", "layers_to_transform": [1]' \
        '"rank_pattern": {"v_proj": 2}, "alpha_pattern": {".*\\.1\\.self_attn\\.q_proj": 0.5}')" c.json
    grep -A1 '"model.layers.1.self_attn.v_proj"' run/adapter/adapter_config.json
    grep -q '"model.layers.1.self_attn.q_proj": 0.5\|"lora_alpha": 0.5' run/adapter/adapter_config.json
    run d9d-map diff "$golden/moe" run/export
    [ "$(grep -c ': values' <<<"$output")" = 2 ]
    cp -r run once && rm -r run
    # A layer that is named twice is one layer.
    d9d-train -q --set trainer.run.steps=2 --set "peft=$(lora '"module_name_pattern": ".*(q|v)_proj", "layers_to_transform": [1, 1]' \
        '"rank_pattern": {"v_proj": 2}, "alpha_pattern": {".*\\.1\\.self_attn\\.q_proj": 0.5}')" c.json
    cmp run/export/model.safetensors once/export/model.safetensors
    rm -r run
    refused 'layers_to_transform has 7, and ".*q_proj" matches nothing in layer 7' \
        "$(lora '"module_name_pattern": ".*q_proj", "layers_to_transform": [0, 7]')"
    refused 'peft.params.alpha_pattern: "q_proj" has no number above 0' \
        "$(lora '"module_name_pattern": ".*q_proj"' '"alpha_pattern": {"q_proj": 0}')"
    refused 'peft: rank_pattern "k_proj": of 2 modules with an adapter it matches none' \
        "$(lora '"module_name_pattern": ".*q_proj"' '"rank_pattern": {"k_proj": 2}')"
    refused 'peft: alpha_pattern "q_porj": of 2 modules with an adapter it matches none' \
        "$(lora '"module_name_pattern": ".*q_proj"' '"alpha_pattern": {"q_porj": 2}')"
    refused 'peft: rank_pattern' "$(lora '"module_name_pattern": ".*q_proj"' '"rank_pattern": {"(": 2}')"
}

@test "what a method cannot adapt is refused in a sentence" {
    refused 'is a stack of experts, whose adapters are "lora", not "dora"' \
        '{"kind": "dora", "module_name_pattern": ".*_proj", "params": {"r": 4, "alpha": 8}}'
    refused 'is a stack of experts, whose adapters are "lora", not "ia3"' '{"kind": "ia3", "module_name_pattern": ".*_proj"}'
    refused 'peft.params.dropout: unknown' '{"kind": "dora", "module_name_pattern": ".*q_proj", "params": {"r": 4, "alpha": 8, "dropout": 0.1}}'
    says 2 'of another method than that of the configuration' d9d-train -q --set trainer.run.dir=none \
        --set "peft=${dora/dora/lora}" --set trainer.model_stage_factory.source_adapter=dora/adapter c.json
    [ ! -e none ]
}

@test "adapters of two methods are refused: a directory of peft has those of one" {
    refused 'have adapters of two methods, and a directory of peft has those of one' '{"kind": "stack", "methods": [
        {"kind": "dora", "module_name_pattern": ".*q_proj", "params": {"r": 4, "alpha": 8}},
        {"kind": "ia3", "module_name_pattern": ".*v_proj"}]}'
}

@test "a plan has the parameters, states and products of a method" {
    plan() { d9d-train --plan --memory 80GiB --set "peft=$1" c.json; }
    plan "$dora" >dora.txt
    plan "$ia3" >ia3.txt
    # Two products more of an adapter and three of its norms, forward, and what backward has of them.
    gemms() { awk '$1 == "gemm" { print $2 }' "$1"; }
    [ "$(gemms dora.txt)" -gt "$(gemms ia3.txt)" ]
    grep -q 'a checkpoint has' dora.txt
}

@test "d9d-infer computes with adapters as they are, where it has their section" {
    for i in dora ia3; do
        peft=$dora
        [ $i = dora ] || peft=$ia3
        ad=(--set trainer.model_stage_factory.source_adapter="$i/adapter")
        near "$(loss_of "${ad[@]}" --set "peft=$peft")" "$(loss_of "${ad[@]}")" 2e-6
        for how in null "$peft"; do
            rm -f out.jsonl
            d9d-infer -q "${ad[@]}" --set "peft=$how" \
                --set 'task={"name": "generate", "max_new_tokens": 6, "temperature": 0, "output": "out.jsonl"}' i.json
            mv out.jsonl "out-${how:0:4}.jsonl"
        done
        cmp out-null.jsonl 'out-{"ki.jsonl'
    done
    says 2 'peft: there are no adapters: name them with trainer.model_stage_factory.source_adapter' \
        d9d-infer -q --set "peft=$dora" i.json
    says 2 'q_proj.weight: has an adapter in the configuration and none in the files' \
        d9d-infer -q --set "peft=$dora" --set trainer.model_stage_factory.source_adapter=ia3/adapter i.json
}

@test "prompt tuning: an adapter that holds the prompt, resumed to the bit, evaluated and computed with" {
    prompt='{"kind": "prompt_tuning", "num_virtual_tokens": 6}'
    on=(--set "peft=$prompt" --set optimizer.lr=1e-1 --set trainer.checkpointing.period_steps=5)
    d9d-train -q --set trainer.run.dir=p "${on[@]}" --set 'evaluation={"data": {"dataset": "data"}, "period_steps": 5}' c.json
    [ ! -e p/export ]
    grep -q '"peft_type": "PROMPT_TUNING"' p/adapter/adapter_config.json
    grep -q '"num_virtual_tokens": 6' p/adapter/adapter_config.json
    grep -aq '"prompt_embeddings"' p/adapter/adapter_model.safetensors
    for only in false true; do
        cut=(--set "trainer.model_stage_factory.checkpoint_only_trainable_parameters=$only")
        rm -rf half
        d9d-train -q --set trainer.run.dir=half "${on[@]}" "${cut[@]}" --set trainer.run.steps=10 c.json
        rm -rf half/adapter
        d9d-train -q --set trainer.run.dir=half "${on[@]}" "${cut[@]}" c.json
        cmp p/adapter/adapter_model.safetensors half/adapter/adapter_model.safetensors
    done
    with=(--set trainer.model_stage_factory.source_adapter=p/adapter)
    learnt=$(loss_of --set "peft=$prompt" "${with[@]}")
    near "$learnt" "$(loss_of)" 1e-3 && return 1
    # another run begins where it ended
    d9d-train -q --set trainer.run.dir=more "${on[@]}" "${with[@]}" --set optimizer.lr=1e-30 \
        --set trainer.batching.global_batch_size=80 c.json
    near "$(first_loss more)" "$learnt" 2e-6
    # what it cannot be
    says 2 'p/adapter: has virtual tokens (prompt tuning), which no weights can hold' d9d-infer -q "${with[@]}" i.json
    says 2 'p/adapter: has 6 virtual tokens of' d9d-infer -q --set "peft=${prompt/6/7}" "${with[@]}" i.json
    says 2 'has virtual tokens (prompt tuning), which no weights can hold' d9d-map -q --adapter p/adapter --to hf "$golden/moe" merged
    [ ! -e merged ]
}

@test "where prompt tuning cannot be is said in a sentence" {
    prompt='{"kind": "prompt_tuning", "num_virtual_tokens": 6}'
    refused 'peft: prompt_tuning stands alone' "{\"kind\": \"stack\", \"methods\": [$prompt]}"
    refused 'is of next tokens of a decoder, and the task "classification"' "$prompt" \
        --set 'task={"name": "classification", "num_labels": 2}'
    refused 'peft.init_text: null, and init is "text"' "${prompt/\}/, \"init\": \"text\"\}}"
    refused 'peft.init_text: init is "random"' "${prompt/\}/, \"init\": \"random\", \"init_text\": \"a\"\}}"
    refused 'export_to: prompt_tuning changes no weights' "$prompt" --set export_to=there
    refused 'positions' "${prompt/6/100000}"
    d9d-shard -q --format tokens --pack 64 --out packed - <"$golden/moe/train.jsonl"
    refused 'packed: has packed documents' "$prompt" --set data.dataset=packed
    refused 'packed: has packed documents' "$prompt" --set 'data=[{"dataset": "data", "epochs": 99}, {"dataset": "packed", "epochs": 99}]'
    words_tokenizer
    echo '{"text": "a"}' >web.jsonl
    refused 'web: has packed documents, and virtual tokens begin a sequence of one; make a dataset of it without --pack' "$prompt" --set trainer.run.steps=2 \
        --set 'data={"dataset": "web", "source": {"name": "stream", "path": "web.jsonl", "tokenizer": "words.json", "length": 8}}'
}

# Untrained rows of a text's tokens are that text before each sample.
@test "prompt tuning begins as the tokens of a text, repeated or cut" {
    words_tokenizer
    for line in 'a b c d a' 'd c b' 'b b a a c' 'c a b d'; do echo "{\"text\": \"$line\"}"; done >texts.jsonl
    d9d-shard -q --tokenizer words.json --out texts texts.jsonl
    # the same with c b c, or c b, before them
    for before in '7, 6, 7' '7, 6'; do
        none=$(sed -E 's/[0-9]+/-100/g' <<<"$before")
        for ids in '5, 6, 7, 8, 5' '8, 7, 6' '6, 6, 5, 5, 7' '7, 5, 6, 8'; do
            echo "{\"input_ids\": [$before, ${ids%,*}], \"labels\": [$none, ${ids#*, }]}"
        done >"with-${#before}.jsonl"
        d9d-shard -q --format tokens --out "with-${#before}" "with-${#before}.jsonl"
    done
    one=(--set trainer.run.steps=1 --set data.epochs=1 --set data.order=sequential --set trainer.batching.global_batch_size=4)
    for n in 3 2; do
        d9d-train -q --set trainer.run.dir=text-$n "${one[@]}" --set data.dataset=texts \
            --set "peft={\"kind\": \"prompt_tuning\", \"num_virtual_tokens\": $n, \"init\": \"text\", \"init_text\": \"c b\"}" c.json
        d9d-train -q --set trainer.run.dir=ids-$n "${one[@]}" --set data.dataset=with-$((3 * n - 2)) c.json
        near "$(first_loss text-$n)" "$(first_loss ids-$n)" 1e-6
    done
}
