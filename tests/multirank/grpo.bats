#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# The task grpo on several ranks: completions, rewards, losses, norms and weights are those of one rank.
# A mesh is a line of topology.bash, with a schedule behind the pipeline's degree: NAME[:STAGES[:FLAG]].

load ../slurm/helper
load topology

setup_file() {
    workroom
    examples=$BATS_TEST_DIRNAME/../../examples
    sh "$examples/grpo/sums.sh" >sums.jsonl
    d9d-shard -q -t "$examples/tokenizer/tokenizer.json" --template "$examples/grpo/plain.jinja" --format chat -o sums sums.jsonl
    ln -s "$BATS_TEST_DIRNAME/../golden/preference/student" "$BATS_TEST_DIRNAME/../golden/preference/teacher" .
    task='"name": "grpo", "num_generations": 4, "max_completion_length": 5, "stop_tokens": '$(jq -nc '[range(500)]')',
          "rewards": [{"name": "length", "target": 3}, {"name": "pattern", "pattern": "[aeiou].*[aeiou]"}]'
    case_of plain "{$task}"
    case_of reference "{$task, \"beta\": 0.1, \"reference\": {\"checkpoint\": \"teacher\"}, \"loss_type\": \"grpo\",
        \"num_iterations\": 2, \"epsilon\": 0.01, \"mask_truncated_completions\": true}"
    case_of sequence "{$task, \"loss_type\": \"dr_grpo\", \"importance_sampling_level\": \"sequence\", \"scale_rewards\": \"batch\",
        \"num_iterations\": 2, \"epsilon\": 0.001, \"temperature\": 0.7, \"generation_batch_size\": 3}"
    experts='"intermediate_size": 24, "num_experts": 4, "experts_top_k": 2'
    case_of experts "{$task, \"top_k\": 50, \"loss_type\": \"bnpo\", \"num_iterations\": 2}" "$(model_of moe 2 "$experts")" null
    case_of deep "{$task, \"beta\": 0.1, \"reference\": \"start\", \"num_iterations\": 2, \"epsilon\": 0.01}" "$(model_of dense 8 '"intermediate_size": 48')" null
    # Adam would turn gradients that are only rounding errors into full steps.
    eps=1e-6 case_of deep_experts "{$task, \"num_iterations\": 2, \"generation_batch_size\": 3}" "$(model_of moe 8 "$experts")" null
}
setup() { with_mpi && enter; }

# model_of KIND LAYERS LAYER-JSON: a provider, whose model begins at random.
model_of() {
    cat <<JSON
{"name": "qwen3_$1", "model": {"num_hidden_layers": $2, "rope_base": 10000, "max_position_ids": 512, "initializer_range": 0.2,
   "split_vocab_size": {"regular": 2048}, "split_vocab_order": ["regular"],
   "layer": {"hidden_size": 32, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8, "rms_norm_eps": 1e-6, $3}}}
JSON
}

