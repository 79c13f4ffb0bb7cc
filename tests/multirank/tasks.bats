#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Tasks on whole texts on several ranks: they train and write what one rank does.

golden=$BATS_TEST_DIRNAME/../golden/tasks

load workroom

setup_file() {
    workroom
    for m in dense moe; do
        d9d-shard -q --format tokens --out $m "$golden/$m/texts.jsonl"
        configure $m
        for p in last mean; do
            d9d-train -q --device cpu --set trainer.run.dir=$m-$p --set task.pooling=$p $m.train.json
        done
        d9d-infer -q --device cpu $m.infer.json
        mv out.jsonl $m.jsonl
        d9d-infer -q --device cpu --set "$states" $m.infer.json
        mv out.npy $m.npy
    done
}
setup() { with_mpi && enter; }

states='task={"name": "hidden_states", "output": "out.npy", "pooling": "mean"}'

# configure MODEL: writes MODEL.train.json and MODEL.infer.json.
configure() {
    local model
    model="\"model_provider\": {\"name\": \"qwen3_$1\", \"hf_config\": \"$golden/$1/config.json\"}"
    cat >"$1.train.json" <<JSON
{"data": {"dataset": "$1", "epochs": 3}, $model,
 "trainer": {"run": {"name": "$1", "steps": 5}, "batching": {"global_batch_size": 8},
   "model_stage_factory": {"source_checkpoint": "$golden/$1"}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1},
 "task": {"name": "classification"},
 "metrics": [{"name": "accuracy", "problem": "multiclass", "num_classes": 3}]}
JSON
    cat >"$1.infer.json" <<JSON
{"data": {"dataset": "$1"}, $model,
 "trainer": {"batching": {"microbatch_size": 2},
   "model_stage_factory": {"source_checkpoint": "$golden/$1"}},
 "task": {"name": "classification", "output": "out.jsonl"}}
JSON
}

# mesh_of MESH: sets $mesh_options to the options of "replicate shard context_shard context_replicate tensor
# expert pipeline", and $ranks to its number of ranks.
mesh_of() {
    local axes=(data_parallel_replicate data_parallel_shard context_parallel_shard
        context_parallel_replicate tensor_parallel expert_parallel pipeline_parallel) mesh i
    read -ra mesh <<<"$1"
    ranks=1 mesh_options=()
    for i in "${!axes[@]}"; do
        mesh_options+=(--set "mesh.${axes[i]}=${mesh[i]}")
        [ "$i" -eq 5 ] || ranks=$((ranks * mesh[i]))
    done
}

predictions() { sed -E 's/.*"prediction": \[([^]]*)\].*/\1/' "$1" | tr -s ', ' '\n'; }
floats() { od -An -v -tf4 -w4 -j128 "$1"; }
# close A B: compares numbers, one per line.
close() {
    paste "$1" "$2" | awk 'NF != 2 || ($1 - $2) ^ 2 > (1e-5 * (1 + $2 * $2)) ^ 2 { print NR ": " $0; exit 1 }
        END { if (NR == 0) exit 1 }'
}

# Combined meshes with D9D_LONG=1, else one degree at a time.
meshes_dense=("1 2 1 1 1 1 1" "1 1 2 1 2 1 1" "1 2 1 1 1 1 2")
meshes_mean=("1 1 2 1 2 1 1")
meshes_moe=("1 2 1 1 1 2 2")
if [ "${D9D_LONG:-}" = 1 ]; then
    meshes_dense+=("2 1 1 1 1 1 1" "1 1 2 1 1 1 1" "1 1 1 2 1 1 1" "1 1 1 1 2 1 1" "1 1 1 1 1 1 2"
        "1 1 1 1 1 1 4" "1 2 1 1 2 1 1" "1 1 2 1 1 1 2" "1 1 1 1 2 1 2")
    meshes_mean=("${meshes_dense[@]}")
    meshes_moe+=("1 2 1 1 1 2 1" "1 1 1 1 2 2 1" "1 1 2 1 2 4 1")
fi

trains() { # MODEL POOLING MESH
    local name="r-$1-$2-${3// /}"
    mesh_of "$3"
    mpi -n "$ranks" d9d-train -q --device cpu "${mesh_options[@]}" --set trainer.run.dir="$name" --set task.pooling="$2" "$1.train.json"
    for f in loss grad_norm accuracy; do
        close <(numbers $f "$name") <(numbers $f "$1-$2") || { echo "$3: $f"; return 1; }
    done
    cmp "$name/export/config.json" "$1-$2/export/config.json"
    rm -r "$name"
}

@test "a classification head trains the same on every mesh" {
    for mesh in "${meshes_dense[@]}"; do trains dense last "$mesh"; done
    for mesh in "${meshes_mean[@]}"; do trains dense mean "$mesh"; done
    for mesh in "${meshes_moe[@]}"; do trains moe last "$mesh"; done
}

@test "a head that would stay random is reported once, by the ranks that have it" {
    mesh_of "1 2 1 1 1 1 2"
    run -2 --separate-stderr mpi -n 4 d9d-train -q --device cpu "${mesh_options[@]}" --set task.num_labels=3 \
        --set "trainer.model_stage_factory.source_checkpoint=$golden/../dense_tied" --set "model_provider.hf_config=$golden/../dense_tied/config.json" \
        --set 'peft={"kind": "lora", "module_name_pattern": ".*q_proj", "params": {"r": 2, "alpha": 2}}' dense.train.json
    [ "$(grep -c 'cls_head.score.weight would stay random' <<<"$stderr")" = 1 ]
}

