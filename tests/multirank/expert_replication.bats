#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Copies of hot experts on other ranks: losses, norms and weights are those of one rank on many meshes,
# and the load of ranks becomes more even.  A mesh is a line as in topology.bats, followed by the
# pipeline's degree.

load ../slurm/helper

load topology

copies=(--set 'trainer.expert_replication={"slots":2,"period_steps":3}')

# values RUN NAME: a value of every step.
values() { grep '"loss"' "$1/metrics.jsonl" | grep -oE "\"$2\": [^,}]+" | sed 's/.*: //'; }

# same_as_alone RUN: but for what one rank does not record.
same_as_alone() {
    rm -rf plain
    cp -r "$1" plain
    sed -i -E 's/, "expert_(rank_[a-z_]+|copies)": [^,}]+//g' plain/metrics.jsonl
    same plain "${alone:-moe}"
}

# copied RUN: there are copies in every step but those of the first period.
copied() {
    values "$1" expert_copies | awk 'NR <= 3 && $1 != 0 || NR > 3 && $1 == 0 { exit 1 } END { exit NR != 10 }'
}

# tensors RUN: the files of a checkpoint's tensors, and their sizes.
tensors() {
    (cd "$1/checkpoints/step-00000005" && find . \( -name "model-*" -o -name "optimizer-*" \) -printf "%p %s\n" | sort | grep .)
}

# on MESH [OPTION...]: equals one rank.
on() {
    rm -rf run
    train moe "$1" run "${copies[@]}" "${@:2}"
    same_as_alone run
    copied run
}

@test "copies of experts compute what one rank computes on every mesh" {
    for mesh in "2 1 1 1 1 2" "1 2 1 1 1 2" "1 4 1 1 1 2" "2 2 1 1 1 4" "2 2 1 1 1 2" "1 1 2 1 2 4"; do
        on "$mesh"
    done
}

@test "the self-test compares them with one rank, which has none" {
    run -0 mpi -n 2 d9d-train --selftest --device cpu --set mesh.data_parallel_shard=2 --set mesh.expert_parallel=2 \
        --set trainer.expert_replication='{"slots":2,"period_steps":1}' --set trainer.run.dir=tested moe.json
    [[ "$output" == *"copies of experts in"*"compute what one computes"* ]]
}

@test "with pipelines, whatever their schedule" {
    local four="--set model_provider.model.num_hidden_layers=4"
    # shellcheck disable=SC2086 # options
    d9d-train -q --device cpu --set trainer.run.dir=deep $four moe.json
    alone=deep
    for schedule in 1f1b 1f1b:1:zero_bubble looped_bfs:2 zero_bubble_v dual_pipe_v; do
        # shellcheck disable=SC2046,SC2086 # options
        on "1 2 1 1 1 2 2" $four $(schedule_options $schedule)
    done
}

@test "in a later stage of a rank whose first one has no experts" {
    small_deepseek late 4 8 157
    sed 's/^ "model_provider": .*/ "model_provider": {"name": "auto", "hf_config": "late"},/; /^   "layer"/,/split_vocab/d' moe.json >late.json
    calls() { # [OPTION...]: all-to-alls of a step, of each rank of the pipeline
        # shellcheck disable=SC2046 # options
        d9d-train --plan --gpu cpu --json --set mesh.data_parallel_shard=2 --set mesh.expert_parallel=2 --set mesh.pipeline_parallel=2 \
            $(schedule_options looped_bfs:2) "$@" late.json | tr -d '\n ' | grep -oE '"call":"all_to_all","link":"node","calls":[0-9]+' | sed 's/.*://'
    }
    # Weights come and gradients return, of three matrices: of the one layer with experts that the first rank has, of two.
    paste <(calls) <(calls "${copies[@]}") | awk '{ print; bad = bad || $2 - $1 != 6 * NR } END { exit bad || NR != 2 }'
}

@test "over nodes, in peer memory, with checkpointing, other micro-batches and other times of reductions" {
    on "1 4 1 1 1 4" --set mesh.expert_parallel_local=2
    D9D_P2P=force on "1 2 1 1 1 2"
    on "1 2 1 1 1 2" --set model_provider.checkpointing=full
    on "1 2 1 1 1 2" --set trainer.batching.microbatch_size=4
    on "1 4 1 1 1 2" --set trainer.gradient_manager.reduce=step
    on "1 4 1 1 1 2" --set trainer.sharding.reshard_after_forward=false
}

