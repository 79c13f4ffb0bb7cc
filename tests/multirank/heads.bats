#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Several heads on one model, on several ranks: losses, metrics and weights are those of one rank.

load ../slurm/helper

load topology

dense_meshes="2 1 1 1 1 1,1 2 1 1 1 1,1 1 2 1 1 1,1 1 1 1 2 1,1 1 1 1 1 1 2,1 2 2 1 1 1 2,1 1 2 1 2 1"
moe_meshes="1 2 1 1 1 2,1 2 1 1 1 2 2"

# Documents of 2 to 14 tokens with fields for heads of each kind; some classes are -1, which do not
# count.
documents() {
    awk 'function draw() { return (state = state * 16807 % 2147483647) / 2147483647 }
        BEGIN { state = 7000021; for (i = 0; i < 256; i++) {
        n = 2 + int(13 * draw()); ids = w = tags = ""
        for (k = 0; k < n; k++) {
            c = k ? ", " : ""
            ids = ids c int(156 * draw()); w = w c sprintf("%.3f", 2 * draw()); tags = tags c (int(5 * draw()) - 1)
        }
        p = draw(); q = (1 - p) * draw()
        printf "{\"input_ids\": [%s], \"weight\": [%s], \"tags\": [%s], \"topic\": %d, \"importance\": %.3f, \"score\": [%.3f, %.3f], \"teacher\": [%.5f, %.5f, %.5f], \"flags\": [%d, %d]}\n",
            ids, w, tags, int(4 * draw()) - 1, 2 * draw(), draw(), 3 * draw(), p, q, 1 - p - q, 2 * draw(), 2 * draw() } }'
}

setup_file() {
    workroom
    cat >fields.json <<'JSON'
{"fields": [{"name": "weight", "per": "target"}, {"name": "tags", "per": "token", "dtype": "I32"},
  {"name": "topic", "dtype": "I32"}, {"name": "importance"}, {"name": "score", "shape": [2]},
  {"name": "teacher", "shape": [3]}, {"name": "flags", "shape": [2]}]}
JSON
    documents >documents.jsonl
    d9d-shard -q --format tokens --fields fields.json --out data documents.jsonl
    d9d-shard -q --format tokens --fields fields.json --pack 24 --out packed documents.jsonl
    batch=8 configure dense 48 '"intermediate_size": 48' >dense.json
    configure moe 24 '"intermediate_size": 24, "num_experts": 8, "experts_top_k": 3,
        "shared_expert": {"intermediate_size": 24, "enable_gate": true}' >moe.json
    for model in dense moe; do alone $model-all $model "${all[@]}"; done
    alone dense-packed dense "${all[@]}" "${packed[@]}"
    alone pairs dense "${pairs[@]}"
}

text='{"name": "text", "kind": "causal_lm", "loss_weights": "weight"}'
tags='{"name": "tags", "kind": "token_classification", "outputs": 4, "label": "tags", "bias": true, "classifier_dropout": 0.1,
    "metrics": [{"name": "accuracy", "problem": "multiclass", "num_classes": 4}]}'
topic='{"name": "topic", "kind": "classification", "outputs": 3, "label": "topic", "weight": 0.5, "classifier_dropout": 0.2,
    "label_smoothing": 0.1, "loss_weights": "importance", "metrics": [{"name": "accuracy", "problem": "multiclass", "num_classes": 3}]}'
others='{"name": "taught", "kind": "classification", "outputs": 3, "label": "teacher", "loss": "soft_cross_entropy"},
    {"name": "flags", "kind": "classification", "outputs": 2, "label": "flags", "loss": "bce"},
    {"name": "score", "kind": "regression", "outputs": 2, "label": "score", "weight": 2, "bias": true},
    {"name": "robust", "kind": "regression", "outputs": 2, "label": "score", "loss": "huber"}'
# heads HEAD,...: the option
heads() { echo "task={\"name\": \"heads\", \"pooling\": \"${pooling:-last}\", \"heads\": [$1]}"; }
all=(--set "$(heads "$text, $tags, $topic, $others")" --set trainer.batching.microbatch_size=2)
packed=(--set data.dataset=packed --set trainer.run.steps=6)
pairs=(--set "$(heads "$text, $tags"', {"name": "vector", "kind": "embedding", "outputs": 16}')" --set data.order=sequential
    --set trainer.batching.microbatch_size=4 --set trainer.run.steps=4)

