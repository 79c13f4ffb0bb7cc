#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# LoRA, DoRA, (IA)^3, modules trained whole beside them and prompt tuning against HuggingFace's peft: the adapters that it has written, what they compute and what ten
# steps of training make of them (make_peft.py).

load workplace

setup_file() {
    golden_workplace "$BATS_TEST_DIRNAME"
    for m in dense_untied dense_tied moe; do d9d-shard -q --format tokens --out $m "$golden/$m/train.jsonl"; done
}
setup() { cd "$work" || return 1; }

# configure CASE: what the two programs share.
configure() {
    local samples=dense_untied base=dense_untied name=qwen3_dense
    [[ $1 != *moe* ]] || samples=moe base=moe_fused name=qwen3_moe
    [[ $1 != *tied ]] || samples=dense_tied base=dense_tied
    cat <<JSON
{"data": {"dataset": "$samples"},
 "model_provider": {"name": "$name", "hf_config": "$golden/$base/config.json"},
 "trainer": {"batching": {"global_batch_size": 4, "microbatch_size": 2},
   "model_stage_factory": {"source_checkpoint": "$golden/$base", "source_adapter": "$golden/peft/$1/first"}
JSON
}

# losses CASE ADAPTER: of every target, a line a sample.
losses() {
    { configure "$1" && echo ' }, "task": {"name": "logprobs", "output": "out.jsonl"}}'; } >i.json
    rm -f out.jsonl
    local method=()
    [[ $1 != prompt* ]] || method=(--set "peft=$(section "$1")")
    d9d-infer -q --set trainer.model_stage_factory.source_adapter="$2" "${method[@]}" i.json >/dev/null
    sed -E 's/.*"logprobs": \[([^]]*)\].*/\1/; s/,//g; s/-//g' out.jsonl
}

# section CASE: the section peft of prompt tuning.
section() { printf '{"kind": "prompt_tuning", "num_virtual_tokens": %d}' "$([ "$1" = prompt ] && echo 5 || echo 3)"; }

# steps RUN: step, loss and norm of each.
steps() { grep '"loss"' "$1/metrics.jsonl" | sed -E 's/.*"step": ([0-9]+), "loss": ([^,]+), "grad_norm": ([^,]+),.*/\1 \2 \3/'; }

# learn CASE RUN: ten steps.
learn() {
    {
        configure "$1"
        echo ', "run": {"name": "x", "dir": "'"$2"'", "steps": 10}, "gradient_clipping": {"max_norm": 1.0}},'
        tail -c +2 "$golden/peft/$1/train.json" | tr -d '\n'
    } >c.json
    d9d-train -q c.json
}

# close_to LIMIT A B: every number, relatively.
close_to() {
    paste -d' ' "$2" "$3" | awk -v limit="$1" '
        { if (NF % 2) { print "line " NR ": not as many numbers"; exit bad = 1 }
          for (i = 1; i <= NF / 2; i++) {
              n++; far = ($i - $(i + NF / 2)) / ($(i + NF / 2) == 0 ? 1 : $(i + NF / 2))
              if (!(far * far <= limit * limit)) { print "line " NR ": " $i ", and " $(i + NF / 2); bad = 1 } } }
        END { exit bad || n == 0 }'
}

@test "adapters that peft has written compute what they do in peft" {
    for case in dense moe moe_all rslora dora layers ia3 saved saved_tied saved_moe embed embed_tied; do
        losses $case "$golden/peft/$case/first" >got.txt
        close_to 2e-6 got.txt "$golden/peft/$case/first.txt"
    done
}

@test "adapters of experts one by one compute what they do together" {
    losses moe "$golden/peft/moe/each" >got.txt
    close_to 2e-6 got.txt "$golden/peft/moe/first.txt"
}

@test "ten steps from them are peft's: losses, norms, and what was learned" {
    for case in dense moe rslora dora layers ia3 saved saved_tied saved_moe embed; do
        learn $case run-$case
        steps run-$case >steps.txt
        close_to 1e-5 steps.txt "$golden/peft/$case/steps.txt"
        losses $case run-$case/adapter >got.txt
        close_to 1e-5 got.txt "$golden/peft/$case/last.txt"
        d9d-map -q --to hf --adapter "$golden/peft/$case/last" --expert-layout fused \
            "$(sed -nE 's/.*"source_checkpoint": "([^"]*)".*/\1/p' c.json)" merged-$case
        run d9d-map diff merged-$case run-$case/export
        [[ "$output" == *" tensors equal, "* ]]
        # AdamW divides gradients near zero by themselves; DoRA and experts have more of them.
        awk '/ at most$/ { n++; if ($(NF - 2) > limit) { print; bad = 1 } } END { exit bad }' \
            limit="$([[ $case =~ dora|saved_moe ]] && echo 1e-4 || echo 1e-5)" <<<"$output"
    done
}

@test "prompt tuning: what peft has written computes the same, and ten steps from it learn the same" {
    for case in prompt prompt_moe; do
        losses $case "$golden/peft/$case/first" >got.txt
        close_to 2e-6 got.txt "$golden/peft/$case/first.txt"
        learn $case run-$case
        steps run-$case >steps.txt
        close_to 1e-5 steps.txt "$golden/peft/$case/steps.txt"
        losses $case run-$case/adapter >got.txt
        close_to 1e-5 got.txt "$golden/peft/$case/last.txt"
        [ ! -e run-$case/export ]
    done
}

# In peft the text has the special tokens of its tokenizer: <s> c b </s>, cut, whole and repeated.
@test "virtual tokens begin as the rows of a text that peft takes" {
    echo '{"text": "a b d c a"}' | d9d-shard -q --tokenizer "$golden/peft/prompt_text/tokenizer.json" --out words -
    for n in 3 4 11; do
        cat >c.json <<JSON
{"data": {"dataset": "words"},
 "model_provider": {"name": "qwen3_dense", "hf_config": "$golden/dense_untied/config.json"},
 "peft": {"kind": "prompt_tuning", "num_virtual_tokens": $n, "init": "text", "init_text": "c b"},
 "trainer": {"run": {"name": "x", "dir": "text-$n", "steps": 1}, "batching": {"global_batch_size": 1, "microbatch_size": 1},
   "model_stage_factory": {"source_checkpoint": "$golden/dense_untied"}},
 "optimizer": {"name": "adamw", "lr": 1e-30}}
JSON
        d9d-train -q c.json
        cmp <(tail -c $((n * 40 * 4)) text-$n/adapter/adapter_model.safetensors) <(tail -c $((n * 40 * 4)) "$golden/peft/prompt_text/$n.safetensors")
    done
}

# The first four tokens of six samples, continued by peft's generate().
@test "generation behind virtual tokens is peft's" {
    for case in prompt prompt_moe; do
        samples=dense_untied
        [ $case = prompt ] || samples=moe
        head -n 6 "$golden/$samples/train.jsonl" |
            sed -E 's/"input_ids": \[([0-9]+, [0-9]+, [0-9]+, [0-9]+)[^]]*\].*/"input_ids": [\1]}/' >prompts.jsonl
        { configure $case && echo ' }, "task": {"name": "generate", "max_new_tokens": 8, "output": "out.jsonl"}}'; } >g.json
        rm -f out.jsonl
        d9d-infer -q --set "peft=$(section $case)" --set task.temperature=0 --set task.stop_at_eos=false --set data=[] \
            --set task.prompts=prompts.jsonl g.json >/dev/null
        sed -E 's/.*"tokens": \[([^]]*)\].*/\1/; s/,//g' out.jsonl | diff - "$golden/peft/$case/generated.txt"
        grep -c '"prompt_tokens": 4,' out.jsonl
        # the same from a dataset
        rm -f out.jsonl
        d9d-infer -q --set "peft=$(section $case)" --set task.temperature=0 --set task.stop_at_eos=false \
            --set task.prompt_tokens=4 g.json >/dev/null
        head -n 6 out.jsonl | sed -E 's/.*"tokens": \[([^]]*)\].*/\1/; s/,//g' | diff - "$golden/peft/$case/generated.txt"
    done
}
