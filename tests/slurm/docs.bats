#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2164 # variables of bats and of the helper; bats ends a test that cannot cd
# The commands of the tutorials and those of the manual pages' examples, as they stand there, under a
# real Slurm of nodes with eight GPUs on paper: small models under the names of large ones, computed
# on the CPU.  Jobs are waited for, nothing else is another.

load helper
load cluster

setup_file() {
    unset "${!D9D_TRAIN@}" "${!SLURM_@}"
    cluster_can || { export cluster_why && return; }
    cluster_cpus=64 cluster_start 4
    export cluster_dir
}
teardown_file() { cluster_stop; }

setup() {
    [ -z "${cluster_why:-}" ] || skip "no Slurm here: $cluster_why"
    srun --mpi=list 2>&1 | grep -q pmix || skip "Slurm has no PMIx here"
    cd "$BATS_TEST_TMPDIR"
    # Many ranks share this host, and need not look for its network cards.
    export PATH=$D9D_BIN:$PATH OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive HWLOC_COMPONENTS=-pci,-linuxio OMPI_MCA_pml=ob1
}

# blocks FILE [LANGUAGE]: its commands, as they stand there.
blocks() { awk -v begin="\`\`\`${2:-sh}" '/^```/ { yes = $0 == begin; next } yes' "$1"; }

# What the tutorial takes for granted: the source tree, a model, a corpus.
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

