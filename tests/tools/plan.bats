#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# d9d-train --plan: predicted memory as measured, verdicts, rejected requests.

load train_bench

plan() { d9d-train --plan --gpu cpu --json "$@"; }
# number KEY: of a plan on stdin.
number() { sed -n 's/^ *"'"$1"'": \([-0-9.e+]*\),\{0,1\}$/\1/p' | head -n 1; }
is() { "${D9D_BUILD:-$BATS_TEST_DIRNAME/../../build}/schemas/dump" "$@"; }

@test "memory is what training measures, to the byte" {
    for mode in off full selective; do
        d9d-train -q -d cpu --set model_provider.checkpointing=$mode --set trainer.run.dir=$mode c.json
        measured=$(grep '"loss"' $mode/metrics.jsonl | sed 's/.*"mem_bytes": \([0-9]*\).*/\1/' | sort -n | tail -n 1)
        planned=$(plan --set model_provider.checkpointing=$mode c.json | number peak)
        [ "$measured" = "$planned" ] || { echo "$mode: measured $measured, planned $planned"; return 1; }
    done
}

@test "checksums of trainer.integrity are in the plan, to the byte" {
    for key in period_steps=2 memory=true rerun_period_steps=2; do
        d9d-train -q -d cpu --set trainer.integrity.$key --set trainer.run.dir=$key c.json
        measured=$(grep '"loss"' $key/metrics.jsonl | sed 's/.*"mem_bytes": \([0-9]*\).*/\1/' | sort -n | tail -n 1)
        assert_equal "$key $(plan --set trainer.integrity.$key c.json | number peak)" "$key $measured"
    done
}

@test "steps, tokens and sizes are those of the run" {
    d9d-train -q -d cpu --set trainer.checkpointing.period_steps=last_step c.json
    plan c.json >plan.json
    is d9d.plan.v1 plan.json
    [ "$(number steps <plan.json)" = "$(records run)" ]
    # Files have headers too.
    for part in checkpoint:run/checkpoints/step-00000020/ export:run/export/model.safetensors; do
        size=$(find "${part#*:}" -name '*.safetensors' -printf '%s\n' | awk '{ n += $1 } END { print n }')
        planned=$(number "${part%:*}_bytes" <plan.json)
        awk -v a="$planned" -v b="$size" 'BEGIN { exit !(a < b && b < a + 65536) }'
    done
}

@test "a plan needs no launcher, no GPU, no checkpoint, and with --length no data" {
    run -0 --separate-stderr env SLURM_STEP_NUM_TASKS=4 d9d-train --plan c.json
    [[ "$output" == *"NVIDIA H200"* ]]
    run -0 --separate-stderr d9d-train --plan --set trainer.model_stage_factory.source_checkpoint=nowhere c.json
    says 2 "nowhere" d9d-train --plan --set data.dataset=nowhere c.json
    run -0 --separate-stderr d9d-train --plan --set data.dataset=nowhere --length 32 c.json
    [[ "$output" == *"of 32 positions"* ]]
    says 2 "rows of 100000 positions, and the model has 512" d9d-train --plan --length 100000 c.json
    [ ! -e run ]
}

# token_flops DATASET [OPTION...]: model FLOP of a token, as MFU, time and the chip's rate give them.
token_flops() {
    d9d-train --plan --json --set data.dataset="$1" "${@:2}" c.json |
        jq -e '.mfu * .step_s * .ranks / .tokens'
}

@test "tokens of packed documents have the FLOP of their own document" {
    awk 'BEGIN { for (i = 0; i < 64; i++) {
        printf "{\"input_ids\": [1"; for (k = 0; k < 32; k++) printf ", %d", (i + k) % 60; print "]}" } }' >docs.jsonl
    d9d-shard -q --format tokens -o apart docs.jsonl
    d9d-shard -q --format tokens --pack 512 -o packed docs.jsonl
    token_flops apart --set trainer.run.steps=1 --set trainer.batching.global_batch_size=4 >apart.txt
    token_flops packed --set trainer.run.steps=1 --set trainer.batching.global_batch_size=4 >packed.txt
    paste apart.txt packed.txt | awk '{ exit !($1 > 0 && ($2 / $1 - 1) ^ 2 < 1e-12) }' || { paste apart.txt packed.txt; false; }
}

# A frozen matrix has no gradient of its own; whatever the stages, in the order of the whole model.
@test "with adapters alone a token has some two thirds of the FLOP, on a pipeline too" {
    lora='peft={"kind": "lora", "module_name_pattern": "all-linear", "params": {"r": 2, "alpha": 2}}'
    token_flops data >full.txt
    token_flops data --set "$lora" >lora.txt
    token_flops data --set "$lora" --set mesh.pipeline_parallel=2 >piped.txt
    paste full.txt lora.txt piped.txt | awk '{ exit !($2 > 0.6 * $1 && $2 < 0.75 * $1 && ($3 / $2 - 1) ^ 2 < 1e-12) }' ||
        { paste full.txt lora.txt piped.txt; false; }
}

