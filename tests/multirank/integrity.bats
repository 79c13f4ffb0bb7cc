#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2317,SC2034 # variables of bats; functions that run calls; for topology.bash
# Silent data corruption: a flipped bit of weights, optimizer state, gradients, computations or
# messages is found within its period, its rank is named, nothing suspect is saved, and the run goes
# on to the weights of an undisturbed one.  Without a fault nothing is found, and no bit changes.
#
# D9D_LONG=1 draws D9D_FAULTS="FIRST N" at random, by default "1 200".

load ../slurm/helper
steps=8
load topology

setup_file() {
    workroom
    with_mpi
    plugin flip "$BATS_TEST_DIRNAME/flip_plugin.c"
    # shellcheck disable=SC2046 # several options
    ${CC:-cc} -shared -fPIC -O2 -o flipmsg.so "$BATS_TEST_DIRNAME/flip_message_preload.c" $(mpicc --showme:compile) -ldl
    d9d-shard -q --format tokens --out data "$golden/moe/train.jsonl"
    configure dense 48 '"intermediate_size": 48' >plain.json
    sed '1s/{/{"plugin": "libflip.so", "task": {"name": "flip_tokens"}, /' plain.json >dense.json
    configure moe 24 '"intermediate_size": 24, "num_experts": 8, "experts_top_k": 3' >plain_moe.json
    sed '1s/{/{"plugin": "libflip.so", "task": {"name": "flip_tokens"}, /' plain_moe.json >moe.json
}
setup() {
    with_mpi
    enter
    rm -rf run whole
    unset FLIP
}

replicas=(--set trainer.integrity.period_steps=2)
memory=(--set trainer.integrity.memory=true)
rerun=(--set trainer.integrity.rerun_period_steps=1)
peer=("${rerun[@]}" --set trainer.integrity.rerun_on_peer=true)
all=(--set trainer.integrity.period_steps=1 "${memory[@]}" "${peer[@]}")

# flipped FAULT MESH OPTION...: a run with a fault, which ends it.
flipped() {
    export FLIP=$1
    run -76 train dense "$2" run "${@:3}"
    unset FLIP
    assert_output --partial flipped
}
# said TEXT: the sentence says so, once, and nothing was exported.
said() {
    assert_line --regexp "^d9d-train: silent data corruption: $1"
    [ "$(grep -c '^d9d-train: silent' <<<"$output")" -eq 1 ]
    [ ! -e run/export ]
}
excluded() { assert_equal "$(find run/excluded_nodes -type f 2>/dev/null | wc -l)" "$1"; }

@test "without a fault nothing is found, and no bit changes" {
    while read -r model degrees options; do
        rm -rf run whole
        # shellcheck disable=SC2086 # options
        train "$model" "${degrees//,/ }" whole $options
        # shellcheck disable=SC2086
        train "$model" "${degrees//,/ }" run $options "${all[@]}"
        cmp run/export/model.safetensors whole/export/model.safetensors
        diff <(numbers loss run) <(numbers loss whole)
        diff <(numbers grad_norm run) <(numbers grad_norm whole)
        cmp run/samples.jsonl whole/samples.jsonl
    done <<'MESHES'
dense 1,1,1,1,1,1
dense 2,2,1,1,1,1 --set model_provider.dtype=bfloat16 --set optimizer.weight_update=stochastic
dense 1,2,2,1,1,1 --set trainer.gradient_manager.reduce=step
dense 2,1,1,1,2,1 --set peft={"kind":"lora","module_name_pattern":".*proj.*","params":{"r":2,"alpha":4,"dropout":0.1}}
moe 2,2,1,1,1,2 --set model_provider.router.expert_bias=true --set model_provider.router.bias_update_rate=0.01 --set trainer.logging.experts=counts
moe 1,2,1,1,1,1,2 --set model_provider.router.aux_loss_coef=0.02
dense 1,1,1,1,2,1,2 --set model_provider.model.num_hidden_layers=4 --set model_provider.model.tie_word_embeddings=true --set trainer.pipelining.schedule.schedule=zero_bubble_v
MESHES
}

@test "a flipped weight, state or gradient of a replica: the minority is named" {
    flipped "weights 2 5 77" "4 1 1 1 1 1" "${replicas[@]}"
    said "after step 6: rank 2 \(.*\): model\..* differs from what 3 of 4 ranks store; no checkpoint precedes it$"
    excluded 1
    rm -r run
    flipped "optimizer 1 5 1234" "4 1 1 1 1 1" "${replicas[@]}"
    said "after step 6: rank 1 \(.*\): model\..* differ.* from what 3 of 4 ranks store"
    rm -r run
    flipped "gradients 0 5 1234" "2 1 1 1 2 1" "${replicas[@]}"
    said "after step 6: rank 0 \(.*\)"
}

@test "two replicas that differ: both are named" {
    flipped "weights 1 3 5" "2 1 1 1 1 1" "${replicas[@]}"
    said "after step 4: rank 0 \(.*\) or rank 1 \(.*\): model\..* differs between the 2 ranks that store it"
    excluded 0
}

@test "what changed in memory is found in the same step, without replicas" {
    flipped "weights 1 3 5" "1 2 1 1 1 1" "${memory[@]}"
    said "rank 1 of 2 \(.*\): the memory of cpu on .*: model\..* changed between the updates of steps 2 and 3"
    excluded 1
    rm -r run
    flipped "optimizer 0 4 7" "1 1 1 1 1 1" "${memory[@]}"
    said "the memory of cpu on .*: model\..*\.exp_avg.* changed between the updates of steps 3 and 4"
}

