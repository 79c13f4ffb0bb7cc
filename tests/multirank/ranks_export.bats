#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of the helper
# Several ranks export a model that none of them holds completely.

load ../slurm/helper
load launch

setup_file() { no_launcher; }
setup() {
    with_mpi
    golden=$(cd "$BATS_TEST_DIRNAME/../golden" && pwd)
    PATH=$D9D_BUILD/bin:$PATH
    cd "$BATS_TEST_TMPDIR" || return 1
    d9d-shard -q --format tokens --out data "$golden/moe/train.jsonl"
}

# train RANKS DIR SET...: four steps of a golden model; a change of the configuration each.
train() {
    local n=$1 sets=(--set "trainer.run.dir=$2") s
    shift 2
    for s; do sets+=(--set "$s"); done
    cat >c.json <<JSON
{"data": {"dataset": "data"},
 "model_provider": {"name": "qwen3_moe", "hf_config": "$golden/moe/config.json"},
 "trainer": {"run": {"name": "small", "steps": 4},
   "batching": {"global_batch_size": 4, "microbatch_size": 1},
   "model_stage_factory": {"source_checkpoint": "$golden/moe"}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
    mpi "${first[@]}" -n "$n" "${through[@]}" d9d-train ${quiet--q} "${sets[@]}" c.json
}

@test "every rank writes a share of one model, the same as d9d-map makes of the checkpoint" {
    train 4 run mesh.data_parallel_shard=2 mesh.tensor_parallel=2 mesh.expert_parallel=4
    d9d-map verify -q run/export
    d9d-map -q --to hf --model "$golden/moe" run/checkpoints/step-00000004 out
    diff -r run/export out
    cmp "$golden/moe/generation_config.json" out/generation_config.json
    # What was exported can be made again.
    mv run/export first
    train 2 run mesh.data_parallel_shard=2
    diff -r first run/export
}

@test "one rank and several copy the same files of the model, and none that lie beside them" {
    cp -r "$golden/moe" model && chmod -R u+w model
    mkdir -p model/1_Pooling model/runs/old model/data
    touch model/.env model/corpus.jsonl model/plugin.so model/runs/old/metrics.jsonl model/data/index.lmdb
    echo '{}' | tee model/tokenizer.json model/LICENSE >model/1_Pooling/config.json
    for n in 1 2; do
        quiet="" run -0 train $n "run$n" "model_provider.hf_config=\"model/config.json\"" \
            mesh.data_parallel_shard=$n
        [ "$(grep -c 'not copied, no files of a model: corpus.jsonl, data, .*, plugin.so, runs' <<<"$output")" -eq 1 ]
        (cd "run$n/export" && find . | sort) >"files$n"
        d9d-map verify -q "run$n/export"
    done
    diff files1 files2
    [ "$(tr '\n' ' ' <files1)" = ". ./1_Pooling ./1_Pooling/config.json ./LICENSE ./config.json ./generation_config.json ./manifest.json ./model.safetensors ./tokenizer.json " ]
}

@test "a run that keeps no checkpoints exports the same, and leaves nothing besides" {
    train 2 kept mesh.data_parallel_shard=2
    train 2 none mesh.data_parallel_shard=2 trainer.checkpointing.period_steps=disable
    diff -r kept/export none/export
    [ ! -e none/export.parts ]
}

@test "a model that HuggingFace cannot say is exported in d9d's own layout" {
    mkdir own && cat >own/c.json <<JSON
{"data": {"dataset": "data"},
 "mesh": {"data_parallel_shard": 2},
 "model_provider": {"name": "qwen3_dense", "model": {"rope_base": 10000, "max_position_ids": 512,
   "num_hidden_layers": 1, "split_vocab_size": {"regular": 150, "special": 7},
   "split_vocab_order": ["regular", "special"],
   "layer": {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2,
     "num_key_value_heads": 1, "head_dim": 8, "rms_norm_eps": 1e-6}}},
 "trainer": {"run": {"name": "own", "dir": "run", "steps": 2},
   "batching": {"global_batch_size": 4, "microbatch_size": 1}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
    mpi -n 2 d9d-train -q own/c.json
    [ ! -e run/export/config.json ]
    d9d-map diff -q run/export run/checkpoints/step-00000002
}

@test "a self-test compares the job's ranks with one, and leaves nothing" {
    n=4
    train $n run mesh.data_parallel_shard=2 mesh.tensor_parallel=2 trainer.run.steps=1
    for set in "float32 1e-05" "bfloat16 1e-02"; do
        run -0 --separate-stderr mpi -n $n d9d-train -q --selftest --set trainer.run.dir=new \
            --set mesh.data_parallel_shard=2 --set mesh.tensor_parallel=2 --set "model_provider.dtype=${set% *}" c.json 3>&-
        [ "${#lines[@]}" -eq 0 ] # quiet
        run -0 --separate-stderr mpi -n $n d9d-train --selftest --set trainer.run.dir=new \
            --set mesh.data_parallel_shard=2 --set mesh.tensor_parallel=2 --set "model_provider.dtype=${set% *}" c.json 3>&-
        [[ "${lines[5]}" == "4 ranks (dps 2 tp 2) compute what one computes: "*" apart at most, ${set#* } allowed" ]]
    done
    run -2 d9d-train --selftest c.json
    assert_output --partial "compares ranks with one"
    selftest=(mpi -n 2 d9d-train -q --selftest --set mesh.data_parallel_shard=2)
    # What is there is another's, but for what a killed one left; of what was made for it nothing stays.
    mkdir -p new.selftest new.selftest.tmp-1-0/mesh && touch new.selftest/x
    run -0 "${selftest[@]}" --set trainer.run.dir=new c.json
    [ -e new.selftest/x ]
    [ ! -e new ]
    [ ! -e new.selftest.tmp-1-0 ]
    run -0 "${selftest[@]}" --set trainer.run.dir=deep/er/new c.json
    [ ! -e deep ]
    mkdir deep
    run -0 "${selftest[@]}" --set trainer.run.dir=deep/er/new c.json
    [ -z "$(ls -A deep)" ]
}

@test "a self-test waits for the rank that computes alone as long as it takes" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    train 1 run trainer.run.steps=1 # for c.json
    ${CC:-cc} -shared -fPIC -o late.so "$BATS_TEST_DIRNAME/slow_mkdir_preload.c"
    # A timeout that ranks on a busy machine keep while they start.
    run -0 mpi -n 2 -x LD_PRELOAD="$PWD/late.so" -x SLOW_MKDIR_S=33 d9d-train --selftest --set trainer.run.dir=new \
        --set mesh.data_parallel_shard=2 --set trainer.timeout.init_timeout=30 c.json
    assert_output --partial "2 ranks (dps 2) compute what one computes"
}

@test "a self-test takes the first steps of a run of any length, at the full rate" {
    train 1 run trainer.run.steps=1 # for c.json
    warm='{"mode": "steps", "steps": 9, "target_multiplier": 1}, {"mode": "rest", "target_multiplier": 0}'
    warm="lr_scheduler={\"name\": \"piecewise\", \"scheduler\": {\"initial_multiplier\": 0, \"phases\": [$warm]}}"
    selftest=(mpi -n 2 d9d-train --selftest --set trainer.run.dir=new --set mesh.data_parallel_shard=2)
    run -0 --separate-stderr "${selftest[@]}" c.json
    four=$output
    run -0 --separate-stderr "${selftest[@]}" --set trainer.run.steps=20 --set "$warm" c.json 3>&-
    assert_equal "$(sed '$d' <<<"$output" | cut -c 1-15)" "$(sed '$d' <<<"$four" | cut -c 1-15)"
    run -0 --separate-stderr "${selftest[@]}" --set trainer.batching.global_batch_size=40 --set trainer.run.steps=null c.json 3>&-
    [ "${#lines[@]}" -eq 4 ] # two steps are all
    evaluated='"at_start": true, "period_steps": 1}'
    run -0 --separate-stderr "${selftest[@]}" --set "evaluation={\"data\": {\"dataset\": \"data\"}, $evaluated" c.json 3>&-
    assert_equal "$output" "$four" # the steps alone are compared
    run -2 "${selftest[@]}" --set "evaluation={\"data\": {\"dataset\": \"nowhere\"}, $evaluated" c.json 3>&- # as the job
    assert_output --partial "nowhere"
    run -2 "${selftest[@]}" --set trainer.run.steps=5 --set "$warm" c.json 3>&-
    assert_output --partial "phases[1]: ends at step 5 of 5, before it begins at 9"
}

@test "what a user has beside the parts of an export stays" {
    mkdir -p run/export.parts && echo mine >run/export.parts/notes
    train 2 run mesh.data_parallel_shard=2 trainer.checkpointing.period_steps=disable
    [ -e run/export/model.safetensors ]
    assert_equal "$(ls -A run/export.parts)" notes
    assert_equal "$(cat run/export.parts/notes)" mine
}

# On NFS a file that is removed while another rank has it open stays under another name, and keeps
# its directory from being removed.
@test "what the model is made of goes when every rank has closed it" {
    command -v strace >/dev/null || skip "no strace"
    first=(-n 1 strace -f -qq -ttt -y -e trace=unlink,unlinkat,rmdir -o "$PWD/removed" d9d-train -q --set trainer.run.dir=run
        --set mesh.data_parallel_shard=2 --set trainer.checkpointing.period_steps=disable c.json :)
    through=(strace -f -qq -ttt -y -e trace=close -e inject=close:delay_enter=10000 -o "$PWD/closed")
    train 1 run mesh.data_parallel_shard=2 trainer.checkpointing.period_steps=disable
    [ ! -e run/export.parts ]
    last=$(awk '/export\.parts.*safetensors/ { t = $2 } END { print t }' closed)
    gone=$(awk '/"model-r0000/ { print $2; exit }' removed)
    echo "closed $last, removed $gone"
    awk -v c="$last" -v g="$gone" 'BEGIN { exit !(c > 0 && g > c) }'
}
