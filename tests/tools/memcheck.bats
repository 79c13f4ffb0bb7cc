#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helpers
# The main path of each tool under valgrind: no error, and nothing is lost.  It takes long.

load train_bench
load ../multirank/launch

setup() {
    [ -n "${D9D_LONG:-}" ] || skip "D9D_LONG=1 runs it"
    [ -z "${D9D_SAN:-}" ] || skip "sanitizers do this themselves"
    command -v valgrind >/dev/null || skip "no valgrind"
    bench
}
teardown() { [ -z "${work:-}" ] || clear_bench; }

tests=$(cd "$BATS_TEST_DIRNAME/.." && pwd)
memcheck=(valgrind -q --error-exitcode=9 --leak-check=full "--show-leak-kinds=definite,indirect" "--errors-for-leak-kinds=definite,indirect"
    --suppressions="$tests/valgrind.supp")
checked() { "${memcheck[@]}" "$(command -v "$1")" "${@:2}"; }
few=(--device cpu --set trainer.run.steps=2 --set trainer.checkpointing.period_steps=1)

@test "d9d-shard" {
    tok=$tests/../examples/tokenizer/tokenizer.json
    for _ in 1 2 3; do echo '{"text": "one fish two fish, red fish"}'; done >a.jsonl
    checked d9d-shard -q -t "$tok" --pack 32 --shuffle-seed 1 --split a=0.5,b=0.5 -o text a.jsonl
    run -2 checked d9d-shard -q -t "$tok" -o text a.jsonl # is there already
    checked d9d-shard -q --format tokens -o tokens "$golden/moe/train.jsonl"
}

@test "d9d-map" {
    cp -R "$golden/moe" hf
    checked d9d-map -q --to d9d hf own
    checked d9d-map -q --to hf own back
    checked d9d-map verify -q --no-manifest hf
    checked d9d-map diff hf back
    truncate -s -1 hf/model.safetensors
    run -1 checked d9d-map verify -q --no-manifest hf
}

@test "d9d-train, gone on with; d9d-infer; d9d-metrics" {
    checked d9d-train -q "${few[@]}" --set trainer.logging.tracker='{"provider": "tensorboard"}' c.json
    rm -r run/export
    checked d9d-train -q "${few[@]}" --set trainer.run.steps=3 c.json
    checked d9d-train --plan --gpu cpu c.json >/dev/null
    run -2 checked d9d-train -q --set optimizer.lr=-1 c.json
    checked d9d-infer -q --device cpu i.json
    checked d9d-metrics summary run >/dev/null
    checked d9d-metrics plot -q -o loss.svg run
    checked d9d-metrics plot -q -o loss.png run
}

@test "d9d-lrplot" {
    section='{"initial_multiplier": 1, "phases": [{"mode": "steps", "steps": 10, "target_multiplier": 0, "curve": {"type": "linear"}}]}'
    checked d9d-lrplot -q -o lr.svg - <<<"$section"
    checked d9d-lrplot -q -o lr.png - <<<"$section"
}

@test "two ranks" {
    with_mpi
    mpi=$(find /usr/share /usr/local/share /opt -name openmpi-valgrind.supp 2>/dev/null | head -n 1)
    [ -n "$mpi" ] || skip "no suppressions of Open MPI's"
    mpi -n 2 "${memcheck[@]}" --suppressions="$mpi" "$(command -v d9d-train)" -q "${few[@]}" --set mesh.data_parallel_shard=2 \
        --set trainer.batching.microbatch_size=1 c.json
}
