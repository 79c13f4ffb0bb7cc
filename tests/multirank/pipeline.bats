#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034 # variables of bats and of topology.bash
# Pipeline parallelism: every schedule, alone and combined with every other kind of parallelism,
# gives the losses, norms and weights of one rank.  A few combinations run on every change; all with
# D9D_LONG=1.

load ../slurm/helper

# Adam would turn gradients that are only rounding errors into full steps; a large eps prevents that.
layers=16 batch=16 steps=4 eps=1e-6
load topology

schedules="gpipe looped_bfs:2 1f1b 1f1b:2 1f1b:1:zero_bubble 1f1b:2:zero_bubble 1f1b:1:deep_warmup
    zero_bubble_v dual_pipe_v"

# train_single NAME MODEL [OPTION...]: trains on one rank, once per NAME.
train_single() {
    local name=$1 model=$2
    shift 2
    [ -e "$name/export" ] || d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir="$name" "$@" "$model.json"
}

# agrees MODEL MESH SCHEDULE WITH [OPTION...]: trains and compares with the single-rank run WITH.
agrees() {
    local model=$1 mesh=$2 schedule=$3 with=$4
    shift 4
    rm -rf run
    # shellcheck disable=SC2046 # options
    if ! { train "$model" "$mesh" run $(schedule_options "$schedule") "$@" && same run "$with"; }; then
        echo "$model, mesh $mesh, $schedule $*: not the run of one rank"
        return 1
    fi
}

# The other degrees of a pipeline: "replicate shard context_shard context_replicate tensor expert".
beside() {
    echo "1 1 1 1 1 1"
    [ "$1" -le 4 ] || return 0
    printf '%s\n' "2 1 1 1 1 1" "1 2 1 1 1 1" "1 1 1 1 2 1" "1 1 2 1 1 1"
    [ "$2" = dense ] || printf '%s\n' "1 2 1 1 1 2"
}

# all MODEL: every schedule on every pipeline; three ranks use batches of 12.
all() {
    local model=$1 p mesh s size n=0 bad=0
    train_single "$model-12" "$model" --set trainer.batching.global_batch_size=12
    for p in 2 3 4 8; do
        size=$((p == 3 ? 12 : 16))
        while read -r mesh; do
            for s in $schedules; do
                n=$((n + 1))
                agrees "$model" "$mesh $p" "$s" "$model$([ $p != 3 ] || echo -12)" \
                    --set trainer.batching.global_batch_size=$size || bad=$((bad + 1))
            done
        done < <(beside "$p" "$model")
    done
    echo "# $model: $n combinations of schedule and mesh" >&3
    [ "$n" -gt 0 ] && [ "$bad" -eq 0 ]
}

@test "a dense model equals one rank under every schedule on 2 ranks" {
    for s in $schedules; do agrees dense "1 1 1 1 1 1 2" "$s" dense; done
}
@test "pipelines with data, context, tensor and expert parallelism equal one rank" {
    agrees dense "1 2 1 1 1 1 2" 1f1b dense
    agrees dense "2 1 1 1 1 1 2" 1f1b:2:zero_bubble dense
    agrees dense "1 1 1 1 2 1 4" zero_bubble_v dense
    agrees moe "1 2 1 1 1 2 2" dual_pipe_v moe
    agrees moe "1 1 2 1 1 1 2" looped_bfs:2 moe --set trainer.gradient_manager.reduce=step
    D9D_COMM_CHECK=1 agrees moe "1 1 1 1 1 1 8" gpipe moe
}

@test "a dense model equals one rank under all schedules and meshes" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    all dense
}
@test "a MoE model equals one rank under all schedules and meshes" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    all moe
}

