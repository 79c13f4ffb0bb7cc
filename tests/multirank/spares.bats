#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034,SC2317 # variables of bats; for topology.bash; functions that run calls
# Spare nodes under a real Slurm of three nodes on this host: one of two is lost, the third takes its place
# with the state that the first has in memory, and the run ends with the weights of an undisturbed one.  Then none is left.

load ../slurm/helper
steps=3000
load topology
load ../slurm/cluster

setup_file() {
    workroom
    with_mpi
    d9d-shard -q --format tokens --out data "$golden/moe/train.jsonl"
    configure dense 48 '"intermediate_size": 48' >dense.json
    train dense "2 1 1 1 1 1" whole --set data.epochs=null
    mkdir bin
    cat >bin/d9d-train <<TOOL
#!/bin/bash
export D9D_LOCAL_DIR=$work/memory-\${SLURMD_NODENAME:-}
[ -z "\${SLURMD_NODENAME:-}" ] || mkdir -p "\$D9D_LOCAL_DIR"
exec "$D9D_BIN/d9d-train" "\$@"
TOOL
    chmod +x bin/d9d-train
    cluster_can || { export cluster_why && return; }
    cluster_start 3
    export cluster_dir
}
setup() {
    with_mpi
    [ -z "${cluster_why:-}" ] || skip "no Slurm here: $cluster_why"
    enter
}
teardown_file() {
    cluster_stop
    rm -rf "$work"
}
at_step() { [ "$(numbers step run 2>/dev/null | tail -n 1)" -ge "$1" ] 2>/dev/null; }
# processes_of NODE: of its daemon, its steps and their tasks.
processes_of() {
    local environ
    pgrep -f "slurmd .*-N $1 -f $cluster_dir" || true
    # shellcheck disable=SC2013 # words without spaces
    for environ in $(grep -lzxF "SLURMD_NODENAME=$1" /proc/[0-9]*/environ 2>/dev/null); do
        ! grep -qzxF "SLURM_CONF=$SLURM_CONF" "$environ" || echo "${environ//[!0-9]/}"
    done
}

# submitted NODES OPTION...: a job on these nodes, `job`.
submitted() {
    rm -rf run job.log memory-*
    export D9D_CONFIG=dense.json D9D_RUN_DIR=run D9D_BIN=$work/bin D9D_IN_JOB_RESTARTS=3
    export D9D_TRAIN_ARGS="--device cpu --set mesh.data_parallel_replicate=2 --set data.epochs=null --set trainer.checkpointing.local_period_steps=50"
    export OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo
    # shellcheck disable=SC2154 # of slurm/helper
    job=$(sbatch --parsable --no-kill "--nodelist=$1" --ntasks-per-node=1 -c 1 --output=job.log "$scripts/train.sbatch" 3>&-)
    wait_for at_step 200
}
# lost NODE: with its memory; the job goes on to its end, from memory.
lost() {
    # shellcheck disable=SC2046 # several
    kill -KILL $(processes_of "$1")
    rm -rf "memory-$1"
    # For the controller the job is not over, until it gives the node up.
    wait_for grep -qE "^d9d-train: (done|d9d-train failed|the configuration|too few)" job.log
    cat job.log
    assert grep -q "^d9d-train: done" job.log
    assert grep -qE "resuming after step [0-9]+ from local checkpoints" job.log
}
hosts() { tr -d ' \n' <run/manifest.json | sed 's/.*"hosts":\[\([^]]*\)\].*/\1/'; }

@test "srun: a spare node takes the place of one that is lost" {
    D9D_SPARE_NODES=1 submitted n1,n2,n3
    lost n2
    assert_equal "$(hosts)" '"n1","n3"'
    cmp run/export/model.safetensors whole/export/model.safetensors
}

@test "srun: without a spare node one replica goes on" {
    D9D_MIN_REPLICAS=1 submitted n1,n3
    lost n3
    assert grep -q "1 node(s) answer: going on with 1 of 2 replicas" job.log
    assert_equal "$(hosts)" '"n1"'
    [ -e run/export ]
}
