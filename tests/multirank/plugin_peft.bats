#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031 # a test's own meshes are for the functions that it calls
# shellcheck disable=SC2154 # variables of the helper
# Methods of fine-tuning with a forward, a merge and files of their own, examples/plugins: each is
# certified against peft, on meshes, resumed, planned and merged.  Then what they are refused.

load ../slurm/helper
load topology

# A method is a plugin of this name, a directory of goldens, and a section.
methods=(loha oft vera)
# method NAME PATTERN: its section.
method() {
    case $1 in
    loha) printf '{"kind": "loha", "module_name_pattern": "%s", "params": {"r": 3, "alpha": 12}}' "$2" ;;
    oft) printf '{"kind": "oft", "module_name_pattern": "%s", "oft_block_size": 4}' "$2" ;;
    vera) printf '{"kind": "vera", "module_name_pattern": "%s", "r": 3, "projection_prng_key": 5}' "$2" ;;
    esac
}
# each FUNCTION: calls it for every method m, with sections for all linear layers and for attention.
each() {
    local m bad=0 loha all golden_m c i from
    for m in "${methods[@]}"; do
        loha=$(method "$m" '.*self_attn.*_proj') all=$(method "$m" all-linear)
        golden_m=$golden/peft/$m c=$m.json i=$m-infer.json
        from=(--set "trainer.model_stage_factory.source_adapter=$golden_m/first")
        "$1" || { echo "$m: $1"; bad=1; }
    done
    [ "$bad" -eq 0 ]
}
loha=$(method loha '.*self_attn.*_proj')
all=$(method loha all-linear)
from=(--set "trainer.model_stage_factory.source_adapter=$golden/peft/loha/first")

