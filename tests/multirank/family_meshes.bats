#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of what is loaded
# What families need on meshes beside their shares of family_meshes_1 and the others.

load family_meshes

setup_file() { workroom; }

# Heads that three ranks divide, and weights as a model begins with.  Those of the golden cases are ten times larger.
# There float32 grows apart from float64 by its own rounding, tenfold a step: the fourth norm of such a model of four
# layers by 1.3e-3 on one rank, and by 3e-4 on tp 3 pp 2.
@test "Qwen3-Next on three tensor-parallel ranks of two stages equals one rank" {
    configure qwen3_next
    sed -E 's/("linear_num_key_heads"|"num_key_value_heads"): [0-9]+/\1: 3/
            s/("linear_num_value_heads"|"num_attention_heads"): [0-9]+/\1: 6/
            s/"vocab_size": 53/"vocab_size": 54/' "$golden/qwen3_next/config.json" >three_heads.json
    [ "$(grep -cE '"linear_num_key_heads": 3|"num_attention_heads": 6|"initializer_range": 0.02' three_heads.json)" -eq 3 ]
    cat >three.json <<'JSON'
{"data": {"dataset": "data-qwen3_next", "epochs": 16, "order": "sequential"},
 "model_provider": {"name": "qwen3_next", "hf_config": "three_heads.json"},
 "trainer": {"run": {"name": "three", "dir": "one-three", "steps": 16},
  "batching": {"global_batch_size": 8, "microbatch_size": 1}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
    d9d-train -q --device cpu three.json
    [ "$(numbers one-three | wc -l)" -eq 32 ]
    for stages in 1 2; do
        rm -rf mesh
        mpi -n $((3 * stages)) d9d-train -q --device cpu --set trainer.run.dir=mesh --set mesh.tensor_parallel=3 \
            --set mesh.pipeline_parallel=$stages three.json
        close_to 1e-6 <(numbers mesh) <(numbers one-three)
    done
}

@test "learnt positions are those of a rank's own tokens in generation too" {
    cat >generate.json <<JSON
{"model_provider": {"name": "gpt2", "hf_config": "$golden/gpt2/config.json"},
 "mesh": {"tensor_parallel": 2}, "trainer": {"batching": {"microbatch_size": 2},
  "model_stage_factory": {"source_checkpoint": "$golden/gpt2"}},
 "task": {"name": "generate", "prompts": "$golden/gpt2/generate.jsonl", "max_new_tokens": 6,
  "stop_at_eos": false, "output": "tokens.jsonl"}}
JSON
    mpi -n 2 d9d-infer -q --device cpu generate.json
    diff <(sed 's/.*"tokens": \[//; s/\].*//' tokens.jsonl) <(sed 's/.*"tokens": \[//; s/\].*//' "$golden/gpt2/generate.jsonl")
}
