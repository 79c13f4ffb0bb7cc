#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of the helper
# The whole workflow with the real tools under a real Slurm of two nodes on this host.  Inputs are
# text and a HuggingFace checkpoint; outputs are a trained and exported model, its perplexity and a
# report.  A signal stops training on the way, and a restart resumes it.

load helper
load cluster

setup_file() {
    unset "${!SLURM_@}"
    cluster_can || { export cluster_why && return; }
    cluster_start 2
    export cluster_dir
}
teardown_file() { cluster_stop; }

setup() {
    [ -z "${cluster_why:-}" ] || skip "no Slurm here: $cluster_why"
    for name in shard map train infer metrics; do
        [ -x "${D9D_BIN:?}/d9d-$name" ] || skip "d9d-$name is not built"
    done
    cd "$BATS_TEST_TMPDIR" || return 1
    PATH=$D9D_BIN:$PATH
}

# A small model over the demo's tokenizer, and headers of this project as text.
prepare() {
    local tokenizer=$top/examples/tokenizer/tokenizer.json
    cat >model.json <<JSON
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 2048,
 "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "head_dim": 16, "intermediate_size": 128, "moe_intermediate_size": 48, "num_experts": 4,
 "num_experts_per_tok": 2, "norm_topk_prob": true, "decoder_sparse_step": 1,
 "mlp_only_layers": [], "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
 "max_position_embeddings": 128, "tie_word_embeddings": true, "initializer_range": 0.02,
 "torch_dtype": "float32"}
JSON
    cat >train.json <<'JSON'
{"data": {"dataset": "set by the script", "order": "shuffled", "seed": 1, "epochs": 1000},
 "model_provider": {"name": "qwen3_moe", "hf_config": "hf/config.json"},
 "trainer": {"run": {"name": "chain", "steps": 1200},
             "batching": {"global_batch_size": 4, "microbatch_size": 2},
             "checkpointing": {"period_steps": 200, "num_to_keep": 2, "save_dir": "saved"},
             "gradient_clipping": {"max_norm": 1.0},
             "timeout": {"save_margin": 0}},
 "optimizer": {"name": "adamw", "lr": 3e-3}}
JSON
    cat >infer.json <<'JSON'
{"data": {"dataset": "set by the script", "split": "valid"},
 "model_provider": {"name": "qwen3_moe", "hf_config": "hf/config.json"},
 "trainer": {"batching": {"microbatch_size": 4}},
 "task": {"name": "perplexity", "output": "perplexity.json"}}
JSON
    d9d-map init --model model.json --seed 1 hf
    export D9D_INPUT D9D_TOKENIZER=$tokenizer D9D_DATASET=data
    D9D_INPUT=$(echo "$top"/libcore/include/d9d/*/*.h)
    export D9D_SHARD_ARGS="--format text --append-eos <|endoftext|> --max-length 64 --overflow split --split train=0.8,valid=0.2"
    export D9D_SOURCE=hf D9D_CKPT=ckpt D9D_CONFIG=train.json D9D_RUN_DIR=run D9D_EXPORT=export
    export D9D_INFER_CONFIG=infer.json D9D_SBATCH="-c 1"
    srun --mpi=list 2>&1 | grep -q pmix || export D9D_SRUN_ARGS='' # an installation without PMIx
}

@test "the real chain, with a training job that is stopped and goes on" {
    prepare
    run -0 --separate-stderr "$scripts/pipeline.sh"
    jobs=$output
    train=$(awk '$1 == "train" { print $2 }' <<<"$jobs")
    last=$(awk '$1 == "metrics" { print $2 }' <<<"$jobs")
    wait_for has_lines run/metrics.jsonl 10 || { cat logs/*.log && false; }
    scancel --signal=TERM "$train"
    wait_for job_over "$last"
    cat logs/*.log
    while read -r stage job; do
        assert_equal "$stage $(job_field "$job" JobState)" "$stage COMPLETED"
    done <<<"$jobs"
    assert_equal "$(job_field "$train" Restarts)" 1
    grep -q "saved at step [1-9][0-9]*; the job is to be requeued" "logs/d9d-train-$train.log"

    # Every step is there once, in order, over both attempts.
    assert_equal "$(grep -c '"restart"' run/metrics.jsonl)" 1
    assert_equal "$(sed -nE '/"(restart|end)"/d; s/.*"step": ?([0-9]+)[,}].*/\1/p' run/metrics.jsonl | tr '\n' ' ')" "$(seq 1200 | tr '\n' ' ')"
    assert [ -s export/config.json ]
    assert [ -s export/model.safetensors ]
    assert [ -s perplexity.json ]
    assert [ -s run/report/curves.svg ]
    grep -q loss run/report/summary.txt
    d9d-map verify export
}

@test "an array of shard tasks and a merge give what one run gives" {
    prepare
    D9D_SHARD_ARGS+=" --unit-size 20kB"
    read -ra inputs <<<"$D9D_INPUT"
    read -ra options <<<"$D9D_SHARD_ARGS"
    d9d-shard -q --tokenizer "$D9D_TOKENIZER" --out one "${options[@]}" "${inputs[@]}"
    D9D_SHARD_TASKS=3 D9D_DATASET=all run -0 --separate-stderr "$scripts/pipeline.sh" --to merge
    last=$(awk '$1 == "merge" { print $2 }' <<<"$output")
    wait_for job_over "$last" || { cat logs/*.log && false; }
    cat logs/*.log
    assert_equal "$(job_field "$last" JobState)" COMPLETED
    diff -r one all
    assert [ ! -e all.parts ]
}
