#!/usr/bin/env bats
# The commands of README.md, as they stand there, under a real Slurm with a node of eight GPUs on
# paper: a small model called Qwen3-8B, computed on the CPU.  Jobs are waited for, nothing else is
# another.

load helper
load cluster

setup_file() {
    unset "${!D9D_TRAIN@}" "${!SLURM_@}"
    cluster_can || { export cluster_why && return; }
    cluster_cpus=64 cluster_start 1
    export cluster_dir
}
teardown_file() { cluster_stop; }

setup() {
    [ -z "${cluster_why:-}" ] || skip "no Slurm here: $cluster_why"
    srun --mpi=list 2>&1 | grep -q pmix || skip "Slurm has no PMIx here"
    cd "$BATS_TEST_TMPDIR"
    export PATH=$D9D_BIN:$PATH
}

# blocks FILE: its commands, as they stand there.
blocks() { awk '/^```/ { yes = $0 == "```sh"; next } yes' "$1"; }

# What README.md takes for granted: the source tree, a model, a corpus.
prepare() {
    ln -s "$top/examples" "$top/slurm" .
    cat >model.json <<'JSON'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 2048,
 "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "head_dim": 8, "intermediate_size": 64, "hidden_act": "silu", "rms_norm_eps": 1e-6,
 "rope_theta": 10000.0, "max_position_embeddings": 4096, "tie_word_embeddings": false,
 "eos_token_id": 2043, "torch_dtype": "bfloat16"}
JSON
    d9d-map -q init --model model.json --dtype bfloat16 Qwen3-8B
    cp "$top/examples/tokenizer/tokenizer.json" Qwen3-8B
    mkdir corpus
    cat "$top"/libcore/*/*.[ch] | awk -v RS= '{
        gsub(/[^ -~\n]|[\\"]/, ""); gsub(/\n/, "\\n")
        print "{\"text\": \"" $0 "\"}"
    }' >corpus/sources.jsonl
}

sbatch() { # and wait for its end, which --wait looks for seldom
    local job
    job=$(command sbatch --parsable "$@")
    wait_for job_over "$job"
    [ "$(job_field "$job" JobState)" = COMPLETED ]
}

@test "README.md from text to a tuned model, in its own words" {
    prepare
    # Eight ranks share this host, and two small steps are enough.
    export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
    export D9D_TRAIN_ARGS="--set trainer.run.steps=2 --set trainer.batching.global_batch_size=16"
    blocks "$top/README.md" >commands
    [ "$(grep -c sbatch commands)" -ge 2 ]
    export -f sbatch wait_for job_over job_field
    bash -eux commands || { tail -n 20 d9d-train-*.log; false; }
    grep -h "^d9d-train: job" d9d-train-*.log | grep -c "8 task(s)" | grep -x 2
    assert [ -s curves.png ]
    assert_equal "$(wc -l <answers.jsonl)" "$(wc -l <examples/generate/prompts.jsonl)"
    for dir in runs/qwen3/export runs/lora/export; do d9d-map -q verify $dir; done
    assert [ -s runs/lora/adapter/adapter_model.safetensors ]

    # What the runs have recorded is in docs/formats.md.
    cat runs/*/metrics.jsonl | grep -oE '"[a-z_]+":' | tr -d '":' | sort -u >keys
    [ "$(wc -l <keys)" -ge 15 ]
    while read -r key; do grep -q "\b$key\b" "$top/docs/formats.md" || echo "$key"; done <keys >missing
    assert_equal "$(cat missing)" ""
}
