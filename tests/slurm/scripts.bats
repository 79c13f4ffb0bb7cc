#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031,SC2154 # exports are of one test, which is a subshell; variables of the helper
# The batch scripts' own logic, with srun, sbatch, scontrol and the tools faked.

load helper

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    unset "${!D9D_@}" "${!SLURM_@}"
    fake_slurm "$BATS_TEST_TMPDIR/bin"
    export SLURM_JOB_ID=7 D9D_SLURM_DIR=$scripts
    export D9D_CONFIG=c.json D9D_RUN_DIR=run
    touch c.json i i.json
}

requeues() { grep -c '^scontrol requeue 7$' "$FAKE_LOG" || true; }
have_step() { mkdir -p "run/checkpoints/$1" && echo '{}' >"run/checkpoints/$1/manifest.json"; }

# An installed tool in PATH would be found: PATH is one folder of all its commands but the suite's.
path_without_tools() {
    local dir dirs
    IFS=: read -ra dirs <<<"$PATH"
    mkdir commands
    for dir in "${dirs[@]}"; do ln -s "$dir"/* commands 2>/dev/null || true; done # the first of a name stays
    rm -f commands/d9d-*
    export PATH=$PWD/commands
}

# ---- train -------------------------------------------------------------------------------

@test "train passes its settings on and ends with 0" {
    D9D_DATASET=data D9D_CKPT=ckpt D9D_EXPORT=out D9D_TRAIN_ARGS="--set a=1 --quiet" run -0 "$scripts/train.sbatch"
    run grep '^srun' "$FAKE_LOG"
    assert_output "srun --kill-on-bad-exit=1 --mpi=pmix $D9D_BIN/d9d-train c.json --set trainer.run.dir=run --set data.dataset=data --set trainer.model_stage_factory.source_checkpoint=ckpt --set export_to=out --set a=1 --quiet"
    assert_equal "$(requeues)" 0
}

@test "a container gets this folder, and has the tools" {
    D9D_CONTAINER=d9d.sqsh run -0 "$scripts/train.sbatch"
    run grep '^srun' "$FAKE_LOG"
    assert_output "srun --kill-on-bad-exit=1 --mpi=pmix --container-image=d9d.sqsh --container-workdir=$PWD --container-mounts=$PWD:$PWD d9d-train c.json --set trainer.run.dir=run"
    D9D_CONTAINER=reg#d9d:1 D9D_CONTAINER_MOUNTS=/data:/d run -0 "$scripts/train.sbatch"
    grep -qF -e "--container-image=reg#d9d:1 --container-workdir=$PWD --container-mounts=/data:/d d9d-train" "$FAKE_LOG"
}

@test "train has the directives of a job that restarts" {
    run grep '^#SBATCH' "$scripts/train.sbatch"
    assert_output --partial --requeue
    assert_output --partial --open-mode=append
    assert_output --partial --signal=TERM@300
}

@test "train passes on every exit status, and requeues on 75 alone" {
    for status in 1 2 9 134; do
        FAKE_EXIT=$status run -$status "$scripts/train.sbatch"
        assert_equal "$(requeues)" 0
    done
    FAKE_EXIT=75 FAKE_SAVE=10 run -75 "$scripts/train.sbatch"
    assert_output --partial "saved at step 10; the job is to be requeued"
    assert_equal "$(requeues)" 1
}

@test "train requeues on 76, without the nodes that corrupt data" {
    have_step step-00000005
    mkdir run/excluded_nodes && touch run/excluded_nodes/n3 run/excluded_nodes/n7
    FAKE_EXIT=76 run -75 "$scripts/train.sbatch"
    assert_output --partial "data was corrupted silently (see above): saved at step 5; the job is to be requeued without n3,n7"
    assert_equal "$(requeues)" 1
    assert_equal "$(grep -A 1 '^scontrol requeue' "$FAKE_LOG" | tail -n 1)" "scontrol update JobId=7 ExcNodeList=n3,n7"
    rm -r run/excluded_nodes
    FAKE_EXIT=76 run -75 "$scripts/train.sbatch" # two replicas differ: nobody knows which is wrong
    assert_output --partial "; the job is to be requeued"
    assert_equal "$(requeues)" 2
    assert_equal "$(grep -c '^scontrol update' "$FAKE_LOG")" 1
}

@test "train starts again in the same job, where it is asked to and all nodes answer" {
    export D9D_IN_JOB_RESTARTS=2
    FAKE_EXIT=1 run -1 "$scripts/train.sbatch"
    assert_output --partial "d9d-train ended with status 1; it starts again in this job"
    assert_equal "$(grep -c '^d9d-train ' "$FAKE_LOG")" 3
    assert_equal "$(requeues)" 0
    for status in 0 2 76; do
        : >"$FAKE_LOG"
        FAKE_EXIT=$status run "$scripts/train.sbatch"
        assert_equal "$(grep -c '^d9d-train ' "$FAKE_LOG")" 1
    done
    : >"$FAKE_LOG"
    FAKE_EXIT=1 FAKE_STATE=CANCELLED run -1 "$scripts/train.sbatch"
    assert_equal "$(grep -c '^d9d-train ' "$FAKE_LOG")" 1
    : >"$FAKE_LOG"
    SLURM_JOB_NUM_NODES=2 FAKE_EXIT=1 FAKE_NODES=1 run -75 "$scripts/train.sbatch"
    assert_equal "$(grep -c '^d9d-train ' "$FAKE_LOG")" 1
    D9D_IN_JOB_RESTARTS=x run -2 "$scripts/train.sbatch"
    assert_output --partial 'D9D_IN_JOB_RESTARTS is "x": must be a whole number'
}

# an_allocation NODES: of two tasks a node, and what d9d-train --print-config says of a mesh of 2 tasks a replica.
an_allocation() {
    export SLURM_JOB_NUM_NODES=$1 SLURM_NTASKS=$((2 * $1)) SLURM_JOB_NODELIST D9D_IN_JOB_RESTARTS=3 FAKE_DEAD=$PWD/dead
    SLURM_JOB_NODELIST=$(seq -f n%g -s, "$1")
    touch dead
    cat >"$D9D_BIN/config" <<JSON
{
  "mesh": {
    "pipeline_parallel": 1,
    "data_parallel_replicate": ${2:-3},
    "data_parallel_shard": 2,
    "expert_parallel": 1
  },
      "global_batch_size": 12,
      "microbatch_size": 1
}
JSON
}
starts() { grep '^srun --kill' "$FAKE_LOG" | sed 's/ --mpi=pmix//; s|/[^ ]*/||' || true; }

@test "spare nodes take the place of those that are lost, in the same job" {
    an_allocation 4
    # The first start loses n2, the second n1.
    cat >"$D9D_BIN/lose" <<'LOSE'
#!/bin/bash
case $(grep -c '^d9d-train c.json' "$FAKE_LOG") in 1) echo n2 >>"$FAKE_DEAD" ;; 2) echo n1 >>"$FAKE_DEAD" ;; *) exit 0 ;; esac
exit 1
LOSE
    chmod +x "$D9D_BIN/lose"
    D9D_SPARE_NODES=2 FAKE_THEN=$D9D_BIN/lose run -0 "$scripts/train.sbatch"
    run starts
    assert_line -n 0 --partial "--nodes=2 --ntasks=4 --ntasks-per-node=2 --nodelist=n1,n2 d9d-train c.json"
    assert_line -n 1 --partial "--nodelist=n1,n3 "
    assert_line -n 2 --partial "--nodelist=n3,n4 "
    refute_output --partial data_parallel_replicate
    assert_equal "$(requeues)" 0
}

