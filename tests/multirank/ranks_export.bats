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

# train RANKS DIR KEY=VALUE...: trains a golden model for four steps.
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
    [ -z "${quiet--q}" ] || sets+=(-q)
    mpi "${first[@]}" -n "$n" "${through[@]}" d9d-train "${sets[@]}" c.json
}

@test "ranks write one model together, equal to what d9d-map makes of the checkpoint" {
    train 4 run mesh.data_parallel_shard=2 mesh.tensor_parallel=2 mesh.expert_parallel=4
    d9d-map verify -q run/export
    d9d-map -q --to hf --model "$golden/moe" run/checkpoints/step-00000004 out
    diff -r run/export out
    cmp "$golden/moe/generation_config.json" out/generation_config.json
    # The export can be repeated.
    mv run/export first
    train 2 run mesh.data_parallel_shard=2
    diff -r first run/export
}

@test "one rank and several copy the same files of the source model, and no others" {
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

@test "a run without checkpoints exports the same files and leaves no others" {
    train 2 kept mesh.data_parallel_shard=2
    train 2 none mesh.data_parallel_shard=2 trainer.checkpointing.period_steps=disable
    diff -r kept/export none/export
    [ ! -e none/export.parts ]
}

@test "a model that HuggingFace's format cannot express is exported in d9d's layout" {
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

@test "a self-test compares the job's ranks with one, and leaves no files" {
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
    # Files of others stay, those of a killed self-test go, and the self-test leaves none of its own.
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

@test "a self-test waits for the single-rank reference without a timeout" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    train 1 run trainer.run.steps=1 # for c.json
    ${CC:-cc} -shared -fPIC -o late.so "$BATS_TEST_DIRNAME/slow_mkdir_preload.c"
    # A timeout that ranks on a busy machine keep while they start.
    run -0 mpi -n 2 -x LD_PRELOAD="$PWD/late.so" -x SLOW_MKDIR_S=33 d9d-train --selftest --set trainer.run.dir=new \
        --set mesh.data_parallel_shard=2 --set trainer.timeout.init_timeout=30 c.json
    assert_output --partial "2 ranks (dps 2) compute what one computes"
}

@test "a self-test runs the first steps at the full learning rate, whatever the length of the run" {
    train 1 run trainer.run.steps=1 # for c.json
    warm='{"mode": "steps", "steps": 9, "target_multiplier": 1}, {"mode": "rest", "target_multiplier": 0}'
    warm="lr_scheduler={\"name\": \"piecewise\", \"scheduler\": {\"initial_multiplier\": 0, \"phases\": [$warm]}}"
    selftest=(mpi -n 2 d9d-train --selftest --set trainer.run.dir=new --set mesh.data_parallel_shard=2)
    run -0 --separate-stderr "${selftest[@]}" c.json
    four=$output
    run -0 --separate-stderr "${selftest[@]}" --set trainer.run.steps=20 --set "$warm" c.json 3>&-
    assert_equal "$(sed '$d' <<<"$output" | cut -c 1-15)" "$(sed '$d' <<<"$four" | cut -c 1-15)"
    run -0 --separate-stderr "${selftest[@]}" --set trainer.batching.global_batch_size=40 --set trainer.run.steps=null c.json 3>&-
    [ "${#lines[@]}" -eq 4 ] # the run has only two steps
    evaluated='"at_start": true, "period_steps": 1}'
    run -0 --separate-stderr "${selftest[@]}" --set "evaluation={\"data\": {\"dataset\": \"data\"}, $evaluated" c.json 3>&-
    assert_equal "$output" "$four" # only the steps are compared
    run -2 "${selftest[@]}" --set "evaluation={\"data\": {\"dataset\": \"nowhere\"}, $evaluated" c.json 3>&- # rejected as in a job
    assert_output --partial "nowhere"
    run -2 "${selftest[@]}" --set trainer.run.steps=5 --set "$warm" c.json 3>&-
    assert_output --partial "phases[1]: ends at step 5 of 5, before it begins at 9"
}

@test "a user's files beside an unfinished export are not removed" {
    mkdir -p run/export.parts && echo mine >run/export.parts/notes
    train 2 run mesh.data_parallel_shard=2 trainer.checkpointing.period_steps=disable
    [ -e run/export/model.safetensors ]
    assert_equal "$(ls -A run/export.parts)" notes
    assert_equal "$(cat run/export.parts/notes)" mine
}

# On NFS a file that is removed while another rank has it open is renamed instead, so that its
# directory cannot be removed.
@test "temporary files of an export are removed after every rank has closed them" {
    command -v strace >/dev/null || skip "no strace"
    first=(-n 1 strace -f -qq -ttt -y -e "trace=unlink,unlinkat,rmdir" -o "$PWD/removed" d9d-train -q --set trainer.run.dir=run
        --set mesh.data_parallel_shard=2 --set trainer.checkpointing.period_steps=disable c.json :)
    through=(strace -f -qq -ttt -y -e trace=close -e inject=close:delay_enter=10000 -o "$PWD/closed")
    train 1 run mesh.data_parallel_shard=2 trainer.checkpointing.period_steps=disable
    [ ! -e run/export.parts ]
    last=$(awk '/export\.parts.*safetensors/ { t = $2 } END { print t }' closed)
    removed_at=$(awk '/"model-r0000/ { print $2; exit }' removed)
    echo "closed $last, removed $removed_at"
    awk -v c="$last" -v g="$removed_at" 'BEGIN { exit !(c > 0 && g > c) }'
}
