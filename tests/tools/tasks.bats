#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# Tasks on whole texts in both programs: classification, embeddings, hidden states. golden/tasks
# holds what transformers computes (make_tasks.py).

load train_bench

setup_file() {
    shared=$(workplace)
    export shared
    cd "$shared" || return 1
    for m in dense moe; do
        d9d-shard -q --format tokens --out $m "$golden/tasks/$m/texts.jsonl"
        configure $m
    done
}

setup() {
    work=$(workplace)
    cd "$work" || return 1
    ln -s "$shared"/{dense,moe} .
    cp "$shared"/*.json .
}
# configure MODEL: MODEL.train.json and MODEL.infer.json
configure() {
    local model
    model="\"model_provider\": {\"name\": \"qwen3_$1\", \"hf_config\": \"$golden/tasks/$1/config.json\"}"
    cat >"$1.train.json" <<JSON
{"data": {"dataset": "$1", "epochs": 3}, $model,
 "trainer": {"run": {"name": "$1", "dir": "run", "steps": 10},
   "batching": {"global_batch_size": 4, "microbatch_size": 2},
   "model_stage_factory": {"source_checkpoint": "$golden/tasks/$1"}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.999]},
 "task": {"name": "classification"},
 "metrics": [{"name": "accuracy", "problem": "multiclass", "num_classes": 3}]}
JSON
    cat >"$1.infer.json" <<JSON
{"data": {"dataset": "$1"}, $model,
 "trainer": {"batching": {"microbatch_size": 3},
   "model_stage_factory": {"source_checkpoint": "$golden/tasks/$1"}},
 "task": {"name": "classification", "output": "out.jsonl"}}
JSON
}

# floats FILE.npy: its numbers; of KEY in values.jsonl or of predictions: those of the golden file.
floats() { od -An -v -tf4 -w4 -j128 "$1"; }
golden_values() { sed -E "s/.*\"$2\": (\[+[^\"]*\]+).*/\1/" "$golden/tasks/$1/values.jsonl" | tr -d '[]}' | tr -s ', ' '\n' | grep .; }
predictions() { sed -E 's/.*"prediction": \[([^]]*)\].*/\1/' "$1" | tr -s ', ' '\n'; }
numbers() { sed -nE "s/.*\"$1\": ([-+0-9.e]+).*/\1/p" "$2"; }
# close A B [TOLERANCE]: numbers, one a line
close() {
    paste "$1" "$2" | awk -v e="${3:-1e-5}" 'NF != 2 || ($1 - $2) ^ 2 > (e * (1 + $2 * $2)) ^ 2 { print NR ": " $0; exit 1 }
        END { if (NR == 0) exit 1 }'
}
task() { printf 'task={"name": "%s", "output": "%s"%s}' "$1" "$2" "${3:+, $3}"; }

@test "classes: transformers' probabilities, a line a text, in order" {
    for m in dense moe; do
        run -0 --separate-stderr d9d-infer $m.infer.json
        [[ "$output" == "142 tokens of 16 samples, "* ]]
        [ "$(sed -E 's/.*"sample": ([0-9]+),.*/\1/' out.jsonl | tr '\n' ' ')" = "$(seq -s ' ' 0 15) " ]
        [ "$(numbers target out.jsonl | tr '\n' ' ')" = '0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 ' ]
        close <(predictions out.jsonl) <(golden_values $m prediction)
        d9d-metrics eval --metric accuracy,problem=multiclass,num_classes=3 out.jsonl | grep -q accuracy
        d9d-infer -q --set data.skip_samples='"1,4-6"' --set task.output=skip.jsonl $m.infer.json
        assert_equal "$(sed -n 2p skip.jsonl)" '{"sample": 1, "label": null, "prediction": null, "target": null}'
        cmp <(d9d-metrics eval -q -m accuracy,problem=multiclass,num_classes=3 skip.jsonl) \
            <(sed '2d;5,7d' out.jsonl | d9d-metrics eval -q -m accuracy,problem=multiclass,num_classes=3 -)
        rm out.jsonl skip.jsonl
    done
}

@test "pooled and hidden states: transformers', as .npy" {
    for m in dense moe; do
        for p in last mean cls; do
            d9d-infer -q --set "$(task embedding $p.npy "\"pooling\": \"$p\"")" $m.infer.json
            close <(floats $p.npy) <(golden_values $m $p)
        done
        head -c 128 last.npy | grep -aq "{'descr': '<f4', 'fortran_order': False, 'shape': (16, 16), }"
        d9d-infer -q --set "$(task hidden_states states.npy '"pooling": "mean"')" $m.infer.json
        head -c 128 states.npy | grep -aq "'shape': (16, 5, 16), }"
        close <(floats states.npy) <(golden_values $m states)
        d9d-infer -q --set "$(task hidden_states some.npy '"pooling": "mean", "layers": [-1, 2, -1]')" $m.infer.json
        close <(floats some.npy) <(floats states.npy | awk '{ x[int((NR - 1) / 16)] = x[int((NR - 1) / 16)] " " $1 }
            END { for (i = 0; i < 80; i += 5) print x[i + 4] x[i + 2] x[i + 4] }' | tr -s ' ' '\n' | grep .)
        rm ./*.npy
    done
}

@test "normalised embeddings have length 1" {
    d9d-infer -q --set "$(task embedding a.npy)" dense.infer.json
    d9d-infer -q --set "$(task embedding b.npy '"normalize": true')" dense.infer.json
    paste <(floats a.npy) <(floats b.npy) | awk '{ a[NR] = $1; b[NR] = $2; n[int((NR - 1) / 16)] += $1 * $1 }
        END { for (i = 1; i <= 256; i++) if ((a[i] / sqrt(n[int((i - 1) / 16)]) - b[i]) ^ 2 > 1e-12) exit 1 }'
}

# modules TYPE... [--pooling JSON]: a folder of sentence-transformers, st, with the golden weights.
modules() {
    local type list=
    rm -rf st
    cp -r "$golden/tasks/dense" st
    mkdir st/1_Pooling
    while [ $# -gt 0 ]; do
        case $1 in
        --pooling) echo "$2" >st/1_Pooling/config.json && shift ;;
        *) type=$1 list+="${list:+, }{\"path\": \"$([ "$type" != Pooling ] || echo 1_Pooling)\", \"type\": \"sentence_transformers.models.$type\"}" ;;
        esac
        shift
    done
    echo "[$list]" >st/modules.json
}
embed_st() { d9d-infer -q --set trainer.model_stage_factory.source_checkpoint=st --set "$(task embedding "$@")" dense.infer.json; }

@test "vectors are pooled and normalised as a folder of sentence-transformers says" {
    local mode p
    for p in last:lasttoken mean:mean_tokens cls:cls_token; do
        mode=pooling_mode_${p#*:}
        modules Transformer Pooling --pooling "{\"word_embedding_dimension\": 16, \"pooling_mode_max_tokens\": false, \"$mode\": true}"
        embed_st "${p%:*}.npy"
        close <(floats "${p%:*}.npy") <(golden_values dense "${p%:*}")
    done
    modules Transformer Pooling Normalize --pooling '{"pooling_mode": "mean"}'
    embed_st unit.npy
    d9d-infer -q --set "$(task embedding own.npy '"pooling": "mean", "normalize": true')" dense.infer.json
    cmp unit.npy own.npy
    embed_st same.npy '"pooling": "mean"'
    cmp unit.npy same.npy
}

@test "a folder of sentence-transformers that says otherwise, or what is not computed, is refused" {
    refused() { says 2 "$1" embed_st none.npy "${@:2}" && [ ! -e none.npy ]; }
    modules Transformer Pooling --pooling '{"pooling_mode_mean_tokens": true}'
    refused 'task.pooling is "cls", and st/1_Pooling/config.json has "mean"; leave the key out, or take a folder without modules.json' '"pooling": "cls"'
    modules Transformer Pooling --pooling '{"pooling_mode_max_tokens": true}'
    refused 'st/1_Pooling/config.json: pooling_mode_max_tokens is not computed, only pooling_mode_cls_token, pooling_mode_mean_tokens and pooling_mode_lasttoken'
    modules Transformer Pooling --pooling '{"pooling_mode": "attention"}'
    refused 'st/1_Pooling/config.json: its pooling, which is none of those known, is not computed'
    modules Transformer Pooling --pooling '{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}'
    refused 'st/1_Pooling/config.json: pooling_mode_cls_token and pooling_mode_mean_tokens: one pooling is computed, not several side by side'
    modules Transformer Pooling Dense --pooling '{"pooling_mode_mean_tokens": true}'
    refused 'st/modules.json: module 2 is a Dense, and vectors are computed by Transformer, Pooling and Normalize alone'
    echo '{}' >st/modules.json
    says 1 'st/modules.json: must be a list of modules' embed_st none.npy
    echo '[{"path": "../x", "type": "a.Pooling"}]' >st/modules.json
    says 1 'st/modules.json: module 0: ../x is not a path in the folder' embed_st none.npy
    echo '[{"path": "1_Pooling"}]' >st/modules.json
    says 1 'st/modules.json: module 0 needs a "type" and a "path"' embed_st none.npy
    rm st/modules.json
    embed_st last.npy
    close <(floats last.npy) <(golden_values dense last)
}

@test "texts without labels are taken whole" {
    sed -E 's/, "labels".*/}/' "$golden/tasks/dense/texts.jsonl" | grep -v '": \[[0-9]*\]' >bare.jsonl
    [ "$(wc -l <bare.jsonl)" = 15 ]
    d9d-shard -q --format tokens --out bare bare.jsonl
    d9d-infer -q --set "$(task embedding a.npy)" dense.infer.json
    d9d-infer -q --set data.dataset=bare --set "$(task embedding b.npy)" dense.infer.json
    cmp <(floats a.npy | sed '65,80d') <(floats b.npy)
    d9d-infer -q --set data.dataset=bare dense.infer.json
    run ! grep -v '"target": null}$' out.jsonl
    says 2 'bare: has no labels, which task classification learns from' d9d-train --set data.dataset=bare dense.train.json
    [ ! -e run ]
}