@test "where no spare node is left, the job goes on with fewer replicas" {
    an_allocation 3
    echo n3 >dead
    D9D_MIN_REPLICAS=1 run -0 "$scripts/train.sbatch"
    assert_output --partial "2 node(s) answer: going on with 2 of 3 replicas"
    run starts
    assert_line -n 0 --partial "--nodes=2 --ntasks=4 --ntasks-per-node=2 --nodelist=n1,n2 d9d-train c.json --set trainer.run.dir=run --set mesh.data_parallel_replicate=2"
    # 5 of 6 replicas do not divide the batch of 12; 3 do.
    : >"$FAKE_LOG"
    an_allocation 6 6
    echo n6 >dead
    D9D_MIN_REPLICAS=3 run -0 "$scripts/train.sbatch"
    assert_output --partial "going on with 3 of 6 replicas"
    : >"$FAKE_LOG"
    D9D_MIN_REPLICAS=4 run -75 "$scripts/train.sbatch"
    assert_output --partial "too few nodes answer; the job is to be requeued"
    assert_equal "$(starts)" ""
}

@test "a node that corrupts data or is slow is spared in the same job; a time limit is not mistaken for that" {
    an_allocation 3
    for ended in 75 76; do
        : >"$FAKE_LOG"
        rm -rf run
        cat >"$D9D_BIN/name" <<NAME
#!/bin/bash
[ ! -e run/excluded_nodes ] || exit 0
mkdir -p run/excluded_nodes && touch run/excluded_nodes/n1
exit $ended
NAME
        chmod +x "$D9D_BIN/name"
        D9D_SPARE_NODES=1 FAKE_THEN=$D9D_BIN/name run -0 "$scripts/train.sbatch"
        run starts
        assert_line -n 0 --partial "--nodelist=n1,n2 "
        assert_line -n 1 --partial "--nodelist=n2,n3 "
        D9D_SPARE_NODES=1 FAKE_EXIT=$ended run -75 "$scripts/train.sbatch"
        assert_equal "$(requeues)" 1
    done
}

