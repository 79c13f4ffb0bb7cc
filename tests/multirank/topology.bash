# shellcheck shell=bash disable=SC2154 # variables of bats
# topology.bash - one training run on many meshes, for the files that load it after slurm/helper.
#
# A mesh is a line "replicate shard context_shard context_replicate tensor expert", optionally
# followed by the pipeline degree.  A file that loads this may set `layers` of the models, `batch`,
# `steps` and `eps`, and `through`, a command prefix for every rank.
load ../multirank/workroom
golden=$BATS_TEST_DIRNAME/../golden
driver=$D9D_BUILD/tests/multirank/topology_driver
PATH=$D9D_BIN:$PATH

axes=(data_parallel_replicate data_parallel_shard context_parallel_shard
    context_parallel_replicate tensor_parallel expert_parallel)

setup_file() {
    workroom
    d9d-shard -q --format tokens --out data "$golden/moe/train.jsonl"
    configure dense 48 '"intermediate_size": 48' >dense.json
    configure moe 24 '"intermediate_size": 24, "num_experts": 8, "experts_top_k": 3,
        "shared_expert": {"intermediate_size": 24, "enable_gate": true}' >moe.json
    for model in dense moe; do d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir=$model $model.json; done
}
setup() { with_mpi && enter; }

# schedule_options NAME[:STAGES[:FLAG]]: the --set options of a schedule.
schedule_options() {
    local name stages flag
    IFS=: read -r name stages flag <<<"$1"
    printf -- '--set trainer.pipelining.schedule.schedule=%s' "$name"
    [ -z "$stages" ] || printf -- ' --set trainer.pipelining.schedule.num_stages_per_rank=%s' "$stages"
    [ -z "$flag" ] || printf -- ' --set trainer.pipelining.schedule.%s=true' "$flag"
}

# configure MODEL SIZE LAYER-JSON: writes MODEL.json.
configure() {
    cat <<JSON
{"data": {"dataset": "data", "order": "shuffled"},
 "model_provider": {"name": "qwen3_$1", "model": {"num_hidden_layers": ${layers:-2},
   "layer": {"hidden_size": 32, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
     "rms_norm_eps": 1e-6, $3},
   "rope_base": 10000, "max_position_ids": 512, "initializer_range": 0.02,
   "split_vocab_size": {"regular": 157}, "split_vocab_order": ["regular"]}},
 "trainer": {"run": {"name": "$1", "steps": ${steps:-10}},
   "batching": {"global_batch_size": ${batch:-8}, "microbatch_size": 1},
   "logging": {"samples": true},
   "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1, "eps": ${eps:-1e-8}}}
JSON
}

# train MODEL MESH DIR [OPTION...]: trains on a mesh in DIR.
train() {
    local model=$1 dir=$3 i ranks mesh_options
    read -ra mesh <<<"$2"
    shift 3
    ranks=${mesh[6]:-1} mesh_options=(--set "mesh.pipeline_parallel=${mesh[6]:-1}")
    for i in "${!axes[@]}"; do
        mesh_options+=(--set "mesh.${axes[i]}=${mesh[i]}")
        [ "$i" -eq 5 ] || ranks=$((ranks * mesh[i]))
    done
    mpi -n "$ranks" "${through[@]}" d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" "${mesh_options[@]}" --set trainer.run.dir="$dir" "$@" "$model.json"
}

# same A B: compares losses, norms and weights to 1e-5, samples and numbers of tokens exactly.
same() {
    paste <(grep '"loss"' "$1/metrics.jsonl") <(grep '"loss"' "$2/metrics.jsonl") |
        sed -E 's/"[a-z_]+": |[{},]//g' | awk -v steps="${steps:-10}" '
        function far(a, b) { return !((a - b) ^ 2 <= (1e-5 * b) ^ 2) }
        { n++; half = NF / 2
          if ($1 != $(half + 1) || far($2, $(half + 2)) || far($3, $(half + 3)) || $5 != $(half + 5)) {
              print "step " $1 ": loss " $2 ", norm " $3 ", tokens " $5 "; alone " $(half + 2) ", " $(half + 3) ", " $(half + 5)
              bad = 1 } }
        END { if (n != steps) print n + 0 " steps"; exit bad || n != steps }' &&
        cmp "$1/samples.jsonl" "$2/samples.jsonl" && "$driver" "$1/export" "$2/export"
}