@test "training: transformers' losses and norms over ten steps, exported as it was" {
    for m in dense moe; do
        d9d-train -q --set trainer.run.dir=$m.run $m.train.json
        for f in loss grad_norm; do close <(numbers $f $m.run/metrics.jsonl) <(numbers $f "$golden/tasks/$m/steps.jsonl"); done
        [ "$(numbers accuracy $m.run/metrics.jsonl | wc -l)" = 10 ]
        cmp "$golden/tasks/$m/config.json" $m.run/export/config.json
        d9d-infer -q --set model_provider.hf_config=$m.run/export/config.json \
            --set trainer.model_stage_factory.source_checkpoint=$m.run/export $m.infer.json
        # And by the suite's own layout.
        d9d-map -q $m.run/export d9d
        d9d-infer -q --set model_provider.hf_config=d9d/config.json --set task.output=own.jsonl \
            --set trainer.model_stage_factory.source_checkpoint=d9d $m.infer.json
        cmp out.jsonl own.jsonl
        rm -r d9d out.jsonl own.jsonl
    done
}

@test "evaluation on other texts: their mean loss, and the metrics of what inference writes" {
    d9d-train -q --set trainer.run.steps=3 --set 'evaluation=[{"name": "all", "data": {"dataset": "dense"}, "microbatch_size": 3,
        "metrics": [{"name": "accuracy", "problem": "multiclass", "num_classes": 3}]}]' dense.train.json
    d9d-infer -q --set trainer.model_stage_factory.source_checkpoint=run/export dense.infer.json
    close <(numbers "all\/loss" run/metrics.jsonl) <(sed -E 's/.*\[([^]]*)\], "target": ([0-9]+).*/\2, \1/' out.jsonl |
        awk -F', ' '{ s -= log($($1 + 2)) } END { print s / NR }' OFMT=%.9g)
    close <(numbers "all\/accuracy" run/metrics.jsonl) <(sed -E 's/.*"label": ([0-9]+).*"target": ([0-9]+).*/\1 \2/' out.jsonl |
        awk '{ n += $1 == $2 } END { print n / NR }' OFMT=%.9g)
}