alone() { d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir="$1" "${@:3}" "$2.json"; }
# records DIR: all values of heads, a line a number
records() { jq -r 'select(.loss) | to_entries[] | select(.key | contains(".")) | .value' "$1/metrics.jsonl"; }
values() { jq -r "select(.[\"$1\"]) | .[\"$1\"]" "$2/metrics.jsonl"; }

# everywhere REFERENCE MODEL MESHES OPTION...
everywhere() {
    local degrees
    while read -r degrees; do
        rm -rf run
        { train "$2" "$degrees" run "${@:4}" && same run "$1" && close_to 1e-5 <(records run) <(records "$1"); } ||
            { echo "mesh $degrees"; return 1; }
    done < <(tr , '\n' <<<"$3")
}

@test "losses, metrics and weights of seven heads equal one rank on every mesh, with dropout" {
    [ "$(records dense-all | wc -l)" -eq 90 ]
    everywhere dense-all dense "$dense_meshes" "${all[@]}"
    everywhere moe-all moe "$moe_meshes" "${all[@]}"
}

@test "packed documents, and pairs beside tokens, equal one rank" {
    steps=6 everywhere dense-packed dense "1 2 1 1 1 1,1 1 2 1 2 1,1 1 1 1 1 1 2" "${all[@]}" "${packed[@]}"
    steps=4 everywhere pairs dense "1 2 1 1 1 1,1 1 2 1 2 1,1 1 1 1 1 1 2" "${pairs[@]}"
}

@test "a step's loss is the weighted sum of the heads' means, whatever the micro-batches" {
    pooling=mean
    dropout='"classifier_dropout": 0.1' weight='"weight": 0.25'
    plain=(--set "$(heads "$text, ${tags/$dropout/$weight}")")
    for micro in 1 2 8; do
        rm -rf run
        alone run dense "${plain[@]}" --set trainer.batching.microbatch_size=$micro
        close_to 1e-6 <(values loss run) <(paste <(values text.loss run) <(values tags.loss run) | awk '{ printf "%.9f\n", $1 + $2 / 4 }')
        [ ! -e first ] && mv run first || close_to 1e-5 <(values loss run) <(values loss first)
    done
    # A head of weight 0 leaves the others' gradients as they are.
    rm -rf run lm
    alone lm dense --set 'task={"name": "causal_lm", "loss_weights": "weight"}'
    alone run dense --set "$(heads "$text, ${tags/0.1/0.1, \"weight\": 0}")"
    close_to 1e-6 <(values loss run) <(values loss lm)
    close_to 1e-6 <(values grad_norm run) <(values grad_norm lm)
}

@test "a text whose value is null is no target of a regression" {
    local score='{"name": "score", "kind": "regression", "outputs": 2, "label": "score"}'
    sed 's/{"name": "score", "shape": \[2\]}/{"name": "score", "shape": [2], "allow_nan": true}/' fields.json >nulls.json
    sed '1~2s/"score": \[[^,]*/"score": [null/' documents.jsonl >nulls.jsonl
    sed -n '2~2p' documents.jsonl >values.jsonl
    for name in nulls values; do
        d9d-shard -q --format tokens --fields nulls.json --out $name $name.jsonl
    done
    set -- --set "$(heads "$score")" --set data.order=sequential --set trainer.batching.microbatch_size=2
    alone run-nulls dense "$@" --set data.dataset=nulls
    alone run-values dense "$@" --set data.dataset=values --set trainer.batching.global_batch_size=4
    [ "$(values score.loss run-nulls | wc -l)" -gt 3 ]
    for name in loss grad_norm score.loss; do
        close_to 1e-5 <(values $name run-nulls) <(values $name run-values)
    done
    everywhere run-nulls dense "2 1 1 1 1 1,1 2 1 1 1 1,1 1 2 1 1 1,1 1 1 1 2 1" "$@" --set data.dataset=nulls
}

