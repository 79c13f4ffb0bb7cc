# shellcheck shell=bash disable=SC2034,SC2154 # variables are for and of those that load it
# train_helper.bash - small runs for train.bats and infer.bats; load it after helper.
golden=$(cd "$BATS_TEST_DIRNAME/../golden" && pwd)
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 # what tiny models need
unset SLURM_JOB_ID SLURM_JOB_START_TIME SLURM_JOB_END_TIME SLURM_STEP_NUM_TASKS OMPI_COMM_WORLD_SIZE

# workshop, once a file: a directory $shared with a dataset and configurations of both programs.
workshop() {
    shared=$(workplace)
    export shared
    cd "$shared" || return 1
    dataset data
    run_config moe >c.json
    infer_config '{"name": "logprobs", "output": "out.jsonl"}' >i.json
}

# bench, for each test: a directory $work of its own with all of that; clear_bench removes it.
bench() {
    work=$(workplace)
    cd "$work" || return 1
    ln -s "$shared/data" data
    cp "$shared"/*.json .
}
clear_bench() { cd / && rm -rf "$work"; }

# dataset DIR [CASE]: the 80 samples of a golden case.
dataset() {
    d9d-shard -q --format tokens --out "$1" "$golden/${2:-moe}/train.jsonl"
}

# run_config [CASE]: a configuration of d9d-train on ./data, without periods.
run_config() {
    local name=qwen3_dense
    ! grep -q '"model_type": "qwen3_moe"' "$golden/${1:-moe}/config.json" || name=qwen3_moe
    cat <<JSON
{"data": {"dataset": "data"},
 "model_provider": {"name": "$name", "hf_config": "$golden/${1:-moe}/config.json"},
 "trainer": {"run": {"name": "small", "dir": "run"},
   "batching": {"global_batch_size": 4, "microbatch_size": 2},
   "model_stage_factory": {"source_checkpoint": "$golden/${1:-moe}"},
   "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1}}
JSON
}

# random_tokens N LENGTH: N samples of LENGTH + 1 tokens below 64, which are the same in every awk.
random_tokens() {
    awk -v n="$1" -v len="$2" 'BEGIN { x = 1; for (i = 0; i < n; i++) { printf "{\"input_ids\": ["
        for (j = 0; j <= len; j++) { x = (x * 16807) % 2147483647; printf "%s%d", j ? ", " : "", x % 64 }
        print "]}" } }'
}
# layers N STEPS BATCH MICROBATCH [KEYS]: a configuration of a dense model with random weights on ./text, of N layers;
# activations and gradients of six are much of its memory.  KEYS of the trainer begin with a comma.
layers() {
    cat <<JSON
{"data": {"dataset": "text"},
 "model_provider": {"name": "qwen3_dense", "model": {"num_hidden_layers": $1,
   "layer": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
     "rms_norm_eps": 1e-6, "intermediate_size": 128}, "rope_base": 10000, "max_position_ids": 128,
   "initializer_range": 0.02, "split_vocab_size": {"regular": 64}, "split_vocab_order": ["regular"]}},
 "trainer": {"run": {"name": "small", "dir": "run", "steps": $2},
   "batching": {"global_batch_size": $3, "microbatch_size": $4}${5:-}},
 "optimizer": {"name": "adamw", "lr": 3e-3}}
JSON
}

# infer_config TASK-JSON
infer_config() {
    cat <<JSON
{"data": {"dataset": "data"},
 "model_provider": {"name": "qwen3_moe", "hf_config": "$golden/moe/config.json"},
 "trainer": {"batching": {"microbatch_size": 3},
   "model_stage_factory": {"source_checkpoint": "$golden/moe"}},
 "task": $1}
JSON
}

# last_number FILE KEY: of the last line that has it.
last_number() { grep -o "\"$2\": [0-9.e+-]*" "$1" | tail -1 | sed 's/.* //'; }

# How many steps were recorded; what they found out, without times and memory.
records() { grep -c '"loss"' "$1/metrics.jsonl"; }
history_of() { grep '"loss"' "$1/metrics.jsonl" | sed 's/, "step_ms".*//'; }

# same_run A B [STEP]: losses, norms, the model and (with STEP) every byte of that checkpoint.
same_run() {
    diff <(history_of "$1") <(history_of "$2") &&
        cmp "$1/export/model.safetensors" "$2/export/model.safetensors" || return
    [ -n "${3:-}" ] || return 0
    cmp "$1/checkpoints/step-$3"/ranks-00000/model-r00000.safetensors "$2/checkpoints/step-$3"/ranks-00000/model-r00000.safetensors &&
        cmp "$1/checkpoints/step-$3"/ranks-00000/optimizer-r00000.safetensors "$2/checkpoints/step-$3"/ranks-00000/optimizer-r00000.safetensors
}

# has_part LINES: so many in the unfinished out.jsonl of d9d-infer, then $part.
has_part() { part=$(ls out.jsonl.part-* 2>/dev/null) && has_lines "$part" "$1"; }

# ends STATUS [STATUS...]: the child $pid ends with one of these; 128 + N when signal N ended it.
ends() {
    local got=0
    wait "$pid" 2>/dev/null || got=$?
    [[ " $* " == *" $got "* ]] || { echo "exit status $got, must be $*"; return 1; }
}

# says STATUS SENTENCE COMMAND...: this exit status, and the last line on stderr has SENTENCE.
says() {
    local status=$1 sentence=$2
    shift 2
    run -"$status" --separate-stderr "$@"
    [[ "${stderr_lines[-1]}" == *"$sentence"* ]] || {
        printf 'says: %s\nmust say: %s\n' "${stderr_lines[-1]}" "$sentence"
        return 1
    }
}