@test "a head in place of a language model's: seeded, saved, gone on with, exported with its labels" {
    other=(--set "model_provider.hf_config=$golden/dense_tied/config.json" --set task.num_labels=4
        --set "trainer.model_stage_factory.source_checkpoint=$golden/dense_tied" --set 'metrics=[]')
    says 2 'task.num_labels: must be given' d9d-train "${other[@]}" --set task.num_labels=null dense.train.json
    says 2 "peft: cls_head.score.weight would stay random: $golden/dense_tied does not have it" \
        d9d-train "${other[@]}" --set 'peft={"kind": "lora", "module_name_pattern": ".*q_proj", "params": {"r": 2, "alpha": 2}}' dense.train.json
    d9d-train -q "${other[@]}" --set trainer.run.dir=a dense.train.json
    d9d-train -q "${other[@]}" --set trainer.run.dir=b --set trainer.run.steps=4 dense.train.json
    rm -r b/export
    d9d-train -q "${other[@]}" --set trainer.run.dir=b dense.train.json
    cmp a/export/model.safetensors b/export/model.safetensors
    grep -q '"Qwen3ForSequenceClassification"' a/export/config.json
    grep -q '"LABEL_3": 3' a/export/config.json
    d9d-map plan --all a/export | grep -q '< score.weight F32 \[4, '
    run ! grep -aq lm_head a/export/model.safetensors
    d9d-infer -q --set model_provider.hf_config=a/export/config.json \
        --set trainer.model_stage_factory.source_checkpoint=a/export dense.infer.json
    [ "$(predictions out.jsonl | wc -l)" = 64 ]
    # The language model's head is not there any more.
    says 2 'with the head "classification", and the task needs one with "causal_lm"' d9d-infer \
        --set model_provider.hf_config=a/export/config.json --set 'task={"name": "perplexity"}' dense.infer.json
}

