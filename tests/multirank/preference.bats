#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Preference training, reward models and distillation on several ranks: losses, norms, rewards and weights
# are those of one rank.  A mesh is a line of topology.bash.

load ../slurm/helper
load topology

setup_file() {
    workroom
    golden=$BATS_TEST_DIRNAME/../golden/preference
    for format in preference:pairs unpaired:unpaired; do
        for _ in 1 2 3 4 5 6; do cat "$golden/${format#*:}.jsonl"; done >"${format#*:}.jsonl"
        d9d-shard -q --format "${format%:*}" --template "$golden/chat.jinja" -o "${format#*:}" \
            -t "$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json" "${format#*:}.jsonl"
    done
    ln -s "$golden/student" "$golden/teacher" .
    experts='"num_experts": 4, "experts_top_k": 2'
    preference='"name": "preference", "reference"' distillation='"name": "distillation", "teacher": {"checkpoint": "teacher"}'
    rewards='[{"name": "rewards"}]'
    case_of dpo pairs "{$preference: {\"checkpoint\": \"teacher\"}}" "$rewards"
    case_of ipo pairs "{$preference: \"start\", \"loss\": \"ipo\", \"beta\": 0.3}" "$rewards"
    case_of kto unpaired "{$preference: \"start\", \"loss\": \"kto\"}" "$rewards"
    case_of orpo pairs '{"name": "preference", "loss": "orpo"}' "$rewards"
    case_of reward pairs '{"name": "reward"}' "$rewards"
    case_of distillation pairs "{$distillation, \"beta\": 0.3, \"temperature\": 2, \"cross_entropy_weight\": 0.4, \"hidden_weight\": 0.2, \"chunk_tokens\": 13}" '[]'
    case_of experts pairs '{"name": "preference"}' "$rewards" \
        "{\"name\": \"qwen3_moe\", \"model\": {\"num_hidden_layers\": 2, \"rope_base\": 10000, \"max_position_ids\": 512,
          \"initializer_range\": 0.02, \"split_vocab_size\": {\"regular\": 2048}, \"split_vocab_order\": [\"regular\"],
          \"layer\": {\"hidden_size\": 32, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 8,
            \"rms_norm_eps\": 1e-6, \"intermediate_size\": 24, $experts}}}" null
}
setup() { with_mpi && enter; }

# case_of NAME DATA TASK METRICS [MODEL SOURCE]: writes NAME.json, and its run of one rank.
case_of() {
    cat >"$1.json" <<JSON
{"data": {"dataset": "$2", "order": "shuffled"}, "task": $3, "metrics": $4,
 "model_provider": ${5:-{\"name\": \"auto\", \"hf_config\": \"student\", \"dtype\": \"float32\"\}},
 "trainer": {"run": {"name": "$1", "steps": 3}, "batching": {"global_batch_size": 16, "microbatch_size": 2},
   "logging": {"samples": true, "documents": 1}, "gradient_clipping": {"max_norm": 1.0},
   "model_stage_factory": {"source_checkpoint": ${6:-\"student\"}}},
 "optimizer": {"name": "adamw", "lr": 1e-4, "weight_decay": 0.1}}
JSON
    d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir="$1" "$1.json"
}

# rewards_same A B: the rewards of both are equal to 1e-5 of 1.
rewards_same() {
    jq -e -n --slurpfile a "$1/metrics.jsonl" --slurpfile b "$2/metrics.jsonl" '
        [$a, $b | map(select(.loss))] as [$x, $y] | ($x | length) > 0 and
        all(range($x | length); . as $i | $x[$i] | to_entries
            | all(.[]; (.key | startswith("rewards") | not) or .value == $y[$i][.key]
                       or ((.value - $y[$i][.key]) | fabs) <= 1e-5))' >/dev/null
}

# all CASE MESH...: each mesh is the run of one rank.
all() {
    local case=$1 mesh bad=0
    for mesh in "${@:2}"; do
        rm -rf run
        if ! { train "$case" "$mesh" run && steps=3 same run "$case" && rewards_same run "$case"; }; then
            echo "$case on $mesh: not the run of one rank"
            bad=1
        fi
    done
    [ "$bad" -eq 0 ]
}

combined=()
[ -z "${D9D_LONG:-}" ] || combined=("2 2 1 1 1 1 2" "1 2 1 1 2 1 2" "1 1 2 1 2 1 2" "1 2 2 1 2 1 1" "4 2 1 1 1 1 1" "1 4 1 1 1 1 2")

@test "dpo beside another model" { all dpo "1 2 1 1 1 1" "1 1 2 1 2 1" "1 1 1 1 1 1 2" "1 2 1 1 2 1 2" "${combined[@]}"; }
@test "ipo beside its own start" { all ipo "2 1 1 1 1 1" "1 2 1 1 1 1 2" "${combined[@]}"; }
@test "kto of single answers" { all kto "1 2 1 1 1 1" "1 1 2 1 1 1 2" "${combined[@]}"; }
@test "orpo without a reference" { all orpo "1 1 2 1 2 1" "${combined[@]}"; }
@test "a reward model" { all reward "1 2 1 1 1 1" "1 1 2 1 2 1" "1 1 1 1 1 1 2" "${combined[@]}"; }
@test "distillation" { all distillation "1 2 1 1 1 1" "1 1 2 1 2 1" "1 1 1 1 1 1 2" "1 2 1 1 2 1 2" "${combined[@]}"; }
@test "experts beside frozen ones" {
    all experts "1 2 1 1 1 2" "1 1 1 2 2 4"
    [ -z "${D9D_LONG:-}" ] || all experts "2 2 1 1 1 2 2" "1 2 2 1 2 4"
}

@test "zero-bubble and breadth-first schedules carry both models" {
    for schedule in '{"schedule": "1f1b", "num_stages_per_rank": 1, "zero_bubble": true}' '{"schedule": "gpipe"}'; do
        rm -rf run
        train distillation "1 1 1 1 1 1 2" run --set trainer.pipelining.schedule="$schedule" || return 1
        steps=3 same run distillation
    done
}