# nulls_of SED PATTERN: data sets nulls, whose first, third, ... document has null there, and values without these.
nulls_of() {
    sed 's/\("name": "\(importance\|teacher\|weight\)"[^}]*\)}/\1, "allow_nan": true}/g' fields.json >nulls.json
    sed "1~2$1" documents.jsonl >nulls.jsonl
    sed -n '2~2p' documents.jsonl >values.jsonl
    rm -rf nulls values
    for name in nulls values; do
        d9d-shard -q --format tokens --fields nulls.json --out $name $name.jsonl
    done
}
# learns_of_values OPTION...: null is no target, on any mesh.
learns_of_values() {
    set -- "$@" --set data.order=sequential --set trainer.batching.microbatch_size=2
    rm -rf run-nulls run-values
    alone run-nulls dense "$@" --set data.dataset=nulls
    alone run-values dense "$@" --set data.dataset=values --set trainer.batching.global_batch_size=4
    for name in loss grad_norm tokens; do
        [ "$(values $name run-nulls | wc -l)" -gt 3 ]
        close_to 1e-5 <(values $name run-nulls) <(values $name run-values) || { echo "$name"; return 1; }
    done
    for mesh in "2 1 1 1 1 1" "1 2 1 1 1 1" "1 1 2 1 1 1" "1 1 1 1 2 1"; do
        rm -rf run
        train dense "$mesh" run "$@" --set data.dataset=nulls
        { same run run-nulls && close_to 1e-5 <(values loss run) <(values loss run-nulls); } || { echo "mesh $mesh"; return 1; }
    done
}

@test "a target whose weight is null counts for nothing" {
    nulls_of 's/"importance": [^,]*/"importance": null/'
    local head=${topic/, \"classifier_dropout\": 0.2/}
    learns_of_values --set "$(heads "$head")"
    learns_of_values --set "$(heads "${text/\"weight\"/\"importance\"}")"
    learns_of_values --set 'task={"name": "causal_lm", "loss_weights": "importance"}'
    # Of single tokens: as if they were no targets.
    jq -c 'if (.input_ids | length) > 2 then .weight[1] = null else . end' documents.jsonl >nulls.jsonl
    jq -c '.labels = .input_ids[1:] + [-100] | .weight = .weight[1:] + [0] | if (.input_ids | length) > 2 then .labels[0] = -100 else . end' \
        documents.jsonl >values.jsonl
    rm -rf nulls values
    for name in nulls values; do
        d9d-shard -q --format tokens --fields nulls.json --out $name $name.jsonl
        for task in "task={\"name\": \"causal_lm\", \"loss_weights\": \"weight\"}" "$(heads "$text")"; do
            rm -rf run-$name
            alone run-$name dense --set "$task" --set data.dataset=$name --set data.order=sequential
            values loss run-$name >>losses-$name
            values tokens run-$name >>losses-$name
        done
    done
    [ "$(wc -l <losses-nulls)" -eq 40 ]
    close_to 1e-5 losses-nulls losses-values
}

@test "a text whose soft label is null is no target of a classification" {
    nulls_of 's/"teacher": \[[^,]*/"teacher": [null/'
    learns_of_values --set 'task={"name": "classification", "num_labels": 3, "soft_labels": "teacher"}' --set optimizer.eps=1e-6
}

# Their adapters drop features of texts, which are rows of other numbers than tokens.
@test "dropout of a head's adapter depends neither on micro-batches nor on the mesh" {
    adapted=(--set "$(heads "$tags, $topic")" --set trainer.run.steps=3 --set 'peft={"kind": "stack", "methods": [
        {"kind": "lora", "module_name_pattern": "heads.*|.*q_proj", "params": {"r": 2, "alpha": 4, "dropout": 0.4}}]}'
        --set trainer.model_stage_factory.source_checkpoint=dense-all/export)
    rm -rf one run
    alone one dense "${adapted[@]}" --set trainer.batching.microbatch_size=4
    alone run dense "${adapted[@]}" --set trainer.batching.microbatch_size=1
    close_to 1e-5 <(values grad_norm run) <(values grad_norm one)
    for mesh in "1 1 2 1 1 1" "2 1 1 1 2 1"; do
        rm -rf run
        train dense "$mesh" run "${adapted[@]}"
        close_to 1e-5 <(values grad_norm run) <(values grad_norm one)
    done
}

@test "a checkpoint has the heads by name, goes on with them to the bit, and on another mesh" {
    rm -rf part run
    train dense "1 2 1 1 1 1" part "${all[@]}" --set trainer.run.steps=3
    rm -r part/export
    cp -r part other
    train dense "1 2 1 1 1 1" part "${all[@]}"
    train dense "1 1 1 1 1 1 2" other "${all[@]}"
    train dense "1 2 1 1 1 1" run "${all[@]}"
    cmp {part,run}/export/model.safetensors
    close_to 1e-5 <(values loss other) <(values loss dense-all)
    for name in topic tags score; do grep -aq "\"heads.$name.weight\"" run/export/model.safetensors; done
    grep -aq '"heads.tags.bias"' run/export/model.safetensors
}