# with_problem NAME WORD: a copy of the classifier, of that problem_type.
with_problem() {
    cp -r "$golden/tasks/dense" "$1"
    jq --arg w "$2" '.problem_type = $w' "$golden/tasks/dense/config.json" >"$1/config.json"
    mapfile -t "$1" < <(printf '%s\n' --set "model_provider.hf_config=$1" --set "trainer.model_stage_factory.source_checkpoint=$1")
}

@test "classes that do not exclude each other have no softmax, and what is learned says that its do" {
    local any one
    with_problem any multi_label_classification
    with_problem one single_label_classification
    says 2 'any/config.json: problem_type is "multi_label_classification", and task classification has' d9d-infer "${any[@]}" dense.infer.json
    [ ! -e out.jsonl ]
    d9d-infer -q "${one[@]}" dense.infer.json
    d9d-infer -q "${any[@]}" --set "$(task embedding any.npy)" dense.infer.json
    d9d-train -q "${any[@]}" --set trainer.run.steps=1 dense.train.json
    [ "$(jq -r .problem_type run/export/config.json)" = single_label_classification ]
    d9d-infer -q --set model_provider.hf_config=run/export --set trainer.model_stage_factory.source_checkpoint=run/export \
        --set task.output=after.jsonl dense.infer.json
    # A conversion changes nothing.
    d9d-map -q any own
    d9d-map -q --to hf own back
    cmp any/config.json back/config.json
}

tuned='peft={"kind": "stack", "methods": [
    {"kind": "lora", "module_name_pattern": ".*\\.(q|v)_proj", "params": {"r": 3, "alpha": 6}},
    {"kind": "full_tune", "module_name_pattern": "cls_head\\.score"}]}'

