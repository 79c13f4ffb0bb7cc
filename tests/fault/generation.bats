#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# One rank of several has no memory while completions are generated, exchanged and judged: the job ends with
# its sentence, and no rank waits for it until a time limit.

load ../slurm/helper
load ../multirank/workroom

setup_file() {
    workroom
    examples=$BATS_TEST_DIRNAME/../../examples
    sh "$examples/grpo/sums.sh" >sums.jsonl
    d9d-shard -q -t "$examples/tokenizer/tokenizer.json" --template "$examples/grpo/plain.jinja" --format chat -o sums sums.jsonl
    ln -s "$BATS_TEST_DIRNAME/../golden/preference/student" .
    cat >run.json <<'JSON'
{"data": {"dataset": "sums", "order": "shuffled"},
 "task": {"name": "grpo", "num_generations": 64, "max_completion_length": 64, "stop_tokens": [1], "rewards": [{"name": "length", "target": 3}]},
 "model_provider": {"name": "auto", "hf_config": "student", "dtype": "float32"},
 "trainer": {"run": {"name": "run", "dir": "run", "steps": 1}, "batching": {"global_batch_size": 8, "microbatch_size": 2},
   "timeout": {"init_timeout": 9999, "step_timeout": 9999}, "model_stage_factory": {"source_checkpoint": "student"}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
    ${CC:-cc} -O1 -D_GNU_SOURCE -shared -fPIC -o poor.so "$BATS_TEST_DIRNAME/refuse_memory_preload.c" -ldl
    cat >poor <<'SH'
#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export LD_PRELOAD="$PWD/poor.so"
exec "$@"
SH
    chmod +x poor
}
setup() {
    with_mpi
    [ -z "${D9D_SAN:-}" ] || skip "the sanitizers have an allocator of their own"
    enter
}

# poor N OPTION...: a run of two ranks, the second of which is refused its N-th request of a quarter of a
# megabyte or more.  It ends with one sentence, or does without.
poor() {
    local n=$1 status=0
    shift
    rm -rf run count
    D9D_POOR_AT=$n D9D_POOR_BYTES=262144 D9D_POOR_COUNT=count D9D_DEBUG=1 patience=300 \
        mpi -n 2 ./poor d9d-train --device cpu "$@" run.json >out 2>&1 || status=$?
    [ "$status" -ne 0 ] || return 0
    echo "request $n: $(grep "^d9d-train: out of" out)"
    if [ "$status" -ne 1 ] || [ "$(grep -c '^d9d-train: out of host memory: rank 1 ' out)" -ne 1 ]; then
        cat out
        return 1
    fi
}
# both_know: rank 0 has recorded the failure, which ends a rank that is only killed without a record.
both_know() { grep -q '"end": "failed"' run/metrics.jsonl 2>/dev/null; }

@test "ranks that decode in turn end together, wherever one has no memory: cache, completions, messages" {
    local n=0 asked refusals together=0
    poor 0 --set mesh.context_parallel_replicate=2
    read -r asked refusals <count
    [ "$asked" -ge 20 ]
    [ "$refusals" -eq 0 ]
    # One by one, until the failure is behind the round.
    until [ "$n" -gt 0 ] && ! [ -e run/export ] && grep -q "generated .* completions" out; do
        n=$((n + 1))
        [ "$n" -lt "$asked" ]
        poor "$n" --set mesh.context_parallel_replicate=2
        ! both_know || together=$((together + 1))
    done
    # Completions, their exchange and the batch; logits stay on the device.
    [ "$together" -ge 3 ]
}
@test "ranks that wait inside each other's calls do not wait until a time limit" {
    local axis n
    local -a axes=(context_parallel_shard)
    [ -z "${D9D_LONG:-}" ] || axes+=(tensor_parallel pipeline_parallel data_parallel_shard)
    for axis in "${axes[@]}"; do
        for n in 8 9 10; do poor "$n" --set "mesh.$axis=2"; done
    done
}