eval "topology_$(declare -f setup_file)"
setup_file() {
    topology_setup_file
    d9d-shard -q --format tokens --out du "$golden/dense_untied/train.jsonl"
    each prepare
    cp loha.json c.json
}
prepare() {
    plugin "$m" "$root/examples/plugins/$m.c"
    cat >"$c" <<JSON
{"plugin": "lib$m.so", "data": {"dataset": "du"},
 "model_provider": {"name": "qwen3_dense", "hf_config": "$golden/dense_untied/config.json"},
 "trainer": {"batching": {"global_batch_size": 4, "microbatch_size": 2},
   "model_stage_factory": {"source_checkpoint": "$golden/dense_untied"}
JSON
    { cat "$c" && echo ' }, "task": {"name": "logprobs", "output": "out.jsonl"}}'; } >"$i"
    echo ', "run": {"name": "x", "steps": 10}, "gradient_clipping": {"max_norm": 1.0}},' >>"$c"
    tail -c +2 "$golden_m/train.json" >>"$c"
    d9d-train -q --device cpu --set "trainer.run.dir=$m-learnt" "${from[@]}" "$c"
}

# losses ADAPTER [OPTION...]: of every target, one a line.
losses() {
    rm -f out.jsonl
    d9d-infer -q --device cpu --set trainer.model_stage_factory.source_adapter="$1" "${@:2}" "$i" >&2
    targets <(sed -E 's/.*"logprobs": \[([^]]*)\].*/\1/; s/,//g; s/-//g' out.jsonl)
}
section() { tr -d '\n' <"$golden_m/train.json" | sed -E 's/.*"peft": (.*), *"optimizer".*/\1/'; }
targets() { tr ' ' '\n' <"$1" | sed '/^$/d'; }

# tune MODEL MESH DIR [OPTION...]: trains adapters on a mesh.
tune() {
    train "$1" "$2" "$3" --set "plugin=lib$m.so" --set "peft=$loha" --set optimizer.lr=1e-2 \
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

# --- what holds for every method ------------------------------------------------------------

computes() {
    losses "$golden_m/first" >got.txt && close_to 2e-6 got.txt <(targets "$golden_m/first.txt") || return 1
    # Beside the weights, as in training.
    losses "$golden_m/first" --set "peft=$(section)" >beside.txt && close_to 2e-6 beside.txt <(targets "$golden_m/first.txt")
}
@test "what peft has written computes what it does in peft" { each computes; }

learns() {
    close_to 1e-5 <(numbers loss "$m-learnt") <(cut -d' ' -f2 "$golden_m/steps.txt") &&
        close_to 1e-5 <(numbers grad_norm "$m-learnt") <(cut -d' ' -f3 "$golden_m/steps.txt") || return 1
    losses "$m-learnt/adapter" >got.txt && close_to 1e-5 got.txt <(targets "$golden_m/last.txt")
}
@test "ten steps from it are peft's: losses, norms, and what was learned" { each learns; }

begins() {
    d9d-train -q --device cpu --set "trainer.run.dir=$m-base" --set peft=null --set trainer.run.steps=1 "$c" &&
        d9d-train -q --device cpu --set "trainer.run.dir=$m-new" --set "peft=$all" --set trainer.run.steps=1 "$c" &&
        assert_equal "$(numbers loss "$m-new")" "$(numbers loss "$m-base")"
}
@test "a new adapter changes no bit of the first loss" { each begins; }

merges() {
    local map=(d9d-map -q --plugin "./lib$m.so" --adapter "$m-learnt/adapter" --shard-size 1kB)
    rm -rf merged own from-own
    "${map[@]}" --to hf "$golden/dense_untied" merged && d9d-map diff merged "$m-learnt/export" &&
        d9d-map -q --to d9d "$golden/dense_untied" own && "${map[@]}" --to hf own from-own &&
        d9d-map diff from-own "$m-learnt/export" || return 1
    # The forward beside the weights is that of the merged ones.
    losses "$m-learnt/adapter" --set "peft=$(section)" >beside.txt && rm -f out.jsonl &&
        d9d-infer -q --device cpu --set trainer.model_stage_factory.source_checkpoint=merged "$i" &&
        close_to 2e-6 beside.txt <(targets <(sed -E 's/.*"logprobs": \[([^]]*)\].*/\1/; s/,//g; s/-//g' out.jsonl)) &&
        says 2 '"LORA", "IA3" and "PROMPT_TUNING" are read, and those of plugins' \
            d9d-map -q --adapter "$m-learnt/adapter" --to hf "$golden/dense_untied" none && [ ! -e none ]
}
@test "the export is base and adapter merged, in every layout, and computes the same" { each merges; }

goes_on() {
    d9d-train -q --device cpu --set "trainer.run.dir=$m-again" --set "trainer.model_stage_factory.source_adapter=$m-learnt/adapter" \
        --set trainer.run.steps=1 --set optimizer.lr=1e-30 "$c" &&
        cmp "$m-learnt/adapter/adapter_model.safetensors" "$m-again/adapter/adapter_model.safetensors" &&
        cmp "$m-learnt/adapter/adapter_config.json" "$m-again/adapter/adapter_config.json" &&
        says 2 'of another method than that of the configuration' d9d-train -q --device cpu --set trainer.run.dir=none \
            --set 'peft={"kind": "lora", "module_name_pattern": "all-linear", "params": {"r": 3, "alpha": 12}}' "${from[@]}" "$c"
}
@test "a run goes on with its adapter, with the files' bits" {
    each goes_on
    says 2 'has rank 3, that of the configuration 4' d9d-train -q --device cpu --set trainer.run.dir=none \
        --set "peft=${all/3/4}" "${from[@]}" c.json
}

dense_meshes() {
    local loha=$all meshes=("2 1 2 1 1 1" "1 2 1 1 2 1" "1 1 2 1 1 1 2" "1 1 1 1 4 1" "1 2 1 1 2 1 2")
    [ -n "${D9D_LONG:-}" ] || meshes=("${meshes[@]:3}")
    on_meshes dense "${meshes[@]}"
}
@test "a dense model trains the same on every mesh" { each dense_meshes; }

moe_meshes() {
    local meshes=("1 2 1 1 2 4" "1 4 1 1 1 4" "1 2 1 1 1 2 2")
    [ -n "${D9D_LONG:-}" ] || meshes=("${meshes[@]:0:1}")
    on_meshes moe "${meshes[@]}"
}
@test "a model with experts trains the same on every mesh" { each moe_meshes; }

resumes() {
    local mesh only=(--set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true)
    rm -rf first
    tune dense "1 2 1 1 2 1" first "${only[@]}" || return 1
    for mesh in "1 2 1 1 2 1" "1 1 1 1 4 1" "1 1 1 1 1 1 2"; do
        rm -rf run
        cp -r first run && rm -rf run/export run/checkpoints/step-00000010
        tune dense "$mesh" run "${only[@]}" || return 1
        tac run/metrics.jsonl | awk -F'[:,]' '!/"loss"/ || !seen[$2]++' | tac >tidy && mv tidy run/metrics.jsonl
        same run first || { echo "mesh $mesh"; return 1; }
        [ "$mesh" != "1 2 1 1 2 1" ] || cmp run/export/model.safetensors first/export/model.safetensors || return 1
    done
}
@test "checkpoints of adapters alone are gone on with, bit for bit, and on another mesh" { each resumes; }

recomputes() {
    local how of
    rm -rf off full of-*
    for how in off full; do
        tune dense "1 1 1 1 1 1" $how --set "peft=$all" --set model_provider.checkpointing=$how || return 1
    done
    cmp off/export/model.safetensors full/export/model.safetensors || return 1
    for of in none nf4 fp8; do
        tune wide "1 1 1 1 1 1" "of-$of" --set "peft=$all" --set trainer.model_stage_factory.quantization=$of \
            --set trainer.model_stage_factory.source_checkpoint=wide/export \
            --set trainer.model_stage_factory.checkpoint_only_trainable_parameters=true &&
            close_to 2e-2 <(numbers loss "of-$of") <(numbers loss of-none) &&
            close_to 3e-1 <(numbers grad_norm "of-$of") <(numbers grad_norm of-none) || return 1
    done
}
@test "recomputation changes no bit; a quantised base trains" {
    sed 's/"hidden_size": 32/"hidden_size": 64/; s/"intermediate_size": 48/"intermediate_size": 64/' dense.json >wide.json
    d9d-train -q --device cpu --set trainer.run.dir=wide --set trainer.run.steps=1 wide.json
    each recomputes
}

plans() {
    d9d-train -q --device cpu --set "peft=$all" --set "trainer.run.dir=$m-planned" "$c" &&
        assert_equal "$(peak "$all")" "$(numbers mem_bytes "$m-planned" | sort -n | tail -n 1)" &&
        [ "$(peak "$all")" -gt "$(peak "${all/all-linear/.*0.*q_proj}")" ]
}
peak() { d9d-train --plan --gpu cpu --json --set "peft=$1" "$c" | sed -n 's/^ *"peak": \([0-9]*\),$/\1/p'; }
@test "--plan has the peak memory to the byte, and more of it than without adapters" { each plans; }

# --- arrays that layers share, and blocks ------------------------------------------------------

# tensor NAME FILE: its bytes.
tensor() {
    local header at
    header=$(od -An -tu8 -N8 "$2" | tr -d ' ')
    read -ra at <<<"$(head -c $((8 + header)) "$2" | tail -c +9 | tr -d ' ' | sed -E "s/.*\"$1\":\{[^}]*\"data_offsets\":\[([0-9]+),([0-9]+)\].*/\1 \2/")"
    tail -c +$((9 + header + at[0])) "$2" | head -c $((at[1] - at[0]))
}

@test "shared arrays are in files once, and drawn by the key with torch's bits" {
    m=vera c=vera.json i=vera-infer.json golden_m=$golden/peft/vera
    for run in vera-learnt vera-fresh; do
        [ -d $run ] || d9d-train -q --device cpu --set "trainer.run.dir=$run" --set trainer.run.steps=1 "$c"
        for name in vera_A vera_B; do
            [ "$(tensor base_model.$name "$golden_m/first/adapter_model.safetensors" | wc -c)" -gt 900 ]
            cmp <(tensor base_model.$name "$golden_m/first/adapter_model.safetensors") <(tensor base_model.$name $run/adapter/adapter_model.safetensors)
        done
        assert_equal "$(grep -ao 'vera_A' $run/adapter/adapter_model.safetensors | wc -l)" 1
    done
    losses "$golden_m/first" >got.txt
    losses "$golden_m/drawn" >drawn.txt
    cmp got.txt drawn.txt
    # A stage draws what the whole model does, and a rank its part.
    tune dense "1 1 1 1 2 1 2" staged --set "peft=$(method vera all-linear)" --set trainer.run.steps=1
    tune dense "1 1 1 1 1 1" whole --set "peft=$(method vera all-linear)" --set trainer.run.steps=1
    for name in vera_A vera_B; do
        cmp <(tensor base_model.$name staged/adapter/adapter_model.safetensors) <(tensor base_model.$name whole/adapter/adapter_model.safetensors)
    done
}

# What a rank of dense.json needs of an array with one dimension r: columns of A of query, key, value,
# gate and up, of output and of down; rows of B of query, of key and value, of gate and up, of output
# and down.
@test "a rank has a shared array once, on every mesh, and --plan counts it so" {
    local each
    m=vera
    # weights R MESH...: of a rank in the plan, in bytes.
    weights() {
        local peft mesh=()
        printf -v peft '{"kind": "vera", "module_name_pattern": "all-linear", "r": %s}' "$1"
        for each in "${@:2}"; do mesh+=(--set "mesh.$each=2"); done
        d9d-train --plan --gpu cpu --json --set plugin=libvera.so --set "peft=$peft" "${mesh[@]}" dense.json |
            sed -nE 's/.*"weights": ([0-9]+).*/\1/p' | sort -n | tail -n 1
    }
    # once NUMBERS MESH...: more numbers for a rank one larger, with a number of each adapter's d.
    once() { assert_equal "$(($(weights 64 "${@:2}") - $(weights 32 "${@:2}")))" $((4 * 32 * $1)); }
    once $((32 + 64 + 48 + 64 + 32 + 48 + 32 + 14))
    once $((32 + 32 + 24 + 32 + 16 + 24 + 32 + 14)) tensor_parallel
    once $((32 + 64 + 48 + 64 + 32 + 48 + 32 + 7)) pipeline_parallel
    once $((32 + 64 + 48 + 64 + 32 + 48 + 32 + 7)) data_parallel_shard
}

@test "training and inference have the memory for a shared array once" {
    m=vera c=vera.json i=vera-infer.json
    local large
    large=$(method vera all-linear) large=${large/\"r\": 3/\"r\": 2048} # 3.4 MB once, 17.3 MB of each matrix
    d9d-train -q --device cpu@16MB --set trainer.run.dir=large --set trainer.run.steps=1 --set "peft=$large" "$c"
    rm -f out.jsonl
    d9d-infer -q --device cpu@16MB --set "peft=$large" --set trainer.model_stage_factory.source_adapter=large/adapter "$i"
    rm -rf large out.jsonl
}

@test "a checkpoint has a shared array once, and is gone on with on every mesh" {
    m=vera
    local mesh loha
    loha=$(method vera all-linear)
    rm -rf first
    tune dense "1 2 1 1 1 1 2" first
    assert_equal "$(cat first/checkpoints/step-00000010/ranks-00000/model-r*.safetensors | grep -ao 'model.layers[.a-z0-9_]*.vera_[AB]' | sort)" \
        "$(printf 'model.layers.0.%s\n' mlp.down_proj.vera_A mlp.gate_proj.vera_B self_attn.{k_proj.vera_B,o_proj.vera_{A,B},q_proj.vera_{A,B}})"
    for mesh in "1 2 1 1 1 1 2" "1 1 1 1 2 1" "1 1 1 1 1 1"; do
        rm -rf run
        cp -r first run && rm -rf run/export run/checkpoints/step-00000010
        tune dense "$mesh" run
        tac run/metrics.jsonl | awk -F'[:,]' '!/"loss"/ || !seen[$2]++' | tac >tidy && mv tidy run/metrics.jsonl
        same run first
    done
}

# Each rank has two stages, each with an instance.
@test "a rank with several stages trains with arrays that layers share, and goes on" {
    m=vera
    local loha deep=(--set model_provider.model.num_hidden_layers=4)
    loha=$(method vera all-linear)
    rm -rf whole run
    tune dense "1 1 1 1 1 1" whole "${deep[@]}"
    # shellcheck disable=SC2046 # a list of options
    tune dense "1 1 1 1 1 1 2" run "${deep[@]}" $(schedule_options 1f1b:2)
    same run whole
    rm -rf run/export run/checkpoints/step-00000010
    tune dense "1 2 1 1 1 1 1" run "${deep[@]}"
    "$driver" run/export whole/export
}

# checkpoint_vera is step 5 of the dense model on one rank, when each matrix had a copy.
@test "a checkpoint that has a shared array of each matrix is gone on with, on every mesh" {
    m=vera
    local mesh loha
    loha=$(method vera all-linear)
    for steps in 10 5; do # to train on, and to export alone
        rm -rf whole
        tune dense "1 1 1 1 1 1" whole --set trainer.run.steps=$steps
        for mesh in "1 1 1 1 1 1" "1 2 1 1 1 1 2" "1 1 1 1 2 1"; do
            rm -rf run
            mkdir -p run/checkpoints && cp -r "$BATS_TEST_DIRNAME/checkpoint_vera/step-00000005" run/checkpoints/
            tune dense "$mesh" run --set trainer.run.steps=$steps
            "$driver" run/export whole/export || { echo "mesh $mesh"; return 1; }
            [ "$mesh" != "1 1 1 1 1 1" ] || cmp run/export/model.safetensors whole/export/model.safetensors
            for name in vera_A vera_B; do
                cmp <(tensor base_model.$name run/adapter/adapter_model.safetensors) <(tensor base_model.$name whole/adapter/adapter_model.safetensors)
            done
        done
    done
}

@test "shared arrays that do not fit are refused in a sentence" {
    m=vera c=vera.json golden_m=$golden/peft/vera
    broken() { rm -rf broken; cp -r "$golden_m/${3:-first}" broken; sed -i "$1" "broken/$2"; }
    reads() { says 2 "$1" d9d-map -q --plugin ./libvera.so --adapter broken --to hf "$golden/dense_untied" none && [ ! -e none ]; }
    broken 's/base_model.vera_A/base_model.vera_Z/' adapter_model.safetensors
    reads 'does not have base_model.vera_A, and save_projection of broken/adapter_config.json is true'
    broken 's/"save_projection": true/"save_projection": false/' adapter_config.json
    reads 'has base_model.vera_A, and save_projection of broken/adapter_config.json is false'
    broken 's/"r": 5/"r": 6/' adapter_config.json drawn
    reads 'has rank 5, and broken/adapter_config.json says 6'
    broken 's/down_proj.vera_lambda_d/down_proj.vera_lambda_x/' adapter_model.safetensors drawn
    reads 'the adapter of model.layers.0.mlp.down_proj has no vera_lambda_d'
    # A kind whose files say neither the seed nor whether they have the arrays.
    sed '/\.seed = "projection_prng_key",/d; /\.has_shared = /d' "$root/examples/plugins/vera.c" >plain.c
    plugin plain plain.c
    d9d-train -q --device cpu --set plugin=libplain.so --set "trainer.run.dir=plain" --set trainer.run.steps=1 --set "peft=$(method vera all-linear)" "$c"
    d9d-train -q --device cpu --set plugin=libplain.so --set "trainer.run.dir=plain-again" --set trainer.run.steps=1 --set "peft=$(method vera all-linear)" \
        --set trainer.model_stage_factory.source_adapter=plain/adapter "$c"
    broken 's/base_model.vera_A/base_model.vera_Z/' adapter_model.safetensors
    says 2 'does not have base_model.vera_A, which the matrices share' \
        d9d-map -q --plugin ./libplain.so --adapter broken --to hf "$golden/dense_untied" none
    refused() { says 2 "$1" d9d-train -q --device cpu --set "peft=$2" --set trainer.run.dir=none "${@:3}" "$c" && [ ! -e none ]; }
    refused 'has the seed 7, that of the configuration 5' "$(method vera all-linear | sed 's/"r": 3/"r": 5/')" \
        --set "trainer.model_stage_factory.source_adapter=$golden_m/first"
    q=$(method vera '.*q_proj') v=$(method vera '.*v_proj')
    refused 'adapters with shared arrays are of one kind, rank and seed' "{\"kind\": \"stack\", \"methods\": [$q, ${v/\"r\": 3/\"r\": 4}]}"
}

@test "blocks that do not divide the inputs are refused in a sentence" {
    refused() { says 2 "$1" d9d-train -q --device cpu --set plugin=liboft.so --set "peft=$2" --set trainer.run.dir=none dense.json && [ ! -e none ]; }
    three=$(method oft '.*q_proj' | sed 's/: 4/: 3/')
    refused 'q_proj: oft: blocks of 3 do not divide 32 inputs' "$three"
    refused 'peft.oft_block_size' "${three/: 3/: 1}"
    m=oft
    run -2 --separate-stderr tune dense "1 1 1 1 8 1" none --set "peft=$(method oft all-linear)"
    [[ "$stderr" == *'mesh.tensor_parallel 8 does not divide 12 blocks of 4 inputs, which oft of model.layers.0.mlp.down_proj.weight has'* ]]
    [ ! -e none ]
}

# --- what they are refused ---------------------------------------------------------------------

@test "what it cannot adapt, and files that do not fit, are refused in a sentence" {
    refused() { says 2 "$1" d9d-train -q --device cpu --set plugin=libloha.so --set "peft=$2" --set trainer.run.dir=none "${@:4}" "${3:-moe}.json" && [ ! -e none ]; }
    refused 'is a stack of experts, whose adapters are "lora", not "loha"' "${loha/.\*self_attn.\*_proj/.*_proj}"
    refused 'adapters of embeddings and heads are LoRA alone' "${loha/.\*self_attn.\*_proj/lm_head}"
    refused 'peft.params.dropout: unknown' "${loha/\"r\"/\"dropout\": 0.1, \"r\"}"
    # shellcheck disable=SC2001 # a quote of a pattern
    broken() { rm -rf "broken"; cp -r "$golden/peft/loha/first" broken; sed -i "$1" "broken/$2"; }
    reads() { says 2 "$1" d9d-map -q --plugin ./libloha.so --adapter broken --to hf "$golden/dense_untied" none && [ ! -e none ]; }
    broken 's/hada_w2_b/hada_w2_c/' adapter_model.safetensors
    reads 'the adapter of model.layers.0.mlp.down_proj has no hada_w2_b'
    broken 's/"use_effective_conv2d": false/"use_effective_conv2d": true/' adapter_config.json
    reads 'broken/adapter_config.json: use_effective_conv2d has another value than "loha" takes'
    broken 's/"down_proj": 2/"down_proj": 7/' adapter_config.json
    reads 'has rank 2, and broken/adapter_config.json says 7'
    says 2 'is not [' d9d-map -q --plugin ./libloha.so --adapter loha-learnt/adapter --to hf "$golden/moe" none
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
    kind both 's/D9D_ADAPTER_RANK/D9D_ADAPTER_IN/g'
    built 2 'are those of inputs' both
    kind older 's/\.size = sizeof(d9d_adapter_kind)/.size = sizeof(d9d_adapter_kind) - 8/'
    built 2 'the kind of the method "loha" says that it has' older
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
