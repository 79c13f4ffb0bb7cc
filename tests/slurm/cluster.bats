#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of the helpers
# The batch scripts under a real Slurm of two nodes on this host, with stand-in tools: dependencies,
# signals, requeues and exit codes, which only Slurm can show.

load helper
load cluster

setup_file() {
    local long=${D9D_LONG:-}
    unset "${!D9D_@}" "${!SLURM_@}"
    export D9D_LONG=$long
    cluster_can || { export cluster_why && return; }
    cluster_start 2
    export cluster_dir
}
teardown_file() { cluster_stop; }

setup() {
    [ -z "${cluster_why:-}" ] || skip "no Slurm here: $cluster_why"
    cd "$BATS_TEST_TMPDIR" || return 1
    mkdir bin
    for name in shard map train infer metrics; do ln -s "$BATS_TEST_DIRNAME/standin/tool" "bin/d9d-$name"; done
    export D9D_BIN=$PWD/bin FAKE_LOG=$PWD/log D9D_SRUN_ARGS='' D9D_SBATCH="-c 1 --open-mode=append"
    export D9D_INPUT=x D9D_TOKENIZER=t D9D_SOURCE=s D9D_CONFIG=c D9D_INFER_CONFIG=i D9D_RUN_DIR=run
    touch c i
}
teardown() { # what a failing test leaves must not hold the next
    [ -n "${cluster_why:-}" ] || timeout 60 scancel --user="$(id -un)" || true
}

submit() { sbatch --parsable -c 1 --output=job.log "$@"; }
trains() { [ -e run/metrics.jsonl ] && [ "$(wc -l <run/metrics.jsonl)" -ge "$1" ]; }

@test "the chain runs in order to its end" {
    export FAKE_STEPS=3
    run -0 --separate-stderr "$scripts/pipeline.sh"
    last=$(awk '$1 == "metrics" { print $2 }' <<<"$output")
    wait_for job_over "$last"
    cat logs/*.log
    assert_equal "$(job_field "$last" JobState)" COMPLETED
    assert_equal "$(cut -d' ' -f1 log | uniq | sort | uniq -c | awk '{ print $2 $1 }' | tr '\n' ' ')" \
        "d9d-infer1 d9d-map1 d9d-metrics1 d9d-shard1 d9d-train1 "
    assert_equal "$(sed -n 's/ .*//p' log | grep -nx d9d-train)" "3:d9d-train"
    assert_equal "$(cat run/report/summary.txt)" "summary of run"
}

