#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031 # a test's own meshes are for the functions that it calls
# shellcheck disable=SC2154 # variables of the helper
# A method of fine-tuning with a forward, a merge and files of its own, examples/plugins/loha.c:
# against peft, on meshes, resumed, planned, merged, and what it is refused.

load ../slurm/helper
load topology

loha='{"kind": "loha", "module_name_pattern": ".*self_attn.*_proj", "params": {"r": 3, "alpha": 12}}'
all=${loha/.\*self_attn.\*_proj/all-linear}

eval "topology_$(declare -f setup_file)"
setup_file() {
    topology_setup_file
    plugin loha "$root/examples/plugins/loha.c"
    d9d-shard -q --format tokens --out du "$golden/dense_untied/train.jsonl"
    cat >c.json <<JSON
{"plugin": "libloha.so", "data": {"dataset": "du"},
 "model_provider": {"name": "qwen3_dense", "hf_config": "$golden/dense_untied/config.json"},
 "trainer": {"batching": {"global_batch_size": 4, "microbatch_size": 2},
   "model_stage_factory": {"source_checkpoint": "$golden/dense_untied"}
JSON
    { cat c.json && echo ' }, "task": {"name": "logprobs", "output": "out.jsonl"}}'; } >i.json
    echo ', "run": {"name": "x", "steps": 10}, "gradient_clipping": {"max_norm": 1.0}},' >>c.json
    tail -c +2 "$golden/peft/loha/train.json" >>c.json
    d9d-train -q --device cpu --set trainer.run.dir=learnt "${from[@]}" c.json
}
from=(--set "trainer.model_stage_factory.source_adapter=$golden/peft/loha/first")

# losses ADAPTER [OPTION...]: of every target, one a line.
losses() {
    rm -f out.jsonl
    d9d-infer -q --device cpu --set trainer.model_stage_factory.source_adapter="$1" "${@:2}" i.json >&2
    targets <(sed -E 's/.*"logprobs": \[([^]]*)\].*/\1/; s/,//g; s/-//g' out.jsonl)
}
section() { tr -d '\n' <"$golden/peft/loha/train.json" | sed -E 's/.*"peft": (.*), *"optimizer".*/\1/'; }
targets() { tr ' ' '\n' <"$1" | sed '/^$/d'; }

# tune MODEL MESH DIR [OPTION...]: trains adapters on a mesh.
tune() {
    train "$1" "$2" "$3" --set plugin=libloha.so --set "peft=$loha" --set optimizer.lr=1e-2 \
        --set trainer.checkpointing.period_steps=5 "${@:4}"
}
# on_meshes MODEL MESH...: each equals one rank.
on_meshes() {
    local mesh bad=0
    rm -rf alone
    tune "$1" "1 1 1 1 1 1" alone
    for mesh in "${@:2}"; do
        rm -rf run
        { tune "$1" "$mesh" run && same run alone; } || { echo "mesh $mesh"; bad=1; }
    done
    rm -rf alone run
    [ "$bad" -eq 0 ]
}
# says STATUS SENTENCE COMMAND...: fails so.
says() {
    run -"$1" --separate-stderr "${@:3}"
    [[ "${stderr_lines[-1]}" == *"$2"* ]] || { echo "${stderr_lines[-1]}"; return 1; }
}

@test "what peft has written computes what it does in peft" {
    losses "$golden/peft/loha/first" >got.txt
    close_to 2e-6 got.txt <(targets "$golden/peft/loha/first.txt")
    # Beside the weights, as in training.
    losses "$golden/peft/loha/first" --set "peft=$(section)" >beside.txt
    close_to 2e-6 beside.txt <(targets "$golden/peft/loha/first.txt")
}

@test "ten steps from it are peft's: losses, norms, and what was learned" {
    close_to 1e-5 <(numbers loss learnt) <(cut -d' ' -f2 "$golden/peft/loha/steps.txt")
    close_to 1e-5 <(numbers grad_norm learnt) <(cut -d' ' -f3 "$golden/peft/loha/steps.txt")
    losses learnt/adapter >got.txt
    close_to 1e-5 got.txt <(targets "$golden/peft/loha/last.txt")
}

@test "the export is base and adapter merged, in every layout" {
    map=(d9d-map -q --plugin ./libloha.so --adapter learnt/adapter --shard-size 1kB)
    "${map[@]}" --to hf "$golden/dense_untied" merged
    d9d-map diff merged learnt/export
    d9d-map -q --to d9d "$golden/dense_untied" own
    "${map[@]}" --to hf own from-own
    d9d-map diff from-own learnt/export
    says 2 'peft_type is "LOHA"; "LORA", "IA3" and "PROMPT_TUNING" are read, and those of plugins' \
        d9d-map -q --adapter learnt/adapter --to hf "$golden/dense_untied" none
    [ ! -e none ]
}

@test "a run goes on with its adapter, with the files' bits" {
    d9d-train -q --device cpu --set trainer.run.dir=again --set trainer.model_stage_factory.source_adapter=learnt/adapter \
        --set trainer.run.steps=1 --set optimizer.lr=1e-30 c.json
    cmp learnt/adapter/adapter_model.safetensors again/adapter/adapter_model.safetensors
    cmp learnt/adapter/adapter_config.json again/adapter/adapter_config.json
    says 2 'has rank 3, that of the configuration 4' d9d-train -q --device cpu --set trainer.run.dir=none \
        --set "peft=${all/3/4}" "${from[@]}" c.json
    says 2 'of another method than that of the configuration' d9d-train -q --device cpu --set trainer.run.dir=none \
        --set "peft=${all/loha/lora}" "${from[@]}" c.json
}

@test "a dense model trains the same on every mesh" {
    loha=$all
    local meshes=("2 1 2 1 1 1" "1 2 1 1 2 1" "1 1 2 1 1 1 2" "1 1 1 1 8 1" "1 2 1 1 2 1 2")
    [ -n "${D9D_LONG:-}" ] || meshes=("${meshes[@]:3}")
    on_meshes dense "${meshes[@]}"
}

@test "a model with experts trains the same on every mesh" {
    local meshes=("1 2 1 1 2 4" "1 4 1 1 1 4" "1 2 1 1 1 2 2")
    [ -n "${D9D_LONG:-}" ] || meshes=("${meshes[@]:0:1}")
    on_meshes moe "${meshes[@]}"
}

@test "checkpoints of adapters alone are gone on with, bit for bit, and on another mesh" {
    only=(--set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true)
    tune dense "1 2 1 1 2 1" first "${only[@]}"
    for mesh in "1 2 1 1 2 1" "1 1 1 1 4 1" "1 1 1 1 1 1 2"; do
        rm -rf run
        cp -r first run && rm -rf run/export run/checkpoints/step-00000010
        tune dense "$mesh" run "${only[@]}"
        tac run/metrics.jsonl | awk -F'[:,]' '!/"loss"/ || !seen[$2]++' | tac >tidy && mv tidy run/metrics.jsonl
        same run first || { echo "mesh $mesh"; return 1; }
        [ "$mesh" != "1 2 1 1 2 1" ] || cmp run/export/model.safetensors first/export/model.safetensors
    done
}

@test "recomputation changes no bit; a quantised base trains" {
    for how in off full; do
        tune dense "1 1 1 1 1 1" $how --set "peft=$all" --set model_provider.checkpointing=$how
    done
    cmp off/export/model.safetensors full/export/model.safetensors
    sed 's/"hidden_size": 32/"hidden_size": 64/; s/"intermediate_size": 48/"intermediate_size": 64/' dense.json >wide.json
    d9d-train -q --device cpu --set trainer.run.dir=wide --set trainer.run.steps=1 wide.json
    for of in none nf4 fp8; do
        tune wide "1 1 1 1 1 1" "of-$of" --set "peft=$all" --set trainer.model_stage_factory.quantization=$of \
            --set trainer.model_stage_factory.source_checkpoint=wide/export \
            --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true
        close_to 2e-2 <(numbers loss "of-$of") <(numbers loss of-none)
        close_to 3e-1 <(numbers grad_norm "of-$of") <(numbers grad_norm of-none)
    done
}

@test "--plan has the peak memory to the byte, and more of it than without adapters" {
    peak() { d9d-train --plan --gpu cpu --json --set "peft=$1" c.json | sed -n 's/^ *"peak": \([0-9]*\),$/\1/p'; }
    d9d-train -q --device cpu --set "peft=$all" --set trainer.run.dir=planned c.json
    assert_equal "$(peak "$all")" "$(numbers mem_bytes planned | sort -n | tail -n 1)"
    [ "$(peak "$all")" -gt "$(peak "${all/all-linear/.*0.*q_proj}")" ]
}

@test "what it cannot adapt, and files that do not fit, are refused in a sentence" {
    refused() { says 2 "$1" d9d-train -q --device cpu --set plugin=libloha.so --set "peft=$2" --set trainer.run.dir=none "${@:4}" "${3:-moe}.json" && [ ! -e none ]; }
    refused 'is a stack of experts, whose adapters are "lora", not "loha"' "${loha/.\*self_attn.\*_proj/.*_proj}"
    refused 'adapters of embeddings and heads are LoRA alone' "${loha/.\*self_attn.\*_proj/lm_head}"
    refused 'peft.params.dropout: unknown' "${loha/\"r\"/\"dropout\": 0.1, \"r\"}"
    # shellcheck disable=SC2001 # a quote of a pattern
    broken() { rm -rf "broken"; cp -r "$golden/peft/loha/first" broken; sed -i "$1" broken/$2; }
    reads() { says 2 "$1" d9d-map -q --plugin ./libloha.so --adapter broken --to hf "$golden/dense_untied" none && [ ! -e none ]; }
    broken 's/hada_w2_b/hada_w2_c/' adapter_model.safetensors
    reads 'the adapter of model.layers.0.mlp.down_proj has no hada_w2_b'
    broken 's/"use_effective_conv2d": false/"use_effective_conv2d": true/' adapter_config.json
    reads 'broken/adapter_config.json: use_effective_conv2d has another value than "loha" takes'
    broken 's/"down_proj": 2/"down_proj": 7/' adapter_config.json
    reads 'has rank 2, and broken/adapter_config.json says 7'
    says 2 'is not [' d9d-map -q --plugin ./libloha.so --adapter learnt/adapter --to hf "$golden/moe" none
}

# A kind changed by sed, with the name of its plugin.
@test "a kind that lacks what it needs is refused in a sentence" {
    kind() {
        sed "$2" "$root/examples/plugins/loha.c" >"$1.c"
        plugin "$1" "$1.c"
    }
    built() { says "$1" "$2" d9d-train -q --device cpu --set plugin="lib$3.so" --set trainer.run.dir="$3-run" c.json; }
    kind mergeless 's/^ *\.merge = merge,$//; s/^static d9d_status merge/__attribute__((unused)) &/'
    built 2 'loha: has a forward and no merge' mergeless
    kind roleless 's/^ *\.forward = forward,$//; s/^static d9d_status forward/__attribute__((unused)) &/; s/\[B2\] =/[6] =/'
    built 2 'loha: parameter 6, hada_w2_b, has no role, of which there are 5' roleless
    kind sizeless 's/\[A2\] = {.name = "hada_w2_a", .dim = BY_OUTPUT/[A2] = {.name = "hada_w2_a"/'
    built 2 'loha: parameter hada_w2_a needs a dimension, and that of outputs comes first' sizeless
    kind silent 's/D9D_TRY(d9d_op_adapter_base.*/if (x != NULL) return D9D_EINVAL;/'
    built 1 'loha: its forward() failed and does not say why' silent
    kind wide 's/return d9d_op_add(l->tape, \*y, more, y);/*y = second; return D9D_OK;/'
    built 1 'what its forward made' wide
    kind fileless 's/\.peft_type = "LOHA",//'
    built 2 'the kind of the method "loha" has no files with a peft_type' fileless
    kind rankless 's/\.rank = "r",//'
    built 2 'the files of the method "loha" have an alpha and no rank' rankless
    kind formless 's/^ *\.forward = forward,$//; s/^static d9d_status forward/__attribute__((unused)) &/'
    built 2 'the kind of the method "loha" has files of its own and no forward' formless
    says 2 'libmergeless.so: loha: has a forward and no merge' \
        d9d-map -q --plugin ./libmergeless.so --adapter "$golden/peft/loha/first" --to hf "$golden/dense_untied" none
    kind taken 's/"LOHA"/"LORA"/'
    built 2 'has files of the peft_type "LORA", which d9d reads itself' taken
    kind broken 's/\.fields = "{/.fields = "/'
    built 2 'the files of the method "loha" have fields that are no JSON object' broken
    kind listed 's/\.needs = "{.*}"/.needs = "[1]"/'
    built 2 'the files of the method "loha" have needs that are no JSON object: [1]' listed
    kind nameless 's/, \.kind = &loha}/}/'
    built 2 'adapters with files of their own, and its table does not name the kind' nameless
    run -0 ls -d ./*-run # before anything is spent, but for what a forward does
    [ "$output" = "$(printf './%s-run\n' silent wide)" ]
}

# In transformers' Phi-3 they are one tensor.
@test "parts of a tensor train and are merged; peft's files cannot have them, which a warning says" {
    d9d-shard -q --format tokens --out phi "$golden/families/phi3/train.jsonl"
    d9d-map -q --to hf --dtype float32 "$golden/families/phi3" phi-base
    run -0 --separate-stderr d9d-train --device cpu --set trainer.run.dir=phi-run --set 'model_provider={"name": "auto"}' --set data.dataset=phi --set trainer.batching.global_batch_size=2 \
        --set trainer.model_stage_factory.source_checkpoint=phi-base --set "peft=$loha" --set trainer.run.steps=1 c.json
    [[ "$stderr" == *"it shares a tensor of transformers' model with others, which LoRA alone can"* ]]
    [ ! -e phi-run/adapter ]
    run -1 d9d-map diff phi-base phi-run/export
}
