# shellcheck shell=bash disable=SC2034 # variables are for those that load it
# models.bash - models of full width, as compare, load and start train and read them.
#
#     dense   the shape of Qwen3-1.7B with its own head
#     moe     8 layers of Qwen3-30B-A3B
#     long    Qwen3-4B, one sequence of 8192 tokens
#     large   Qwen3-8B, for two GPUs, or one with moments in bfloat16
#     experts 16 layers of Qwen3-30B-A3B, for two GPUs
#     whole   Qwen3-30B-A3B, all 48 layers, for four GPUs: sharded over four with experts on all, 114 GiB
#             a rank of 131 by d9d-train --plan, 54 of them activations, none of which is computed again
#     context as dense, one row of 32768 tokens; row131072 and row262144 as dense, one row of so many
#     tensor  as large, one micro-batch a step for each GPU
#     heads80 heads96 heads256   heads of so many features, other vocabularies (GPT-2's, NeoX's, Gemma 3's)
#     tied    the shape of Qwen2.5-1.5B
#     sparse  0.6 billion parameters, 64 experts of which a token has 8
export LC_ALL=C # for numbers of awk and printf

_common='"head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "hidden_act": "silu", "attention_bias": false,
 "attention_dropout": 0.0, "use_sliding_window": false, "torch_dtype": "bfloat16", "use_cache": false'
_dense='"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "initializer_range": 0.02'
# Random weights of a usual size make all tokens alike within a few layers, as attention gives each the
# mean of all, and then all choose the same experts: the busiest of four ranks has 1.6 times the mean of
# choices.  Of small ones every token stays itself, and experts have as much to do as trained ones.
_moe='"initializer_range": 0.0003, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
 "intermediate_size": 6144, "num_attention_heads": 32,
 "num_key_value_heads": 4, "moe_intermediate_size": 768, "num_experts": 128,
 "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
 "router_aux_loss_coef": 0.0, "output_router_logits": false, "tie_word_embeddings": false'
declare -A config=(
    [dense]='{'"$_dense"', "hidden_size": 2048,
 "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
 "num_key_value_heads": 8, "tie_word_embeddings": false, '"$_common"'}'
    [moe]='{"num_hidden_layers": 8, '"$_moe, $_common"'}'
    [experts]='{"num_hidden_layers": 16, '"$_moe, $_common"'}'
    [whole]='{"num_hidden_layers": 48, '"$_moe, $_common"'}'
    [large]='{'"$_dense"', "hidden_size": 4096,
 "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
 "num_key_value_heads": 8, "tie_word_embeddings": false, '"$_common"'}'
    [long]='{'"$_dense"', "hidden_size": 2560,
 "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
 "num_key_value_heads": 8, "tie_word_embeddings": true, '"$_common"'}')
# Parameters in products that a token meets, of experts those of top_k, of embeddings the head's; layers
# times heads; and what a step takes.
declare -A met=([dense]=1720451072 [moe]=766246912 [long]=4022272000 [large]=7568097280 [experts]=1221328896 [whole]=3041656832)
config[sparse]='{"num_hidden_layers": 8, "initializer_range": 0.02, "architectures": ["Qwen3MoeForCausalLM"],
 "model_type": "qwen3_moe", "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
 "num_key_value_heads": 4, "moe_intermediate_size": 256, "num_experts": 64, "num_experts_per_tok": 8,
 "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "router_aux_loss_coef": 0.001,
 "output_router_logits": true, "tie_word_embeddings": true, '"$_common"'}'
config[context]=${config[dense]} met[context]=${met[dense]}
config[tensor]=${config[large]} met[tensor]=${met[large]}
declare -A heads=([dense]=448 [moe]=256 [long]=1152 [large]=1152 [experts]=512 [whole]=1536 [context]=448 [tensor]=1152)
declare -A rows=([dense]=4 [moe]=4 [long]=1 [large]=2 [experts]=2 [whole]=2 [context]=1 [tensor]=2)
declare -A length=([dense]=4096 [moe]=4096 [long]=8192 [large]=4096 [experts]=4096 [whole]=4096 [context]=32768 [tensor]=4096)
for _long in 131072 262144; do
    config[row$_long]=${config[dense]/40960/$_long} met[row$_long]=${met[dense]} heads[row$_long]=448
    rows[row$_long]=1 length[row$_long]=$_long