# case_of NAME TASK [MODEL SOURCE]: writes NAME.json, and its run of one rank.
case_of() {
    cat >"$1.json" <<JSON
{"data": {"dataset": "sums", "order": "shuffled"}, "task": $2, "metrics": [{"name": "grpo"}],
 "model_provider": ${3:-{\"name\": \"auto\", \"hf_config\": \"student\", \"dtype\": \"float32\"\}},
 "trainer": {"run": {"name": "$1", "steps": 4}, "batching": {"global_batch_size": 8, "microbatch_size": 2},
   "checkpointing": {"period_steps": "disable"}, "gradient_clipping": {"max_norm": 1.0},
   "model_stage_factory": {"source_checkpoint": ${4:-\"student\"}}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1, "eps": ${eps:-1e-8}}}
JSON
    d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir="$1" --set task.log_completions=8 "$1.json"
}

# texts_same A B: what was sampled is the same, of the prompts of all ranks, in the same order.
texts() { jq -c '[.step, .sample, .completion, .reward, .terminated]' "$1/completions.jsonl"; }
texts_same() { [ -s "$1/completions.jsonl" ] && cmp -s <(texts "$1") <(texts "$2"); }

# metrics_same A B: the metrics of both are equal to 1e-5 of 1.
metrics_same() {
    jq -e -n --slurpfile a "$1/metrics.jsonl" --slurpfile b "$2/metrics.jsonl" '
        [$a, $b | map(select(.loss != null))] as [$x, $y] | ($x | length) == 4 and
        all($x[]; .grad_norm > 0 and ."grpo/frac_reward_zero_std" < 0.9) and
        any($x[]; ."grpo/completions/clipped_ratio" | . > 0 and . < 1) and
        all(range($x | length); . as $i | $x[$i] | to_entries
            | all(.[]; (.key | startswith("grpo/") | not) or .value == $y[$i][.key]
                       or ((.value - $y[$i][.key]) | fabs) <= 1e-5))' >/dev/null
}

# all CASE MESH...: each mesh is the run of one rank.  Eight data-parallel ranks have a completion each;
# schedules have a prompt a micro-batch, as some need two micro-batches a rank.
all() {
    local case=$1 line schedule bad=0
    local -a more
    for line in "${@:2}"; do
        rm -rf run
        more=(--set task.log_completions=8)
        read -r _ _ _ _ _ _ _ schedule <<<"$line"
        [[ $line != "2 4 "* && -z $schedule ]] || more+=(--set trainer.batching.microbatch_size=1)
        # shellcheck disable=SC2207 # words
        [ -z "$schedule" ] || more+=($(schedule_options "$schedule"))
        if ! { train "$case" "$line" run "${more[@]}" && steps=4 same run "$case" && metrics_same run "$case" && texts_same run "$case"; }; then
            echo "$case on $line: not the run of one rank"
            bad=1
        fi
    done
    [ "$bad" -eq 0 ]
}

combined=()
[ -z "${D9D_LONG:-}" ] || combined=("2 2 1 1 2 1" "1 4 1 1 1 1" "4 1 1 1 2 1" "1 2 1 1 4 1" "2 4 1 1 1 1")

parts=()
[ -z "${D9D_LONG:-}" ] || parts=("1 2 2 1 1 1" "2 1 1 1 1 1 2" "1 1 2 1 1 1 2" "1 1 1 1 2 1 2" "1 1 2 2 1 1")

@test "replicas, shards and divided matrices sample and learn the same" { all plain "2 1 1 1 1 1" "1 2 1 1 1 1" "1 1 1 1 2 1" "${combined[@]}"; }
@test "rounds of two steps beside a reference" { all reference "1 2 1 1 1 1" "1 2 1 1 2 1" "${combined[@]}"; }
@test "ratios of sequences, and rewards by the whole step" { all sequence "1 4 1 1 1 1" "${combined[@]}"; }
@test "experts on several ranks" { all experts "1 2 1 1 1 2"; }

@test "stages of a pipeline, and positions on several ranks" { all plain "1 1 1 1 1 1 2" "1 1 2 1 1 1" "${parts[@]}"; }
@test "rounds of two steps beside a reference, in stages and by positions" { all reference "1 1 1 1 1 1 2" "1 1 2 1 1 1" "${parts[@]}"; }
@test "ratios of sequences whose positions are on several ranks" { all sequence "1 1 2 1 1 1" "1 1 1 2 1 1" "${parts[@]}"; }
@test "experts in stages and beside positions" { all experts "1 1 1 1 1 1 2" "1 1 2 1 1 2"; }

# Several stages on each rank: a token walks through them in their order, whatever the schedule of training is.
schedules=(gpipe looped_bfs:2 1f1b:2 1f1b:2:zero_bubble zero_bubble_v dual_pipe_v)

# scheduled CASE MESH...: every schedule on each mesh, the last number of which is the pipeline's degree.
scheduled() {
    local line schedule bad=0
    for line in "${@:2}"; do
        for schedule in "${schedules[@]}"; do all "$1" "$line $schedule" || bad=1; done
    done
    [ "$bad" -eq 0 ]
}

@test "every schedule on two ranks samples and learns the same" { scheduled deep "1 1 1 1 1 1 2"; }
@test "several stages on each of four ranks, and beside replicas, shards, positions, heads and experts" {
    all deep "1 1 1 1 1 1 4 zero_bubble_v" "1 2 1 1 1 1 2 1f1b:2:zero_bubble" "1 1 2 1 1 1 2 zero_bubble_v" "1 1 1 1 2 1 2 looped_bfs:4"
    all deep_experts "1 2 1 1 1 2 2 dual_pipe_v" "1 1 1 1 1 1 4 1f1b:2"
}
@test "every schedule on two and four ranks, beside every other axis" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    scheduled deep "1 1 1 1 1 1 4" "2 1 1 1 1 1 2" "1 2 1 1 1 1 2" "1 1 2 1 1 1 2" "1 1 1 2 1 1 2" "1 1 1 1 2 1 2" "1 1 2 1 1 1 4" "1 1 1 1 2 1 4"
    scheduled deep_experts "1 1 1 1 1 1 2" "1 1 1 1 1 1 4" "1 2 1 1 1 2 2" "1 1 2 1 1 2 2" "1 1 1 1 2 1 2"
}

@test "a self-test compares a mesh with several stages on a rank" {
    mpi -n 2 d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --selftest --set mesh.pipeline_parallel=2 \
        --set trainer.batching.microbatch_size=1 --set trainer.pipelining.schedule.schedule=dual_pipe_v deep.json
}

@test "a plugin's reward" {
    plugin variety "$BATS_TEST_DIRNAME/../../examples/plugins/variety.c"
    jq '.plugin = "./libvariety.so" | .task.rewards = [{name: "variety", window: 2}] | .task.max_completion_length = 12 | .task.temperature = 0.05' plain.json >variety.json
    d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir=variety --set trainer.batching.microbatch_size=4 variety.json
    [ "$(jq -s 'all(.[]; .reward > 0 and .reward <= 1) and any(.[]; .reward < 1)' variety/completions.jsonl)" = true ]
    run -2 --separate-stderr d9d-train -q --device cpu --set task.rewards='[{"name": "variety", "windows": 2}]' variety.json
    [[ "$stderr" == *'did you mean "window"'* ]]
}

@test "a planted fault: another seed is another run" {
    d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir=other --set task.seed=1 plain.json
    run ! metrics_same other plain
}