# The driver compares losses and gradients per micro-batch, and the number of live tapes.
@test "micro-batches of varying length, tied, frozen and checkpointed stages equal the whole model" {
    n=0
    for ranks in 2 3 ${D9D_LONG:+4 8}; do
        for schedule in "gpipe 1" "looped_bfs 2" "1f1b 1" "1f1b 2" "1f1b 1 deep" "1f1b 1 split" "1f1b 2 split" "zero_bubble_v 2" "dual_pipe_v 2"; do
            for flags in ${D9D_LONG:+"" "tied" "frozen" "again"} "tied frozen again"; do
                # shellcheck disable=SC2086 # words
                mpi -n $ranks "$D9D_BUILD/tests/multirank/pipeline_driver" $schedule $flags | grep -q "on $ranks ranks: as without stages"
                n=$((n + 1))
            done
        done
    done
    echo "# $n programs" >&3
}

@test "a tied embedding on the first and last stage equals one rank" {
    tied="--set model_provider.model.tie_word_embeddings=true"
    # shellcheck disable=SC2086 # options
    train_single tied dense $tied
    for run in "1 1 1 1 1 1 2=1f1b" "1 1 1 1 1 1 2=zero_bubble_v" "1 1 1 1 1 1 4=looped_bfs:2" "1 2 1 1 1 1 3=1f1b:1:zero_bubble" \
        "2 1 1 1 2 1 2=dual_pipe_v"; do
        # shellcheck disable=SC2086
        agrees dense "${run%=*}" "${run#*=}" tied $tied
    done
}

# Only layers from the ninth on are trained, or only those between two stages.
@test "frozen weights on the first, last and middle stages equal one rank" {
    local trained runs=0 some=(1f1b looped_bfs:2 1f1b:2:zero_bubble zero_bubble_v dual_pipe_v 1f1b:1:zero_bubble)
    for trained in 'model\\.layers\\.(8|9|1[0-5])\\..*|lm_head' 'model\\.layers\\.[0-3]\\..*' 'model\\.norm'; do
        peft=(--set "peft={\"kind\": \"full_tune\", \"module_name_pattern\": \"$trained\"}")
        rm -rf frozen
        train_single frozen dense "${peft[@]}"
        for s in "${some[@]:$((runs++ * 2)):2}"; do agrees dense "1 1 1 1 1 1 2" "$s" frozen "${peft[@]}"; done
    done
}

@test "packed documents, varying batch sizes and activation checkpointing equal one rank" {
    d9d-shard -q --format tokens --pack 72 --out packed "$golden/moe/train.jsonl"
    pack="--set data.dataset=packed --set data.epochs=null --set trainer.batching.microbatch_size=2"
    # shellcheck disable=SC2086 # options
    train_single alone-packed moe $pack
    # shellcheck disable=SC2086
    agrees moe "1 1 2 1 1 2 2" zero_bubble_v alone-packed $pack --set model_provider.checkpointing=true
    for s in 1f1b:1:zero_bubble looped_bfs:2; do
        agrees dense "1 1 1 1 1 1 4" "$s" dense --set model_provider.checkpointing=selective
    done
}

# goes_on FROM TO: from the middle of a run on one mesh to its end on another; "MESH=SCHEDULE".
goes_on() {
    local saves=(--set trainer.checkpointing.period_steps=2)
    # shellcheck disable=SC2046 # options
    { rm -rf first run && train dense "${1%=*}" first $(schedule_options "${1#*=}") "${saves[@]}" && cp -r first run &&
        rm -r run/export run/checkpoints/step-00000004 &&
        train dense "${2%=*}" run $(schedule_options "${2#*=}") "${saves[@]}"; } || return
    tac run/metrics.jsonl | awk -F'[:,]' '!/"loss"/ || !seen[$2]++' | tac >tidy && mv tidy run/metrics.jsonl
    same run dense && { [ "$1" != "$2" ] || diff -r first/export run/export; }
}