done
declare -A features=() vocabulary=() # of a head; 128 and 151936 where nothing is said

# plain NAME HIDDEN FFN LAYERS HEADS KEY_HEADS FEATURES VOCABULARY TIED ROWS LENGTH: one more, dense.
plain() {
    local common=${_common/"\"head_dim\": 128, \"vocab_size\": 151936, "/}
    config[$1]='{'"$_dense"', "hidden_size": '$2', "intermediate_size": '$3', "num_hidden_layers": '$4',
 "num_attention_heads": '$5', "num_key_value_heads": '$6', "head_dim": '$7', "vocab_size": '$8',
 "tie_word_embeddings": '$9', '"$common"'}'
    met[$1]=$(($4 * $2 * (2 * ($5 + $6) * $7 + 3 * $3) + $2 * $8))
    heads[$1]=$(($4 * $5)) features[$1]=$7 vocabulary[$1]=$8
    rows[$1]=${10} length[$1]=${11}
}
plain heads80 1280 3456 24 16 16 80 50304 false 8 1024
plain heads96 1152 3072 24 12 4 96 50257 false 5 1777
plain heads256 1152 6912 26 4 1 256 262144 true 4 2048
plain tied 1536 8960 28 12 2 128 151936 true 3 5000

# Small ones, to be trained in seconds: 3 layers, for meshes and faults.
_small='"num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 64, "vocab_size": 1000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
    "rope_theta": 1e4, "initializer_range": 0.02, "attention_bias": false, "hidden_act": "silu",
    "torch_dtype": "bfloat16"'
declare -A small=(
    [dense]='{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "intermediate_size": 768,
    "tie_word_embeddings": true, '"$_small"'}'
    [moe]='{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 16,
    "intermediate_size": 768, "num_experts_per_tok": 4, "moe_intermediate_size": 128,
    "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "tie_word_embeddings": false, '"$_small"'}')

# Rows of different lengths.
small_data() {
    awk '# Lehmer 1951: the same numbers from every awk
        function draw() { state = state * 48271 % 2147483647; return state / 2147483647 }
        BEGIN { state = 7
        for (i = 0; i < 96; i++) {
            n = 60 + int(draw() * 200)
            printf "{\"input_ids\": ["
            for (j = 0; j < n; j++) printf "%s%d", j ? ", " : "", int(1000 * draw() ^ 3)
            print "]}"
        } }' | d9d-shard --quiet --format tokens "$@" -
}

# What words set, of which a mesh is made: dps=2 ep=2.
declare -A key_of=([pp]=mesh.pipeline_parallel [dpr]=mesh.data_parallel_replicate [dps]=mesh.data_parallel_shard
    [cpr]=mesh.context_parallel_replicate [cps]=mesh.context_parallel_shard [tp]=mesh.tensor_parallel [ep]=mesh.expert_parallel
    [schedule]=trainer.pipelining.schedule.schedule [split]=trainer.pipelining.schedule.zero_bubble
    [replication]=trainer.expert_replication [offload]=trainer.offload.activations)

# shaped CONFIG KEY=VALUE...: the same with other numbers.
shaped() {
    local text=$1 pair
    for pair in "${@:2}"; do text=$(sed -E 's/("'"${pair%%=*}"'": )[0-9.e+-]+/\1'"${pair#*=}"'/' <<<"$text"); done
    printf '%s\n' "$text"
}

# dataset DIR ROWS LENGTH [VOCABULARY]: random tokens.
dataset() {
    awk -v n="$2" -v len=$(($3 + 1)) -v ids="${4:-151936}" 'BEGIN {
        x = 1
        for (i = 0; i < n; i++) {
            printf "{\"input_ids\": ["
            for (j = 0; j < len; j++) {
                x = (x * 16807) % 2147483647
                printf "%s%d", j ? ", " : "", x % ids
            }
            print "]}"
        }
    }' | d9d-shard --quiet --format tokens --out "$1" -
}

