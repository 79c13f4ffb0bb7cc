# shellcheck shell=bash
# shellcheck disable=SC2154 # variables of bats
# Every family on meshes of up to eight ranks: its losses and norms are those of one rank.  No family
# has a line of code about ranks, so the parameters' styles decide (d9d/parallel/parallel_plan.h).
# Files that load this take a share of the families each, so that the shares run side by side.

load workroom

golden=$BATS_TEST_DIRNAME/../golden/families

# configure CASE: a configuration of four steps with eight samples each.  Gated delta nets with weights this large amplify
# rounding (below), and Adam makes of gradients that are almost nothing what it likes: it divides by a larger epsilon there.
configure() {
    local type eps=1e-8
    [[ ! $1 =~ ^qwen3_(next|5) ]] || eps=1e-3
    type=$(sed -n 's/.*"model_type": "\(.*\)".*/\1/p' "$golden/$1/config.json")
    type=${type%_text}
    [ "$type" != qwen3 ] || type=qwen3_dense
    [ "$type" != gemma3_text ] || type=gemma3
    [ -d "data-$1" ] ||
        cat "$golden/$1"/train.jsonl{,,} | head -n 8 | d9d-shard -q --format tokens --out "data-$1" -
    cat >"$1.json" <<JSON
{"data": {"dataset": "data-$1", "epochs": 4, "order": "sequential"},
 "model_provider": {"name": "$type", "hf_config": "$golden/$1/config.json"},
 "trainer": {"run": {"name": "$1", "dir": "one-$1", "steps": 4},
  "batching": {"global_batch_size": 8, "microbatch_size": 1},
  "model_stage_factory": {"source_checkpoint": "$golden/$1"}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "eps": $eps}}
JSON
}
numbers() { grep -oE '"(loss|grad_norm)": *[0-9.e+-]+' "$1/metrics.jsonl" | grep -oE '[0-9.e+-]+$'; }

# on_mesh CASE AXIS=N...: trains on a mesh; prints `refused` if the mesh does not divide the model.
on_mesh() {
    local name=$1 ranks=1 sets=() axis n
    shift
    for axis; do
        n=${axis#*=}
        sets+=(--set "mesh.${axis%=*}=$n")
        [[ $axis =~ ^(expert_parallel|context_parallel_method) ]] || ranks=$((ranks * n))
    done
    refused=false
    rm -rf mesh
    run mpi -n $ranks d9d-train -q --device cpu --set trainer.run.dir=mesh "${sets[@]}" "$name.json"
    if [ "$status" -eq 2 ] && [[ $output =~ (divide|no\ experts|whole\ sequences|no\ layer) ]]; then
        refused=true
        return 0
    fi
    [ "$status" -eq 0 ] || { echo "$name on $*: $output" && return 1; }
    [ "$(numbers mesh | wc -l)" -eq 8 ]
    limit=2e-5
    [[ ! $name =~ ^qwen3_(next|5) ]] || limit=2e-4
    paste <(numbers "one-$name") <(numbers mesh) |
        awk -v what="$name on $*" -v limit=$limit '{ d = $1 - $2; if ((d < 0 ? -d : d) > limit * $1) { print what ": " $0; bad = 1 } } END { exit bad }'
}

# A case of each family, on two meshes; all cases on all of them under make test-long.
cases() {
    if [ -n "${D9D_LONG:-}" ]; then (cd "$golden" && printf '%s\n' *); else
        printf '%s\n' deepseek_v2 deepseek_v3 gemma2 gemma3 glm4_moe gpt2 gpt_neox gpt_oss granite llama llama_gelu minimax_m2 mistral mixtral olmo olmo2 olmo3 phi3_partial \
            qwen2 qwen2_moe qwen3_5 qwen3_moe qwen3_next smollm3
    fi
}
meshes() {
    local experts='' nodes=''
    ! grep -q experts "$golden/$1/config.json" ||
        { experts=expert_parallel=2 && nodes='expert_parallel=4 expert_parallel_local=2'; }
    cat <<LIST
data_parallel_shard=2 tensor_parallel=2 pipeline_parallel=2
data_parallel_replicate=2 context_parallel_shard=2 tensor_parallel=2 $experts
data_parallel_shard=2 context_parallel_shard=2 context_parallel_method=all_to_all $nodes
context_parallel_shard=3 context_parallel_method=ring
LIST
    [ -z "${D9D_LONG:-}" ] || cat <<'LIST'
tensor_parallel=2
tensor_parallel=4
tensor_parallel=5
context_parallel_replicate=2
context_parallel_shard=4
context_parallel_shard=4 context_parallel_method=all_to_all
context_parallel_shard=2 context_parallel_replicate=2 context_parallel_method=all_to_all+all_gather
context_parallel_shard=2 tensor_parallel=2 context_parallel_method=all_to_all
context_parallel_shard=2 context_parallel_method=ring
context_parallel_shard=4 context_parallel_method=ring
context_parallel_shard=8 context_parallel_method=ring
context_parallel_shard=2 context_parallel_replicate=2 context_parallel_method=all_to_all+ring
context_parallel_shard=2 tensor_parallel=2 pipeline_parallel=2 context_parallel_method=ring
pipeline_parallel=2
pipeline_parallel=3
data_parallel_shard=2 expert_parallel=2
data_parallel_shard=4 expert_parallel=4 tensor_parallel=2
data_parallel_replicate=2 data_parallel_shard=2 pipeline_parallel=2 expert_parallel=2
LIST
}

# share N OF: every OF-th case from the N-th on, each on all its meshes.
share() {
    local c here ran=0 mesh
    for c in $(cases | awk -v n="$1" -v of="$2" 'NR % of == n % of'); do
        configure "$c"
        d9d-train -q --device cpu "$c.json"
        here=0
        while read -r -a mesh; do
            on_mesh "$c" "${mesh[@]}"
            $refused || here=$((here + 1))
        done < <(meshes "$c")
        [ $here -gt 0 ] || { echo "$c ran on no mesh" && return 1; }
        ran=$((ran + here))
    done
    [ $ran -ge 4 ] || { echo "only $ran runs" && return 1; }
}
