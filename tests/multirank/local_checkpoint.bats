#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2317,SC2034 # variables of bats; functions that run calls; for topology.bash
# Local checkpoints: after the death of a rank or the loss of a host a run goes on from memory, without
# a checkpoint on the disk, and ends with the weights of an undisturbed run.  A host is a folder here,
# which D9D_LOCAL_DIR names for each rank.  Training goes on while the state is copied and sent, and faults
# happen in the middle of that too.
#
# D9D_LONG=1 kills a run at random moments until it is through, D9D_KILLS times (10).

load ../slurm/helper
steps=60
load topology

setup_file() {
    workroom
    with_mpi
    d9d-shard -q --format tokens --out data "$golden/moe/train.jsonl"
    configure dense 48 '"intermediate_size": 48' >dense.json
    configure moe 24 '"intermediate_size": 24, "num_experts": 8, "experts_top_k": 3' >moe.json
    # shellcheck disable=SC2046 # several options
    ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -O2 -o faults.so "$BATS_TEST_DIRNAME/../fault/job_faults_preload.c" $(mpicc --showme:compile) -ldl
    train dense "2 2 1 1 1 1" whole --set trainer.determinism.base_seed=3 --set data.epochs=null
    # hosts has the folder of each rank.
    cat >on <<'ON'
#!/bin/bash
echo $$ >"pid.$OMPI_COMM_WORLD_RANK"
read -ra hosts <hosts
export D9D_LOCAL_DIR=$PWD/${hosts[OMPI_COMM_WORLD_RANK]}
exec "$@"
ON
    chmod +x on
}
setup() {
    with_mpi
    enter
    rm -rf run a b c pid.*
    mkdir a b c
    echo a a b b >hosts
}

options=(--set trainer.determinism.base_seed=3 --set data.epochs=null --set trainer.checkpointing.local_period_steps=4
    --set trainer.integrity.period_steps=8)

# start REPLICAS SHARDS OPTION...: trains `model`, dense, in `run`, on `stages`, 1; the log goes to `log`.
start() {
    # shellcheck disable=SC2086 # of several words
    mpi -n $(($1 * $2 * ${stages:-1})) "$work/on" ${through:-} d9d-train --device cpu --set "mesh.pipeline_parallel=${stages:-1}" \
        --set "mesh.data_parallel_replicate=$1" --set "mesh.data_parallel_shard=$2" \
        --set trainer.run.dir=run "${options[@]}" "${@:3}" "${model:-dense}.json" >log 2>&1
}
# at_step STEP: the run in progress has recorded it.
at_step() { [ "$(numbers step run 2>/dev/null | tail -n 1)" -ge "$1" ]; }
# killed STEP REPLICAS SHARDS OPTION...: a run, of 2 and 2, that loses a random rank after that step.
killed() {
    start "${2:-2}" "${3:-2}" "${@:4}" 3>&- &
    patience=60 wait_for at_step "$1"
    strike KILL
    wait $! || true
    [ ! -e run/export ]
    [ ! -e run/checkpoints ] || assert_equal "$(ls run/checkpoints)" ""
}
# from_memory: the run in `log` resumed from local checkpoints.
from_memory() { grep -qE "resuming after step [0-9]+ from local checkpoints of step" log; }
# finished: the run ends with the weights of an undisturbed one, and leaves nothing in memory.
finished() {
    cmp run/export/model.safetensors whole/export/model.safetensors
    assert_equal "$(find a b c -name 'd9d-*' 2>/dev/null)" ""
}
@test "a rank that is killed: the job goes on from memory" {
    killed 9
    start 2 2
    from_memory
    finished
}

@test "each save is recorded: how long it took, and how long training waited for it" {
    start 2 2
    assert_equal "$(numbers local_save run | paste -sd ' ')" "$(seq 4 4 56 | paste -sd ' ')"
    paste <(numbers blocked_ms run) <(numbers total_ms run) | awk '!($1 >= 0 && $2 > 0) { print; bad = 1 } END { exit bad }'
    finished
}