@test "the tutorial from text to a tuned model, in its own words" {
    prepare
    export D9D_TRAIN_ARGS="--set trainer.run.steps=2 --set trainer.batching.global_batch_size=16"
    blocks "$top/docs/tutorial/train-qwen3.md" >commands
    [ "$(grep -c sbatch commands)" -ge 2 ]
    grep -c '^slurm/pipeline.sh --dry-run$' commands | grep -x 1
    echo 'unset -f sbatch; slurm/pipeline.sh >chain' >>commands # and not dry
    export -f sbatch wait_for job_over job_field uptime_s
    bash -eux commands || { tail -n 20 d9d-train-*.log; false; }
    grep -h "^d9d-train: job" d9d-train-*.log | grep -c "8 task(s)" | grep -x 2
    assert [ -s curves.png ]
    assert_equal "$(wc -l <answers.jsonl)" "$(wc -l <examples/generate/prompts.jsonl)"
    for dir in runs/qwen3/export runs/lora/export; do d9d-map -q verify $dir; done
    assert [ -s runs/lora/adapter/adapter_model.safetensors ]
    grep -x "metrics [0-9]*" chain
    wait_for job_over "$(awk '$1 == "metrics" { print $2 }' chain)"
    while read -r stage job; do
        assert_equal "$stage $(job_field "$job" JobState)" "$stage COMPLETED"
    done <chain
    assert_equal "$(wc -l <runs/chain/answers.jsonl)" "$(wc -l <examples/generate/prompts.jsonl)"
    assert [ -s runs/chain/report/curves.png ]

    # What the runs have recorded is in docs/reference/formats.md.
    cat runs/*/metrics.jsonl | grep -oE '"[a-z_]+":' | tr -d '":' | sort -u >keys
    [ "$(wc -l <keys)" -ge 15 ]
    while read -r key; do grep -q "\b$key\b" "$top/docs/reference/formats.md" || echo "$key"; done <keys >missing
    assert_equal "$(cat missing)" ""
}

@test "the tutorial of several nodes, what of it needs a Slurm" {
    # The nodes are one host and share the names of its memory, so messages go by TCP.
    export OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo
    ln -s "$top/examples" "$top/slurm" .
    blocks "$top/docs/tutorial/sft-chat.md" | sed '/^d9d-train/,$d' >prepare.sh
    bash -eux prepare.sh
    blocks "$top/docs/tutorial/multi-node.md" bash | sed 's|^slurm/pipeline.sh$|unset -f sbatch; & >chain|' >commands
    [ "$(grep -c '^sbatch\|>chain$' commands)" -eq 2 ]
    export -f sbatch wait_for job_over job_field uptime_s
    bash -eux commands || { tail -n 20 d9d-train-*.log; false; }
    grep -h "^d9d-train: job" d9d-train-*.log | grep "4 task(s)"
    grep -q "runs/nodes: 200 of 200 steps" d9d-train-*.log
    wait_for job_over "$(awk '$1 == "metrics" { print $2 }' chain)"
    while read -r stage job; do
        assert_equal "$stage $(job_field "$job" JobState)" "$stage COMPLETED"
    done <chain
    assert_equal "$(wc -l <runs/chain/answers.jsonl)" "$(wc -l <examples/tutorial/prompts.jsonl)"
}

# examples PAGE: the commands under EXAMPLES as a script.  A configuration is the file that the
# command behind it ends with, and what begins with a key goes into demo.json.
examples() {
    awk -v q="'" '
        /^\.Sh/ { on = $2 == "EXAMPLES" }
        !on { next }
        { gsub(/\\\(dq/, "\""); gsub(/\\e/, "\\") }
        /^\.Ed/ {
            in_block = 0
            if (block ~ /^{/) config = block
            else if (sub(/^"[a-z_]+": /, "&=", block)) {
                sub(/^"/, "", block); sub(/": =/, "=", block)
                print "d9d-train --print-config --set " q block q " demo.json"
            } else print block
        }
        in_block { block = block $0 "\n" }
        /^\.Bd -literal/ { in_block = 1; block = "" }
        sub(/^\.Dl \$ /, "") {
            if (config != "") print "cat >" $NF " <<" q "JSON" q "\n" config "JSON"
            config = ""
            print
        }' "$1"
}

# What the examples take for granted.
prepare_more() {
    local lora='peft={"kind": "lora", "module_name_pattern": ".*q_proj", "params": {"r": 2, "alpha": 4}}'
    local tokenizer=$top/examples/tokenizer/tokenizer.json name
    sed -e 's/Qwen3For/Qwen3MoeFor/; s/"qwen3"/"qwen3_moe"/; s/"hidden_act"/"num_experts": 4, &/' \
        -e 's/"rope_theta"/"moe_intermediate_size": 32, "num_experts_per_tok": 2, &/' model.json >config.json
    for name in hf/qwen3 hf/Qwen3-30B-A3B hf/Qwen3-235B-A22B; do
        d9d-map -q init --model config.json $name
        cp "$tokenizer" $name
    done
    "${CC:-cc}" -shared -fPIC -I"$top/libcore/include" -I"$top/kernels/include" -o libseed_oss.so \
        "$top/examples/plugins/seed_oss.c"
    cp -r "$top/tests/golden/plugins/seed_oss" hf/Seed-OSS-36B
    d9d-map -q --to d9d hf/qwen3 ckpt
    d9d-map -q --mapper examples/mappers/qwen3_to_torchtitan.json hf/qwen3 titan
    cp "$tokenizer" .
    mkdir web books
    head -n 300 corpus/sources.jsonl | tee books/a.jsonl | zstd -q >web/a.jsonl.zst
    d9d-shard -q -t tokenizer.json -o data/demo --max-length 64 --overflow truncate \
        --split train=80,valid=8 books/a.jsonl
    cp examples/generate/prompts.jsonl chats.jsonl
    cp examples/demo/train.json .
    printf '{"prediction": 0.%d, "target": %d}\n' 2 0 7 1 5 1 >predictions.jsonl
    examples "$top/tools/man/d9d-train.1" | sed -n '/^{/,/^JSON/p' | sed '/^JSON/,$d' >demo.json
    d9d-train -q --set trainer.run.dir=runs/tuned --set trainer.run.steps=1 --set "$lora" demo.json
    srun -n 2 --mpi=pmix d9d-train -q --set trainer.run.dir=runs/hangs --set trainer.run.steps=1 \
        --set mesh.data_parallel_shard=2 demo.json
}

@test "the examples of the manual pages" {
    prepare
    prepare_more
    command -v jq >/dev/null || { jq() { cat; } && export -f jq; }
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    [ -e "$D9D_BUILD/lib/libd9d_mpi.so.0" ] || { mpirun() { echo "built without MPI"; } && export -f mpirun; }
    export SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_TASK_COUNT=1 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_MAX=0 SLURM_ARRAY_TASK_STEP=1
    for page in train infer map shard metrics lrplot; do
        examples "$top/tools/man/d9d-$page.1" >commands
        grep -c "d9d-$page" commands
        bash -eux -o pipefail commands
        [ $page != train ] || { cp -r runs/demo runs/a && cp -r runs/demo runs/b; }
    done
    d9d-map -q verify hf/theirs
    assert [ -s p.jsonl ]
    assert [ -s loss.png ]
}
