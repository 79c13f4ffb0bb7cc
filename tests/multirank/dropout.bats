#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Training with dropout on meshes: losses and norms are those of one rank, so each rank drops what that
# one would.

golden=$BATS_TEST_DIRNAME/../golden

load workroom

setup_file() { workroom; }
setup() { with_mpi && enter; }

# configure CASE SECTION FIELD=RATE...: CASE.json of three steps with four samples of three documents each, and
# the run of one rank, one-CASE.
configure() {
    local name=$1 section=$2 field
    shift 2
    cp "$golden/families/$name/config.json" "$name.config.json"
    for field; do
        sed -i "s/\"${field%%=*}\": 0\.0/\"${field%%=*}\": ${field#*=}/" "$name.config.json"
        grep -q "\"${field%%=*}\": ${field#*=}" "$name.config.json"
    done
    for _ in {1..17}; do cat "$golden/families/$name/train.jsonl"; done |
        d9d-shard -q --format tokens --pack 48 --out "data-$name" -
    cat >"$name.json" <<JSON
{"data": {"dataset": "data-$name", "epochs": 4, "order": "sequential"},
 "model_provider": {"name": "$section", "hf_config": "$name.config.json"},
 "trainer": {"run": {"name": "$name", "dir": "one-$name", "steps": 3},
  "batching": {"global_batch_size": 4, "microbatch_size": 1},
  "model_stage_factory": {"source_checkpoint": "$golden/families/$name"}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
    d9d-train -q --device cpu "$name.json"
}
numbers() { grep -oE '"(loss|grad_norm)": *[0-9.e+-]+' "$1/metrics.jsonl" | grep -oE '[0-9.e+-]+$'; }

# equal CASE AXIS=N...: trains on a mesh.
equal() {
    local name=$1 ranks=1 sets=() axis
    shift
    for axis; do
        sets+=(--set "mesh.${axis%=*}=${axis#*=}")
        [[ $axis =~ ^(expert_parallel|context_parallel_method) ]] || ranks=$((ranks * ${axis#*=}))
    done
    rm -rf mesh
    run mpi -n $ranks d9d-train -q --device cpu --set trainer.run.dir=mesh "${sets[@]}" "$name.json"
    [ "$status" -eq 0 ] || { echo "$name on $*: $output" && return 1; }
    [ "$(numbers mesh | wc -l)" -eq 6 ]
    paste <(numbers "one-$name") <(numbers mesh) |
        awk -v what="$name on $*" '{ d = $1 - $2; if ((d < 0 ? -d : d) > 2e-5 * $1) { print what ": " $0; bad = 1 } } END { exit bad }'
}

meshes() {
    cat <<'LIST'
tensor_parallel=2
tensor_parallel=4
context_parallel_shard=2
pipeline_parallel=2
data_parallel_shard=2
data_parallel_replicate=2 data_parallel_shard=2
tensor_parallel=2 context_parallel_shard=2
context_parallel_shard=2 context_parallel_method=all_to_all
context_parallel_shard=2 context_parallel_replicate=2 context_parallel_method=all_to_all+all_gather
context_parallel_shard=3 context_parallel_method=ring
context_parallel_shard=2 context_parallel_replicate=2 context_parallel_method=all_to_all+ring
data_parallel_shard=2 tensor_parallel=2 pipeline_parallel=2
LIST
}

@test "packed documents: every mesh drops what one rank does" {
    configure gpt2 gpt2 attn_pdrop=0.2 resid_pdrop=0.15 embd_pdrop=0.1
    configure phi3 phi3 attention_dropout=0.2 resid_pdrop=0.1
    while read -r -a mesh; do equal gpt2 "${mesh[@]}"; done < <(meshes)
    while read -r -a mesh; do equal phi3 "${mesh[@]}"; done < <(meshes | tail -n 4)
}

@test "the parallel residual, latent attention, sinks and experts" {
    configure gpt_neox gpt_neox hidden_dropout=0.1 attention_dropout=0.1
    configure deepseek_v3 deepseek_v3 attention_dropout=0.2
    configure gpt_oss gpt_oss attention_dropout=0.2
    for c in gpt_neox deepseek_v3 gpt_oss; do
        equal $c tensor_parallel=2 context_parallel_shard=2
        equal $c context_parallel_shard=2 context_parallel_method=all_to_all
        equal $c data_parallel_shard=2 pipeline_parallel=2
    done
    equal gpt_oss data_parallel_shard=2 expert_parallel=2
}

# Rows of one text each, as no mesh divides sequences of an encoder.
@test "an encoder, whose feed-forward layers drop columns of a rank's own" {
    sed -E 's/"((embedding|mlp|attention)_dropout)": 0\.0/"\1": 0.1/' "$golden/encoders/modernbert/config.json" >modernbert.config.json
    [ "$(grep -c '_dropout": 0\.1' modernbert.config.json)" -eq 3 ]
    d9d-shard -q --format tokens --out data-modernbert "$golden/encoders/modernbert/texts.jsonl"
    cat >modernbert.json <<JSON
{"data": {"dataset": "data-modernbert", "epochs": 3, "order": "sequential"},
 "model_provider": {"name": "modernbert", "hf_config": "modernbert.config.json"},
 "trainer": {"run": {"name": "modernbert", "dir": "one-modernbert", "steps": 3},
   "batching": {"global_batch_size": 16, "microbatch_size": 4},
   "model_stage_factory": {"source_checkpoint": "$golden/encoders/modernbert"}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1},
 "task": {"name": "embedding", "pooling": "mean"}}
JSON
    d9d-train -q --device cpu modernbert.json
    equal modernbert tensor_parallel=2
    equal modernbert data_parallel_shard=2 tensor_parallel=2
    equal modernbert pipeline_parallel=2 tensor_parallel=2
}
