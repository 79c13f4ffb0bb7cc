#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# d9d-map certify: what holds of a family, by a small model of it, and what does not.

setup() {
    load helper
    golden=$BATS_TEST_DIRNAME/../golden
    root=$BATS_TEST_DIRNAME/../..
    build=${D9D_BUILD:-$root/build}
    export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
    mkdir "$BATS_TEST_TMPDIR/work" "$BATS_TEST_TMPDIR/tmp" && cd "$BATS_TEST_TMPDIR/work" || return 1
    export TMPDIR=$BATS_TEST_TMPDIR/tmp
}
teardown() { [ -z "$(ls -A "$TMPDIR")" ] || { ls -A "$TMPDIR" && false; }; }

# certified NAME CHECK...: all checks of the certificate in out are there; those given are skipped, and
# no other.
certified() {
    local name=$1 want
    shift
    want=$(for c in files golden gradients recompute steps adapters generation memory meshes; do
        [[ " golden meshes $* " == *" $c "* ]] && echo "$c skipped" || echo "$c ok"
    done)
    diff <(echo "$want") <(sed 1,2d out | awk '{ print $1, $2 }') || { cat out && echo "$name" && false; }
}

# plugin SOURCE SED-COMMAND: libmine.so of it.
plugin() {
    sed "$2" "$root/examples/plugins/$1.c" >mine.c
    [ -z "$2" ] || ! cmp -s mine.c "$root/examples/plugins/$1.c"
    # shellcheck disable=SC2046 # words
    ${CC:-cc} -std=c11 -D_GNU_SOURCE ${D9D_SAN:+-fsanitize=$D9D_SAN} -shared -fPIC -o libmine.so \
        -I"$root/libcore/include" -I"$root/kernels/include" $(pkg-config --cflags jansson) mine.c -L"$build/lib" -ld9d
}

# fails CHECK: the certificate in output has failed in this check, and in no other.
fails() {
    [ "$(awk '$2 == "FAILED" { print $1 }' <<<"$output")" = "$1" ] || { echo "$output" && false; }
    [[ "$stderr" == *'verification failed: '*': 1 of 9 checks failed' ]]
}

@test "families: every check holds" {
    local families='llama qwen3_next deepseek_v3 gpt_oss gemma3_text'
    [ -z "${D9D_LONG:-}" ] || families=$(sed -n 's/^| \[`\([a-z0-9_]*\)`\].*/\1/p' "$root/docs/reference/families.md")
    for f in $families; do
        d9d-map certify "$f" >out
        case $f in
        modernbert) certified "$f" generation ;;
        *) certified "$f" ;;
        esac
    done
}

@test "an encoder, and a family whose files have transposed matrices" {
    d9d-map certify modernbert >out
    grep -q '^modernbert: modernbert, masked_lm, 4 layers' out
    certified modernbert generation
    d9d-map certify gpt2 --seed 3 >out
    certified gpt2
}

@test "a folder with its own weights and golden vectors" {
    d9d-map certify --golden "$golden/families/mixtral" "$golden/families/mixtral" >out
    grep -q ': mixtral, causal_lm, 2 layers, .*, its own weights$' out
    grep -q '^golden  *ok .*10 steps of AdamW, outputs [0-9.]*e-0[678], ' out
    d9d-map certify --golden "$golden/encoders/modernbert" --task embedding modernbert >out
    grep -q '^golden  *ok ' out
    d9d-map certify --golden "$golden/masked_lm/modernbert_untied" "$golden/masked_lm/modernbert_untied" >out
    grep -q ': modernbert, masked_lm, 3 layers, .*, its own weights$' out
    grep -q '^golden  *ok .*10 steps of AdamW' out
    # another model's vectors: of the file, of a step, and not of this family
    cp -r "$golden/families/mistral" other
    chmod -R u+w other
    cp "$golden/families/llama3/model.safetensors" other
    run -1 --separate-stderr d9d-map certify --golden other mistral
    fails golden
    cp "$golden/families/mistral/model.safetensors" other
    sed -i '0,/"loss": /s//"loss": 1/' other/train.json
    run -1 --separate-stderr d9d-map certify --golden other mistral
    fails golden
    [[ "$output" == *"the worst a step's loss"* ]]
    run -2 --separate-stderr d9d-map certify --golden other llama
    [ "$stderr" = "d9d-map: invalid configuration: --golden: other is of mistral, not of llama" ]
}

