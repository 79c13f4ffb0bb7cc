#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helpers
# Ranks that were started with different command lines, or see different files under the same names,
# are rejected before anything is made.

load ../slurm/helper
load launch
load ../tools/train_bench

setup_file() { no_launcher && workshop; }
setup() {
    with_mpi
    bench
    mkdir other
    cp -r "$shared/data" other/data
    cp c.json i.json other/
    cp -r "$golden/moe" ckpt && cp -r ckpt other/
}

options=(-q --device cpu --set trainer.batching.microbatch_size=1 --set mesh.data_parallel_shard=2)

# refused MESSAGE: checks that rank 1 printed MESSAGE once and nothing was written.
refused() {
    [ "$status" -eq 2 ]
    [ "$(grep -c '^d9d-[a-z]*: invalid configuration: ' <<<"$output")" -eq 1 ]
    assert_line --regexp "^d9d-[a-z]*: invalid configuration: rank 1 \(.*\): $1"
    [ ! -e run/metrics.jsonl ] && [ ! -e out.jsonl ]
}
# another OPTION...: runs two ranks; rank 1 has these additional options.
another() { run mpi -n 1 d9d-train "${options[@]}" c.json : -n 1 d9d-train "${options[@]}" "$@" c.json; }
# elsewhere COMMAND...: runs two ranks; rank 1 in another directory.
elsewhere() { run mpi -n 1 "$@" : -n 1 -wdir "$work/other" "$@"; }

@test "a different configuration is reported with the key and both values" {
    another --set optimizer.lr=0.5
    refused 'optimizer\.lr is 0\.5 here and 0\.001 on rank 0'
    another --set optimizer.name=sgd
    refused 'optimizer\.name is "sgd" here and "adamw" on rank 0'
    another --set 'evaluation={"data": {"dataset": "data"}}'
    refused 'evaluation is \{"name": ?"valid".* here and \[\] on rank 0'
    another --set trainer.run.hparams.tried=7
    refused 'trainer\.run\.hparams\.tried is 7 here and absent on rank 0'
    another --set "trainer.run.description=$(printf 'x%.0s' {1..20000})"
    refused 'trainer.run.description is "xxxx.* here and null on rank 0'
}

@test "a different program is rejected" {
    another --selftest
    refused 'this is d9d-train [0-9.]* --selftest, and rank 0 is d9d-train [0-9.]*$'
    run mpi -n 1 d9d-infer -q --device cpu i.json : -n 1 d9d-train "${options[@]}" c.json
    refused 'this is d9d-train [0-9.]*, and rank 0 is d9d-infer [0-9.]*$'
}

@test "different samples, weights or architecture under the same name are rejected" {
    train=(d9d-train "${options[@]}" --set "trainer.run.dir=$work/run")
    weights=(--set trainer.model_stage_factory.source_checkpoint=ckpt)
    elsewhere "${train[@]}" "${weights[@]}" --set model_provider.hf_config=ckpt/config.json c.json
    [ "$status" -eq 0 ]
    cp run/export/model.safetensors other/ckpt/
    rm -rf run
    elsewhere "${train[@]}" "${weights[@]}" c.json
    refused 'ckpt: is another one here than on rank 0'
    elsewhere d9d-infer -q --device cpu --set mesh.data_parallel_shard=2 "${weights[@]}" i.json
    refused 'ckpt: is another one here than on rank 0'
    sed 's/\("rope_theta": *\)[0-9.]*/\177/' ckpt/config.json >other/ckpt/config.json
    elsewhere "${train[@]}" --set model_provider.hf_config=ckpt/config.json c.json
    refused 'ckpt/config.json: is another one here than on rank 0'
    rm -r other/data
    head -n 79 "$golden/moe/train.jsonl" | d9d-shard -q --format tokens --out other/data -
    elsewhere "${train[@]}" c.json
    refused 'data: is another one here than on rank 0'
    cp -r "$shared/data" other/valid && cp -r other/data valid
    rm -r other/data && cp -r "$shared/data" other/data
    elsewhere "${train[@]}" --set 'evaluation={"data": {"dataset": "valid"}}' c.json
    refused 'valid: is another one here than on rank 0'
}

@test "a different dataset of a blend, skip list or evaluation is rejected" {
    train=(d9d-train "${options[@]}" --set "trainer.run.dir=$work/run")
    head -n 79 "$golden/moe/train.jsonl" | d9d-shard -q --format tokens --out other/valid -
    cp -r data valid
    elsewhere "${train[@]}" --set 'data=[{"dataset": "data", "weight": 3}, {"dataset": "valid"}]' c.json
    refused 'valid: is another one here than on rank 0'
    echo 3 >skip.txt && echo 4 >other/skip.txt
    elsewhere "${train[@]}" --set data.skip_samples=skip.txt c.json
    refused 'skip.txt: is another one here than on rank 0'
    for i in {1..19}; do evaluations+="{\"name\": \"e$i\", \"data\": {\"dataset\": \"data\"}}, "; done
    elsewhere "${train[@]}" --set "evaluation=[$evaluations{\"data\": {\"dataset\": \"valid\"}}]" c.json
    refused 'valid: is another one here than on rank 0'
}

@test "a run directory that is not shared is rejected" {
    elsewhere d9d-train "${options[@]}" c.json
    [ "$status" -eq 2 ]
    assert_line --regexp '^d9d-train: invalid configuration: rank 1 \(.*\): run: is not the run directory that rank 0 has under this name'
    run -1 grep '"loss"' run/metrics.jsonl
}

@test "a checkpoint directory that is not shared or not writable on one rank is rejected" {
    elsewhere d9d-train "${options[@]}" --set "trainer.run.dir=$work/run" --set trainer.checkpointing.save_dir=saved c.json
    [ "$status" -eq 2 ]
    assert_line --regexp '^d9d-train: invalid configuration: rank 1 \(.*\): saved: is not the checkpoint directory that rank 0 has'
    run -1 grep '"loss"' run/metrics.jsonl
    unshare -m true 2>/dev/null || skip "no name spaces"
    for kind in "-o remount,ro,bind" "-o size=4k -t tmpfs none"; do
        rm -rf run && mkdir -p run/checkpoints
        # shellcheck disable=SC2016 # expanded by the other shell
        run mpi -n 1 d9d-train "${options[@]}" c.json : -n 1 unshare -m \
            bash -c 'mount --bind run/checkpoints run/checkpoints && mount $0 run/checkpoints && exec "$@"' "$kind" d9d-train "${options[@]}" c.json
        [ "$status" -ne 0 ]
        assert_line --regexp '^d9d-train: .*: rank 1 \(.*\): run/checkpoints(: is not the checkpoint directory|/.rank-1.*: cannot create: Read-only file system; every rank writes)'
        run -1 grep '"loss"' run/metrics.jsonl
        [ "$(ls -A run/checkpoints)" = .lock-run ]
    done
}

@test "a directory that a host sees late (NFS lookup cache) is accepted" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o stale.so "$BATS_TEST_DIRNAME/stale_nfs_preload.c"
    for dir in run runs/deep/one; do
        run -0 mpi -n 1 d9d-train "${options[@]}" --set trainer.run.dir=$dir c.json : \
            -n 1 -x LD_PRELOAD="$PWD/stale.so" d9d-train "${options[@]}" --set trainer.run.dir=$dir c.json
    done
}
