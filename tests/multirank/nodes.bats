#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# A training run over the nodes of a real Slurm.

load ../slurm/helper
load two_nodes
load ../tools/train_helper

PATH=$D9D_BIN:$PATH

setup() {
    with_mpi
    cd "$BATS_TEST_TMPDIR" || return 1
    dataset data
    run_config moe >c.json
}

@test "srun: the run directory names each node once" {
    slurm 2 d9d-train -q --device cpu --set trainer.run.steps=2 --set trainer.batching.microbatch_size=1 \
        --set mesh.data_parallel_shard=4 c.json
    run -0 tr -d ' \n' <run/manifest.json
    read -rd '' -a nodes < <(srun -N 2 --ntasks-per-node=1 printenv SLURMD_NODENAME 3>&- | sort) || true
    [ ${#nodes[@]} -eq 2 ]
    [[ "$output" == *"\"hosts\":[\"${nodes[0]}\",\"${nodes[1]}\"],"* ]]
}

@test "srun: the exit status is that of the ranks, although one exits late" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    ${CC:-cc} -shared -fPIC -o last_out.so "$BATS_TEST_DIRNAME/late_exit_preload.c"
    train=(d9d-train -q --device cpu --set trainer.batching.microbatch_size=1 --set mesh.data_parallel_shard=2)
    for last in 0 1; do
        export LAST_OUT=$last
        run -2 slurm 1 env LD_PRELOAD="$PWD/last_out.so" "${train[@]}" --set trainer.run.steps=0 c.json
        near_end slurm 1 env LD_PRELOAD="$PWD/last_out.so" "${train[@]}" \
            --set data.epochs=null --set trainer.run.steps=1000000 --set trainer.timeout.save_margin=0 \
            --set trainer.run.dir="run.$last" c.json
        assert_equal "$status" 75
        output+=$stderr assert_output --partial "the end of the Slurm allocation: saved after step"
    done
}

@test "srun: a job says what of its expert groups is on a node, and warns of local ranks that are not" {
    local train=(d9d-train --device cpu --set trainer.run.steps=1 --set trainer.batching.microbatch_size=1
        --set mesh.data_parallel_shard=4 --set mesh.expert_parallel=4)
    run -0 slurm 2 "${train[@]}" --set trainer.run.dir=flat c.json
    assert_output --partial "experts are divided over nodes with 2 ranks each: mesh.expert_parallel_local 2 would send a token once to each node"
    run -0 slurm 2 "${train[@]}" --set trainer.run.dir=levels --set mesh.expert_parallel_local=2 c.json
    [[ "$output" != *"ranks each: mesh"* && "$output" != *"should be on one node"* ]]
    run -0 slurm 2 "${train[@]}" --set trainer.run.dir=wrong --set mesh.expert_parallel_local=4 c.json
    assert_output --partial "mesh.expert_parallel_local 4: ranks 0 and 2 should be on one node and are on "
}
