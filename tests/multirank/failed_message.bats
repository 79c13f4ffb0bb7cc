#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034 # variables of bats and of topology.bash
# A collective that fails in the middle of a step ends the job with its sentence, wherever it is: in an
# unshard, a reduce-scatter or a sum of replicas.

load ../slurm/helper

steps=2
load topology

@test "a message that MPI refuses is said once, and its rank; no assertion follows" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    # shellcheck disable=SC2046 # several options
    ${CC:-cc} -shared -fPIC -O2 -o fail.so "$BATS_TEST_DIRNAME/fail_message_preload.c" $(mpicc --showme:compile) -ldl
    export FAIL_RANK=1
    for reduce in null bfloat16; do
        for FAIL_CALL in 40 60 90 130 170 220; do
            export FAIL_CALL
            rm -rf run
            run mpi -x LD_PRELOAD="$PWD/fail.so" -x FAIL_RANK -x FAIL_CALL -n 4 d9d-train -q --device cpu \
                --set trainer.run.dir=run --set mesh.data_parallel_replicate=2 --set mesh.data_parallel_shard=2 \
                --set trainer.gradient_manager.reduce_dtype=$reduce dense.json
            echo "$reduce, message $FAIL_CALL: $output"
            [ "$status" -eq 1 ]
            [ "$(grep -c '^d9d-train: communication error: rank 1 of 4 (.*): .*MPI_ERR_OTHER' <<<"$output")" -eq 1 ]
            refute_output --partial "Assertion"
        done
    done
}
