#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# Adapters of every family against HuggingFace's peft (make_adapters.py), however the model's tensors
# lie in its files: fused, transposed, interleaved or stacked.

load workplace

setup_file() {
    golden_workplace "$BATS_TEST_DIRNAME"
    # In float32: merged weights have the type of the base, and its own are bfloat16 numbers.
    for c in $(models); do
        d9d-shard -q --format tokens --out "data-$c" "$golden/families/$c/train.jsonl"
        d9d-map -q --to hf --dtype float32 "$golden/families/$c" "$c"
    done
}
setup() { cd "$work" || return 1; }

# The encoder has a test of its own.
models() { (cd "$golden/adapters" && printf "%s\n" * | grep -v modernbert); }

# configure CASE: what all programs share.  Transformers does not move an expert's bias.
configure() {
    local router=
    [[ ! $1 =~ ^(deepseek_v3|glm4_moe|minimax_m2) ]] || router=', "router": {"bias_update_rate": 0}'
    cat <<JSON
{"data": {"dataset": "data-$1", "epochs": 99, "order": "sequential"},
 "model_provider": {"name": "auto", "hf_config": "$golden/families/$1/config.json"$router},
JSON
}

# losses CASE BASE ADAPTER: of every target, a line a sample.
losses() {
    {
        configure "$1" | sed 's/, "epochs": 99, "order": "sequential"//; s/, "router": {[^}]*}//'
        echo '"trainer": {"batching": {"microbatch_size": 3}, "model_stage_factory": {'
        echo "\"source_checkpoint\": \"$2\", \"source_adapter\": \"$3\"}},"
        echo ' "task": {"name": "logprobs", "output": "out.jsonl"}}'
    } >i.json
    rm -f out.jsonl
    d9d-infer -q --device cpu i.json >/dev/null
    sed -E 's/.*"logprobs": \[([^]]*)\].*/\1/; s/,//g; s/-//g' out.jsonl
}

# learn CASE RUN STEPS LR PEFT [ADAPTER]: from an adapter.
learn() {
    {
        configure "$1"
        echo "\"peft\": $5, \"trainer\": {\"run\": {\"name\": \"x\", \"dir\": \"$2\", \"steps\": $3},"
        echo ' "batching": {"global_batch_size": 3, "microbatch_size": 3}, "model_stage_factory": {'
        echo "  \"source_checkpoint\": \"$1\"${6:+, \"source_adapter\": \"$6\"}}},"
        echo " \"optimizer\": {\"name\": \"adamw\", \"lr\": $4}}"
    } >c.json
    d9d-train -q --device cpu c.json
}

# lora PATTERN R ALPHA: a method.
lora() { echo "{\"kind\": \"lora\", \"module_name_pattern\": \"$1\", \"params\": {\"r\": $2, \"alpha\": $3}}"; }

# close_to LIMIT A B: every number, relatively to itself or to 1.
close_to() {
    paste -d' ' "$2" "$3" | awk -v limit="$1" '
        { if (NF % 2) { print "line " NR ": not as many numbers"; exit bad = 1 }
          for (i = 1; i <= NF / 2; i++) {
              n++; want = $(i + NF / 2); far = $i - want; most = limit * (want * want > 1 ? want : 1)
              if (!(far * far <= most * most)) { print "line " NR ": " $i ", and " want; bad = 1 } } }
        END { exit bad || n == 0 }'
}

# tensors FILE: bytes of numbers and shapes, in the order of names.
tensors() {
    local n at
    n=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    head -c $((n + 8)) "$1" | tail -c +9 | grep -oE '"base_model[^}]*\}' | sort | while read -r t; do
        echo "${t%%, \"data_offsets*}" | sed 's/,"data_offsets.*//; s/ //g'
        at=$(sed -E 's/.*"data_offsets": ?\[([0-9]+), ?([0-9]+)\].*/\1 \2/' <<<"$t")
        tail -c +$((n + 9 + ${at% *})) "$1" | head -c $((${at#* } - ${at% *})) | md5sum
    done
}

@test "adapters that peft has written compute what they do in peft" {
    for c in $(models); do
        losses "$c" "$c" "$golden/adapters/$c" >got.txt
        close_to 1e-5 got.txt "$golden/adapters/$c/losses.txt" || { echo "$c" && false; }
    done
}

@test "they are trained on, and written again to the byte" {
    for c in $(models); do
        layers=1
        ! grep -qE '(layers|h)\.0\.' "$golden/adapters/$c/adapter_model.safetensors" || layers='[01]'
        learn "$c" "run-$c" 1 1e-30 "$(lora "model\\\\.layers\\\\.$layers\\\\..*" 2 3)" "$golden/adapters/$c"
        diff <(tensors "$golden/adapters/$c/adapter_model.safetensors") \
            <(tensors "run-$c/adapter/adapter_model.safetensors") || { echo "$c" && false; }
        tr -s ' ' '\n' <"$golden/adapters/$c/losses.txt" | awk '{ s += $1 } END { print s / NR }' >want.txt
        sed -nE '1s/.*"loss": ([^,]+),.*/\1/p' "run-$c/metrics.jsonl" >got.txt
        close_to 1e-5 got.txt want.txt || { echo "$c" && false; }
    done
}

@test "they are merged to the same bits in every layout" {
    for c in $(models); do
        d9d-map -q --to d9d "$c" "own-$c"
        d9d-map -q --adapter "$golden/adapters/$c" --to d9d "$c" "from-hf-$c"
        d9d-map -q --adapter "$golden/adapters/$c" --to d9d "own-$c" "from-own-$c"
        d9d-map -q diff "from-hf-$c" "from-own-$c" || { echo "$c" && false; }
        run d9d-map -q diff "own-$c" "from-own-$c"
        [ "$status" -eq 1 ] || { echo "$c: $output" && false; }
    done
    for c in qwen2_moe deepseek_v3; do
        d9d-map -q --to hf --expert-layout fused "$c" "fused-$c"
        d9d-map -q --adapter "$golden/adapters/$c" --to d9d "fused-$c" "from-fused-$c"
        d9d-map -q diff "from-hf-$c" "from-fused-$c"
    done
}

# step_loss RUN [N]: of the Nth step that was logged.
step_loss() { sed -nE "${2:-1}"'s/.*"loss": ([^,]+),.*/\1/p' "$1/metrics.jsonl"; }

# Some matrices of a tensor, each with factors of its own, and of other ranks.
@test "what is learned beside a part of a tensor is written, read again and merged" {
    parts="{\"kind\": \"stack\", \"methods\": [$(lora '.*(q|gate)_proj' 2 4), $(lora '.*(v|up|down|g|b)_proj' 3 6)]}"
    for c in phi3 gpt2 gpt_neox gpt_oss granitemoe qwen2_moe qwen3_next mixtral; do
        learn "$c" "part-$c" 3 2e-2 "$parts"
        learn "$c" "again-$c" 1 1e-30 "$parts" "part-$c/adapter"
        cmp {part,again}-"$c"/adapter/adapter_model.safetensors || { echo "$c" && false; }
        cmp {part,again}-"$c"/adapter/adapter_config.json || { echo "$c" && false; }
        learn "$c" "next-$c" 4 2e-2 "$parts" # its fourth loss is that of three steps' adapters
        close_to 1e-5 <(step_loss "again-$c") <(step_loss "next-$c" 4) || { echo "$c" && false; }
        d9d-map -q --adapter "part-$c/adapter" --to hf "$c" "merged-$c"
        d9d-map -q diff "merged-$c" "part-$c/export" || { echo "$c" && false; }
    done
    # GPT-2's queries and values are 2 + 3 columns, of 24 features each; keys have none.
    for t in 'self_attn.k_proj": *"0 0"' 'self_attn.v_proj": *"2 3"' 'c_attn.lora_B.weight":[^]]*\[72, *5\]'; do
        LC_ALL=C grep -aqE "$t" part-gpt2/adapter/adapter_model.safetensors
    done
    grep -q '"fan_in_fan_out": true' part-gpt2/adapter/adapter_config.json
    grep -q '"mlp.experts.gate_up_proj"' part-gpt_oss/adapter/adapter_config.json
    grep -q '"block_sparse_moe.experts.down_proj"' part-granitemoe/adapter/adapter_config.json
}

@test "what one tensor cannot have is refused before anything is learned" {
    run learn phi3 run-none 1 1e-3 \
        "{\"kind\": \"stack\", \"methods\": [$(lora '.*q_proj' 2 4), $(lora '.*v_proj' 4 4)]}"
    [ "$status" -eq 2 ]
    [[ $output == *"peft: model.layers.0.self_attn.q_proj and model.layers.0.self_attn.v_proj are one tensor of transformers' model, model.layers.0.self_attn.qkv_proj.weight, and their adapters scale by alpha / r = 2 and 1; give both the same, or leave one out"* ]]
    [ ! -e run-none ]
}

# Bytes of the header, and of the numbers, keep their count.
@test "an adapter whose columns are not as its metadata say is refused" {
    for change in 's/(q_proj": *")0 2"/\10 9"/' 's/(q_proj": *")0 2"/\1x 2"/' 's/(v_proj": *")2 3"/\10 3"/'; do
        rm -rf bad && cp -r part-gpt2/adapter bad
        LC_ALL=C sed -i -E "$change" bad/adapter_model.safetensors
        cmp -s {bad,part-gpt2/adapter}/adapter_model.safetensors && return 1
        run d9d-map -q --adapter bad --to hf gpt2 none
        [ "$status" -eq 1 ] || { echo "$change: $status: $output" && false; }
        [[ $output == *"bad/adapter_model.safetensors: "*columns* ]]
    done
    [ ! -e none ]
}

@test "names that begin as those of a base model are merged into" {
    echo '{"schema": "d9d.mapper.v1", "stages": [[{"op": "rename", "from": "transformer.{x:any}", "to": "{x}"}]]}' >spec.json
    d9d-map -q --mapper spec.json gpt2 bare-gpt2
    rm -f bare-gpt2/manifest.json
    d9d-map -q --adapter "$golden/adapters/gpt2" --to d9d bare-gpt2 bare-merged
    d9d-map -q diff bare-merged from-hf-gpt2
    losses gpt2 bare-gpt2 "$golden/adapters/gpt2" >got.txt
    close_to 1e-5 got.txt "$golden/adapters/gpt2/losses.txt"
    # Those of the text model of a multimodal one.
    echo '{"schema": "d9d.mapper.v1", "stages": [[{"op": "rename", "from": "model.{x:any}", "to": "model.language_model.{x}"},
 {"op": "rename", "from": "lm_head.weight", "to": "lm_head.weight"}]]}' >spec.json
    d9d-map -q --mapper spec.json phi3 text-phi3
    rm -f text-phi3/manifest.json
    d9d-map -q --adapter "$golden/adapters/phi3" --to d9d text-phi3 text-merged
    d9d-map -q diff text-merged from-hf-phi3
    # ModernBERT's have none, in the file as in the adapter; published files have "model.".
    echo '{"schema": "d9d.mapper.v1", "stages": [[{"op": "rename", "from": "{x:any}", "to": "model.{x}"}]]}' >spec.json
    d9d-map -q --to hf --dtype float32 "$golden/encoders/modernbert" bert
    d9d-map -q --mapper spec.json bert model-bert
    rm -f model-bert/manifest.json
    for b in bert model-bert; do d9d-map -q --adapter "$golden/adapters/modernbert" --to d9d $b own-$b; done
    d9d-map -q diff own-bert own-model-bert
}

@test "an encoder computes with an adapter what it does in peft" {
    head -n 4 "$golden/encoders/modernbert/texts.jsonl" >texts.jsonl
    d9d-shard -q --format tokens --out texts texts.jsonl
    cat >i.json <<JSON
{"data": {"dataset": "texts"}, "model_provider": {"name": "auto", "hf_config": "bert/config.json"},
 "trainer": {"batching": {"microbatch_size": 3}, "model_stage_factory": {"source_checkpoint": "bert",
   "source_adapter": "$golden/adapters/modernbert"}},
 "task": {"name": "embedding", "output": "out.npy", "pooling": "mean"}}
JSON
    d9d-infer -q --device cpu i.json
    close_to 1e-5 <(od -An -v -tf4 -w96 -j128 out.npy) "$golden/adapters/modernbert/means.txt"
    # Trained on, it is written as peft has it for a model without a head.
    cat >c.json <<JSON
{"data": {"dataset": "texts", "epochs": 9, "order": "sequential"},
 "model_provider": {"name": "auto", "hf_config": "bert/config.json"},
 "peft": $(lora 'model\\.layers\\.1\\..*' 2 3),
 "trainer": {"run": {"name": "x", "dir": "run-bert", "steps": 1}, "batching": {"global_batch_size": 4, "microbatch_size": 4},
   "model_stage_factory": {"source_checkpoint": "bert", "source_adapter": "$golden/adapters/modernbert"}},
 "optimizer": {"name": "adamw", "lr": 1e-30}, "task": {"name": "embedding", "pooling": "mean"}}
JSON
    d9d-train -q --device cpu c.json
    diff <(tensors "$golden/adapters/modernbert/adapter_model.safetensors") <(tensors run-bert/adapter/adapter_model.safetensors)
    grep -q '"FEATURE_EXTRACTION"' run-bert/adapter/adapter_config.json
}

@test "a mixture without experts: peft takes the names of its feed-forward layers for those of experts" {
    sed 's/"first_k_dense_replace": [0-9]*/"first_k_dense_replace": 99/' "$golden/families/deepseek_v3/config.json" >dense.json
    d9d-map init -q --model dense.json --dtype float32 dense
    configure deepseek_v3 | sed "s|\"hf_config\": \"[^\"]*\"|\"hf_config\": \"dense\"|" >head.json
    {
        cat head.json
        echo "\"peft\": $(lora '.*_proj' 2 4), \"trainer\": {\"run\": {\"name\": \"x\", \"dir\": \"run-dense\", \"steps\": 1},"
        echo ' "batching": {"global_batch_size": 3, "microbatch_size": 3}, "model_stage_factory": {"source_checkpoint": "dense"}},'
        echo ' "optimizer": {"name": "adamw", "lr": 1e-3}}'
    } >c.json
    d9d-train -q --device cpu c.json
    output=$(tr -d ' \n' <run-dense/adapter/adapter_config.json)
    [[ "$output" =~ '"target_modules":['([^]]*)']' ]]
    [[ "${BASH_REMATCH[1]}" == *'"o_proj"'* && "${BASH_REMATCH[1]}" != *'"gate_proj"'* ]]
    [[ "$output" == *'"target_parameters":["mlp.gate_proj.weight","mlp.up_proj.weight","mlp.down_proj.weight"]'* ]]
}