@test "adapters with a head: peft's are read, ours are trained on, read and merged to the same" {
    d9d-infer -q --set "trainer.model_stage_factory.source_adapter=$golden/tasks/dense/adapter" dense.infer.json
    close <(predictions out.jsonl) <(predictions "$golden/tasks/dense/adapter.jsonl")
    d9d-train -q --set "$tuned" --set trainer.run.dir=a --set optimizer.lr=1e-2 \
        --set "trainer.model_stage_factory.source_adapter=$golden/tasks/dense/adapter" dense.train.json
    tr -d ' \n' <a/adapter/adapter_config.json | grep -q '"modules_to_save":\["score"\]'
    grep -q '"task_type": "SEQ_CLS"' a/adapter/adapter_config.json
    head -c 4000 a/adapter/adapter_model.safetensors | grep -aq '"base_model.model.score.weight":{"dtype":"F32","shape":\[3,16\]'
    d9d-infer -q --set trainer.model_stage_factory.source_adapter=a/adapter --set task.output=both.jsonl dense.infer.json
    d9d-infer -q --set trainer.model_stage_factory.source_checkpoint=a/export --set task.output=whole.jsonl dense.infer.json
    cmp both.jsonl whole.jsonl
    run ! cmp both.jsonl out.jsonl
    # A step that learns nothing writes them again, to the bit.
    d9d-train -q --set "$tuned" --set trainer.run.dir=b --set optimizer.lr=1e-30 --set optimizer.weight_decay=0 \
        --set trainer.run.steps=1 --set trainer.model_stage_factory.source_adapter=a/adapter dense.train.json
    cmp {a,b}/adapter/adapter_model.safetensors
    # An adapter of the head would be left out of the loss.
    says 2 'module_name_pattern "cls_head.score": of ' d9d-train -q --set trainer.run.dir=no \
        --set 'peft={"kind": "lora", "module_name_pattern": "cls_head.score", "params": {"r": 2, "alpha": 2}}' dense.train.json
    # Frozen, the head goes its way without the adapters.
    d9d-train -q --set 'peft={"kind": "lora", "module_name_pattern": ".*q_proj", "params": {"r": 2, "alpha": 2}}' \
        --set trainer.run.dir=c --set trainer.run.steps=1 dense.train.json
    run ! grep -aq score c/adapter/adapter_model.safetensors
    # The head takes its place, in every layout, to the bits of the export.
    d9d-map -q --adapter a/adapter --to hf "$golden/tasks/dense" merged 2>/dev/null
    d9d-map diff -q merged a/export
    d9d-map -q --to d9d "$golden/tasks/dense" own 2>/dev/null
    d9d-map -q --adapter a/adapter --to hf own from_own 2>/dev/null
    d9d-map diff -q from_own a/export
    rm out.jsonl
    says 2 'base_model.model.score.weight is not' d9d-infer --set task.num_labels=4 \
        --set trainer.model_stage_factory.source_adapter=a/adapter dense.infer.json
}

pairs=(--set 'task={"name": "embedding", "pooling": "mean", "temperature": 0.1}' --set 'metrics=[]' --set trainer.run.steps=6
    --set trainer.batching.global_batch_size=8 --set trainer.batching.microbatch_size=4)

@test "pairs: torch's losses and norms, exported as a base model" {
    for m in dense moe; do
        d9d-train -q "${pairs[@]}" --set trainer.run.dir=$m.run $m.train.json
        for f in loss grad_norm; do close <(numbers $f $m.run/metrics.jsonl) <(numbers $f "$golden/tasks/$m/pairs.jsonl"); done
    done
    grep -q '"Qwen3Model"' dense.run/export/config.json
    run ! grep -aq score dense.run/export/model.safetensors
    d9d-infer -q --set model_provider.hf_config=dense.run/export/config.json --set "$(task embedding a.npy '"pooling": "mean"')" \
        --set trainer.model_stage_factory.source_checkpoint=dense.run/export dense.infer.json
    [ "$(stat -c %s a.npy)" = $((128 + 16 * 64)) ]
    for micro in 1 2; do
        says 2 "trainer.batching.microbatch_size is $micro: the task embedding tells pairs of a micro-batch apart" \
            d9d-train "${pairs[@]}" --set trainer.batching.microbatch_size=$micro dense.train.json
    done
    says 2 'evaluation.valid.microbatch_size is 5: the task embedding' d9d-train "${pairs[@]}" \
        --set 'evaluation={"data": {"dataset": "dense"}, "microbatch_size": 5}' dense.train.json
    says 2 'where data.order is sequential; that of dense is not' d9d-train "${pairs[@]}" --set data.order=shuffled dense.train.json
}