@test "classes and hidden states are the same on every mesh" {
    for m in dense moe; do
        local -n meshes=meshes_$m
        for mesh in "${meshes[@]}"; do
            mesh_of "$mesh"
            mpi -n "$ranks" d9d-infer -q --device cpu "${mesh_options[@]}" $m.infer.json
            close <(predictions out.jsonl) <(predictions $m.jsonl) || { echo "$mesh"; return 1; }
            [ "$(numbers sample out.jsonl)" = "$(numbers sample $m.jsonl)" ]
            mpi -n "$ranks" d9d-infer -q --device cpu "${mesh_options[@]}" --set "$states" $m.infer.json
            cmp <(head -c 128 out.npy) <(head -c 128 $m.npy)
            close <(floats out.npy) <(floats $m.npy) || { echo "$mesh"; return 1; }
            rm out.jsonl out.npy
        done
    done
}

@test "contrastive training of embeddings is the same on every mesh" {
    pairs=(--set 'task={"name": "embedding"}' --set 'metrics=[]' --set trainer.run.steps=4
        --set trainer.batching.microbatch_size=4)
    d9d-train -q --device cpu "${pairs[@]}" --set trainer.run.dir=pairs dense.train.json
    for mesh in "2 1 1 1 1 1 1" "1 1 2 1 2 1 1" "1 2 1 1 1 1 2"; do
        mesh_of "$mesh"
        mpi -n "$ranks" d9d-train -q --device cpu "${mesh_options[@]}" "${pairs[@]}" --set trainer.run.dir=r dense.train.json
        for f in loss grad_norm; do
            close <(numbers $f r) <(numbers $f pairs) || { echo "$mesh: $f"; return 1; }
        done
        rm -r r
    done
}

# A rank without pairs knows by the others' micro-batches that the step has some, and one without any that it has none.
@test "a rank whose pairs are all skipped trains with the others" {
    for skip in 0-3 4-7 0-7; do
        pairs=(--set 'task={"name": "embedding"}' --set 'metrics=[]' --set trainer.run.steps=2
            --set trainer.batching.microbatch_size=4 --set data.skip_samples="\"$skip\"")
        rm -rf one r
        d9d-train -q --device cpu "${pairs[@]}" --set trainer.run.dir=one dense.train.json
        mesh_of "2 1 1 1 1 1 1"
        mpi -n "$ranks" d9d-train -q --device cpu "${mesh_options[@]}" "${pairs[@]}" --set trainer.run.dir=r dense.train.json
        close <(numbers loss r) <(numbers loss one)
        close <(numbers tokens r) <(numbers tokens one)
    done
    rm -r one r
}

@test "LoRA with a head trains and exports the same on every mesh" {
    tuned=(--set 'peft={"kind": "stack", "methods": [
        {"kind": "lora", "module_name_pattern": ".*\\.(q|v)_proj", "params": {"r": 3, "alpha": 6}},
        {"kind": "full_tune", "module_name_pattern": "cls_head\\.score"}]}')
    d9d-train -q --device cpu "${tuned[@]}" --set trainer.run.dir=tuned dense.train.json
    d9d-infer -q --device cpu --set trainer.model_stage_factory.source_adapter=tuned/adapter dense.infer.json
    mv out.jsonl tuned.jsonl
    for mesh in "1 1 1 1 2 1 2" "1 1 2 1 1 1 2"; do
        mesh_of "$mesh"
        mpi -n "$ranks" d9d-train -q --device cpu "${mesh_options[@]}" "${tuned[@]}" --set trainer.run.dir=r dense.train.json
        for f in loss grad_norm; do close <(numbers $f r) <(numbers $f tuned); done
        mpi -n "$ranks" d9d-infer -q --device cpu "${mesh_options[@]}" --set trainer.model_stage_factory.source_adapter=r/adapter dense.infer.json
        close <(predictions out.jsonl) <(predictions tuned.jsonl) || { echo "$mesh"; return 1; }
        rm -r r out.jsonl
    done
}

@test "a head saved on one mesh resumes on another" {
    mesh_of "1 1 1 1 2 1 2"
    mpi -n 4 d9d-train -q --device cpu "${mesh_options[@]}" --set trainer.run.dir=part --set trainer.run.steps=3 dense.train.json
    rm -r part/export
    mesh_of "1 2 1 1 1 1 1"
    mpi -n 2 d9d-train -q --device cpu "${mesh_options[@]}" --set trainer.run.dir=part dense.train.json
    close <(numbers loss part) <(numbers loss dense-last)
    rm -r part
}

@test "metrics of inference: those of one rank, on data and pipeline ranks" {
    metrics='metrics=[{"name": "accuracy", "problem": "multiclass", "num_classes": 3}]'
    figure() { sed -nE 's/.*"accuracy": ([0-9.]+).*/\1/p'; }
    rm -f out.jsonl
    one=$(d9d-infer -q --json --device cpu --set "$metrics" dense.infer.json | figure)
    [ -n "$one" ]
    for degree in data_parallel_replicate data_parallel_shard pipeline_parallel tensor_parallel; do
        rm -f out.jsonl
        assert_equal "$(mpi -n 2 d9d-infer -q --json --device cpu --set mesh.$degree=2 --set "$metrics" dense.infer.json | figure)" "$one"
    done
    rm -f out.jsonl
}
