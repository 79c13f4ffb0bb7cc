#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034 # variables of bats and of topology.bash
# The memory that d9d-train --plan predicts is the memory that every rank measures, on many meshes.
#
# Where tokens choose experts, ranks differ a little; everything else is exact to the byte.

load ../slurm/helper

steps=5
load topology

dense_meshes="1 1 1 1 1 1,2 1 1 1 1 1,1 2 1 1 1 1,1 1 1 1 2 1,1 1 2 1 1 1,1 1 1 2 1 1,2 2 1 1 1 1,1 2 1 1 2 1,1 1 1 1 8 1"
moe_meshes="1 1 1 1 1 1,1 2 1 1 1 1,1 2 1 1 1 2,2 2 1 1 1 2,1 2 1 1 2 4,1 1 2 1 1 2"

# holds MODEL MESH PERCENT [KEY=VALUE...]: in each pipeline stage, the largest peak of a rank is the
# planned peak within PERCENT.
holds() {
    local model=$1 more=$3 i ranks=1 keys=() plan
    read -ra mesh <<<"$2"
    shift 3
    for i in "${!axes[@]}"; do
        keys+=("mesh.${axes[i]}=${mesh[i]}")
        [ "$i" -eq 5 ] || ranks=$((ranks * mesh[i]))
    done
    for i; do [[ $i != mesh.pipeline_parallel=* ]] || ranks=$((ranks * ${i#*=})); done
    keys+=("$@")
    plan=$(d9d-train --plan --gpu cpu --json "${keys[@]/#/--set=}" "$model.json" |
        sed -n 's/^ *"peak": \([0-9]*\),$/\1/p' | paste -sd' ')
    rm -rf measured
    mpi -n $ranks "$D9D_BUILD/tests/multirank/plan_driver" "$model.json" "${keys[@]}" trainer.run.dir=measured >peaks
    awk -v plan="$plan" -v more="$more" -v ranks=$ranks -v what="$model ${mesh[*]} $*" '
        BEGIN { stages = split(plan, planned, " ") }
        { n++; s = int($1 * stages / ranks) + 1; if ($2 > most[s]) most[s] = $2 }
        END { if (n != ranks || stages == 0) { print what ": " n + 0 " ranks of " ranks; exit 1 }
              for (s = 1; s <= stages; s++) {
                  off = (planned[s] / most[s] - 1) * 100
                  printf "%-60s plan %8d, measured %8d: %+.2f %%\n", what, planned[s], most[s], off
                  bad = bad || !(off <= more && -off <= more)
              }
              exit bad }' peaks
}

# each MODEL LIST PERCENT [KEY=VALUE...]: holds() for every mesh of the list.
each() {
    local model=$1 list=$2 more=$3 mesh bad=0
    shift 3
    while read -r mesh; do holds "$model" "$mesh" "$more" "$@" || bad=$((bad + 1)); done < <(tr , '\n' <<<"$list")
    [ "$bad" -eq 0 ]
}

@test "memory of a dense model is predicted to the byte" { each dense "$dense_meshes" 0; }
# With many lengths blocks of one serve another, and are larger than what asked for them.
@test "memory of samples of many lengths, most of whose labels are ignored, is predicted to the byte" {
    awk 'BEGIN { for (i = 0; i < 80; i++) {
        n = 20 + i * 13 % 45; ids = labels = ""
        for (j = 0; j < n; j++) { ids = ids (j ? ", " : "") (7 * i + j * j) % 157; labels = labels (j ? ", " : "") (j < n - 3 ? -100 : j) }
        printf "{\"input_ids\": [%s], \"labels\": [%s]}\n", ids, labels } }' | d9d-shard -q --format tokens --out lengths -
    local epoch=(data.dataset=lengths trainer.run.steps=10 trainer.batching.microbatch_size=2)
    each dense "1 1 1 1 1 1,1 2 1 1 1 1" 0 "${epoch[@]}"
    holds dense "1 1 1 1 1 1" 0 "${epoch[@]}" model_provider.dtype=bfloat16
}
@test "memory of ring attention is predicted to the byte" {
    each dense "1 1 2 1 1 1,1 1 4 1 1 1" 0 mesh.context_parallel_method=ring
    holds dense "1 1 3 1 1 1" 0 mesh.context_parallel_method=ring model_provider.checkpointing=full model_provider.dtype=bfloat16
    holds dense "1 1 2 2 1 1" 0 mesh.context_parallel_method=all_to_all+ring
}
@test "memory with activation checkpointing is predicted to the byte" {
    holds dense "1 2 1 1 1 1" 0 model_provider.checkpointing=full
    holds dense "1 2 1 1 2 1" 0 model_provider.checkpointing=selective
    holds dense "2 2 1 1 1 1" 0 trainer.gradient_manager.reduce=step
    holds dense "2 1 1 1 1 1" 0 model_provider.dtype=bfloat16
}
# While they are evaluated or exported the weights are kept beside them, which outgrows a step's few activations.
@test "memory of averages in the place of weights is predicted to the byte" {
    local ema='trainer.ema={"decay": 0.9, "start_step": 2}' free='optimizer={"name": "schedule_free_adamw", "lr": 1e-3}' \
        evaluated='evaluation={"data": {"dataset": "data"}, "samples": 8, "period_steps": 2}' few=model_provider.checkpointing=full
    each dense "1 1 1 1 1 1,1 2 1 1 1 1" 0 "$few" "$ema" "$evaluated"
    holds dense "1 2 1 1 2 1" 0 "$few" "$free" "$evaluated"
    each dense "1 1 1 1 1 1,1 2 1 1 1 1" 0 "$few" "$ema"
    holds dense "2 1 1 1 1 1" 0 "$few" "$free" model_provider.dtype=bfloat16
}
@test "memory without reshard after forward or backward is predicted to the byte, with fewer gathers" {
    holds dense "1 2 1 1 1 1" 0 trainer.sharding.reshard_after_forward=false
    holds moe "2 2 1 1 1 1" 0 trainer.sharding.reshard_after_forward=false trainer.gradient_manager.reduce=step
    holds dense "1 2 1 1 1 1" 0 trainer.sharding.reshard_after_backward=false trainer.batching.microbatch_size=1
    holds moe "2 2 1 1 1 1" 0 trainer.sharding.reshard_after_backward=false trainer.gradient_manager.reduce=step
    gathers() { # KEY=VALUE, with several micro-batches
        d9d-train --plan --gpu cpu --json --set mesh.data_parallel_shard=2 --set trainer.batching.microbatch_size=1 \
            --set trainer.sharding."$1" dense.json |
            tr -d '\n' | sed 's/.*"call": "all_gather"[^}]*"calls": \([0-9]*\).*/\1/'
    }
    again=$(gathers reshard_after_forward=true) once=$(gathers reshard_after_forward=false)
    step=$(gathers reshard_after_backward=false)
    echo "$again gathers, $once where weights are kept until backward, $step until the end of a step"
    [ "$step" -gt 0 ] && [ "$once" -ge $((2 * step)) ] && [ "$again" -gt $((once + once / 2)) ]
}
# The start of a job has few exchanges, whatever it computes and how many ranks there are.
@test "memory with the checksums of trainer.integrity is predicted to the byte" {
    each dense "2 1 1 1 1 1,1 2 1 1 2 1" 0 trainer.integrity.memory=true trainer.integrity.period_steps=1 trainer.integrity.rerun_period_steps=1
}

@test "exchanges by the bootstrap are about as many as planned" {
    planned=$(d9d-train --plan --json --set mesh.data_parallel_shard=2 dense.json | sed -n 's/^ *"exchanges": \([0-9]*\),$/\1/p')
    for by in pmix tcp; do
        rm -rf measured
        D9D_BOOTSTRAP=$by mpi -x D9D_BOOTSTRAP -n 4 "$D9D_BUILD/tests/multirank/plan_driver" moe.json mesh.data_parallel_shard=4 \
            mesh.expert_parallel=2 trainer.run.dir=measured >peaks
        awk -v planned="$planned" '{ n++; off = $3 - planned; bad = bad || off > 5 || off < -5; print "rank " $1 ": " $3 " exchanges, planned " planned }
            END { exit bad || n != 4 }' peaks
    done
    plan() { d9d-train --plan --set mesh.data_parallel_shard="$1" --set trainer.batching.global_batch_size="$1" --set data.epochs=1000 dense.json; }
    [[ $(plan 8) == *"exchanges by PMIx, $((8 * 8 * planned)) requests to a node's PMIx server"* ]]
    [[ $(plan 128) == *"exchanges by TCP, at most $((planned * 2 * 8)) messages of a rank, and 8 requests to a node's PMIx server"* ]]
    [[ $(D9D_BOOTSTRAP=pmix plan 128) == *"exchanges by PMIx, $((8 * 128 * planned)) requests"* ]]
    [[ $(plan 1) != *"find each other"* ]]
}
@test "memory of prompt tuning is predicted to the byte" {
    prompt='peft={"kind": "prompt_tuning", "num_virtual_tokens": 9}'
    holds dense "1 1 1 1 1 1" 0 "$prompt"
    holds dense "1 2 1 1 2 1" 0 "$prompt"
}
@test "memory with gradients that travel as bfloat16 is predicted to the byte" {
    each dense "2 1 1 1 1 1,1 2 1 1 1 1,2 2 1 1 1 1,1 2 1 1 2 1" 0 trainer.gradient_manager.reduce_dtype=bfloat16
}
@test "memory with larger evaluation batches is predicted to the byte" {
    evaluation='evaluation={"data": {"dataset": "data"}, "microbatch_size": 48}'
    holds dense "1 1 1 1 1 1" 1 "$evaluation"
    holds dense "1 2 1 1 1 1" 1 "$evaluation"
    peaks() { d9d-train --plan --gpu cpu --json "$@" dense.json | sed -n 's/^ *"peak": \([0-9]*\),$/\1/p'; }
    [ "$(peaks --set "$evaluation")" -gt "$(peaks)" ]
    [ "$(peaks --set 'evaluation={"data": {"dataset": "data"}}')" -eq "$(peaks)" ]
}
@test "memory of an evaluation over pipeline stages is predicted: the first stage runs ahead as planned" {
    for samples in 8 72; do
        holds dense "1 1 1 1 1 1" 1 mesh.pipeline_parallel=2 trainer.data_loading.pad_to_multiple_of=16 \
            "evaluation={\"data\": {\"dataset\": \"data\"}, \"microbatch_size\": 8, \"samples\": $samples}"
    done
}
# written KEY=VALUE...: the planned host memory of saves is what the run uses.
written() {
    d9d-train --plan --gpu cpu --json "${@/#/--set=}" dense.json >plan.json
    rm -rf measured
    mpi -n 2 d9d-train --device cpu "${@/#/--set=}" --set trainer.run.dir=measured dense.json 2>log
    planned=$(sed -n 's/^ *"host_copy": \([0-9]*\),$/\1/p' plan.json | head -n 1)
    echo "# ${planned} bytes; $(grep -o 'from .* of host memory' log)" >&3
    awk -v p="$planned" -v s="$(sed -n 's/.*written asynchronously, from \([0-9.e+-]*\) MB of host.*/\1/p' log)" \
        'BEGIN { off = p / (s * 1e6) - 1; exit !(s > 0 && off < 0.006 && -off < 0.006) }'
}
@test "host memory of asynchronous checkpoints is predicted" {
    written mesh.data_parallel_shard=2 trainer.checkpointing.period_steps=4
    written mesh.pipeline_parallel=2 trainer.checkpointing.period_steps=4
    [ "$(sed -n 's/^ *"host_bytes": \([0-9]*\),$/\1/p' plan.json)" -gt "$planned" ]
    none() { d9d-train --plan --gpu cpu "$@" dense.json | grep -c 'asynchronous checkpoints' || true; }
    [ "$(none --set trainer.checkpointing.period_steps=4)" -eq 1 ]
    [ "$(none --set trainer.checkpointing.period_steps=disable)" -eq 0 ]
    [ "$(none --set trainer.checkpointing.period_steps=5)" -eq 0 ] # the last save is synchronous
    [ "$(none --set trainer.checkpointing.period_steps=4 --set trainer.checkpointing.asynchronous=false)" -eq 0 ]
}

# Heads on whole texts, and routers with losses of their own.
@test "memory of every training task is predicted to the byte, over stages within 3 percent" {
    for m in dense moe; do
        d9d-shard -q --format tokens --out texts-$m "$golden/tasks/$m/texts.jsonl"
        cat >task-$m.json <<JSON
{"data": {"dataset": "texts-$m", "epochs": 3},
 "model_provider": {"name": "qwen3_$m", "hf_config": "$golden/tasks/$m/config.json"},
 "trainer": {"run": {"name": "task", "steps": 5}, "batching": {"global_batch_size": 8}, "data_loading": {"pad_to_multiple_of": 32},
   "model_stage_factory": {"source_checkpoint": "$golden/tasks/$m"}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
        for task in '{"name": "classification"}' '{"name": "classification", "pooling": "mean"}' '{"name": "embedding"}'; do
            rows=1
            [[ $task != *embedding* ]] || rows=4 # contrastive training needs several pairs in a micro-batch
            for mesh in "1 1 1 1 1 1" "1 2 1 1 1 1" "1 1 1 1 2 1"; do
                holds task-$m "$mesh" 0 "task=$task" trainer.batching.microbatch_size=$rows
            done
        done
        holds task-$m "1 1 1 1 1 1" 3 'task={"name": "classification"}' mesh.pipeline_parallel=2
    done
}
@test "memory of routers with losses and biases is predicted" {
    router='model_provider.router={"aux_loss_coef": 0.02, "z_loss_coef": 0.01, "expert_bias": true}'
    holds moe "1 1 1 1 1 1" 5 "$router"
    holds moe "1 2 1 1 1 2" 5 "$router"
}
@test "memory of a MoE model is predicted within 5 percent" {
    each moe "$moe_meshes" 5
    holds moe "2 2 1 1 1 4" 5 model_provider.checkpointing=full
    dropped='peft={"kind": "lora", "module_name_pattern": ".*experts.*_proj", "params": {"r": 3, "alpha": 12, "dropout": 0.3}}'
    holds moe "1 1 1 1 1 1" 5 "$dropped"
    holds moe "1 2 1 1 1 2" 5 "$dropped"
}

# bounded MESH FACTOR [KEY=VALUE...]: no rank measures more than the plan has for full experts.
bounded() {
    local on=$1 keys=("model_provider.router.capacity_factor=$2" "${@:3}") bound
    holds moe "$on" 5 "${keys[@]}"
    # shellcheck disable=SC2046 # options
    bound=$(d9d-train --plan --gpu cpu --json $(meshed "$on") "${keys[@]/#/--set=}" moe.json |
        sed -n 's/^ *"bytes_experts_full": \([0-9]*\),*$/\1/p')
    awk -v bound="$bound" '{ if (!($2 <= bound)) { print $0 ": over " bound; bad = 1 } } END { exit bad || !NR }' peaks
    echo "$bound"
}
meshed() { # MESH: as options
    local i mesh
    read -ra mesh <<<"$1"
    for i in "${!axes[@]}"; do printf -- '--set=mesh.%s=%s ' "${axes[i]}" "${mesh[i]}"; done
}
@test "memory of experts with a capacity is predicted, and bounded where they are full" {
    bounded "1 1 1 1 1 1" 1.25
    small=$(bounded "1 2 1 1 1 2" 1.25 | tail -n 1)
    large=$(bounded "1 2 1 1 1 2" 2 | tail -n 1)
    none=$(bounded "1 2 1 1 1 2" 100 | tail -n 1)
    [ "$small" -lt "$large" ]
    [ "$large" -eq "$none" ] # one of two ranks cannot have more than all
    bounded "1 2 1 1 2 4" 1
    bounded "1 1 2 1 1 2" 0.5
}

# Messages in flight arrive a little later or earlier than planned.
pipe() { # SCHEDULE-JSON RANKS MODEL PERCENT MESH
    holds "$3" "${5:-1 1 1 1 1 1}" "$4" mesh.pipeline_parallel="$2" model_provider.model.num_hidden_layers=8 \
        trainer.data_loading.pad_to_multiple_of=16 trainer.run.steps=10 trainer.pipelining.schedule="{\"schedule\": $1}"
}
@test "memory of every pipeline schedule is predicted within 3 percent" {
    pipe '"1f1b"' 2 dense 3
    pipe '"1f1b"' 4 dense 3
    pipe '"1f1b", "zero_bubble": true' 2 dense 3
    pipe '"1f1b", "num_stages_per_rank": 2' 2 dense 3
    pipe '"gpipe"' 2 dense 3
    pipe '"looped_bfs", "num_stages_per_rank": 2' 2 dense 3
    pipe '"zero_bubble_v"' 2 dense 3
    pipe '"dual_pipe_v"' 2 dense 3
    pipe '"1f1b"' 2 dense 3 "1 2 1 1 2 1"
}
# Of few short micro-batches the messages are the most that can be off.  On a busy machine more of
# them wait than planned: one of several runs must match.
once() {
    for _ in 1 2 3 4; do "$@" && return; done
    return 1
}
tiny() { # RANKS LAYERS MICROBATCH BATCH CHECKPOINTING SCHEDULE-JSON PERCENT
    holds dense "1 1 1 1 1 1" "$7" mesh.pipeline_parallel="$1" model_provider.model.num_hidden_layers="$2" \
        trainer.data_loading.pad_to_multiple_of=16 trainer.batching.microbatch_size="$3" trainer.run.steps=2 \
        trainer.batching.global_batch_size="$4" model_provider.checkpointing="$5" trainer.pipelining.schedule="{\"schedule\": $6}"
}
# The plan of the last stage is not below what it needs.
not_below() {
    tiny "$@" | sed -n 2p | grep -q ': +'
}
@test "memory of tiny breadth-first pipelines is predicted within 3 percent, with the message that is on its way" {
    once tiny 2 4 2 12 full '"looped_bfs", "num_stages_per_rank": 2' 3
    once tiny 2 4 1 8 selective '"looped_bfs", "num_stages_per_rank": 2' 3
    once tiny 2 6 1 4 full '"looped_bfs", "num_stages_per_rank": 3' 3
    once tiny 4 8 1 8 full '"looped_bfs", "num_stages_per_rank": 2' 3
    # The last stage sends a gradient while it computes the next one.
    once not_below 2 2 2 8 full '"gpipe"' 3
}
@test "memory of a MoE pipeline is predicted within 5 percent" {
    pipe '"1f1b"' 2 moe 5 "1 2 1 1 1 2"
}

# The plan must not be too small, nor so large that it rejects runs that could be saved.

@test "memory of copies of experts is predicted within 5 percent" {
    for on in "1 2 1 1 1 2" "2 2 1 1 1 4" "1 2 1 1 2 4"; do
        holds moe "$on" 5 trainer.expert_replication='{"slots": 2, "period_steps": 1}'
    done
}