@test "numbers of spare nodes and of replicas are checked" {
    an_allocation 2
    D9D_SPARE_NODES=2 run -2 "$scripts/train.sbatch"
    assert_output --partial "D9D_SPARE_NODES is 2, and the job has 2 node(s)"
    D9D_SPARE_NODES=x run -2 "$scripts/train.sbatch"
    assert_output --partial 'D9D_SPARE_NODES is "x": must be a whole number'
    D9D_MIN_REPLICAS=0 run -2 "$scripts/train.sbatch"
    assert_output --partial 'D9D_MIN_REPLICAS is "0": must be a whole number, at least 1'
    refute grep -q '^srun' "$FAKE_LOG"
}

@test "train says that a wrong configuration is not worth a retry" {
    FAKE_EXIT=2 run -2 "$scripts/train.sbatch"
    assert_output --partial "retrying cannot help"
}

@test "train does not requeue a job that is being cancelled" {
    FAKE_EXIT=75 FAKE_SAVE=10 FAKE_STATE=CANCELLED run -75 "$scripts/train.sbatch"
    assert_output --partial "saved at step 10; the job is being ended from outside (CANCELLED)"
    assert_equal "$(requeues)" 0
}

@test "train says what to do when Slurm refuses to requeue" {
    FAKE_EXIT=75 FAKE_SAVE=10 FAKE_REQUEUE=1 run -75 "$scripts/train.sbatch"
    assert_output --partial "submit it again"
}

@test "train stops after attempts that add nothing" {
    export FAKE_EXIT=75 D9D_MAX_IDLE_RESTARTS=3
    have_step step-00000005
    run -75 "$scripts/train.sbatch"
    run -75 "$scripts/train.sbatch"
    assert_equal "$(requeues)" 2
    run -1 "$scripts/train.sbatch"
    assert_output --partial "no progress in 3 attempts: the newest checkpoint of run is still step 5"
    assert_equal "$(requeues)" 2
}

@test "train counts attempts that a node failure ended, and does not start the next" {
    export D9D_MAX_IDLE_RESTARTS=2
    mkdir run
    for file in slurm-7.restarts slurm-7.lives; do # the second: as 0.1 called it
        echo "0 1" >"run/$file"
        run -1 "$scripts/train.sbatch"
        assert_output --partial "no progress in 2 attempts"
        refute grep -q '^srun' "$FAKE_LOG"
        assert_equal "$(echo run/slurm-7.*)" 'run/slurm-7.*'
    done
}

@test "train requeues when a node does not answer, as long as there is progress" {
    have_step step-00000005
    export SLURM_JOB_NUM_NODES=2
    FAKE_EXIT=1 run -1 "$scripts/train.sbatch"
    assert_equal "$(requeues)" 0
    assert grep -q "^srun .*--nodes=2 .*true$" "$FAKE_LOG"
    FAKE_EXIT=1 FAKE_NODES=1 run -75 "$scripts/train.sbatch"
    assert_output --partial "failed with status 1, and a node does not answer: saved at step 5; the job is to be requeued"
    assert_equal "$(requeues)" 1
    FAKE_EXIT=1 FAKE_NODES=1 FAKE_STATE=CANCELLED run -1 "$scripts/train.sbatch"
    FAKE_EXIT=2 FAKE_NODES=1 run -2 "$scripts/train.sbatch"
    D9D_MAX_IDLE_RESTARTS=1 FAKE_EXIT=1 FAKE_NODES=1 run -1 "$scripts/train.sbatch"
    assert_output --partial "no progress in 1 attempts"
    assert_equal "$(requeues)" 1
}

