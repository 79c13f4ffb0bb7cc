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