@test "pairs that d9d-shard has torn apart are refused, with what did it" {
    awk 'BEGIN { for (i = 0; i < 16; i++) print "{\"input_ids\": [1, " 2 + i (i == 7 ? "" : ", 3, 4") "]}" }' >whole.jsonl
    shard() { d9d-shard -q --force --format tokens --out made "${@:2}" "$1"; }
    train() { d9d-train -q "${pairs[@]}" --set trainer.run.steps=1 --set data.dataset=made dense.train.json; }
    shard whole.jsonl && train
    rule='stand side by side where d9d-shard leaves them; of made '
    shard whole.jsonl --shuffle-seed 1
    says 2 "${rule}its samples were shuffled" train
    shard whole.jsonl --split train=0.5,valid=0.5
    says 2 "${rule}its documents were dealt to splits at random" train
    shard whole.jsonl --max-length 2
    says 2 "${rule}documents were split into several samples" train
    sed -i '4s/.*/{"input_ids": [5]}/' whole.jsonl
    shard whole.jsonl
    says 2 "${rule}documents were left out" train
}

@test "a projection is learned, kept in the suite's own layout and computed with" {
    run -0 --separate-stderr d9d-train "${pairs[@]}" --set task.embedding_dim=24 dense.train.json
    [[ "$stderr" == *"cannot have a projection of embeddings; the model will be written in d9d's own layout"* ]]
    grep -q '"embedding_dim": 24' run/export/config.json
    d9d-infer -q --set model_provider.hf_config=run/export/config.json --set "$(task embedding a.npy '"normalize": true')" \
        --set trainer.model_stage_factory.source_checkpoint=run/export dense.infer.json
    head -c 128 a.npy | grep -aq "'shape': (16, 24), }"
    says 2 'task embedding: 20 features are not a multiple of 8' d9d-train "${pairs[@]}" --set task.embedding_dim=20 \
        --set trainer.run.dir=no dense.train.json
}

@test "classes of lines: d9d-shard --label-key" {
    sed -E 's/"labels": \[(-100, )*([0-9]+)\]/"kind": \2/' "$golden/tasks/dense/texts.jsonl" >lines.jsonl
    d9d-shard -q --format tokens --label-key kind --out data lines.jsonl
    for i in 0 4 15; do cmp <(d9d-shard inspect --sample $i dense) <(d9d-shard inspect --sample $i data); done
    d9d-shard -q --format tokens --label-key kind --max-length 5 --overflow truncate --out short lines.jsonl
    [[ "$(d9d-shard inspect --json --sample 1 short | tr -d ' \n')" == *'"labels":[-100,-100,-100,-100,1]'* ]]
    d9d-shard -q --format tokens --label-key kind --pack 40 --overflow drop --out packed lines.jsonl
    d9d-train -q --set data.dataset=packed --set trainer.batching.global_batch_size=2 --set trainer.run.steps=3 dense.train.json
    says 2 'packed: its samples are packed' d9d-infer --set data.dataset=packed dense.infer.json
    says 2 'a part of a text would have no class; --overflow truncate or drop' \
        d9d-shard --format tokens --label-key kind --max-length 5 --out no lines.jsonl
    says 1 ': --label-key names the member with the class' d9d-shard --format tokens --label-key type --out no lines.jsonl
    says 1 'a class ("kind") must be an integer from 0' d9d-shard --format tokens --label-key kind --out no - <<<'{"input_ids": [1], "kind": -1}'
    says 1 'a class ("kind") must be an integer from 0, and this one is a name: number the names' \
        d9d-shard --format tokens --label-key kind --out no - <<<'{"input_ids": [1], "kind": "x"}'
    [ ! -e no ]
}