@test "what a stage makes is what the next ones take, unless that is for their configurations to say" {
    run -0 --separate-stderr "$scripts/pipeline.sh"
    D9D_DATASET='' D9D_CKPT='' D9D_EXPORT='' run -0 --separate-stderr "$scripts/pipeline.sh" --from train
    run -0 --separate-stderr "$scripts/pipeline.sh" --from infer
    wait_for cluster_empty
    cat logs/*.log
    data="--set data.dataset=data/dataset"
    source="--set trainer.model_stage_factory.source_checkpoint"
    diff <(grep -E '^d9d-(shard|map|train|infer)' log | sort) - <<LOG
d9d-infer i
d9d-infer i
d9d-infer i $data $source=run/export
d9d-map --to d9d s ckpt
d9d-shard --tokenizer t --out data/dataset --jobs 1 x
d9d-train c --set trainer.run.dir=run
d9d-train c --set trainer.run.dir=run $data $source=ckpt --set export_to=run/export
LOG
}

@test "a failing job takes those that need it along" {
    export FAKE_EXIT=1
    run -0 --separate-stderr "$scripts/pipeline.sh"
    train=$(awk '$1 == "train" { print $2 }' <<<"$output")
    wait_for job_over "$train"
    assert_equal "$(job_field "$train" JobState)" CANCELLED
    refute grep -q d9d-train log
}

@test "a job ends with the exit status of its tool" {
    for status in 1 2; do
        for nodes in 1 2; do
            job=$(FAKE_EXIT=$status submit -N $nodes "$scripts/train.sbatch")
            wait_for job_over "$job"
            assert_equal "$(job_field "$job" ExitCode)" "$status:0"
        done
    done
    refute grep "does not answer" job.log
}

@test "a node that stands still: the job is requeued, and goes on when there are nodes" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    node=$(tail -n 1 "$cluster_dir/pids")
    rm bin/d9d-train
    { # fails in its first attempt
        echo '#!/bin/bash'
        echo 'mkdir -p run/checkpoints/step-00000005 && echo "{}" >run/checkpoints/step-00000005/manifest.json'
        echo 'until [ -e go ]; do sleep 0.1; done'
        echo '[ -n "${SLURM_RESTART_COUNT:-}" ]'
    } >bin/d9d-train
    chmod +x bin/d9d-train
    job=$(submit -N 2 "$scripts/train.sbatch")
    wait_for [ -e run/checkpoints/step-00000005/manifest.json ]
    kill -s STOP "$node"
    touch go
    wait_for grep -q "and a node does not answer: saved at step 5" job.log || { kill -s CONT "$node"; false; }
    kill -s CONT "$node"
    wait_for job_over "$job"
    assert_equal "$(job_field "$job" JobState)" COMPLETED
}

@test "as many tasks as sbatch is asked for" {
    for name in train infer map; do
        job=$(submit --nodes=2 --ntasks-per-node=2 "$scripts/$name.sbatch")
        wait_for job_over "$job"
        cat job.log
        assert_equal "$(grep -c "^d9d-$name " log)" 4
    done
}

@test "SIGTERM before the time limit: save, requeue, go on to the end" {
    touch run.hold
    job=$(FAKE_STEPS=30 submit "$scripts/train.sbatch")
    wait_for trains 3
    scancel --signal=TERM "$job" # what --signal=TERM@300 does: to the tasks, not the script
    wait_for job_over "$job"
    cat job.log
    assert_equal "$(job_field "$job" JobState)" COMPLETED
    assert_equal "$(job_field "$job" Restarts)" 1
    assert_equal "$(sort -u run/metrics.jsonl | wc -l)" 30
    assert_equal "$(wc -l <run/metrics.jsonl)" 30
    assert grep -q "requeued" job.log
    assert grep -q "restart 1" job.log
}

@test "a node that corrupts data: the job goes on without it" {
    rm bin/d9d-train
    cat >bin/d9d-train <<'TOOL'
#!/bin/bash
echo "$SLURMD_NODENAME" >>nodes
[ ! -e run/excluded_nodes ] || exit 0
mkdir -p run/excluded_nodes && touch "run/excluded_nodes/$SLURMD_NODENAME"
exit 76
TOOL
    chmod +x bin/d9d-train
    job=$(submit "$scripts/train.sbatch")
    wait_for job_over "$job"
    cat job.log
    assert_equal "$(job_field "$job" JobState)" COMPLETED
    assert_equal "$(job_field "$job" Restarts)" 1
    assert_equal "$(sort -u nodes | wc -l)" 2
    assert_equal "$(job_field "$job" ExcNodeList)" "$(head -n 1 nodes)"
    assert grep -q "to be requeued without $(head -n 1 nodes)" job.log
}

@test "a signal to the script reaches the tasks too" {
    touch run.hold
    job=$(FAKE_STEPS=30 submit "$scripts/train.sbatch")
    wait_for trains 3
    scancel --batch --signal=USR1 "$job"
    wait_for grep -q "requeued" job.log
    assert grep -q "got SIGUSR1; waiting for the tasks" job.log
    scancel "$job"
}

@test "scancel: the run saves, and the job stays cancelled" {
    touch run.hold
    job=$(FAKE_STEPS=30 submit "$scripts/train.sbatch")
    wait_for trains 3
    scancel "$job"
    wait_for job_over "$job"
    sleep 1
    cat job.log
    assert_equal "$(job_field "$job" JobState)" CANCELLED
    assert [ -n "$(ls run/checkpoints)" ]
}

@test "attempts that add nothing come to an end" {
    job=$(FAKE_EXIT=75 D9D_MAX_IDLE_RESTARTS=2 submit "$scripts/train.sbatch")
    wait_for job_over "$job"
    cat job.log
    assert_equal "$(job_field "$job" JobState)" FAILED
    assert_equal "$(job_field "$job" Restarts)" 1
    assert grep -q "no progress in 2 attempts" job.log
}

# Every task of an array by itself, the last too, whose number is the array's.
array_over() { # ID
    local jobs
    jobs=$(timeout 60 squeue -h -r -j "$1" -o %i 2>/dev/null) && [ -z "$jobs" ]
}

@test "every script as an array, without the pipeline" {
    echo '{"task": {"output": "out.jsonl"}}' >i
    touch t
    for name in shard map train infer metrics merge; do
        mkdir "$name" && cp i c t "$name" && cd "$name"
        job=$(FAKE_STEPS=2 sbatch --parsable -c 1 --array=0-2 --output=%a.log "$scripts/$name.sbatch")
        wait_for array_over "$job"
        cat ./*.log
        for task in 0 1 2; do assert_equal "$name $(job_field "${job}_$task" JobState)" "$name COMPLETED"; done
        cd ..
    done
    assert_equal "$(ls train/run)" "$(printf '0\n1\n2')"
    assert_equal "$(grep -c '^d9d-infer .*out-[012].jsonl' log)" 3
}

@test "a requeued task of an array takes no other with it" {
    mkdir run
    touch run/2.hold
    job=$(FAKE_STEPS=15 sbatch --parsable -c 1 --array=0-2 --output=%a.log --open-mode=append "$scripts/train.sbatch")
    last_trains() { [ -e run/2/metrics.jsonl ] && [ "$(wc -l <run/2/metrics.jsonl)" -ge 2 ]; }
    wait_for last_trains
    scancel --signal=TERM "${job}_2"
    wait_for array_over "$job"
    cat ./*.log
    for task in 0 1 2; do assert_equal "$(job_field "${job}_$task" JobState)" COMPLETED; done
    assert_equal "$(job_field "${job}_0" Restarts) $(job_field "${job}_1" Restarts) $(job_field "${job}_2" Restarts)" "0 0 1"
    for task in 0 1 2; do assert_equal "$(wc -l <run/$task/metrics.jsonl)" 15; done
}

@test "a job of several components" {
    job=$(sbatch --parsable -c 1 --output=job.log -n 1 : -c 1 -n 1 "$scripts/train.sbatch")
    wait_for job_over "$job"
    cat job.log
    assert_equal "$(job_field "$job" JobState)" COMPLETED
}