@test "an evaluation divides each head's losses by all of its targets, on any mesh" {
    of() { jq -r 'select(.evaluation) | to_entries[] | select(.key | test("loss|accuracy|tokens")) | .value' "$1/metrics.jsonl"; }
    for data in data packed; do # some ranks have none of the last samples
        evaluated=("${all[@]}" --set trainer.run.steps=1 --set "evaluation={\"data\": {\"dataset\": \"$data\"}, \"samples\": 13}")
        rm -rf one
        alone one dense "${evaluated[@]}"
        for mesh in "1 2 1 1 1 1" "2 2 1 1 1 1" "1 1 1 1 2 1 2"; do
            rm -rf run
            train dense "$mesh" run "${evaluated[@]}"
            close_to 1e-5 <(of run) <(of one) || { echo "$data on mesh $mesh"; return 1; }
        done
    done
}

# Numbers that are not near 0.
outputs() { jq "(.score[], .topic.prediction[], .vector[]) + 4" "$1"; }

@test "d9d-infer computes the heads that it names, on every mesh" {
    cat >infer.json <<'JSON'
{"data": {"dataset": "data"}, "model_provider": {"name": "qwen3_dense", "hf_config": "dense-all/export/config.json"},
 "trainer": {"batching": {"microbatch_size": 3}, "model_stage_factory": {"source_checkpoint": "dense-all/export"}},
 "task": {"name": "heads", "output": "out.jsonl", "heads": [
   {"name": "score", "kind": "regression", "outputs": 2, "bias": true}, {"name": "topic", "kind": "classification", "outputs": 3},
   {"name": "vector", "kind": "embedding"}]}}
JSON
    rm -f out.jsonl
    d9d-infer -q --device cpu infer.json
    mv out.jsonl one.jsonl
    jq -s -e 'length == 256 and all((.score | length == 2) and (.topic.prediction | (length == 3 and ((add - 1) | fabs) < 1e-6))
        and (.vector | length == 32))' one.jsonl
    for mesh in tensor_parallel pipeline_parallel context_parallel_shard data_parallel_shard; do
        mpi -n 2 d9d-infer -q --device cpu --set mesh.$mesh=2 infer.json
        close_to 1e-5 <(outputs out.jsonl) <(outputs one.jsonl)
        rm out.jsonl
    done
    # Of a head that was trained with bce each class has a probability of its own.
    d9d-infer -q --device cpu --set 'task.heads=[{"name": "flags", "kind": "classification", "outputs": 2, "loss": "bce"}]' infer.json
    mv out.jsonl labels.jsonl
    d9d-infer -q --device cpu --set 'task.heads=[{"name": "flags", "kind": "regression", "outputs": 2}]' infer.json
    close_to 1e-6 <(jq '.flags.prediction[]' labels.jsonl) <(jq '.flags[] | 1 / (1 + (-. | exp))' out.jsonl)
    diff <(jq -c .flags.labels labels.jsonl) <(jq -c '[.flags | to_entries[] | select(.value > 0).key]' out.jsonl)
    rm out.jsonl
    run -2 d9d-infer --device cpu --set task.heads.1.loss=mse infer.json
    assert_output --partial 'task.heads[1].loss: a classification head has cross_entropy to bce, not mse'
    # The model is still a language model, in this layout and in another.
    d9d-infer -q --device cpu --set 'task={"name": "perplexity"}' infer.json
    d9d-map -q dense-all/export mapped
    grep -aq heads.topic.weight mapped/model.safetensors
    run -2 d9d-infer --device cpu --set task.heads.1.name=topik infer.json
    assert_output --partial 'heads.topik.weight would be random'
    run -2 d9d-infer --device cpu --set task.heads.1.outputs=4 infer.json
    assert_output --partial 'heads.topic.weight: the model has float32 [4, 32], the checkpoint float32 [3, 32]'
}

marks='{"name": "flags", "kind": "classification", "outputs": 2, "label": "flags", "loss": "bce", "metrics": [
    {"name": "accuracy", "problem": "multilabel", "num_classes": 2}, {"name": "f1", "problem": "multilabel", "num_classes": 2},
    {"name": "f1", "problem": "multilabel", "num_classes": 2, "average": "micro"},
    {"name": "multilabel_auroc", "num_classes": 2}, {"name": "multilabel_auroc", "num_classes": 2, "average": "micro"}]}'
