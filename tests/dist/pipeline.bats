#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034 # variables of bats and of topology.bash
# Training over pipelines: every schedule, alone and with every other way to share the work, gives
# the losses, norms and weights of one rank.  A few are run on every change; D9D_LONG=1 runs all.

load ../slurm/helper

# Adam makes steps of full size of gradients that cancel to their rounding; eps keeps those small.
layers=16 batch=16 steps=4 eps=1e-6
load topology

schedules="gpipe looped_bfs:2 1f1b 1f1b:2 1f1b:1:zero_bubble 1f1b:2:zero_bubble 1f1b:1:deep_warmup
    zero_bubble_v dual_pipe_v"

# schedule_options WORD: NAME[:STAGES[:FLAG]] as options
schedule_options() {
    local name stages flag
    IFS=: read -r name stages flag <<<"$1"
    printf -- '--set trainer.pipelining.schedule.schedule=%s' "$name"
    [ -z "$stages" ] || printf -- ' --set trainer.pipelining.schedule.num_stages_per_rank=%s' "$stages"
    [ -z "$flag" ] || printf -- ' --set trainer.pipelining.schedule.%s=true' "$flag"
}

# alone NAME MODEL [OPTION...]: the same training by one rank, once.
alone() {
    local name=$1 model=$2
    shift 2
    [ -e "$name/export" ] || d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir="$name" "$@" "$model.json"
}

# agrees MODEL MESH SCHEDULE WITH [OPTION...]: is it the run of one rank, which is called WITH?
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

# What goes with a pipeline: "replicate shard context_shard context_replicate tensor expert".
beside() {
    echo "1 1 1 1 1 1"
    [ "$1" -le 4 ] || return 0
    printf '%s\n' "2 1 1 1 1 1" "1 2 1 1 1 1" "1 1 1 1 2 1" "1 1 2 1 1 1"
    [ "$2" = dense ] || printf '%s\n' "1 2 1 1 1 2"
}

# all MODEL: every schedule on every pipeline; three ranks take batches of 12.
all() {
    local model=$1 p mesh s size n=0 bad=0
    alone "$model-12" "$model" --set trainer.batching.global_batch_size=12
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

@test "a dense model, every schedule on 2 ranks" {
    for s in $schedules; do agrees dense "1 1 1 1 1 1 2" "$s" dense; done
}
@test "with data, context and tensor parallelism, and experts" {
    agrees dense "1 2 1 1 1 1 2" 1f1b dense
    agrees dense "2 1 1 1 1 1 2" 1f1b:2:zero_bubble dense
    agrees dense "1 1 1 1 2 1 4" zero_bubble_v dense
    agrees moe "1 2 1 1 1 2 2" dual_pipe_v moe
    agrees moe "1 1 2 1 1 1 2" looped_bfs:2 moe --set trainer.gradient_manager.reduce=step
    D9D_COMM_CHECK=1 agrees moe "1 1 1 1 1 1 8" gpipe moe
}

@test "a dense model, all schedules and meshes" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    all dense
}
@test "a mixture of experts, all schedules and meshes" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    all moe
}
