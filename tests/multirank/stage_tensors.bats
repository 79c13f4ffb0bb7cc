#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2086,SC2046,SC2034,SC2015 # variables of bats and of topology.bash; options
# Stages that exchange several tensors: an encoder-decoder whose memory goes through every stage, and a
# task that carries a number of each layer to the loss, equal one rank under every schedule.

load ../slurm/helper
layers=8 batch=16 steps=3 eps=1e-6
load topology
load workroom

schedules="gpipe looped_bfs:2 1f1b 1f1b:2 1f1b:1:zero_bubble 1f1b:2:zero_bubble zero_bubble_v dual_pipe_v"

setup_file() {
    workroom
    plugin encoder_decoder "$root/examples/plugins/encoder_decoder.c"
    plugin activation_penalty "$root/examples/plugins/activation_penalty.c"
    plugin wrong_stages "$root/tests/multirank/wrong_stages_plugin.c"
    d9d-shard -q --format tokens --out data "$root/tests/golden/moe/train.jsonl"
    configure penalty 48 '"intermediate_size": 48' |
        sed 's/qwen3_penalty/qwen3_dense/
            s/^{/{"plugin": ["libactivation_penalty.so", "libwrong_stages.so"], "task": {"name": "penalized_lm", "coefficient": 0.5}, "evaluation": {"data": {"dataset": "data"}, "samples": 12},/' >penalty.json
    configure moe 24 '"intermediate_size": 24, "num_experts": 8, "experts_top_k": 3' |
        sed 's/^{/{"plugin": "libactivation_penalty.so", "task": {"name": "penalized_lm", "coefficient": 0.5}, "evaluation": {"data": {"dataset": "data"}, "samples": 12},/' >moe.json
    cat >encoder.json <<'JSON'
{"plugin": "libencoder_decoder.so",
 "data": {"dataset": "captions", "source": {"name": "captions", "samples": 4096}, "order": "shuffled"},
 "evaluation": {"data": {"dataset": "others", "source": {"name": "captions", "samples": 24, "seed": 1}}},
 "model_provider": {"name": "encoder_decoder", "hidden_size": 32, "encoder_layers": 3, "decoder_layers": 5},
 "trainer": {"run": {"name": "encoder", "steps": 3}, "batching": {"global_batch_size": 32, "microbatch_size": 2},
  "logging": {"samples": true}, "gradient_clipping": {"max_norm": 1.0}},
 "optimizer": {"name": "adamw", "lr": 1e-3, "eps": 1e-6}}
JSON
    for name in encoder penalty moe; do
        d9d-train -q --device "${D9D_TEST_DEVICE:-cpu}" --set trainer.run.dir=$name $name.json
    done
}
setup() { with_mpi && enter; }

# agrees NAME MESH SCHEDULE [OPTION...]: losses, evaluations and norms are those of one rank.
agrees() {
    local name=$1
    rm -rf run
    train "$name" "$2" run $(schedule_options "$3") "${@:4}" && same run "$name" &&
        close_to 1e-5 <(numbers valid/loss run) <(numbers valid/loss "$name") ||
        { echo "$name, mesh $2, $3: not the run of one rank" && return 1; }
}

@test "an encoder's memory goes through the stages of every schedule, on 2 ranks" {
    [ "$(numbers valid/loss encoder | wc -l)" -eq 1 ]
    for s in $schedules; do agrees encoder "1 1 1 1 1 1 2" $s; done
}
@test "an encoder-decoder on 4 stages, with shards, replicas and recomputation" {
    agrees encoder "1 1 1 1 1 1 4" 1f1b
    agrees encoder "1 2 1 1 1 1 2" 1f1b:2:zero_bubble
    agrees encoder "2 1 1 1 1 1 2" dual_pipe_v
    agrees encoder "1 2 1 1 1 1 4" 1f1b:2 --set model_provider.checkpointing=full
}
@test "a number of each layer reaches the loss under every schedule, on 2 ranks" {
    for s in $schedules; do agrees penalty "1 1 1 1 1 1 2" $s; done
}
@test "a number of each layer reaches the loss beside tensor, context, data and expert parallelism" {
    agrees penalty "1 1 1 1 1 1 4" 1f1b:2
    agrees penalty "1 1 1 1 2 1 2" zero_bubble_v
    agrees penalty "1 1 2 1 1 1 2" 1f1b:2:zero_bubble
    agrees penalty "1 2 1 1 2 1 2" gpipe --set model_provider.checkpointing=full
    agrees moe "1 2 1 1 1 2 2" dual_pipe_v
}
@test "bfloat16 and dropped recomputation of stages resume to the bit" {
    options=(--set model_provider.dtype=bfloat16 --set model_provider.checkpointing=full)
    train encoder "1 1 1 1 1 1 2" whole "${options[@]}"
    train encoder "1 1 1 1 1 1 2" part "${options[@]}" --set trainer.run.steps=2
    rm -rf part/export
    train encoder "1 1 1 1 1 1 2" part "${options[@]}"
    cmp {whole,part}/export/model.safetensors
}
@test "perplexity over stages is that of one rank" {
    cat >infer.json <<'JSON'
{"plugin": "libencoder_decoder.so",
 "data": {"dataset": "others", "source": {"name": "captions", "samples": 10, "seed": 1}},
 "model_provider": {"name": "encoder_decoder", "hidden_size": 32, "encoder_layers": 3, "decoder_layers": 5},
 "trainer": {"batching": {"microbatch_size": 4}, "model_stage_factory": {"source_checkpoint": "encoder/export"}},
 "task": {"name": "logprobs", "output": "out.jsonl"}}
JSON
    for m in 1 2; do
        mpi -n $m d9d-infer -q --device "${D9D_TEST_DEVICE:-cpu}" --set mesh.pipeline_parallel=$m --set task.output=$m.jsonl infer.json
    done
    [ "$(wc -l <1.jsonl)" -eq 10 ]
    close_to 1e-5 <(grep -oE '[-][0-9.]+(e-[0-9]+)?' 2.jsonl) <(grep -oE '[-][0-9.]+(e-[0-9]+)?' 1.jsonl)
}
@test "generation over stages carries what is declared" {
    plugin carried_llama "$root/tests/multirank/carried_llama_plugin.c"
    llama=$golden/llama
    cat >generate.json <<JSON
{"plugin": "libcarried_llama.so", "model_provider": {"name": "carried_llama", "hf_config": "$llama/config.json"},
 "trainer": {"batching": {"microbatch_size": 2}, "model_stage_factory": {"source_checkpoint": "$llama"}},
 "task": {"name": "generate", "output": "out.jsonl", "prompts": "prompts.jsonl", "max_new_tokens": 12, "stop_at_eos": false}}
JSON
    printf '{"input_ids": [%s]}\n' "5, 6, 7" "9" "3, 1, 4, 1, 5, 9, 2, 6" >prompts.jsonl
    for m in 1 2; do
        mpi -n $m d9d-infer -q --device cpu --set mesh.pipeline_parallel=$m --set task.output=tokens-$m.jsonl generate.json
    done
    cmp tokens-1.jsonl tokens-2.jsonl
    sed -e 's/"task".*/"task": {"name": "generate", "output": "none.jsonl", "prompts": "prompts.jsonl", "max_new_tokens": 2}}/' \
        -e 's/"plugin".*/"plugin": "libencoder_decoder.so", "model_provider": {"name": "encoder_decoder", "hidden_size": 32, "encoder_layers": 3, "decoder_layers": 5},/' \
        -e 's#"source_checkpoint": "[^"]*"#"source_checkpoint": "encoder/export"#' generate.json >none.json
    run -2 d9d-infer -q --device cpu none.json
    assert_output --partial "encoder_decoder"
}
@test "a trace names the tensors of a tuple" {
    train encoder "1 1 1 1 1 1 2" traced --set 'trainer.profiling={"enabled": true, "period_steps": 2, "active_steps": 1}'
    for word in "stage 0 forward of micro-batch 0: memory" "stage 0 forward of micro-batch 0: hidden" "stage 1 backward of micro-batch 0: memory"; do
        zgrep -q "$word" traced/traces/* || grep -rq "$word" traced
    done
}
@test "a plan prices every tensor of the tuple" {
    # transfers OPTION...: how many messages between stages the first rank has in a step, and their bytes.
    transfers() {
        d9d-train --plan --gpu h100 --json --set mesh.pipeline_parallel=2 --set trainer.pipelining.schedule.schedule=1f1b "$@" penalty.json |
            tr -d ' \n' | grep -o '"group":"pp","call":"send_recv"[^}]*' | sed -n '1s/.*"calls":\([0-9]*\),"bytes":\([0-9.]*\).*/\1 \2/p'
    }
    read -r calls bytes < <(transfers)
    read -r plain_calls plain_bytes < <(transfers --set 'task={"name": "causal_lm"}')
    [ "$plain_calls" -eq 32 ]
    [ "$calls" -eq 64 ]
    awk -v a="$bytes" -v b="$plain_bytes" 'BEGIN { exit !(32 * a == 33 * b) }'
}
@test "what a stage gives and what it declares are compared, and named together" {
    for way in shape missing unknown; do
        rm -rf none
        run -2 train penalty "1 1 1 1 1 1 2" none --set 'task={"name": "wrong_stages", "way": "'$way'"}'
        case $way in
        shape) assert_output --partial 'pipeline: stage 0 gives "extra" as float32 [3], and stage 1 takes float32 [2]' ;;
        missing) assert_output --partial 'pipeline: stage 0 gives no "extra", and stage 1 takes one' ;;
        unknown) assert_output --partial 'passes on "other", which the next stage does not take' ;;
        esac
    done
    for way in name field constant; do
        run -2 train penalty "1 1 1 1 1 1 2" never --set 'task={"name": "wrong_stages", "way": "'$way'"}'
        case $way in
        name) assert_output --partial 'wrong_stages: two stage tensors have the name "hidden"' ;;
        field) assert_output --partial 'wrong_stages: the stage tensor "extra" has the rows of the field "image", which neither the model nor the task reads' ;;
        constant) assert_output --partial 'wrong_stages: the stage tensor "extra" is int32; one with a gradient is float32 or bfloat16' ;;
        esac
        [ ! -e never ]
    done
}