@test "train forgets idle attempts after progress" {
    export FAKE_EXIT=75 D9D_MAX_IDLE_RESTARTS=2
    for step in 10 10 20 20 30; do
        FAKE_SAVE=$step run -75 "$scripts/train.sbatch"
    done
    assert_equal "$(requeues)" 5
    FAKE_SAVE=30 run -75 "$scripts/train.sbatch"
    FAKE_SAVE=30 run -1 "$scripts/train.sbatch"
}

@test "train counts another job's attempts apart" {
    mkdir run && echo "0 9" >run/slurm-6.restarts
    run -0 "$scripts/train.sbatch"
}

@test "only whole checkpoints count, and octal-looking steps are decimal" {
    have_step step-00000089
    have_step step-00000100.tmp-1
    mkdir -p run/checkpoints/step-00000200 run/checkpoints/step-x
    run -0 "$scripts/train.sbatch"
    assert_output --partial "going on from step 89"
}

# save_step STEP: a checkpoint as one rank writes it, with a part of its own.
save_step() {
    local dir
    dir=run/checkpoints/$(printf 'step-%08d' "$1")
    mkdir -p "$dir/ranks-00000"
    printf weights >"$dir/ranks-00000/model-r00000.safetensors"
    printf '%s\n' '{' '  "files": [' '    {"name": "model-r00000.safetensors", "bytes": 7, "chunks": ["0f"]}' \
        '  ],' '  "xxh3": "00"' '}' >"$dir/ranks-00000/manifest.json"
    printf '%s\n' '{' "  \"step\": $1," '  "finite": true,' '  "files": [' \
        "    {\"name\": \"ranks-00000/manifest.json\", \"bytes\": $(stat -c %s "$dir/ranks-00000/manifest.json"), \"chunks\": [\"1e\"]}" \
        '  ],' '  "xxh3": "00"' '}' >"$dir/manifest.json"
}

@test "a damaged checkpoint does not count, though it is newer" {
    local newest=run/checkpoints/step-00000009
    for damage in ": >$newest/ranks-00000/model-r00000.safetensors" "rm $newest/ranks-00000/model-r00000.safetensors" \
        "truncate -s 40 $newest/ranks-00000/manifest.json" "rm -r $newest/ranks-00000" "truncate -s 60 $newest/manifest.json" \
        ": >$newest/manifest.json" "sed -i 's/\"finite\": true/\"finite\": false/' $newest/manifest.json"; do
        rm -rf run
        save_step 7
        save_step 9
        run -0 "$scripts/train.sbatch"
        assert_output --partial "going on from step 9"
        eval "$damage"
        run -0 "$scripts/train.sbatch"
        assert_output --partial "going on from step 7"
        assert_output --partial "the newest checkpoint is step 7"
    done
}