@test "a class out of range is found before a run begins, in its split alone and not where it is skipped" {
    local wrong="the label 5, and the task's classes are 0 to 2"
    sed -E 's/"labels": \[(-100, )*([0-9]+)\]/"kind": \2/; 12s/"kind": [0-9]/"kind": 5/' "$golden/tasks/dense/texts.jsonl" >lines.jsonl
    d9d-shard -q --format tokens --label-key kind --out data lines.jsonl
    says 2 "data: sample 11 has $wrong" d9d-train --set data.dataset=data dense.train.json
    says 2 "data: sample 11 has $wrong" d9d-train --set 'evaluation={"data": {"dataset": "data"}}' dense.train.json
    says 2 "data: sample 11 has $wrong" d9d-infer --set data.dataset=data dense.infer.json
    [ ! -e run ]
    d9d-train -q --set data.dataset=data --set data.skip_samples='"11"' --set trainer.run.dir=skips dense.train.json
    d9d-shard -q --format tokens --label-key kind --split valid=6 --out dealt lines.jsonl
    says 2 "has $wrong" d9d-train --set data.dataset=dealt --set data.split="$(split_of 5)" --set trainer.run.steps=1 dense.train.json
    d9d-train -q --set data.dataset=dealt --set data.split="$(split_of 5 other)" --set trainer.run.steps=1 --set trainer.run.dir=other dense.train.json
}
# split_of CLASS [other]: the split of the dataset dealt that has it, or the other one.
split_of() {
    local k name=train
    for ((k = 0; k < 6; k++)); do
        d9d-shard inspect -q --json --split valid --sample $k dealt | grep -q "$1\], \"position_ids" && name=valid
    done
    if [ $# -eq 1 ]; then
        echo $name
    elif [ $name = valid ]; then
        echo train
    else
        echo valid
    fi
}

@test "what cannot be is refused with both numbers" {
    says 2 "dense: sample 2 has the label 2, and the task's classes are 0 to 1" d9d-train --set task.num_labels=2 --set 'metrics=[]' \
        --set "trainer.model_stage_factory.source_checkpoint=null" dense.train.json
    [ ! -e run ]
    says 2 'score.weight is F32 [3, 16]' d9d-infer --set task.num_labels=4 dense.infer.json
    says 2 "task: cls_head.score.weight would be random: $golden/dense_tied does not have it, and it is not learned here" \
        d9d-infer --set task.num_labels=4 --set "model_provider.hf_config=$golden/dense_tied/config.json" \
        --set "trainer.model_stage_factory.source_checkpoint=$golden/dense_tied" dense.infer.json
    says 2 'task.layers[1] is 5: the model has 0, its embedding, to 4' \
        d9d-infer --set "$(task hidden_states a.npy '"layers": [0, 5]')" dense.infer.json
    says 2 'the model has 1 label; classes are 2 or more' d9d-infer --set model_provider.name=qwen3_moe --set \
        "model_provider.hf_config=$golden/heads/moe_labels/config.json" --set \
        "trainer.model_stage_factory.source_checkpoint=$golden/heads/moe_labels" dense.infer.json
    says 2 'task.pooling: unknown word "max"' d9d-infer --set task.pooling=max dense.infer.json
    says 2 'task.normalise: unknown key' d9d-infer --set "$(task embedding a.npy '"normalise": true')" dense.infer.json
    touch a.npy
    says 2 'a.npy: exists already' d9d-infer --set "$(task embedding a.npy)" dense.infer.json
}

# rows FILE: whole records of an unfinished .npy
rows() { local n; n=$(stat -c %s "$1") && echo $(((n - 128) / 64)); }
has_rows() { part=$(ls out.npy.part-* 2>/dev/null) && [ "$(rows "$part")" -gt "$1" ]; }

@test "metrics of classes and the tokens of rows are those of a call that was not interrupted" {
    local kind before what
    figures() { jq -c 'del(.first_sample, .tokens_per_s)' "$1"; }
    for kind in classification embedding; do
        rm -f out.*
        what=out.npy
        [ $kind = embedding ] || what=out.jsonl
        long=(--set data.epochs=300 --set trainer.batching.microbatch_size=4 --set "$(task $kind $what)")
        [ $kind = embedding ] || long+=(--set 'metrics=[{"name": "accuracy", "problem": "multiclass", "num_classes": 3},
            {"name": "confusion_matrix", "problem": "multiclass", "num_classes": 3}]')
        d9d-infer -q --json "${long[@]}" dense.infer.json >whole.json
        mv "$what" whole.out
        before=0
        for signal in TERM KILL; do
            d9d-infer "${long[@]}" dense.infer.json 2>log &
            pid=$!
            has_bytes() { part=$(ls "$what".part-* 2>/dev/null) && [ "$(stat -c %s "$part")" -gt $((before + 9000)) ]; }
            wait_for has_bytes
            kill -s "$signal" "$pid"
            wait "$pid" || true
            before=$(stat -c %s "$part")
        done
        d9d-infer -q --json "${long[@]}" dense.infer.json >resumed.json
        [ "$(jq .first_sample resumed.json)" -gt 0 ]
        assert_equal "$(figures resumed.json)" "$(figures whole.json)"
        cmp $what whole.out
    done
}

@test "a .npy that is stopped and killed is gone on with, the same bytes" {
    long=(--set data.epochs=500 --set trainer.batching.microbatch_size=1 --set "$(task embedding out.npy)")
    start() {
        d9d-infer "${long[@]}" dense.infer.json 2>log &
        pid=$!
        wait_for has_rows "$1"
    }
    start 100
    kill -s TERM "$pid"
    ends 75
    done_before=$(rows "$part")
    grep -q "SIGTERM: $done_before of 8000 samples are done" log
    start $((done_before + 100))
    kill -9 "$pid"
    ends 137
    printf 'torn' >>"$part"
    run -0 --separate-stderr d9d-infer --json "${long[@]}" dense.infer.json
    [[ "$output" =~ '"first_sample": '([0-9]+) ]]
    [ "${BASH_REMATCH[1]}" -gt "$done_before" ]
    [ "$(stat -c %s out.npy)" = $((128 + 8000 * 64)) ]
    mv out.npy resumed.npy
    d9d-infer -q "${long[@]}" dense.infer.json
    cmp out.npy resumed.npy
    [ -z "$(ls ./*.part-* 2>/dev/null)" ]
}

@test "a NaN among the weights: exit 1, the sample named, no file" {
    cp -r "$golden/tasks/dense" bad
    chmod -R u+w bad
    printf '\0\0\300\177' | dd of=bad/model.safetensors bs=1 conv=notrunc status=none \
        seek=$(($(stat -c %s bad/model.safetensors) - 4))
    says 1 'non-finite number: sample 0: its output is nan' d9d-infer \
        --set trainer.model_stage_factory.source_checkpoint=bad dense.infer.json
    [ ! -e out.jsonl ]
}

@test "metrics of classes: those that d9d-metrics eval finds in the lines, on the whole and in the summary" {
    metrics='metrics=[{"name": "accuracy", "problem": "multiclass", "num_classes": 3}, {"name": "f1", "problem": "multiclass", "num_classes": 3, "average": "macro"}]'
    run -0 --separate-stderr d9d-infer --set "$metrics" dense.infer.json
    [[ "$output" == "accuracy "*", f1 "*"142 tokens of 16 samples"* ]]
    accuracy=$(sed -nE 's/^accuracy ([0-9.]+),.*/\1/p' <<<"$output")
    close <(echo "$accuracy") <(d9d-metrics eval -q --json -m accuracy,problem=multiclass,num_classes=3 out.jsonl | sed -nE 's/.*"(accuracy|value)": ([0-9.]+).*/\2/p' | head -1)
    says 2 "metrics[0]: the model has 3 classes" d9d-infer --set task.output=no.jsonl \
        --set 'metrics=[{"name": "accuracy", "problem": "multiclass", "num_classes": 4}]' dense.infer.json
    [ ! -e no.jsonl ]
    says 2 "metrics: the task hidden_states writes arrays" d9d-infer --set "$(task hidden_states s.npy)" \
        --set 'metrics=[{"name": "mean"}]' dense.infer.json
}