# page_mesh WORD DEGREE ...: as the tables of meshes call it, in options.
page_mesh() {
    local -A axis=([pp]=pipeline_parallel [dpr]=data_parallel_replicate [dps]=data_parallel_shard
        [cpr]=context_parallel_replicate [cps]=context_parallel_shard [tp]=tensor_parallel [ep]=expert_parallel)
    while [ $# -ge 2 ]; do
        echo "--set mesh.${axis[$1]}=$2"
        shift 2
    done
}

@test "memory is said in GiB, on every page as in the tables; GB are powers of 1000" {
    local root=$BATS_TEST_DIRNAME/../..
    run grep -rnE -- '(--memory |@|Ql )[0-9.]+[kMGT]B' "$root/README.md" "$root/docs" "$root/tools/man" "$root/slurm" "$root/examples"
    assert_output ''
    run ! grep -E -- '[0-9][kMGT]B' <(d9d-train --help)
    run -0 d9d-train --plan --memory 80GB c.json
    assert_output --partial 'GiB of 74.51 GiB'
    run -0 d9d-train --plan --memory 80GiB c.json
    assert_output --partial 'GiB of 80.00 GiB'
}

@test "the plans of docs/howto/plan-a-job.md are what is printed" {
    # shellcheck source=tests/gpu/models.bash
    . "$BATS_TEST_DIRNAME/../gpu/models.bash"
    page=$BATS_TEST_DIRNAME/../../docs/howto/plan-a-job.md
    echo "${config[moe]}" >run.config.json
    run_config moe run data 8 >moe.json
    d9d-train --print-config --set trainer.batching.global_batch_size=64 --set data.epochs=null moe.json >c.json
    sed -n 's/^\$ \(d9d-train .*c\.json\)$/\1/p' "$page" >commands
    [ "$(wc -l <commands)" = 2 ]
    sed -n '/^\$ d9d-train --plan --length/,/^\.\.\.$/{/^\$/d; /^\.\.\./d; p}' "$page" >shown
    [ "$(wc -l <shown)" = 8 ]
    diff shown <(bash -e <(head -n 1 commands) | head -n 8)

    # Of all meshes those that the page has.
    sed -n '/^mesh .*MFU %$/,/^\.\.\.$/p' "$page" | sed '1d; $d' >meshes
    [ "$(wc -l <meshes)" -ge 3 ]
    sed -n 2p commands | grep -qw 'global_batch_size=256'
    while read -r line; do
        mesh=${line% [0-9]* off *}
        read -r rows _ _ gib seconds _ <<<"${line#"$mesh"}"
        # shellcheck disable=SC2046,SC2086 # words
        d9d-train --plan --json --length 4096 --set trainer.batching.global_batch_size=256 \
            --set trainer.batching.microbatch_size="$rows" $(page_mesh $mesh) c.json >p.json
        assert_equal "$mesh $(number bytes <p.json | awk '{ printf "%.2f", $1 / 2^30 }') $(number step_s <p.json | awk '{ printf "%.3g", $1 }')" \
            "$mesh $gib $seconds"
    done <meshes
}

@test "a verdict: what is needed against what there is" {
    need=$(plan c.json | number bytes)
    run -0 --separate-stderr plan --memory "$need" c.json
    says 2 "it does not fit" plan --memory $((need - 1)) c.json
    printf '%s\n' "$output" >plan.json
    is d9d.plan.v1 plan.json
    grep -q '"fits": false' plan.json
    says 2 "GiB: it does not fit" d9d-train --plan -q --memory 1GB c.json
    [ -z "$output" ]
}

@test "what is said about a plan trains nothing where --plan was forgotten" {
    for option in "--gpu h100" "--memory 80GiB" "--length 9" "--timeline x.svg" "--costs run" "--suggest 8"; do
        # shellcheck disable=SC2086 # an option and its value
        says 2 "${option%% *} is for --plan, which is not there" d9d-train $option c.json
    done
    says 2 "--plan and --selftest: one of them" d9d-train --plan --selftest c.json
    [ ! -e run ]
}

@test "meshes that training refuses are refused with its sentences" {
    says 2 "does not divide num_attention_heads" plan --set mesh.tensor_parallel=3 c.json
    says 2 "does not divide num_experts" plan --set mesh.data_parallel_shard=7 --set mesh.expert_parallel=7 \
        --set trainer.batching.global_batch_size=14 c.json
    says 2 "is not a multiple of" plan --set mesh.data_parallel_shard=3 c.json
    says 2 "expert_parallel 2 does not divide the 1 ranks" plan --set mesh.expert_parallel=2 c.json
    says 2 "expected one of h200" d9d-train --plan --gpu h300 c.json
    says 2 "mesh.tensor_parallel" plan --set mesh.tensor_parallel=0 c.json
}

# refused SENTENCE OPTION...: by the plan as by training, which spends nothing before.
refused() {
    local sentence=$1 trained
    shift
    says 2 "$sentence" d9d-train -q -d cpu "$@" c.json
    trained=${stderr_lines[-1]}
    says 2 "$sentence" plan "$@" c.json
    [ "${stderr_lines[-1]}" = "$trained" ] && [ ! -e run ]
}
schedule() { printf 'lr_scheduler={"name": "piecewise", "scheduler": {"initial_multiplier": 0, "phases": [%s]}}' "$1"; }
evaluated() { printf 'evaluation={"data": {"dataset": "data"}, %s}' "$1"; }

@test "whatever else training refuses of a configuration is refused with its sentences" {
    pairs=(--set 'task={"name": "embedding"}')
    refused "trainer.batching.microbatch_size is 1: the task embedding tells pairs" "${pairs[@]}" --set trainer.batching.microbatch_size=1
    pairs+=(--set trainer.batching.microbatch_size=4 --set trainer.batching.global_batch_size=4)
    refused "evaluation.valid.microbatch_size is 5: the task" "${pairs[@]}" --set "$(evaluated '"microbatch_size": 5')"
    refused "where data.order is sequential; that of data is not" "${pairs[@]}" --set data.order=shuffled
    refused "where there is one dataset; 2 are blended" "${pairs[@]}" --set 'data=[{"dataset": "data"}, {"dataset": "data"}]'
    head -n 41 "$golden/moe/train.jsonl" >odd.jsonl
    d9d-shard -q --format tokens --out odd odd.jsonl
    refused "a pass has an even number of samples; odd has 41, and 120 are taken" "${pairs[@]}" --set data.dataset=odd --set data.epochs=3
    refused "a pass has an even number of samples; odd has 41, and 60 are taken" "${pairs[@]}" \
        --set 'evaluation={"data": {"dataset": "odd", "epochs": null}, "samples": 60}'
    d9d-train -q -d cpu "${pairs[@]}" --set data.dataset=odd --set trainer.run.dir=one c.json # one pass leaves the last out
    [ "$(records one)" = 10 ]
    refused "metrics: the task embedding gives no predictions" "${pairs[@]}" --set 'metrics=[{"name": "accuracy"}]'
    refused "classes: accuracy: a prediction of" --set 'metrics=[{"name": "accuracy"}]'
    refused "evaluation.valid.metrics[0]: the model has" --set "$(evaluated '"metrics": [{"name": "accuracy"}]')"
    few='"metrics": [{"name": "accuracy", "problem": "multiclass", "num_classes": 2}]'
    classes='task={"name": "classification", "num_labels": 1000}'
    refused "metrics[0]: the model has 1000 classes: accuracy: a prediction of 1000 numbers, must be 2" --set "$classes" --set "${few/\"metrics\": /metrics=}"
    refused "evaluation.valid.metrics[0]: the model has 1000 classes" --set "$classes" --set "$(evaluated "$few")"
    refused "data: sample 0 has the label 118, and the task's classes are 0 to 2" --set "${classes/1000/3}"
    refused "samples is 100000, and data has" --set "$(evaluated '"samples": 100000')"
    refused 'evaluation.name: "a/b"' --set "$(evaluated '"name": "a/b"')"
    refused 'both called "valid"' --set 'evaluation=[{"data": {"dataset": "data"}}, {"data": {"dataset": "data"}}]'
    refused "so samples must say how many" --set 'evaluation={"data": {"dataset": "data", "epochs": null}}'
    refused "its phases last 5000 steps" --set "$(schedule '{"mode": "steps", "steps": 5000, "target_multiplier": 1}')"
    refused "nothing that it could be merged into" \
        --set trainer.model_stage_factory.source_checkpoint=null --set trainer.model_stage_factory.source_adapter=nowhere
    ids=$(yes 7 | head -n 600 | paste -sd ,)
    printf '{"input_ids": [%s], "labels": [%s]}\n' "$ids" "$ids" >long.jsonl
    d9d-shard -q --format tokens --out long long.jsonl
    refused "its longest sample has 600 tokens" --set 'evaluation={"data": {"dataset": "long"}}'
    # All that needs no data is, without them.
    for what in 'metrics=[{"name": "accuracy"}]' "$(evaluated '"name": "a/b"')" \
        "$(schedule '{"mode": "steps", "steps": 5000, "target_multiplier": 1}')"; do
        run -2 plan --length 32 --set trainer.run.steps=9 --set data.dataset=nowhere --set "$what" c.json
    done
}

@test "pairs that are told apart: suggestions have the micro-batch that is learned from" {
    pairs=(--length 64 --set 'task={"name": "embedding"}' --set trainer.batching.global_batch_size=24)
    d9d-train --plan --suggest 2 --json "${pairs[@]}" --set trainer.batching.microbatch_size=6 c.json >s.json
    [ "$(sed -n 's/^ *"rows": \([0-9]*\),$/\1/p' s.json | sort -u)" = 6 ]
    says 2 "microbatch_size is 3: the task embedding" d9d-train --plan --suggest 2 "${pairs[@]}" --set trainer.batching.microbatch_size=3 c.json
}

@test "more ranks need less memory each, and say what they send" {
    plan --set mesh.data_parallel_shard=2 c.json >two.json
    is d9d.plan.v1 two.json
    [ "$(number weights <two.json)" -lt "$(plan c.json | number weights)" ]
    grep -q '"call": "reduce_scatter"' two.json
    grep -q '"link": "node"' two.json
    d9d-train --plan --json --set mesh.data_parallel_shard=16 --set trainer.batching.global_batch_size=32 c.json |
        grep -q '"link": "network"'
}

@test "suggestions: each is what its plan says, the best first" {
    d9d-train --plan --suggest 4 --length 64 --json --set data.dataset=nowhere --set trainer.batching.global_batch_size=8 c.json >s.json 2>stderr
    grep -q 'suggest: [1-9][0-9]* candidates in ' stderr # as of any long work
    is d9d.suggest.v1 s.json
    rates=$(sed -n 's/^ *"tokens_per_hour": \([0-9.e+]*\),$/\1/p' s.json)
    [ "$(wc -l <<<"$rates")" -gt 3 ]
    [ "$rates" = "$(sort -rg <<<"$rates")" ]
    # The first one without a pipeline, planned alone.
    first=$(awk 'BEGIN { RS = "\"mesh\":" } NR > 1 && /"schedule": null/ { print; exit }' s.json)
    options=(--set "trainer.batching.microbatch_size=$(number rows <<<"$first")" --set trainer.batching.global_batch_size=8
        --set "model_provider.checkpointing=$(sed -n 's/.*"checkpointing": "\([a-z]*\)".*/\1/p' <<<"$first")")
    for axis in data_parallel_replicate data_parallel_shard context_parallel_shard context_parallel_replicate tensor_parallel expert_parallel; do
        options+=(--set "mesh.$axis=$(number $axis <<<"$first")")
    done
    d9d-train --plan --json --length 64 "${options[@]}" c.json >p.json
    [ "$(number bytes <p.json)" = "$(number bytes <<<"$first")" ]
    [ "$(number step_s <p.json)" = "$(number step_s <<<"$first")" ]
}

@test "suggestions that fit less memory compute more again, and what cannot be is said" {
    local suggest=(d9d-train --plan --suggest 2 --length 64 --json c.json)
    "${suggest[@]}" | grep -q '"checkpointing": "off"'
    least=$(d9d-train --plan --length 64 --json --set model_provider.checkpointing=full --set mesh.tensor_parallel=2 \
        --set trainer.batching.microbatch_size=1 c.json | number bytes)
    says 2 "no mesh of 2 ranks fits" "${suggest[@]}" --memory $((least / 2))
    says 2 "--timeline is of one mesh" "${suggest[@]}" --timeline no.svg
    says 2 "rows of 4096 positions, and the model has 512" d9d-train --plan --suggest 2 --length 4096 c.json
    says 2 "no mesh of 7 ranks divides this model" d9d-train --plan --suggest 7 --length 64 c.json
}

# 6.5 G parameters: with gradients and AdamW's state 104 GB, and an A100 has 86.
@test "a model that one processor cannot hold is planned, and others for it are found" {
    cat >large.json <<JSON
{"data": {"dataset": "nowhere"}, "optimizer": {"name": "adamw", "lr": 1e-3},
 "trainer": {"batching": {"global_batch_size": 4}},
 "model_provider": {"name": "qwen3_dense", "model": {"num_hidden_layers": 6, "rope_base": 10000, "max_position_ids": 512,
   "layer": {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 128},
   "split_vocab_size": {"regular": 32000}, "split_vocab_order": ["regular"]}}}
JSON
    large() { d9d-train --plan --gpu a100 --length 64 --json "$@" large.json; }
    [ "$(large | number weights)" -gt 20000000000 ]
    says 2 "and may take 80.00 GiB: it does not fit; activation checkpointing, smaller micro-batches and more ranks need less (--suggest tries them)" large --memory 80GiB
    large --suggest 4 >s.json
    is d9d.suggest.v1 s.json
    grep -q '"data_parallel_shard": 4' s.json
    run -0 grep -c '"bytes"' s.json
    [ "$output" -lt "$(number meshes <s.json)" ]
}

# With a copy for each rank's rows of each expert they were many times more of twice as many ranks.
@test "weights of fewer experts than ranks are put together by few copies on any number of ranks" {
    cat >few.json <<JSON
{"data": {"dataset": "nowhere"}, "optimizer": {"name": "adamw", "lr": 1e-3}, "trainer": {"run": {"steps": 4}},
 "model_provider": {"name": "qwen3_moe", "model": {"num_hidden_layers": 2, "rope_base": 10000, "max_position_ids": 512,
   "layer": {"hidden_size": 1024, "intermediate_size": 1024, "num_experts": 128, "experts_top_k": 8, "rms_norm_eps": 1e-6,
     "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128},
   "split_vocab_size": {"regular": 1024}, "split_vocab_order": ["regular"]}}}
JSON
    copies() {
        d9d-train --plan --length 64 --json --set mesh.data_parallel_shard="$1" --set trainer.batching.global_batch_size="$1" few.json |
            grep -A 1 '"kind": "memory"' | number calls
    }
    for ranks in 256 512; do # one of each part were hundreds of thousands
        [ "$(copies $ranks)" -lt 4096 ]
    done
}

@test "what is on two stages is one parameter, of the model, its checkpoints and its export" {
    tied=(--length 64 --set trainer.batching.microbatch_size=1 --set model_provider.name=qwen3_dense
        --set model_provider.hf_config="$golden/dense_tied/config.json")
    plan "${tied[@]}" c.json >one.json
    plan "${tied[@]}" --set mesh.pipeline_parallel=2 c.json >two.json
    for key in parameters checkpoint_bytes export_bytes; do
        [ "$(number $key <one.json)" = "$(number $key <two.json)" ] || { echo "$key: $(number $key <two.json)"; return 1; }
    done
}

# Of 128 all are played, of more as many as show the rest: each takes as much as one of the first.
@test "65536 micro-batches: of each schedule what fewer say, at once" {
    of() { plan --length 64 --set mesh.pipeline_parallel=2 --set trainer.batching.microbatch_size=1 \
        --set trainer.pipelining.schedule="{\"schedule\": \"$1\"}" --set trainer.batching.global_batch_size="$2" c.json >"$2.json"; }
    more() { awk -v a="$(number "$1" <"$2.json")" -v b="$(number "$1" <"$3.json")" -v n=$(($3 - $2)) 'BEGIN { print (b - a) / n }'; }
    for schedule in 1f1b gpipe; do
        for n in 64 128 8192 65536; do of $schedule $n; done
        for key in step_s peak live_activations; do
            echo "$schedule $key: $(more $key 64 128) $(more $key 8192 65536)"
            awk -v a="$(more $key 64 128)" -v b="$(more $key 8192 65536)" -v what="$schedule $key" 'BEGIN {
                if (what ~ /1f1b (peak|live_activations)/) exit !(a < 16 && b < 16) # its loss
                exit !(a > 0 && b - a <= 0.01 * a && a - b <= 0.01 * a) }'
        done
    done
    says 2 "with 65538 micro-batches" of gpipe 65538
    plan --length 64 --set mesh.pipeline_parallel=2 --set trainer.batching.microbatch_size=1 \
        --set trainer.batching.global_batch_size=65536 --timeline t.svg c.json >p.json
    grep -q '>1f1b, part of 65536 micro-batches: 2 ranks, 2 stages, 256 micro-batches' t.svg
    [ "$(wc -c <t.svg)" -lt 1000000 ]
}

@test "a pipeline: its stages, their costs, bubble and picture" {
    pipe=(--set mesh.pipeline_parallel=2 --set trainer.batching.microbatch_size=1)
    plan "${pipe[@]}" --timeline t.svg c.json >p.json
    is d9d.plan.v1 p.json
    [ "$(grep -c '"live_activations"' p.json)" = 2 ]
    sed -E 's/"fsdp_buffers"/"units"/; s/"unaccounted"/"outside"/; s/"live_activations"/"live"/
        s/"stage_costs"/"prices"/; s/"dgrad"/"input"/; s/"wgrad"/"weight"/; s/"device"/"processor"/' p.json >former.json
    [ "$(diff p.json former.json | grep -c '^>')" -eq 12 ]
    is d9d.plan.v1 former.json # as 0.1 wrote it
    [ "$(grep -c '"forward"' p.json)" = 2 ]
    [ "$(number live_activations <p.json)" = 2 ]
    awk -v b="$(number bubble <p.json)" 'BEGIN { exit !(b > 0.1 && b < 0.5) }'
    [ "$(grep -c '>rank [01]<' t.svg)" = 2 ]
    [ "$(grep -c '>3<' t.svg)" = 4 ] # forward and backward of the last micro-batch on both
    says 2 "there is no pipeline to draw" plan --timeline no.svg c.json
    [ ! -e no.svg ]
    says 2 "pipeline" plan --set mesh.pipeline_parallel=3 c.json
}

# Qwen3-235B-A22B: the manifests of its checkpoints are as good as of one size on any number of ranks.
@test "a plan of 4096 ranks is not refused for its checkpoints" {
    cat >large.json <<JSON
{"data": {"dataset": "nowhere"}, "optimizer": {"name": "stochastic_adamw", "lr": 1e-3}, "trainer": {"run": {"steps": 4}},
 "mesh": {"expert_parallel": 64},
 "model_provider": {"name": "qwen3_moe", "dtype": "bfloat16", "model": {"num_hidden_layers": 94, "rope_base": 10000, "max_position_ids": 4096,
   "layer": {"hidden_size": 4096, "intermediate_size": 1536, "num_experts": 128, "experts_top_k": 8, "rms_norm_eps": 1e-6,
     "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128},
   "split_vocab_size": {"regular": 151936}, "split_vocab_order": ["regular"]}}}
JSON
    of() { d9d-train --plan --length 64 --json --set mesh.data_parallel_shard="$1" --set trainer.batching.global_batch_size="$1" "${@:2}" large.json; }
    [ "$(of 4096 | number checkpoint_bytes)" = "$(of 2048 | number checkpoint_bytes)" ]
}

@test "before there is data, --length is named" {
    sed 's|"dataset": "[^"]*"|"dataset": "nowhere"|' c.json >early.json
    says 2 "nowhere/manifest.json: cannot open" plan early.json
    says 2 "; --length plans rows of so many tokens without data" plan early.json
    run -0 plan --length 16 early.json
}

# bytes GROUP CALL <PLAN: of the calls of a group, by the first rank of a plan
bytes() {
    tr -d '\n ' | grep -oE "\"group\":\"$1\",\"call\":\"$2\",\"link\":\"[a-z]+\",\"calls\":[0-9]+,\"bytes\":[0-9.e+]+" |
        head -n 1 | sed 's/.*://'
}

# wide METHOD RANKS: a configuration of context parallelism.
wide() {
    cat <<JSON
{"data": {"dataset": "nowhere"}, "optimizer": {"name": "adamw", "lr": 1e-3}, "trainer": {"run": {"steps": 4}},
 "mesh": {"context_parallel_shard": $2, "context_parallel_method": "$1"},
 "model_provider": {"name": "qwen3_dense", "dtype": "bfloat16", "model": {"num_hidden_layers": 2, "rope_base": 10000,
   "max_position_ids": 1048576, "layer": {"hidden_size": 32, "intermediate_size": 48, "rms_norm_eps": 1e-6,
     "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16},
   "split_vocab_size": {"regular": 157}, "split_vocab_order": ["regular"]}}}
JSON
}

# A step of 2 layers, 64 tokens a rank, in forward and backward: d9d/comm/cp_method.h.
@test "heads that are exchanged for positions are planned with the bytes of the formula" {
    wide all_to_all 4 >wide.json
    set -- --json --set trainer.batching.global_batch_size=1 wide.json
    d9d-train --plan --length 256 "$@" >p.json
    is d9d.plan.v1 p.json
    assert_equal "$(bytes cp_shard all_to_all <p.json)" "$((2 * 2 * 64 * 3 * (8 + 4) * 2 * 16 * 2 / 4)).0"
    # A ring: rank 0 gets both chunks of the others, of 32 positions, and sends one of its own; in
    # backward gradients go the other way.  A step takes the larger number: 2 2 2, and 2 2 3 2 2.
    d9d-train --plan --length 256 "$@" --set mesh.context_parallel_method=ring >p.json
    is d9d.plan.v1 p.json
    assert_equal "$(bytes cp_shard send_recv <p.json)" "$((2 * (6 + 11) * 32 * 2 * 2 * 16 * 2)).0"
    d9d-train --plan --suggest 4 --length 4096 "$@" >s.json
    is d9d.suggest.v1 s.json
    for method in all_gather all_to_all ring; do grep -q "\"context_parallel_method\": \"$method\"" s.json; done
}

@test "a plan says when the blocks of a ring run on plain kernels" {
    wide ring 4 >ring.json
    set -- --plan --length 4096 --set trainer.batching.global_batch_size=1 ring.json
    d9d-train "$@" >fast.txt
    run ! grep 'blocks of the ring' fast.txt
    d9d-train --set model_provider.dtype=float32 "$@" >plain.txt
    grep -E '^blocks of the ring take [0-9.]+ m?s on plain kernels: packed documents, ' plain.txt
}

@test "auto plans every method of context parallelism, and says what it took and why" {
    wide auto 16 >auto.json
    set -- --length 262144 --set trainer.batching.global_batch_size=1 \
        --set model_provider.model.layer.num_attention_heads=6 auto.json
    d9d-train --plan "$@" >p.txt || [ $? -eq 1 ]
    grep -E '^context_parallel_method auto is (all_gather|ring); all_gather: a step of [0-9.e-]+ s, .*; all_to_all is refused: .* do not divide num_attention_heads 6; ring: a step of ' p.txt
    d9d-train --plan --json "$@" >p.json || [ $? -eq 1 ]
    is d9d.plan.v1 p.json
    method=$(sed -n 's/^context_parallel_method auto is \([a-z_]*\);.*/\1/p' p.txt)
    grep -q "\"context_parallel_method\": \"$method\"" p.json
    [ "$(grep -c '"refused"' p.json)" -eq 3 ]
    d9d-train --plan --json --set "mesh.context_parallel_method=$method" "$@" >named.json || [ $? -eq 1 ]
    is d9d.plan.v1 named.json
    grep -q '"context_parallel_choice": null' named.json
    cmp <(grep -m 1 '"step_s"' named.json) <(grep -m 1 '"step_s"' p.json)
}

# Of 16 ranks each has a sixteenth of the keys: a ring holds three such blocks, and not all.
@test "a ring is planned with less memory than gathered keys" {
    for method in all_gather ring; do
        wide $method 16 >$method.json
        d9d-train --plan --json --length 1048576 --set trainer.batching.global_batch_size=1 \
            --set model_provider.checkpointing=true $method.json >$method.plan || [ $? -eq 1 ]
        sed -n 's/^ *"peak": \([0-9]*\),$/\1/p' $method.plan >$method.peak
    done
    [ "$(<ring.peak)" -lt "$(<all_gather.peak)" ]
}

@test "tokens that go once to a node are planned so, and suggested where a group has several" {
    cat >nodes.json <<'JSON'
{"data": {"dataset": "nowhere"}, "optimizer": {"name": "stochastic_adamw", "lr": 1e-3}, "trainer": {"run": {"steps": 4}},
 "mesh": {"data_parallel_shard": 16, "expert_parallel": 16},
 "model_provider": {"name": "qwen3_moe", "dtype": "bfloat16", "model": {"num_hidden_layers": 2, "rope_base": 10000, "max_position_ids": 4096,
   "layer": {"hidden_size": 1024, "intermediate_size": 512, "num_experts": 64, "experts_top_k": 8, "rms_norm_eps": 1e-6,
     "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64},
   "split_vocab_size": {"regular": 157}, "split_vocab_order": ["regular"]}}}
JSON
    of() { d9d-train --plan --length 4096 --json --set trainer.batching.global_batch_size=16 "$@" nodes.json; }
    of >flat.json
    of --set mesh.expert_parallel_local=8 >nodes-8.json
    # Two nodes: at most one row a token there, in place of one for most of the eight ranks.
    flat=$(bytes expert all_to_all <flat.json) nodes=$(bytes expert all_to_all <nodes-8.json)
    awk -v a="$flat" -v b="$nodes" 'BEGIN { exit !(b > 0 && b < a / 2) }'
    [ -n "$(bytes expert_local peer_barrier <nodes-8.json)" ]
    d9d-train --plan --suggest 16 --length 4096 --json --set trainer.batching.global_batch_size=16 nodes.json >s.json
    grep -q '"expert_parallel_local": 8' s.json
}

@test "a suggestion can be used as it stands" {
    run -0 --separate-stderr d9d-train --plan --gpu cpu --suggest 2 c.json
    [[ "${lines[0]}" == *" tokens/s a rank  MFU %" ]]
    best=$(grep '^the first: ' <<<"$output")
    eval "set -- ${best#the first: }"
    run -0 --separate-stderr d9d-train --plan --gpu cpu "$@" c.json
}

# Three heads and three samples: nothing but a pipeline divides them by two.
@test "a suggested pipeline has its schedule as a configuration takes it" {
    layers 4 4 3 1 | sed 's/"num_attention_heads": 4, "num_key_value_heads": 2/"num_attention_heads": 3, "num_key_value_heads": 3/' >p.json
    run -0 --separate-stderr d9d-train --plan --gpu cpu --length 63 --suggest 2 p.json
    [[ "${lines[1]}" == "pp 2 "*" zero_bubble_v "* ]]
    best=$(grep '^the first: ' <<<"$output")
    [[ "$best" == *"--set 'trainer.pipelining={\"schedule\": {\"schedule\": \"zero_bubble_v\"}}'"* ]]
    d9d-train --plan --gpu cpu --length 63 --suggest 2 --json p.json >s.json
    is d9d.suggest.v1 s.json
    for zero in false true; do # whatever the configuration had
        eval "set -- ${best#the first: }"
        d9d-train --plan --gpu cpu --length 63 --json --set "trainer.pipelining={\"schedule\": {\"schedule\": \"1f1b\", \"zero_bubble\": $zero}}" \
            "$@" p.json >again.json
        for key in step_s bubble; do [ "$(number $key <again.json)" = "$(number $key <s.json)" ]; done
    done
    tr -d ' \n' <s.json | grep -q '"pipelining":{"schedule":{"schedule":"zero_bubble_v"}},"bytes"'
    # Its options too, where it has some; null without a pipeline.
    d9d-train --plan --suggest 4 --length 64 --json --set trainer.batching.global_batch_size=8 c.json | tr -d ' \n' >s.json
    grep -q '"schedule":"1f1bzerobubble","pipelining":{"schedule":{"schedule":"1f1b","zero_bubble":true}},' s.json
    grep -q '"schedule":null,"pipelining":null,' s.json
}

@test "failures of nodes leave a goodput, and the best period is one to set" {
    plan --mtbf 100 --storage-rate 1kiB --restart-time 60 --set trainer.checkpointing.period_steps=2 c.json >plan.json
    is d9d.plan.v1 plan.json
    best=$(number best_period_steps <plan.json)
    plan --mtbf 100 --storage-rate 1kiB --restart-time 60 --set trainer.checkpointing.period_steps="$best" c.json >best.json
    awk -v a="$(number goodput <plan.json)" -v b="$(number goodput <best.json)" -v c="$(number best_goodput <plan.json)" \
        'BEGIN { exit !(0 < a && a < b && b == c && c < 1) }'
    run -0 d9d-train --plan --gpu cpu --mtbf 100 --set trainer.checkpointing.period_steps=disable c.json
    assert_output --partial "no checkpoints: a failure costs all that was computed"
    says 2 "--mtbf is for --plan, which is not there" d9d-train --mtbf 100 c.json
    says 2 "--restart-time says what a failure costs: it goes with --mtbf" plan --restart-time 5 c.json
    says 2 "--mtbf is of one mesh, --suggest tries many" plan --mtbf 5 --suggest 2 c.json
}

@test "local checkpoints are counted in the host's memory: two of a rank, and two of another host's" {
    [ "$(plan c.json | number host_local)" = 0 ]
    plan --set trainer.checkpointing.local_period_steps=2 c.json >plan.json
    is d9d.plan.v1 plan.json
    [ "$(number host_local <plan.json)" = $((2 * $(number checkpoint_bytes <plan.json))) ]
    run -0 d9d-train --plan --gpu h100 --length 32 --set mesh.data_parallel_replicate=16 --set trainer.batching.global_batch_size=16 \
        --set trainer.batching.microbatch_size=1 --set trainer.checkpointing.local_period_steps=2 --json c.json
    [ "$(number host_local <<<"$output")" = $((4 * $(number checkpoint_bytes <<<"$output"))) ]
}

# Each replica keeps its own state in memory, and one of them writes it all.
@test "what a save takes from training does not fall with the number of replicas" {
    for copies in 1 4; do
        plan --mtbf 0.001 --restart-time 1 --set trainer.checkpointing.local_period_steps=2 --set trainer.batching.microbatch_size=1 \
            --set trainer.checkpointing.period_steps=2 --set mesh.data_parallel_replicate=$copies c.json >$copies.json
        awk -v state="$(number host_local <$copies.json)" -v step="$(number step_s <$copies.json)" \
            -v blocked="$(number blocked_s <$copies.json)" -v goodput="$(number local_goodput <$copies.json)" '
            BEGIN { m = 3.6; p = 2 * step; state /= 2; copy = state / 6e9; own = copy > step ? copy - step : 0; own += copy > p ? copy - p : 0
                f = p / (m * exp((1 + copy - own) / m) * (exp((p + own) / m) - 1))
                printf "%s of state: blocked %s s, must be %s; goodput %s, must be %s\n", state, blocked, state / 25e9, goodput, f
                d = goodput / f - 1; e = blocked / (state / 25e9) - 1
                exit !(d * d < 1e-12 && e * e < 1e-12) }'
    done
}

@test "a plan of a few tokens has them on few of the ranks that share experts" {
    sed 's/"num_experts_per_tok": 3/"num_experts_per_tok": 2/' "$golden/moe/config.json" >two.json # of 8
    plan --length 1 --set trainer.batching.microbatch_size=1 --set model_provider.hf_config=two.json \
        --set 'mesh={"data_parallel_shard": 4, "expert_parallel": 4}' c.json >few.json
    is d9d.plan.v1 few.json
}