# run_config MODEL RUN_DIR DATASET STEPS [SOURCE]: a configuration of d9d-train, for one rank, which
# updates weights as torch.optim.AdamW does those of bfloat16.  The
# checkpoint SOURCE has the weights, or they are random and RUN_DIR.config.json says of what model.
run_config() {
    cat <<JSON
{"data": {"dataset": "$3"},
 "model_provider": {"name": "auto", "hf_config": "${5:-$2.config.json}", "dtype": "bfloat16"},
 "trainer": {"run": {"name": "$1", "dir": "$2", "steps": $4},
             "batching": {"global_batch_size": ${rows[$1]}, "microbatch_size": ${rows[$1]}},
             "gradient_manager": {"grad_dtype": "bfloat16"},
             ${5:+"\"model_stage_factory\": {\"source_checkpoint\": \"$5\"},"}
             "checkpointing": {"period_steps": "disable"}},
 "optimizer": {"name": "adamw", "lr": 1e-4, "weight_update": "nearest", "state_dtype": "bfloat16"}}
JSON
}

# steps_of RUN_DIR: how many were recorded.
steps_of() { if [ -s "$1/metrics.jsonl" ]; then grep -c '"loss"' "$1/metrics.jsonl" || true; else echo 0; fi; }
# stop_after RUN_DIR STEPS PID: end the ranks that mpirun, PID, has started when so many steps are
# recorded, or let it end by itself; their memory is free then.
stop_after() {
    local rank
    while kill -0 "$3" 2>/dev/null && [ "$(steps_of "$1")" -lt "$2" ]; do sleep 0.05; done
    for rank in $(pgrep -P "$3"); do
        kill -KILL "$rank" 2>/dev/null || true
        while kill -0 "$rank" 2>/dev/null; do sleep 0.05; done
    done
    { wait "$3" || true; } 2>/dev/null
}
# timed_run MODEL RUN_DIR DATASET STEPS [OPTION...]: train a random model RUN_DIR.config.json, with more
# options of d9d-train, and print the median milliseconds of a step, the peak of GPU memory in GiB, and
# the seconds to the end of the first step.  Ended after its last step, before it writes the model.
# D9D_WARMUP: the steps before those that count (3).
timed_run() {
    local run=$2 steps=$4 start n first=''
    run_config "$1" "$run" "$3" "$steps" >"$run.train.json"
    start=$(date +%s.%N)
    ${D9D_WRAP:-} d9d-train --quiet --device "${D9D_TEST_DEVICE:-cuda}" "${@:5}" "$run.train.json" >&2 &
    local pid=$!
    while kill -0 $pid 2>/dev/null; do
        n=$(steps_of "$run")
        if [ "$n" -gt 0 ] && [ -z "$first" ]; then first=$(since "$start"); fi
        if [ "$n" -ge "$steps" ] && [ -z "${D9D_WRAP:-}" ]; then kill -KILL $pid; break; fi
        sleep 0.05
    done
    { wait $pid || true; } 2>/dev/null
    printf '%s %s %s\n' \
        "$(grep '"loss"' "$run/metrics.jsonl" | sed 's/.*"step_ms": \([0-9.]*\).*/\1/' | tail -n +$((${D9D_WARMUP:-3} + 1)) | median)" \
        "$(last_of "$run" mem_bytes | awk '{print $1 / 2^30}')" "${first:-0}"
}
# last_of RUN_DIR KEY: a number of a record.
last_of() { grep '"loss"' "$1/metrics.jsonl" | tail -n 1 | sed 's/.*"'"$2"'": \([-0-9.e+]*\).*/\1/'; }
median() { sort -n | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
since() { awk "BEGIN {printf \"%.2f\", $(date +%s.%N) - $1}"; }