# struck KIND CALL: a run with a fault in what rank 1 sends of its local checkpoints.
struck() {
    rm -rf run a b faults
    mkdir a b
    FAULT="$1 1 $2 12345" FAULT_LOG=faults through="env LD_PRELOAD=$work/faults.so" start 2 2 "${@:3}"
}

@test "a rank that is killed while its state is sent: the older one is whole on both hosts" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    local call
    for call in 3 30 77; do
        run struck sent "$call"
        [ "$status" -ne 0 ]
        [ -s faults ]
        rm -rf a
        echo c c b b >hosts # the neighbour has what was sent
        mkdir -p c
        start 2 2
        [ "$call" -lt 77 ] || from_memory
        cmp run/export/model.safetensors whole/export/model.safetensors
        rm -rf c
        echo a a b b >hosts
    done
}

@test "a bit that flips while the state is sent: nothing is kept, and the older one is whole" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    run -76 struck bit 30
    run cat log
    assert_output --regexp "silent data corruption: .*the local checkpoint of step [0-9]+: rank [23] received other bytes than rank 1 sent"
    start 2 2
    from_memory
    finished
}

@test "a state in memory is of the weights that it was trained over" {
    local base=(--set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true
        --set 'peft={"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 2, "alpha": 4}}')
    cp -r whole/export base
    d9d-map init -q --model base/config.json --seed 9 -t hf other
    killed 9 2 2 "${base[@]}" --set trainer.model_stage_factory.source_checkpoint=base
    run -2 start 2 2 "${base[@]}" --set trainer.model_stage_factory.source_checkpoint=other
    run cat log
    assert_output --regexp 'local checkpoints of step [0-9]+: was trained over other weights than other has now: their identity was '
    mv base moved
    start 2 2 "${base[@]}" --set trainer.model_stage_factory.source_checkpoint=moved
    from_memory
}

@test "a host that is lost: its neighbour gives its ranks' state back" {
    killed 9
    rm -rf b
    echo a a c c >hosts
    start 2 2
    finished
}

@test "ranks that start on other hosts fetch their state" {
    killed 13
    echo b a a b >hosts
    start 2 2
    from_memory
    cmp run/export/model.safetensors whole/export/model.safetensors
}

@test "a state that nobody has any more: the run goes on from the disk" {
    killed 9
    rm -rf a b && mkdir a b
    start 2 2 # which has none
    refute from_memory
    finished
}

# step_of FILE: of the state in a local checkpoint's file.
step_of() { od -An -td8 -j 48 -N 8 "$1"; }
# two_saves: no rank was in the middle of a save; the files are whole, and of the same two steps.
two_saves() {
    local f
    for f in a/d9d-* b/d9d-*; do [ "$(head -c 8 "$f" | tr -d '\0')" = d9dlocal ] || return 1; done
    [ "$(for f in a/d9d-* b/d9d-*; do step_of "$f"; done | sort -u | wc -l)" -eq 2 ]
}