@test "with frozen experts, biases of routers, repeated steps and evaluations" {
    local option evaluated='evaluation={"name": "valid", "data": {"dataset": "data"}, "period_steps": 2}'
    alone=other
    for option in 'peft={"kind": "full_tune", "module_name_pattern": ".*self_attn.*"}' \
        model_provider.router.expert_bias=true trainer.integrity.rerun_period_steps=2 "$evaluated"; do
        rm -rf other
        d9d-train -q --device cpu --set trainer.run.dir=other --set "$option" moe.json
        on "1 2 1 1 1 2" --set "$option"
    done
}

@test "two runs have the same bits, and a resumed one those of one that never stopped" {
    local run
    for run in first second; do
        train moe "1 4 1 1 1 4" $run "${copies[@]}" --set trainer.checkpointing.period_steps=5
    done
    diff -r first/export second/export
    cmp <(values first loss) <(values second loss)
    rm -rf second/export second/checkpoints/step-00000010 # amid a period
    train moe "1 4 1 1 1 4" second "${copies[@]}"
    diff -r first/export second/export
    cmp <(values first expert_rank_imbalance | tail -n 5) <(values second expert_rank_imbalance | tail -n 5)
}

@test "a checkpoint with copies resumes on other meshes, with the loads that it has" {
    train moe "1 4 1 1 1 4" first "${copies[@]}" --set trainer.checkpointing.period_steps=5
    train moe "1 4 1 1 1 4" without --set trainer.checkpointing.period_steps=5
    cmp <(tensors first) <(tensors without)
    for mesh in "2 1 1 1 1 2" "1 4 1 1 1 2"; do
        rm -rf run
        cp -r first run
        rm -rf run/export run/checkpoints/step-00000010
        train moe "$mesh" run "${copies[@]}"
        "$driver" run/export moe/export
        values run expert_copies | tail -n 5 | head -n 1 | awk '{ exit !($1 > 0) }' # in the period that was begun
    done
    rm -rf run/export run/checkpoints/step-00000010
    d9d-train -q --device cpu --set trainer.run.dir=run moe.json
    "$driver" run/export moe/export
}

@test "where all tokens choose the same experts, the load of ranks becomes even" {
    awk 'BEGIN { for (i = 0; i < 80; i++) {
        x = "7"; for (j = 1; j < 64; j++) x = x ", 7"
        print "{\"input_ids\": [" x "], \"labels\": [" x "]}" } }' >same.jsonl
    d9d-shard -q --format tokens --out same same.jsonl
    mpi -n 4 d9d-train --device cpu --set data.dataset=same --set mesh.data_parallel_shard=4 \
        --set mesh.expert_parallel=4 --set trainer.run.dir=even --set optimizer.lr=1e-6 "${copies[@]}" moe.json 2>log
    grep -E 'step 4: [0-9]+ copies of experts in 2 layers; by the loads of the last period the busiest rank has 1[.0-9]* times' log
    paste <(values even expert_rank_imbalance) <(values even expert_rank_imbalance_without) |
        awk 'NR <= 3 && $1 != $2 { exit 1 }
             NR > 3 { with += $1; without += $2 }
             END { print with / 7, without / 7; exit !(with < 0.9 * without && with < 7 * 1.2) }'
}

@test "what cannot have copies is refused before anything is spent" {
    refused() { # SENTENCE OPTION...
        run -2 d9d-train --plan --gpu cpu --set mesh.data_parallel_shard=4 --set mesh.expert_parallel=4 "${copies[@]}" "${@:2}" moe.json
        assert_output --partial "trainer.expert_replication$1"
    }
    refused ": mesh.expert_parallel is 1, so every rank has all experts; copies need at least 2" --set mesh.expert_parallel=1
    refused ": model_provider.router.capacity_factor 1.5 bounds the load of experts already" --set model_provider.router.capacity_factor=1.5
    refused ".slots 3: a rank of mesh.expert_parallel 4 has 2 of 8 experts" --set trainer.expert_replication.slots=3
    refused ".slots: 0 is below the minimum of 1" --set trainer.expert_replication.slots=0
    refused ": trainer.fp8.experts true: copies of experts are multiplied in the model's dtype alone" \
        --set trainer.fp8='{"experts":true}' --set model_provider.model.layer.intermediate_size=32 \
        --set model_provider.model.layer.shared_expert.intermediate_size=32
    refused ": model.layers.0.mlp.grouped_experts.gate_proj.weight has an adapter" \
        --set peft='{"kind":"lora","module_name_pattern":".*grouped_experts.*","params":{"r":4,"alpha":8}}'
    run -2 d9d-train --plan --gpu cpu "${copies[@]}" dense.json
    assert_output --partial "trainer.expert_replication: qwen3 has no experts"
}