@test "a folder of checkpoints may have any name" {
    local step=10 name json
    for name in 'a "b" c' 'back\slash' 'both\"' '%s $x' $'tab\tand\x01'; do
        rm -rf run saved
        mkdir saved
        have_step "step-000000$step"
        mv run/checkpoints "saved/$name"
        json=${name//\\/\\\\} json=${json//\"/\\\"} json=${json//$'\t'/\\t} json=${json//$'\x01'/\\u0001}
        printf '%s\n' '  "trainer": {' '    "checkpointing": {' "      \"save_dir\": \"saved/$json\"," '      "resume": true' '    }' >run/config.json
        run -0 "$scripts/train.sbatch"
        assert_output --partial "going on from step $step"
        step=$((step + 1))
    done
}

@test "checkpoints count where the configuration has them" {
    have_step step-00000007
    mv run/checkpoints saved
    printf '%s\n' '  "trainer": {' '    "checkpointing": {' '      "save_dir": "saved",' '      "resume": true' '    }' >run/config.json
    run -0 "$scripts/train.sbatch"
    assert_output --partial "going on from step 7"
    assert_output --partial "the newest checkpoint is step 7"
}

@test "train hands SIGTERM and SIGUSR1 to the tool and waits for its save" {
    for signal in TERM USR1; do
        : >"$FAKE_LOG"
        FAKE_WAIT=1 FAKE_SAVE=3 "$scripts/train.sbatch" >out 2>&1 3>&- &
        wait_for grep -q '^train: up' "$FAKE_LOG"
        kill -$signal $!
        rc=0
        wait $! || rc=$?
        assert_equal $rc 75
        assert grep -q '^train: got a signal' "$FAKE_LOG"
        assert_equal "$(requeues)" 1
        rm -rf run
    done
}

@test "train wants a number of idle restarts" {
    D9D_MAX_IDLE_RESTARTS=0 run -2 "$scripts/train.sbatch"
    assert_output --partial 'D9D_MAX_IDLE_RESTARTS is "0"'
}

# ---- the others --------------------------------------------------------------------------

@test "a setting that is missing is named, with status 2" {
    unset D9D_CONFIG
    for pair in shard:D9D_INPUT map:D9D_SOURCE train:D9D_CONFIG infer:D9D_INFER_CONFIG; do
        run -2 "$scripts/${pair%:*}.sbatch"
        assert_output --partial "${pair#*:} is not set"
    done
    refute grep -q '^srun' "$FAKE_LOG"
}

@test "outside a job a script says how to submit it" {
    unset SLURM_JOB_ID
    run -2 "$scripts/train.sbatch"
    assert_output --partial "sbatch"
}

@test "a script finds its library by what Slurm says of the job" {
    unset D9D_SLURM_DIR
    export FAKE_COMMAND=$scripts/train.sbatch
    cp "$scripts/train.sbatch" spooled
    run -0 ./spooled
}

@test "a script finds its library where Slurm tells of the job several times, and with blanks in its path" {
    unset D9D_SLURM_DIR
    mkdir "a folder" && cp "$scripts"/* "a folder"
    cp "a folder/train.sbatch" "a folder/renamed"
    for path in "$scripts/train.sbatch" "$PWD/a folder/train.sbatch"; do
        FAKE_COMMAND=$path FAKE_RECORDS=4 run -0 "$scripts/train.sbatch"
    done
    # All scripts find it in the same words.
    for name in "$scripts"/*.sbatch; do sed -n '/^: "${D9D_SLURM_DIR/,/^# shell/p' "$name" | md5sum; done | sort -u >words
    assert_equal "$(wc -l <words)" 1
}

@test "a task of an array asks and requeues itself, not the whole array" {
    export SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=3 FAKE_RECORDS=4
    FAKE_EXIT=75 FAKE_SAVE=10 run -75 "$scripts/train.sbatch"
    assert_output --partial "job 7_3,"
    assert_output --partial "saved at step 10; the job is to be requeued"
    assert grep -q '^scontrol requeue 7_3$' "$FAKE_LOG"
    refute grep -E '^scontrol (requeue|show job) 7$' "$FAKE_LOG"
    assert grep -q '^squeue -h -j 7_3 ' "$FAKE_LOG"
}

@test "what tasks of an array make is their own" {
    export SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=3
    run -0 "$scripts/train.sbatch"
    D9D_RUN_DIR=sweep-%a D9D_CONFIG=c.json D9D_EXPORT=models/%a run -0 "$scripts/train.sbatch"
    D9D_RUN_DIR=sweep D9D_EXPORT=models run -0 "$scripts/train.sbatch"
    echo '{"task": {"output": "out.jsonl"}}' >i.json
    D9D_INFER_CONFIG=i.json run -0 "$scripts/infer.sbatch"
    D9D_INFER_CONFIG=i.json D9D_PREDICTIONS=a.b/answers run -0 "$scripts/infer.sbatch"
    D9D_INFER_CONFIG=i.json D9D_PREDICTIONS=%a/x.npy run -0 "$scripts/infer.sbatch"
    sed -n 's/^d9d-train c.json --set //p;s/^d9d-infer i.json --set //p' "$FAKE_LOG" | diff - <(
        echo trainer.run.dir=run/3
        echo trainer.run.dir=sweep-3 --set export_to=models/3
        echo trainer.run.dir=sweep/3 --set export_to=models/3
        echo task.output=out-3.jsonl
        echo task.output=a.b/answers-3
        echo task.output=3/x.npy
    )
    # A checkpoint of another task's source is none of this one's; reports are of its run, in a folder of its own.
    mkdir ckpt && touch ckpt/config.json
    D9D_SOURCE=hf/%a run -0 "$scripts/map.sbatch"
    D9D_SOURCE=hf/%a D9D_CKPT=of/%a run -0 "$scripts/map.sbatch"
    run -0 "$scripts/metrics.sbatch"
    D9D_REPORT=reports run -0 "$scripts/metrics.sbatch"
    D9D_RUN_DIR=sweep-%a D9D_REPORT=of-%a run -0 "$scripts/metrics.sbatch"
    grep -E '^d9d-map |^d9d-metrics plot .*svg' "$FAKE_LOG" | diff - <(
        echo d9d-map --to d9d hf/3 ckpt/3
        echo d9d-map --to d9d hf/3 of/3
        echo d9d-metrics plot run/3 -o run/3/report/curves.svg
        echo d9d-metrics plot run/3 -o reports/3/curves.svg
        echo d9d-metrics plot sweep-3 -o of-3/curves.svg
    )
    touch c-3.json
    D9D_CONFIG=c-%a.json run -0 "$scripts/train.sbatch"
    assert grep -q '^d9d-train c-3.json' "$FAKE_LOG"
}

@test "the status of the task that failed first, not of those that were killed for it" {
    srun_output='srun: error: n1: task 0: Exited with exit code 2\nsrun: launch/slurm: _step_signal: Terminating StepId=7.0'
    srun_output+='\nsrun: error: n2: task 1: Exited with exit code 143'
    FAKE_SAYS=$srun_output FAKE_SRUN=143 run -2 "$scripts/train.sbatch"
    assert_output --partial "task 1: Exited with exit code 143"
    FAKE_SAYS='srun: error: n1: task 0: Killed' FAKE_SRUN=137 run -137 "$scripts/train.sbatch"
    FAKE_SAYS='loss: srun: error: n1: task 0: Exited with exit code 2' FAKE_SRUN=137 run -137 "$scripts/train.sbatch"
    FAKE_SAYS='srun: error: n[1-2]: tasks 0-3: Exited with exit code 1' FAKE_SRUN=1 run -1 "$scripts/train.sbatch"
}

@test "a tool that is nowhere is status 2" {
    rm "$D9D_BIN/d9d-train"
    path_without_tools
    mkdir scripts && cp "$scripts"/* scripts
    D9D_SLURM_DIR=$PWD/scripts run -2 "$scripts/train.sbatch"
    assert_output --partial "cannot find d9d-train"
}

@test "shard takes inputs as arguments, blanks and all, and its options apart" {
    D9D_TOKENIZER=t.json D9D_SHARD_ARGS="--max-length 8 --overflow split" SLURM_CPUS_PER_TASK=3 \
        run -0 "$scripts/shard.sbatch" a.txt "b c.txt"
    assert grep -qx "d9d-shard --tokenizer t.json --out data/dataset --jobs 3 --max-length 8 --overflow split a.txt b c.txt" "$FAKE_LOG"
}

@test "shard takes inputs as patterns too" {
    mkdir corpus && touch corpus/{a,b}.jsonl
    D9D_INPUT="x.txt corpus/*.jsonl" D9D_TOKENIZER=t run -0 "$scripts/shard.sbatch"
    assert grep -qx "d9d-shard --tokenizer t --out data/dataset --jobs 1 x.txt corpus/a.jsonl corpus/b.jsonl" "$FAKE_LOG"
}

@test "shard as an array makes parts, merge joins and removes them" {
    export D9D_INPUT=x D9D_TOKENIZER=t D9D_DATASET=data
    SLURM_ARRAY_TASK_ID=3 run -0 "$scripts/shard.sbatch"
    assert grep -qx "d9d-shard --tokenizer t --out data.parts/3 --jobs 1 --array x" "$FAKE_LOG"
    mkdir -p data.parts/{3,4,11} && touch data.parts/3/plan.json
    : >"$FAKE_LOG"
    SLURM_ARRAY_TASK_ID=3 run -0 "$scripts/shard.sbatch"
    assert_output --partial "data.parts/3 is there already"
    refute grep -q d9d-shard "$FAKE_LOG"
    FAKE_EXIT=2 run -2 "$scripts/merge.sbatch"
    assert [ -d data.parts ]
    run -0 "$scripts/merge.sbatch"
    assert grep -qx "d9d-shard merge data data.parts/11 data.parts/3 data.parts/4" "$FAKE_LOG"
    assert [ ! -e data.parts ]
    mkdir data && echo '{}' >data/manifest.json
    SLURM_ARRAY_TASK_ID=3 run -0 "$scripts/shard.sbatch"
    run -0 "$scripts/merge.sbatch"
    assert_equal "$(grep -c '^d9d-shard' "$FAKE_LOG")" 3
    assert grep -qx "d9d-shard verify data" "$FAKE_LOG"
}

@test "shard and map verify what is there in place of making it again" {
    mkdir -p data ckpt && touch data/manifest.json ckpt/config.json
    D9D_INPUT=x D9D_TOKENIZER=t D9D_DATASET=data run -0 "$scripts/shard.sbatch"
    D9D_SOURCE=hf run -0 "$scripts/map.sbatch"
    assert grep -qx "d9d-shard verify data" "$FAKE_LOG"
    assert grep -qx "d9d-map verify ckpt" "$FAKE_LOG"
    # One task reads it, of however many would have made it.
    assert grep -q "^srun --kill-on-bad-exit=1 --nodes=1 --ntasks=1 --ntasks-per-node=1 .*d9d-map verify ckpt$" "$FAKE_LOG"
    FAKE_EXIT=1 D9D_SOURCE=hf run -1 "$scripts/map.sbatch"
}

@test "infer requeues when interrupted and goes on" {
    D9D_INFER_CONFIG=i.json FAKE_EXIT=75 run -75 "$scripts/infer.sbatch"
    assert_equal "$(requeues)" 1
    D9D_INFER_CONFIG=i.json D9D_EXPORT=out D9D_PREDICTIONS=p.jsonl run -0 "$scripts/infer.sbatch"
    assert grep -qx "d9d-infer i.json --set trainer.model_stage_factory.source_checkpoint=out --set task.output=p.jsonl" "$FAKE_LOG"
}

@test "infer stops after attempts that add nothing, where what it adds can be seen" {
    export D9D_MAX_IDLE_RESTARTS=2 FAKE_EXIT=75 D9D_INFER_CONFIG=i.json
    printf '{"task": {"name": "logprobs",\n "output": "out dir/p.jsonl"}}\n' >i.json
    mkdir "out dir" && echo a >"out dir/p.jsonl.part-12"
    run -75 "$scripts/infer.sbatch"
    echo b >>"out dir/p.jsonl.part-12"
    run -75 "$scripts/infer.sbatch"
    run -1 "$scripts/infer.sbatch"
    assert_output --partial "no progress in 2 attempts: the bytes that are done of out dir/p.jsonl are still 4; stopping"
    rm "out dir"/*
    for _ in 1 2 3; do run -75 "$scripts/infer.sbatch"; done
    assert_equal "$(requeues)" 5
    FAKE_EXIT=0 run -0 "$scripts/infer.sbatch"
    assert_equal "$(echo d9d-infer-*)" "d9d-infer-*"
    D9D_MAX_IDLE_RESTARTS=0 run -2 "$scripts/infer.sbatch"
}

@test "infer takes no dataset where it has prompts" {
    printf '{"task": {"name": "generate", "prompts":\n "p.jsonl"}}' >g.json
    D9D_INFER_CONFIG=g.json D9D_DATASET=data run -0 "$scripts/infer.sbatch"
    assert grep -qx "d9d-infer g.json" "$FAKE_LOG"
    D9D_INFER_CONFIG=i.json D9D_DATASET=data run -0 "$scripts/infer.sbatch"
    assert grep -qx "d9d-infer i.json --set data.dataset=data" "$FAKE_LOG"
}

@test "metrics makes a report, and fails when a part fails" {
    run -0 "$scripts/metrics.sbatch"
    assert_equal "$(cat run/report/summary.txt)" "summary of run"
    assert grep -qx "d9d-metrics plot run -o run/report/curves.svg" "$FAKE_LOG"
    FAKE_EXIT=1 run -1 "$scripts/metrics.sbatch"
}

@test "the tools learn when the job began and ends" {
    printf '#!/bin/bash\necho "end $SLURM_JOB_END_TIME, start $SLURM_JOB_START_TIME" >>"$FAKE_LOG"\n' >bin/probe
    chmod +x bin/probe && ln -sf "$PWD/bin/probe" bin/d9d-train
    FAKE_END=2026-01-02T03:04:05 SLURM_JOB_START_TIME=77 run -0 "$scripts/train.sbatch"
    assert grep -qx "end $(date -d 2026-01-02T03:04:05 +%s), start 77" "$FAKE_LOG"
}

# ---- pipeline ----------------------------------------------------------------------------

pipeline_settings() {
    unset SLURM_JOB_ID
    export D9D_INPUT=x D9D_TOKENIZER=t D9D_SOURCE=s D9D_INFER_CONFIG=i
}

@test "pipeline submits a chain of afterok and prints the job numbers" {
    pipeline_settings
    D9D_SBATCH="-p gpu" D9D_SBATCH_TRAIN=--nodes=2 run -0 --separate-stderr "$scripts/pipeline.sh"
    assert_output "shard 101
map 102
train 103
infer 104
metrics 105"
    run grep '^sbatch' "$FAKE_LOG"
    assert_line "sbatch --parsable --output=logs/%x-%j.log -p gpu $scripts/shard.sbatch"
    assert_line "sbatch --parsable --output=logs/%x-%j.log --dependency=afterok:101:102 --kill-on-invalid-dep=yes -p gpu --nodes=2 $scripts/train.sbatch"
    assert_line "sbatch --parsable --output=logs/%x-%j.log --dependency=afterok:103:104 --kill-on-invalid-dep=yes -p gpu $scripts/metrics.sbatch"
}

@test "pipeline: logs of an array have the number of the task" {
    pipeline_settings
    D9D_SHARD_TASKS=3 run -0 --separate-stderr "$scripts/pipeline.sh" --to merge
    assert grep -qx "sbatch --parsable --output=logs/%x-%A_%a.log --array=0-2 $scripts/shard.sbatch" "$FAKE_LOG"
    assert grep -qE "^sbatch --parsable --output=logs/%x-%j.log --dependency=afterok:101 .*/merge.sbatch$" "$FAKE_LOG"
}

@test "pipeline understands the job numbers of several clusters" {
    pipeline_settings
    FAKE_CLUSTER=big run -0 --separate-stderr "$scripts/pipeline.sh" --from train --to infer
    assert_output "train 101
infer 102"
    assert grep -q -- "--dependency=afterok:101 " "$FAKE_LOG"
}

@test "pipeline --dry-run submits nothing" {
    pipeline_settings
    run -0 "$scripts/pipeline.sh" --dry-run
    assert_output --partial "--dependency=afterok:<shard>:<map>"
    assert_equal "$(cat "$FAKE_LOG")" ""
    refute [ -e logs ]
}

@test "pipeline names every missing setting and submits nothing" {
    unset D9D_CONFIG
    run -2 "$scripts/pipeline.sh"
    for name in D9D_INPUT D9D_SOURCE D9D_CONFIG D9D_INFER_CONFIG; do assert_output --partial "$name is not set"; done
    assert_equal "$(cat "$FAKE_LOG")" ""
}

@test "pipeline names every configuration that is not there and submits nothing" {
    pipeline_settings
    rm c.json i
    run -2 "$scripts/pipeline.sh"
    assert_line 'train: D9D_CONFIG is "c.json", which is no file that can be read: the configuration of d9d-train'
    assert_line 'infer: D9D_INFER_CONFIG is "i", which is no file that can be read: the configuration of d9d-infer'
    assert_equal "$(cat "$FAKE_LOG")" ""
}

@test "pipeline cancels what it submitted when Slurm refuses a job" {
    pipeline_settings
    FAKE_REFUSE=train run -1 "$scripts/pipeline.sh"
    assert_output --partial "sbatch refused train"
    run grep '^scancel' "$FAKE_LOG"
    assert_output --regexp '^scancel (101 102|102 101)$'
}

@test "pipeline refuses what it does not know" {
    pipeline_settings
    run -2 "$scripts/pipeline.sh" --from eval
    assert_output --partial '"eval" is no stage'
    run -2 "$scripts/pipeline.sh" --from infer --to map
    run -2 "$scripts/pipeline.sh" --fast
    run -0 "$scripts/pipeline.sh" --help
    assert_output --partial "usage: pipeline.sh"
}