@test "a damaged checkpoint on the disk, of a step that is whole in memory" {
    local newest f periods=(--set trainer.checkpointing.asynchronous=false --set trainer.checkpointing.period_steps=8
        --set trainer.checkpointing.local_period_steps=8)
    for _ in $(seq 10); do
        rm -rf run a b pid.* && mkdir a b
        start 2 2 "${periods[@]}" 3>&- &
        patience=60 wait_for at_step 19
        strike KILL
        wait $! || true
        newest=$(find run/checkpoints -name 'step-*' -maxdepth 1 ! -name '*.tmp*' | sort | tail -n 1)
        ! two_saves || [ "$(for f in a/d9d-* b/d9d-*; do step_of "$f"; done | sort -n | tail -n 1)" -ne $((10#${newest##*-})) ] || break
    done
    for f in "$newest"/ranks-00000/model-*; do printf '\377' | dd of="$f" bs=1 seek=5000 conv=notrunc status=none; done
    start 2 2 "${periods[@]}"
    grep -q "warning: checkpoint passed over: $newest/" log
    from_memory
    finished
}

@test "an incomplete save is passed over on all ranks" {
    local newest f
    for _ in $(seq 10); do
        rm -rf run a b pid.* && mkdir a b
        killed 25 2 2 --set trainer.checkpointing.local_period_steps=12
        ! two_saves || break
    done
    two_saves
    newest=$(for f in a/d9d-*-0-own-*; do echo "$(step_of "$f") $f"; done | sort -n | tail -n 1 | sed 's/.* //')
    for f in "$newest" "b/$(basename "${newest/own/peer}")"; do head -c 8 /dev/zero | dd of="$f" conv=notrunc status=none; done
    start 2 2
    from_memory
    finished
}

@test "bytes that changed are refused and removed, and the next start takes another copy" {
    killed 13
    local f
    for f in a/d9d-*-1-own-*; do printf '\377' | dd of="$f" bs=1 seek=70000 conv=notrunc status=none; done
    run -1 start 2 2
    run cat log
    assert_output --regexp "rank 1 \(.*\): .*/a/d9d-.*-1-own-[01]: its bytes are not those that were saved after step [0-9]+; it is removed, and the next start takes another copy"
    start 2 2
    cmp run/export/model.safetensors whole/export/model.safetensors
}

# like_whole DIR: other sums of gradients round differently; samples and their order are the same.
like_whole() {
    "$driver" run/export "$1/export"
    cmp run/samples.jsonl "$1/samples.jsonl"
}

@test "fewer replicas go on from memory, with the states of any replica, and more of them later" {
    killed 9
    rm -rf b pid.*
    echo a a >hosts
    start 1 2 3>&- &
    pid=$!
    patience=60 wait_for from_memory
    grep -q "from local checkpoints of step [0-9]*, of 4 ranks" log
    patience=60 wait_for at_step 30
    assert_equal "$(find a -name 'd9d-*-4-*')" ""
    strike KILL
    wait $pid || true
    mkdir b
    echo a a b b >hosts
    start 2 2
    grep -q "from local checkpoints of step [0-9]*, of 2 ranks" log
    like_whole whole
    assert_equal "$(find a b -name 'd9d-*')" ""
}

@test "fewer replicas, each of two stages: ranks take the states of their stage" {
    stages=2
    echo a a b b c c >hosts
    killed 9 3 1 --set trainer.batching.global_batch_size=12
    rm -rf b
    echo c a c a >hosts
    start 2 1 --set trainer.batching.global_batch_size=12
    from_memory
    grep -q "of 6 ranks" log
    train dense "3 1 1 1 1 1 2" whole12 "${options[@]}" --set trainer.batching.global_batch_size=12
    like_whole whole12
}

@test "rows of experts over several replicas: their states differ, and fewer replicas go on from the disk" {
    model=moe
    killed 9 2 2 --set mesh.expert_parallel=4
    echo a a >hosts
    start 1 2 --set mesh.expert_parallel=2
    refute from_memory
}

@test "another mesh goes on from the disk, without local checkpoints" {
    killed 13
    start 4 1
    refute from_memory
    "$driver" run/export whole/export
}

@test "a folder that cannot hold them is found before the first step" {
    echo a a missing b >hosts
    run -2 start 2 2
    run cat log
    assert_output --regexp "rank 2 \(.*\): .*/missing: is no folder that can be written to; local checkpoints go where D9D_LOCAL_DIR says"
    refute grep -q '"loss"' run/metrics.jsonl
}

@test "one host alone is warned of, and survives the death of a rank" {
    echo a a a a >hosts
    killed 9
    assert grep -q "all ranks are on one host" log
    start 2 2
    from_memory
    cmp run/export/model.safetensors whole/export/model.safetensors
}

@test "killed again and again at random moments, the weights are those of an undisturbed run" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    local kills=0 rc
    for _ in $(seq "${D9D_KILLS:-10}"); do
        rm -rf run a b && mkdir a b
        for _ in $(seq 20); do
            rm -f pid.*
            start 2 2 3>&- &
            patience=60 wait_for at_step $((1 + RANDOM % 50))
            kill -KILL "$(cat "pid.$((RANDOM % 4))")" 2>/dev/null && kills=$((kills + 1))
            rc=0
            wait $! || rc=$?
            [ "$rc" -ne 0 ] || break
        done
        [ "$rc" -eq 0 ] || start 2 2
        finished
    done
    echo "# $kills kills" >&3
    [ "$kills" -gt 0 ]
}
