#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Encoders on meshes: losses, norms and vectors are those of one rank.

golden=$BATS_TEST_DIRNAME/../golden/encoders
masked=$BATS_TEST_DIRNAME/../golden/masked_lm

load workroom

setup_file() {
    workroom
    for c in $(cases); do
        d9d-shard -q --format tokens --out "data-$c" "$golden/$c/texts.jsonl"
        configure "$c"
        d9d-train -q --device cpu --set trainer.run.dir="one-$c" "$c.train.json"
        d9d-infer -q --device cpu "$c.infer.json"
        mv out.npy "$c.npy"
    done
    for c in $(masked_cases); do
        configure_masked "$c"
        d9d-train -q --device cpu --set trainer.run.dir="one-mlm-$c" "mlm-$c.train.json"
        d9d-infer -q --device cpu "mlm-$c.infer.json"
        mv out.jsonl "mlm-$c.jsonl"
    done
}
setup() { with_mpi && enter; }

cases() { (cd "$golden" && printf '%s\n' *); }
masked_cases() { (cd "$masked" && printf '%s\n' *); }

# configure CASE: CASE.train.json and CASE.infer.json
configure() {
    local model="\"model_provider\": {\"name\": \"auto\", \"hf_config\": \"$golden/$1/config.json\"}"
    cat >"$1.train.json" <<JSON
{"data": {"dataset": "data-$1", "epochs": 3, "order": "sequential"}, $model,
 "trainer": {"run": {"name": "$1", "steps": 3},
   "batching": {"global_batch_size": 16, "microbatch_size": 4},
   "model_stage_factory": {"source_checkpoint": "$golden/$1"}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1},
 "task": {"name": "embedding", "pooling": "mean"}}
JSON
    cat >"$1.infer.json" <<JSON
{"data": {"dataset": "data-$1"}, $model,
 "trainer": {"batching": {"microbatch_size": 2},
   "model_stage_factory": {"source_checkpoint": "$golden/$1"}},
 "task": {"name": "hidden_states", "output": "out.npy", "pooling": "mean"}}
JSON
}
# configure_masked CASE: mlm-CASE.train.json, which masks texts, and evaluates with other masks;
# mlm-CASE.infer.json, which scores masked tokens
configure_masked() {
    cat >"mlm-$1.train.json" <<JSON
{"data": {"dataset": "data-modernbert", "epochs": 3, "order": "shuffled"}, "metrics": [{"name": "tokens"}],
 "evaluation": {"data": {"dataset": "data-modernbert"}, "period_steps": 3, "metrics": [{"name": "tokens"}]},
 "model_provider": {"name": "auto", "hf_config": "$masked/$1/config.json"},
 "trainer": {"run": {"name": "$1", "steps": 3},
   "batching": {"global_batch_size": 16, "microbatch_size": 4},
   "model_stage_factory": {"source_checkpoint": "$masked/$1"}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1},
 "task": {"name": "masked_lm", "mask_token_id": 3, "special_ids": [0, 1, 2]}}
JSON
    cat >"mlm-$1.infer.json" <<JSON
{"data": {"dataset": "data-modernbert"},
 "model_provider": {"name": "auto", "hf_config": "$masked/$1/config.json"},
 "trainer": {"batching": {"microbatch_size": 2}, "model_stage_factory": {"source_checkpoint": "$masked/$1"}},
 "task": {"name": "masked_lm", "output": "out.jsonl", "mask_token_id": 3, "special_ids": [0, 1, 2]}}
JSON
}
numbers() { grep -oE '"(valid/loss|loss|grad_norm|(valid/)?tokens/(loss|entropy))": *[0-9.e+-]+' "$1/metrics.jsonl" | grep -oE '[0-9.e+-]+$'; }
scores() { sed -E 's/.*"logprobs": \[([^]]*)\].*/\1/' "$1" | tr -s ', ' '\n'; }
floats() { od -An -v -tf4 -w4 -j128 "$1"; }
# close A B: numbers, one a line
close() {
    paste "$1" "$2" | awk 'NF != 2 || ($1 - $2) ^ 2 > (2e-5 * (1 + $2 * $2)) ^ 2 { print NR ": " $0; exit 1 }
        END { if (NR == 0) exit 1 }'
}

# on_mesh PROGRAM CASE AXIS=N...: runs there; `refused` if the mesh does not divide it.
on_mesh() {
    local program=$1 name=$2 ranks=1 sets=() axis
    shift 2
    for axis; do
        sets+=(--set "mesh.${axis%=*}=${axis#*=}")
        [[ $axis = context_parallel_method* ]] || ranks=$((ranks * ${axis#*=}))
    done
    refused=false
    rm -rf mesh out.npy out.jsonl
    [ "$program" != train ] || sets+=(--set trainer.run.dir=mesh)
    run mpi -n $ranks "d9d-$program" -q --device cpu "${sets[@]}" "$name.$program.json"
    if [ "$status" -eq 2 ] && [[ $output == *divide* ]]; then
        refused=true
        return 0
    fi
    [ "$status" -eq 0 ] || { echo "$name on $*: $output" && return 1; }
}

meshes() {
    cat <<'LIST'
tensor_parallel=2
data_parallel_shard=2 pipeline_parallel=3
tensor_parallel=2 pipeline_parallel=2
context_parallel_shard=2
context_parallel_shard=2 context_parallel_method=all_to_all
context_parallel_shard=2 context_parallel_replicate=2 context_parallel_method=all_to_all+all_gather
context_parallel_shard=3 context_parallel_method=ring
LIST
    [ -z "${D9D_LONG:-}" ] || cat <<'LIST'
data_parallel_shard=2 tensor_parallel=2 pipeline_parallel=2
data_parallel_replicate=2 data_parallel_shard=2
context_parallel_shard=4
context_parallel_replicate=2 tensor_parallel=2
context_parallel_shard=2 data_parallel_shard=2 pipeline_parallel=2
context_parallel_replicate=2 context_parallel_shard=2 data_parallel_replicate=2
tensor_parallel=5
tensor_parallel=4
pipeline_parallel=2
LIST
}

# as_one_rank PREFIX READ SUFFIX CASE...: what is learned and inferred on any mesh is what one rank has.
as_one_rank() {
    local prefix=$1 read=$2 suffix=$3 c mesh
    shift 3
    ran=0
    for c; do
        while read -r -a mesh; do
            on_mesh train "$prefix$c" "${mesh[@]}"
            $refused && continue
            close <(numbers mesh) <(numbers "one-$prefix$c") || { echo "$c on ${mesh[*]}" && false; }
            on_mesh infer "$prefix$c" "${mesh[@]}"
            close <("$read" "out.$suffix") <("$read" "$prefix$c.$suffix") || { echo "$c on ${mesh[*]}" && false; }
            ran=$((ran + 1))
        done < <(meshes)
    done
    [ $ran -ge 10 ]
}

# shellcheck disable=SC2046 # words
@test "pairs are learned and states written on any mesh as on one rank" {
    as_one_rank "" floats npy $(cases)
}

# shellcheck disable=SC2046 # words
@test "masked tokens are learned on any mesh as on one rank" {
    as_one_rank mlm- scores jsonl $(masked_cases)
}

# Its files lack the head, and its last stage has the tied embedding too.
@test "a masked language model begins from a classifier, on a pipeline too" {
    masked=$golden configure_masked modernbert
    rm -rf one
    d9d-train -q --device cpu --set trainer.run.dir=one mlm-modernbert.train.json
    on_mesh train mlm-modernbert pipeline_parallel=2
    close <(numbers mesh) <(numbers one)
}