@test "a computation that goes wrong once is found by its repetition" {
    flipped "tokens 1 4 5" "2 2 1 1 1 1" "${rerun[@]}"
    said "step 4: rank 1 \(.*\): the gradient of .* was another one when computed again \(the first was wrong, says a third\); nothing was updated"
    rm -r run
    flipped "tokens 0 4 3" "1 1 1 1 1 1 2" "${rerun[@]}"
    said "step 4: rank 0 \(.*\) or rank 1 \(.*\): the gradient of"
}

@test "a processor that is always wrong is found by its peer" {
    flipped "stuck 2 4 5" "2 2 1 1 1 1" "${peer[@]}"
    said "step 4: rank 2 \(.*\): another rank computes other losses or gradients"
    rm -r run
    flipped "stuck 1 4 5" "1 2 1 1 1 1" "${peer[@]}"
    said "step 4: rank 0 \(.*\) or rank 1 \(.*\): another rank computes"
}

@test "the last good checkpoint is named, and resuming from it gives the weights of an undisturbed run" {
    train dense "1 3 1 1 1 1" whole --set trainer.batching.global_batch_size=6
    options=(--set trainer.batching.global_batch_size=6 --set trainer.checkpointing.period_steps=2
        --set trainer.checkpointing.asynchronous=false)
    flipped "weights 0 6 9" "1 3 1 1 1 1" "${options[@]}" "${all[@]}"
    said "rank 0 of 3 .*changed between the updates of steps 5 and 6; the last good checkpoint is step 4 in "
    [ -e run/checkpoints/step-00000004 ]
    [ ! -e run/checkpoints/step-00000006 ]
    train dense "1 3 1 1 1 1" run "${options[@]}" "${all[@]}"
    cmp run/export/model.safetensors whole/export/model.safetensors
}

@test "a save is preceded by a check, whatever its period" {
    flipped "weights 1 3 5" "3 1 1 1 1 1" --set trainer.batching.global_batch_size=6 \
        --set trainer.checkpointing.period_steps=4 --set trainer.integrity.period_steps=1000
    said "after step 4: rank 1 "
    [ ! -e run/checkpoints/step-00000004 ]
}

@test "a message that arrives with another bit is found, or makes no difference" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    train dense "1 2 1 1 1 1" whole
    local found=0
    for call in 40 333 700 1100; do
        rm -rf run
        through=(env LD_PRELOAD="$work/flipmsg.so" FLIP_RANK=1 FLIP_CALL="$call" FLIP_BIT="$((call * 31 + 30))")
        run train dense "1 2 1 1 1 1" run "${all[@]}"
        through=()
        assert_output --partial "flipped bit"
        [ "$status" -eq 76 ] && found=$((found + 1)) && continue
        assert_equal "$status" 0
        cmp run/export/model.safetensors whole/export/model.safetensors
    done
    [ "$found" -ge 2 ]
}

@test "a task that keeps a state cannot be repeated" {
    sed '1s/{/{"plugin": "libcounting.so", "task": {"name": "counting"}, /' plain.json >counting.json
    plugin counting "$BATS_TEST_DIRNAME/counting_plugin.c"
    run -2 train counting "1 1 1 1 1 1" run "${rerun[@]}"
    assert_output --partial "trainer.integrity.rerun_period_steps: the task counting has a state, which a repeated step would change twice"
    [ ! -e run/metrics.jsonl ]
}

# Faults at random moments: each is found within its period, or the weights are those of the run
# without it.
@test "random faults are found and named" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    read -r first n <<<"${D9D_FAULTS:-1 200}"
    local meshes=("4 1 1 1 1 1" "1 4 1 1 1 1" "2 2 1 1 1 1" "2 1 1 1 2 1" "1 2 2 1 1 1" "1 2 1 1 1 1 2" "2 4 1 1 1 1")
    local whats=(weights optimizer gradients tokens stuck) found=0 named=0 seed
    for m in "${!meshes[@]}"; do train dense "${meshes[m]}" "whole$m"; done
    for ((seed = first; seed < first + n; seed++)); do
        RANDOM=$seed
        m=$((RANDOM % ${#meshes[@]})) ranks=4 what=${whats[RANDOM % ${#whats[@]}]}
        [ "$m" -ne 6 ] || ranks=8
        # A reduced gradient is compared by the replicas of what it updates.
        case $what,$m in gradients,[145]) what=weights ;; esac
        rank=$((RANDOM % ranks)) at=$((RANDOM % (steps - 1) + 1))
        rm -rf run
        export FLIP="$what $rank $at $((RANDOM * 32768 + RANDOM))"
        run train dense "${meshes[m]}" run "${all[@]}"
        case $status in
        76)
            found=$((found + 1))
            grep -qE "^d9d-train: silent.*rank $rank( of [0-9]+)? \(" <<<"$output" && named=$((named + 1)) && continue
            echo "seed $seed: not named: $FLIP on ${meshes[m]}: $output"
            return 1
            ;;
        0) cmp run/export/model.safetensors "whole$m/export/model.safetensors" && continue ;;
        esac
        echo "seed $seed: $FLIP on ${meshes[m]}: $output"
        return 1
    done
    echo "# $n faults: $found found and named, the others made no difference" >&3
    [ "$found" -gt $((n / 2)) ]
}