numbered='{"name": "score", "kind": "regression", "outputs": 2, "label": "score", "bias": true, "metrics": [
    {"name": "mse", "num_outputs": 2}, {"name": "mae", "num_outputs": 2, "average": "none"}, {"name": "r2", "num_outputs": 2},
    {"name": "pearson", "num_outputs": 2}]}'
# evaluated DIR: the names and values of an evaluation's metrics; eval_of HEAD [JQ]: what d9d-metrics eval says of out.jsonl.
evaluated() { jq -r 'select(.evaluation) | to_entries[] | select(.key | test("(flags|score).*(accuracy|f1|auroc|mse|mae|r2|pearson)")) | .value' "$1/metrics.jsonl"; }
eval_of() {
    paste -d ' ' out.jsonl documents.jsonl | jq -sc 'range(0; length; 2) as $i | {prediction: .[$i].'"$1${2:-}"', target: .[$i + 1].'"$1"'}' >eval.jsonl
    shift $(($# > 1 ? 2 : 1))
    d9d-metrics eval -q --json "${ask[@]}" eval.jsonl | jq '.metrics[] | .value // .values[]'
}

@test "metrics of labels and of numbers: in training, evaluations and d9d-infer, on every mesh and over a restart" {
    measured=(--set "$(heads "$marks, $numbered, $topic")" --set "evaluation={\"data\": {\"dataset\": \"data\", \"order\": \"sequential\"}}"
        --set trainer.logging.period_steps=5 --set trainer.checkpointing.period_steps=3)
    rm -rf one run part out.jsonl
    alone one dense "${measured[@]}"
    [ "$(evaluated one | wc -l)" -eq 10 ]
    [ "$(jq -r 'select(.loss) | .["score.mae/1"], .["flags.f1[2]"]' one/metrics.jsonl | wc -l)" -eq 4 ]
    run -0 d9d-metrics summary one
    assert_output --regexp 'best_[a-z]+/score\.mse '
    assert_output --regexp 'best_[a-z]+/flags\.multilabel_auroc '
    cat >measure.json <<'JSON'
{"data": {"dataset": "data"}, "model_provider": {"name": "qwen3_dense", "hf_config": "one/export/config.json"},
 "trainer": {"batching": {"microbatch_size": 3}, "model_stage_factory": {"source_checkpoint": "one/export"}}}
JSON
    task="$(heads "$marks, $numbered, $topic" | sed 's/, "weight": 0.5, "classifier_dropout": 0.2//; s/"label_smoothing": 0.1, "loss_weights": "importance", //; s/"pooling"/"output": "out.jsonl", "pooling"/')"
    d9d-infer --json -q --device cpu --set "$task" measure.json >infer.json
    key_values() { jq -r 'to_entries[] | select(.key | test("^(flags|score)")) | .value' "$1"; }
    close_to 1e-6 <(key_values infer.json) <(evaluated one)
    jq -e '.["topic.accuracy"] > 0 and .["topic.accuracy"] < 1' infer.json
    ask=(-m 'accuracy,problem=multilabel,num_classes=2' -m 'f1,problem=multilabel,num_classes=2' -m 'f1,problem=multilabel,num_classes=2,average=micro'
        -m 'multilabel_auroc,num_classes=2' -m 'multilabel_auroc,num_classes=2,average=micro')
    close_to 1e-6 <(jq -r 'to_entries[] | select(.key | test("^flags")) | .value' infer.json) <(eval_of flags .prediction)
    ask=(-m 'mse,num_outputs=2' -m 'mae,num_outputs=2,average=none' -m 'r2,num_outputs=2' -m 'pearson,num_outputs=2')
    close_to 1e-6 <(jq -r 'to_entries[] | select(.key | test("^score")) | .value' infer.json) <(eval_of score)
    for mesh in tensor_parallel pipeline_parallel context_parallel_shard data_parallel_shard; do
        rm out.jsonl
        mpi -n 2 d9d-infer --json -q --device cpu --set mesh.$mesh=2 --set "$task" measure.json >ranks.json
        close_to 1e-5 <(key_values ranks.json) <(key_values infer.json) || { echo $mesh; return 1; }
    done
    metrics() { jq -r 'select(.loss) | to_entries[] | select(.key | test("^(flags|score)")) | .value' "$1/metrics.jsonl"; }
    for mesh in "2 1 1 1 1 1" "1 1 2 1 1 1" "1 1 1 1 2 1" "1 2 1 1 1 1 2"; do
        rm -rf run
        train dense "$mesh" run "${measured[@]}"
        close_to 1e-4 <(metrics run) <(metrics one) || { echo "mesh $mesh"; return 1; }
        close_to 1e-4 <(evaluated run) <(evaluated one) || { echo "evaluation on mesh $mesh"; return 1; }
    done
    # A restart in the middle of a window counts each row once, to the bit.
    cp -r one part
    rm -rf part/export part/checkpoints/step-0000000[789] part/checkpoints/step-00000010
    [ -d part/checkpoints/step-00000006 ]
    awk -F'[:,]' '!/"end"/ && $2 <= 6' one/metrics.jsonl >part/metrics.jsonl
    alone part dense "${measured[@]}"
    cmp <(metrics part) <(metrics one)
}

@test "--plan counts the heads: the peak memory to the byte" {
    alone whole dense "${all[@]}" --set trainer.run.steps=32 # all samples, and so the longest
    run -0 d9d-train --plan --gpu cpu --json "${all[@]}" dense.json
    assert_equal "$(sed -n 's/^ *"peak": \([0-9]*\),$/\1/p' <<<"$output")" "$(numbers mem_bytes whole | sort -n | tail -n 1)"
}

@test "heads that cannot be are refused with the key and the numbers, before anything is spent" {
    refused() { # HEADS WORDS [OPTION...]
        run -2 alone no dense --set "$(heads "$1")" "${@:3}"
        assert_output --partial "$2"
        [ ! -e no ]
    }
    refused "$text, $text" 'task.heads: [0] and [1] are both called "text"'
    refused "$text, ${text/\"text\"/\"more\"}" 'task.heads: 2 are causal_lm, and a model has one'
    refused "${topic/0.2/0.2, \"loss\": \"mse\"}" 'task.heads[0].loss: a classification head has cross_entropy to bce, not mse'
    refused "${topic/\"outputs\": 3/\"outputs\": 1}" 'task.heads[0].outputs: 1; classes are 2 or more'
    refused '{"name": "a b", "kind": "causal_lm"}' 'task.heads[0].name: "a b"; a name has letters'
    refused '{"name": "r", "kind": "regression", "label": "score"}' 'task.heads[0].outputs: how many has a regression head?'
    refused '{"name": "r", "kind": "regression", "label": "score", "outputs": 3}' 'the field "score" of data has 2 numbers in a row, must have 3'
    refused '{"name": "r", "kind": "classification", "label": "wieght", "outputs": 3}' 'wants the field "wieght" of data'
    refused "$text, "'{"name": "c", "kind": "classification", "outputs": 3}' 'name the field with the classes as label'
    refused '{"name": "c", "kind": "classification", "outputs": 3}' 'task.heads[0].label: null, and data has no labels'
    refused "$topic, "'{"name": "v", "kind": "embedding"}' 'an embedding head learns from pairs of texts'
    refused "$topic" 'metrics: the task heads gives no predictions; each of its heads has metrics of its own' --set 'metrics=[{"name": "mean"}]'
    refused "$topic" 'trainer.logging.documents' --set trainer.logging.documents=3
    run -2 alone no dense --set "$(heads '{"name": "t", "kind": "token_classification", "label": "tags", "outputs": 3}')"
    assert_output --regexp 'data: sample [0-9]+ has 3 in the field "tags", and task\.heads\[0\]\.label must be below 3'
    [ ! -e no ]
    refused '{"name": "t", "kind": "classification", "label": "teacher", "outputs": 3, "loss": "soft_cross_entropy", "metrics": [{"name": "mse"}]}' \
        'task.heads[0].metrics: those are of classes and of numbers, and a classification head of the loss soft_cross_entropy has none'
    refused '{"name": "r", "kind": "regression", "label": "score", "outputs": 2, "metrics": [{"name": "mse"}]}' \
        'metrics.r[0]: the head has 2 outputs: mse: a prediction of 2 numbers, must be 1'
    refused '{"name": "r", "kind": "regression", "label": "score", "outputs": 2, "metrics": [{"name": "f1", "problem": "multilabel", "num_classes": 3}]}' \
        'metrics.r[0]: the head has 2 outputs: f1: a prediction of 2 numbers, must be 3'
}