@test "a large configuration is made smaller, and stays what it is" {
    mkdir large
    cat >large/config.json <<'JSON'
{"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 8,
 "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 262208,
 "sliding_window": 1024, "query_pre_attn_scalar": 256, "final_logit_softcapping": 30.0,
 "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
  "sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]}
JSON
    d9d-map certify large >out
    grep -q '^large: gemma3, causal_lm, made smaller, 4 layers' out
    certified large
    d9d-map certify --json large >out
    tr -d ' \n' <out | grep -q '"layer_types":\["sliding_attention","sliding_attention","sliding_attention","full_attention"\]'
    grep -q '"num_key_value_heads": 4' out
    grep -q '"final_logit_softcapping": 30.0' out
}

@test "JSON is d9d.certificate.v1, also of what failed" {
    d9d-map certify --json olmo >out
    "$build/schemas/dump" d9d.certificate.v1 out
    plugin seed_oss ''
    cp -r "$golden/plugins/seed_oss" . && chmod -R u+w seed_oss
    cp "$golden/plugins/seed_oss_tied/golden.safetensors" seed_oss
    run -1 --separate-stderr d9d-map certify --json --plugin ./libmine.so --golden seed_oss seed_oss
    echo "$output" >out
    "$build/schemas/dump" d9d.certificate.v1 out
    grep -q '"result": "failed"' out
    run -0 --separate-stderr d9d-map certify --quiet olmo
    [ -z "$output$stderr" ]
}

@test "gradients of clamped activations, whose kinks are between finite differences" {
    local folders='gpt_oss gpt_oss_odd gpt_oss_prefix olmo_clip olmoe_clip'
    [ -z "${D9D_LONG:-}" ] || folders=$(ls "$golden/families")
    for f in $folders; do
        d9d-map certify "$golden/families/$f" >out
        certified "$f"
    done
    # kinked STATEMENT: the activation goes on with half the slope; the statement sets its derivative
    kinked() { plugin gelu "s/^    return 0.5 \* x \* (1 + th);/    if (x > 0.4) { const double own = *derivative, y = gelu(0.4, derivative) + 0.5 * (x - 0.4); $1; (void)own; return y; }\n&/"; }
    kinked '*derivative = 0.5'
    d9d-map certify --plugin ./libmine.so gelu >out
    certified gelu adapters generation
    # the slope before the kink, that of the whole curve, and another sign
    for wrong in '' '*derivative = own' '*derivative = -0.5' '*derivative = 0.48'; do
        kinked "$wrong"
        run -1 --separate-stderr d9d-map certify --plugin ./libmine.so gelu
        fails gradients
    done
}

@test "heads of tasks, of encoders and decoders" {
    for task in classification embedding; do
        for f in modernbert qwen3 olmoe; do
            d9d-map certify --task "$task" "$f" >out
            grep -q ", $task, 4 layers" out
            certified "$f $task" adapters generation
        done
        d9d-map certify --json --task "$task" llama | grep -q "\"task\": \"$task\""
    done
    # a folder is certified as its class says
    d9d-map certify "$golden/tasks/moe" >out
    grep -q ': qwen3_moe, classification, .*, its own weights$' out
    certified tasks/moe adapters generation
    run -2 --separate-stderr d9d-map certify --task clasification llama
    [ "$stderr" = 'd9d-map: invalid configuration: --task: there is no task clasification; did you mean "classification"?' ]
    run -2 --separate-stderr d9d-map certify --task masked_lm llama
    [[ "$stderr" == *'["LlamaForMaskedLM"] is not supported' ]]
    run -2 --separate-stderr d9d-map certify --task causal_lm modernbert
    [[ "$stderr" == *'["ModernBertForCausalLM"] is not supported' ]]
}

@test "a family of a plugin, and wrong ones" {
    for f in glm4 seed_oss; do
        plugin $f ''
        d9d-map certify --plugin ./libmine.so --golden "$golden/plugins/$f" $f | sed 's/^\(golden  *\)ok/\1skipped/' >out
        certified $f
    done
    # a residual that is left out is another model
    plugin seed_oss 's/(&l->mlp, t, h, x, y)/(\&l->mlp, t, h, h, y)/'
    run -1 --separate-stderr d9d-map certify --plugin ./libmine.so --golden "$golden/plugins/seed_oss" seed_oss
    fails golden
    grep -q '^golden .* outputs [0-9.]*e[+-]0[01], the worst ' <<<"$output"
    # a norm that the files call otherwise is said once
    plugin seed_oss 's/post_attention_layernorm/post_norm/'
    run -1 --separate-stderr d9d-map certify --plugin ./libmine.so "$golden/plugins/seed_oss"
    grep -q '^files  *FAILED .*: 2 missing, 2 unused, ' <<<"$output"
    [ "$(grep -c '  as in files$' <<<"$output")" -eq 6 ]
    # a norm that decoding leaves out
    plugin seed_oss 's/(&l->self_attn, t, h,/(\&l->self_attn, t, in->cache ? in->x : h,/'
    run -1 --separate-stderr d9d-map certify --plugin ./libmine.so seed_oss
    fails generation
    # a feed-forward layer that is another one whenever it is computed again
    plugin seed_oss $'1i static int odd(void) { static int n; return n++ % 2; }\ns/(&l->mlp, t, h, x, y)/(\\&l->mlp, t, h, odd() ? h : x, y)/'
    run -1 --separate-stderr d9d-map certify --plugin ./libmine.so seed_oss
    fails recompute
    # memory that a plan does not see
    plugin seed_oss 's/^    return d9d_block_ffn_forward/    if (d9d_tape_device(t)->stream == NULL)\
        D9D_TRY(d9d_tape_output(t, D9D_F32, D9D_SHAPE(1 << 16), y));\
&/'
    run -1 --separate-stderr d9d-map certify --plugin ./libmine.so seed_oss
    fails memory
    # a gradient that is a little wrong
    plugin gelu 's/\*derivative = 0\.5 \* (1 + th)/*derivative = 0.48 * (1 + th)/'
    run -1 --separate-stderr d9d-map certify --plugin ./libmine.so gelu
    fails gradients
    [[ "$output" == *'skipped'*'the model has no KV cache'* ]]
}

@test "the page of certificates is not written from what no longer holds" {
    local stored=$root/docs/reference/certificates.jsonl file=docs/reference/certificates.jsonl
    mkdir -p docs/reference pages
    cp "$stored" $file
    "$build/schemas/dump" --pages pages
    cmp pages/families.md "$root/docs/reference/families.md"
    "$build/schemas/dump" d9d.certificate.v1 "$stored"
    sed '2s/"result": "ok"/"result": "failed"/' "$stored" >$file
    run -2 "$build/schemas/dump" --pages pages
    [[ "$output" == *"$file:2: the certificate of qwen3_moe has no files that holds: make certificates"* ]]
    sed '1s/"num_hidden_layers": 4/"num_hidden_layers": 2/' "$stored" >$file
    run -2 "$build/schemas/dump" --pages pages
    [[ "$output" == *"$file:1: the certificate of qwen3_dense is of another model than its tables make now: make certificates"* ]]
    sed 1d "$stored" >$file
    "$build/schemas/dump" --pages pages
    grep -q '^| `qwen3_dense` | no certificate |$' pages/families.md
}

@test "what is no family and no folder is refused before anything is made" {
    run -2 --separate-stderr d9d-map certify lama
    [ "$stderr" = 'd9d-map: invalid configuration: lama: neither a folder nor a family; did you mean "llama"?' ]
    run -2 --separate-stderr d9d-map certify auto
    [[ "$stderr" == *': auto: neither a folder nor a family'* ]]
    mkdir empty
    run -2 --separate-stderr d9d-map certify empty
    [[ "$stderr" == *'not found: empty/config.json'* ]]
    run -2 d9d-map certify
    run -2 d9d-map certify llama mistral
    TMPDIR=/nowhere run -2 --separate-stderr d9d-map certify llama
    [ "$stderr" = 'd9d-map: invalid configuration: TMPDIR: /nowhere is no directory' ]
}

@test "a signal ends it, and nothing is left" {
    for signal in TERM INT; do
        d9d-map certify qwen3_next >out 2>err &
        pid=$!
        until compgen -G "$TMPDIR/d9d-certify.tmp-*/own" >there || ! kill -0 $pid 2>/dev/null; do sleep 0.01; done
        kill -s $signal $pid
        rc=0
        wait $pid || rc=$?
        [ "$rc" -eq 1 ]
        [ "$(cat out err)" = "d9d-map: verification failed: SIG$signal: no certificate" ]
        [ -z "$(ls -A "$TMPDIR")" ]
    done
}