@test "a checkpoint of one pipeline resumes on another" {
    goes_on "1 1 1 1 1 1 2=1f1b" "1 1 1 1 1 1 1=1f1b"
    goes_on "1 1 1 1 1 1 1=1f1b" "1 1 1 1 1 1 4=looped_bfs:2"
    goes_on "1 2 1 1 1 1 2=zero_bubble_v" "2 1 1 1 1 1 1=1f1b"
    goes_on "1 1 1 1 1 1 2=dual_pipe_v" "1 1 1 1 1 1 2=dual_pipe_v"
}

@test "inference over pipelines equals one rank, with a short last batch" {
    # The same configuration without the sections for training.
    sed -E 's/"shuffled"/"sequential"/; s/, "steps": [0-9]+//; /"optimizer"/d; /"gradient_clipping"/d
        s/"logging": .*/"logging": {}}}/' dense.json >infer.json
    options="--device cpu --set trainer.batching.microbatch_size=3 --set trainer.model_stage_factory.source_checkpoint=dense/export"
    for ranks in 1 2 3 8; do
        # shellcheck disable=SC2086 # options
        for task in logprobs perplexity; do
            [ $task = logprobs ] || [ $ranks -le 2 ] || continue
            mpi -n $ranks d9d-infer -q $options --set "task={\"name\": \"$task\", \"output\": \"$task-$ranks\"}" \
                --set mesh.pipeline_parallel=$ranks infer.json
            cmp $task-1 $task-$ranks
        done
    done
    # shellcheck disable=SC2086
    mpi -n 4 d9d-infer -q $options --set task.name=logprobs --set task.output=both --set mesh.pipeline_parallel=2 \
        --set mesh.data_parallel_shard=2 infer.json
    cmp logprobs-1 both
}

@test "the self-test passes on a pipeline" {
    run -0 mpi -n 4 d9d-train --selftest --device cpu --set mesh.pipeline_parallel=2 --set mesh.data_parallel_shard=2 \
        --set trainer.pipelining.schedule.schedule=zero_bubble_v --set trainer.run.dir=tested dense.json
    [[ "$output" == *"4 ranks (pp 2 dps 2) compute what one computes"* ]]
}

@test "impossible pipelines are reported once, before anything is written" {
    refused() {
        run -2 --separate-stderr mpi -n 2 d9d-train -q --device cpu --set mesh.pipeline_parallel=2 --set trainer.run.dir=no "${@:2}" dense.json
        [ "$(grep -c "$1" <<<"$stderr")" -eq 1 ]
        [ ! -e no ]
    }
    refused 'stage [0-9]* of 34 gets no layer: 16 layers' --set trainer.pipelining.schedule.schedule=1f1b \
        --set trainer.pipelining.schedule.num_stages_per_rank=17
    refused 'dual_pipe_v on 2 ranks needs 4 micro-batches at least, and there are 2' \
        --set trainer.pipelining.schedule.schedule=dual_pipe_v --set trainer.batching.microbatch_size=8
    refused '1f1b on 2 ranks takes 7 micro-batches in 3 rounds' --set trainer.batching.global_batch_size=7
    refused '"inference" computes no gradients' --set trainer.pipelining.schedule.schedule=inference
}

@test "a checkpoint with more layers than the model is rejected with the message of one rank" {
    deeper=(--set model_provider.model.num_hidden_layers=4 --set trainer.model_stage_factory.source_checkpoint=dense/export)
    run -2 --separate-stderr d9d-train -q --device cpu --set trainer.run.dir=no "${deeper[@]}" dense.json
    message=$stderr
    [[ "$message" == *"dense/export and qwen3_dense: 0 missing, 132 unused, 0 mis-shaped tensors: "* ]]
    run -2 --separate-stderr mpi -n 2 d9d-train -q --device cpu --set mesh.pipeline_parallel=2 --set trainer.run.dir=no "${deeper[@]}" dense.json
    [ "$(grep '^d9d-train' <<<"$stderr")" = "$message" ]
    [ ! -e no ]
}
