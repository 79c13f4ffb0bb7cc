#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2059 # variables of bats and of the helper; bytes are printed by number
# d9d-map, as a user sees it.

setup() {
    load helper
    load map_helper
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
}

@test "every checkpoint comes back byte for byte from the d9d layout" {
    for c in $cases; do
        d9d-map -q "$golden/$c" "$c.d9d"
        d9d-map -q "$c.d9d" "$c.hf"
        run -0 --separate-stderr d9d-map diff "$golden/$c" "$c.hf"
        [[ "$output" == *" 0 different" ]]
        d9d-map verify -q "$c.d9d"
        cmp "$golden/$c/generation_config.json" "$c.hf/generation_config.json"
    done
}

@test "the expert layouts of one model are the same model" {
    d9d-map -q "$golden/moe" each.d9d
    d9d-map -q "$golden/moe_fused" fused.d9d
    d9d-map -q "$golden/moe_sharded" sharded.d9d
    cmp each.d9d/model.safetensors fused.d9d/model.safetensors
    cmp each.d9d/model.safetensors sharded.d9d/model.safetensors
    d9d-map -q --expert-layout fused each.d9d fused
    d9d-map diff -q "$golden/moe_fused" fused
    d9d-map -q --to hf --expert-layout per-expert "$golden/moe_fused" each
    d9d-map diff -q "$golden/moe" each
    # A d9d checkpoint remembers what it came from.
    d9d-map -q fused.d9d back
    d9d-map diff -q "$golden/moe_fused" back
}

@test "the same bytes with any number of jobs, in one file or many" {
    for j in 1 2 7; do
        d9d-map -q --jobs "$j" --shard-size 50kB "$golden/moe" "j$j"
    done
    diff -r j1 j2
    diff -r j1 j7
    [ "$(find j1 -name 'model-*-of-*.safetensors' | wc -l)" -gt 2 ]
    grep -q '"total_size": ' j1/model.safetensors.index.json
    d9d-map -q --to d9d j1 one
    d9d-map diff -q j1 one
    [ ! -e one/model.safetensors.index.json ]
}

@test "casting says so in config.json and agrees with a stored bfloat16 checkpoint" {
    d9d-map -q --to hf --dtype bfloat16 "$golden/dense_untied" b
    d9d-map diff -q "$golden/dense_untied_bf16" b
    grep -q '"torch_dtype": "bfloat16"' b/config.json
    run -1 --separate-stderr d9d-map diff -q "$golden/dense_untied" b
    [[ "$output" == *"model.norm.weight: dtype: F32 [40], BF16 [40]"* ]]
    # Every weight of these is a bfloat16 number.
    d9d-map -q --to hf --dtype float32 b f
    d9d-map diff -q "$golden/dense_untied" f
}

@test "a config.json whose content does not change keeps its bytes" {
    d9d-map -q --to hf "$golden/moe" same
    cmp "$golden/moe/config.json" same/config.json
    d9d-map -q "$golden/moe" d
    grep -q '"layout": "d9d"' d/config.json
    run ! grep -q '"layout"' same/config.json
}

@test "dropout, which is of training, goes along" {
    cp -r "$golden/moe" src
    chmod -R u+w src
    sed -i 's/"attention_dropout": 0.0/"attention_dropout": 0.1/' src/config.json
    d9d-map -q src d9d
    d9d-map -q --to hf --expert-layout per-expert d9d back
    cmp {src,back}/config.json
    sed -i 's/"attention_dropout": 0.1/"attention_dropout": 1.5/' src/config.json
    run -2 --separate-stderr d9d-map -q src none
    [[ "$stderr" == *"src/config.json: attention_dropout: 1.5 is not below 1" ]]
    [ ! -e none ]
}

@test "the other files of a model are copied byte for byte, and nothing that lies beside them" {
    cp -r "$golden/dense_tied" src && chmod -R u+w src
    mkdir -p src/1_Pooling/deep src/onnx src/.cache src/additional_chat_templates src/run outside src/LICENSES
    head -c 5000 /dev/urandom >src/tokenizer.json
    ln -s tokenizer.json src/vocab.json
    kept=(README.md license.txt merges.txt modeling_mine.py chat_template.jinja qwen.tiktoken
        preprocessor_config.json 1_Pooling/config.json additional_chat_templates/tools.jinja)
    left=(.env notes corpus.jsonl train.py pytorch_model.bin training_args.bin .cache/x run/tokens-00000.bin
        onnx/model.onnx onnx/config.json 1_Pooling/deep/notes 1_Pooling/weights.pt adapter_config.json LICENSES/x)
    for f in "${kept[@]}" "${left[@]}"; do echo "$f" >"src/$f"; done
    ln -s ../outside src/2_Dense && touch outside/config.json
    run -0 --separate-stderr d9d-map src dst
    for f in "${kept[@]}" tokenizer.json vocab.json generation_config.json; do cmp "src/$f" "dst/$f"; done
    [ ! -L dst/vocab.json ]
    for f in "${left[@]}" train.json train.jsonl 2_Dense golden.safetensors; do [ ! -e "dst/$f" ]; done
    [ "$(cd dst && echo */)" = "1_Pooling/ additional_chat_templates/" ]
    # One line says what was left.
    [ "$(grep -c 'not copied' <<<"$stderr")" -eq 1 ]
    [[ "$stderr" == *"d9d-map: src: not copied, no files of a model: 1_Pooling/deep, 1_Pooling/weights.pt, 2_Dense, LICENSES, "*" and "*" more"* ]]
    [[ "$stderr" != *.env* ]]
    d9d-map verify -q dst
    # A directory that has a model alone says nothing, also where the destination is in it.
    d9d-map -q --to d9d dst back 2>stderr
    [ ! -s stderr ]
    diff -r dst/1_Pooling back/1_Pooling
}

@test "a file of the model that cannot be copied is refused before the work" {
    cp -r "$golden/dense_tied" src && chmod -R u+w src
    for make in "ln -s nowhere" mkfifo; do
        $make src/README.md
        run -2 --separate-stderr timeout 600 d9d-map -q src dst
        [[ "${stderr_lines[-1]}" == *"src/README.md: "* ]]
        [ ! -e dst ]
        rm src/README.md
    done
    # One that is nothing of the model's is in nobody's way.
    mkfifo src/pipe
    ln -s nowhere src/dangling
    timeout 600 d9d-map -q src dst
    [ ! -e dst/pipe ]
    # A file larger than any model's is left, and said.
    truncate -s 1073741825 src/tokenizer.json
    run -0 --separate-stderr d9d-map --force src dst
    [[ "$stderr" == *"tokenizer.json (larger than 1 GiB)"* ]]
    [ ! -e dst/tokenizer.json ]
}

@test "what is written is what verify accepts, whatever names lie in the source" {
    cp -r "$golden/dense_tied" src && chmod -R u+w src
    echo hi >$'src/caf\xe9.txt'
    echo hi >$'src/README\xe9.md'
    echo hi >$'src/README\n.md'
    mkdir $'src/1_\xe9' && touch $'src/1_\xe9/config.json'
    run -0 --separate-stderr d9d-map -q src dst
    [ "$(cd dst && echo *)" = "config.json generation_config.json manifest.json model.safetensors" ]
    d9d-map verify -q dst
}

@test "a directory with files is replaced with --force alone" {
    d9d-map -q "$golden/dense_untied" dst && echo precious >dst/file
    run -2 --separate-stderr d9d-map -q "$golden/dense_tied" dst
    [[ "$stderr" == *"--force"* ]]
    [ "$(cat dst/file)" = precious ]
    d9d-map -q --force "$golden/dense_tied" dst
    [ ! -e dst/file ]
    [ -e dst/model.safetensors ]
    [ "$(ls)" = dst ]
}

@test "init: a seed is a model, whatever the jobs, layout and shards" {
    cfg=$golden/moe_mixed_tied/config.json
    d9d-map init -q --model "$cfg" --seed 7 a
    d9d-map init -q --model "$cfg" --seed 7 --jobs 5 --expert-layout fused --shard-size 9kB b
    d9d-map init -q --model "$cfg" --seed 7 --to d9d c
    d9d-map init -q --model "$cfg" --seed 8 d
    for x in a b; do d9d-map -q "$x" "$x.d9d"; done
    cmp a.d9d/model.safetensors c/model.safetensors
    cmp b.d9d/model.safetensors c/model.safetensors
    run -1 d9d-map diff -q a d
    d9d-map verify -q b
    # float16 is what a cast of the same numbers is.
    d9d-map init -q --model "$cfg" --seed 7 --to d9d --dtype float16 half
    d9d-map -q --to d9d --dtype float16 c cast
    cmp half/model.safetensors cast/model.safetensors
    run -2 --separate-stderr d9d-map init -q e
    [ "$stderr" = "d9d-map: invalid configuration: init needs --model CONFIG.json" ]
}

@test "plan reads headers alone" {
    run -0 --separate-stderr d9d-map plan --all "$golden/moe"
    [[ "$output" == *"group 10: stack(0), transpose(-2, -1): 20480 bytes"* ]]
    [[ "$output" == *"< model.layers.0.mlp.experts.7.up_proj.weight F32 [20, 32] ($golden/moe/model.safetensors at "* ]]
    [[ "$output" == *"> model.layers.0.mlp.grouped_experts.up_proj.weight F32 [8, 32, 20]"* ]]
    # Groups that differ by numbers alone are one entry, unless all are asked for.
    run -0 --separate-stderr d9d-map plan "$golden/moe_sharded"
    [[ "$output" == *"2 x stack(0), transpose(-2, -1): 41.0 kB read, 41.0 kB written"* ]]
    [[ "$output" =~ "< model.layers.{0-1}.mlp.experts.{0-7}.up_proj.weight "+"16 x F32 [20, 32]  "[0-9]" files" ]]
    [[ "$output" =~ "> model.layers.{0-1}.mlp.grouped_experts.up_proj.weight "+"2 x F32 [8, 32, 20]" ]]
    run -0 --separate-stderr d9d-map plan --all --boxes "$golden/moe"
    [[ "$output" == *"  | [7:8, 0:32, 0:20] of model.layers.1.mlp.experts.7.up_proj.weight from element 0 by [0, 1, 32]"* ]]
    run -0 --separate-stderr d9d-map plan --dot "$golden/moe"
    [ "${lines[0]}" = "digraph plan {" ]
    run -0 --separate-stderr d9d-map plan --json "$golden/moe_fused"
    [[ "$output" == *'"operation": "split(2, [20, 20])"'* ]]
    # Weights of which nothing but the header is there.
    cp -r "$golden/moe" sparse && chmod -R u+w sparse
    n=$(od -An -tu8 -N8 sparse/model.safetensors) size=$(stat -c %s sparse/model.safetensors)
    truncate -s $((n + 8)) sparse/model.safetensors && truncate -s "$size" sparse/model.safetensors
    d9d-map plan sparse >/dev/null
}

@test "plan needs no checkpoint to know what a large model costs" {
    cat >big.json <<<'{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "head_dim": 128,
        "num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 48, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "torch_dtype": "bfloat16"}'
    totals="61064245248 bytes to read, 61064245248 to write"
    run -0 --separate-stderr d9d-map plan --model big.json
    [[ "$output" == *"6144 x BF16 [768, 2048]"*"579 groups, 18867 tensors in, 579 out, $totals, "* ]]
    run -0 --separate-stderr d9d-map plan --to hf --model big.json
    [[ "$output" == *"579 groups, 579 tensors in, 18867 out, $totals, "* ]]
    run -0 --separate-stderr d9d-map plan --expert-layout fused --model big.json
    [[ "$output" == *"531 groups, 531 tensors in, 579 out, $totals, "* ]]
    run -0 --separate-stderr d9d-map plan --mapper "$BATS_TEST_DIRNAME/../../examples/mappers/qwen3_to_torchtitan.json" --model big.json
    [[ "$output" == *"> layers.{0-47}.moe.experts.w3 "*"579 groups, 18867 tensors in, 579 out, $totals, "* ]]
    sed 's/bfloat16/float16/' big.json >half.json
    run -0 --separate-stderr d9d-map plan --model half.json
    [[ "$output" == *"6144 x F16 [768, 2048]"*"579 groups, 18867 tensors in, 579 out, $totals, "* ]]
    run -2 d9d-map plan --model big.json "$golden/moe"
    run -2 d9d-map plan
}

@test "verify finds any changed byte, and a finite checkpoint is sound" {
    d9d-map -q --shard-size 100kB "$golden/moe" c
    run -0 --separate-stderr d9d-map verify -q c
    [[ "$output" == "c: 3 files, 27 tensors, 202752 bytes are sound" ]] || echo "$output"
    seed=1
    for f in c/*; do
        size=$(stat -c %s "$f")
        for _ in 1 2 3 4 5 6; do
            seed=$(((seed * 1103515245 + 12345) & 0x7fffffff))
            at=$((seed % size))
            old=$(od -An -tu1 -j $at -N1 "$f")
            cp "$f" saved
            printf "$(printf '\\x%02x' $((old ^ 1)))" | dd of="$f" bs=1 seek=$at conv=notrunc status=none
            run -1 d9d-map verify -q c
            cp saved "$f"
        done
        truncate -s $((size - 1)) "$f"
        run -1 d9d-map verify -q c
        cp saved "$f"
    done
    mv c/model-00001-of-00003.safetensors x
    mv c/model-00002-of-00003.safetensors c/model-00001-of-00003.safetensors
    mv x c/model-00002-of-00003.safetensors
    run -1 d9d-map verify -q c
}

@test "verify asks for a manifest, and for nothing beside what it lists" {
    d9d-map -q "$golden/moe" c
    touch c/.nfs0001 && d9d-map verify -q c
    touch c/notes
    run -1 --separate-stderr d9d-map verify -q c
    [ "$output" = "c/notes is not listed in manifest.json" ]
    rm c/notes c/manifest.json
    run -1 --separate-stderr d9d-map verify -q c
    [[ "$output" == "c/manifest.json: cannot open: No such file or directory" ]]
    d9d-map verify -q --no-manifest c | grep -q 'are sound; there was no manifest.json'
    mkfifo c/manifest.json
    run -1 --separate-stderr timeout 200 d9d-map verify -q c
    [ "$output" = "c/manifest.json: is a pipe, must be a file" ]
}

@test "verify names a number that is not finite" {
    mkdir n
    st_file n/model.safetensors '{"w":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}' 6
    printf '\x80\x7f' >>n/model.safetensors
    run -1 --separate-stderr d9d-map verify -q --no-manifest n
    [ "$output" = "n/model.safetensors: tensor w: element 3 is not finite" ]
    [ "$stderr" = "d9d-map: verification failed: n: 1 findings" ]
}

@test "diff tells values, types, shapes and absences" {
    mkdir a b
    st_file a/model.safetensors '{"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"s":{"dtype":"U8","shape":[2],"data_offsets":[8,10]},"x":{"dtype":"U8","shape":[0],"data_offsets":[10,10]}}' 10
    st_file b/model.safetensors '{"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"s":{"dtype":"U8","shape":[1,2],"data_offsets":[8,10]},"y":{"dtype":"U8","shape":[0],"data_offsets":[10,10]}}' 10
    printf '\x00\x00\x80\x3f' | dd of=b/model.safetensors bs=1 seek=$(($(stat -c %s b/model.safetensors) - 10)) conv=notrunc status=none
    run -1 --separate-stderr d9d-map diff -q a b
    [ "${lines[0]}" = "s: shape: U8 [2], U8 [1, 2]" ]
    [ "${lines[1]}" = "v: values: 1 elements differ, by 1 at most" ]
    [ "${lines[2]}" = "x: only in A: U8 [0], -" ]
    [ "${lines[3]}" = "y: only in B: -, U8 [0]" ]
    [ "${lines[4]}" = "0 tensors equal, 4 different" ]
    run -1 --separate-stderr d9d-map diff -q --json a b
    [[ "$output" == *'{"name": "v", "kind": "values", "different": 1, "max_abs": 1.0}'* ]]
}

@test "hundreds of shards need few open files" {
    sed 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 17/' "$golden/moe/config.json" >big.json
    (ulimit -n 32 && d9d-map init -q --model big.json --shard-size 1 many)
    [ "$(find many -name 'model-*.safetensors' | wc -l)" -gt 512 ]
    d9d-map init -q --model big.json one
    (ulimit -S -n 64 && d9d-map diff -q one many)
}

@test "an interrupted conversion goes on, and says so" {
    command -v strace >/dev/null || skip "no strace"
    d9d-map -q --shard-size 50kB "$golden/moe" whole
    run ! strace -f -qq -o /dev/null -e inject=pwrite64:signal=KILL:when=5 d9d-map -q -j1 --shard-size 50kB "$golden/moe" dst
    [ -d dst.partial ]
    [ ! -e dst ]
    run -0 --separate-stderr d9d-map --shard-size 50kB "$golden/moe" dst
    [[ "$stderr" == *"dst.partial: going on with "[1-9]*" chunks"* ]]
    diff -r whole dst
    [ ! -e dst.partial ]
    # Another conversion does not go on from it.
    run ! strace -f -qq -o /dev/null -e inject=pwrite64:signal=KILL:when=5 d9d-map -q -j1 --shard-size 50kB "$golden/moe" dst2
    run -0 --separate-stderr d9d-map --dtype bfloat16 --shard-size 50kB "$golden/moe" dst2
    [[ "$stderr" == *"dst2.partial: an earlier run made something else there; starting afresh"* ]]
    d9d-map -q --dtype bfloat16 --shard-size 50kB "$golden/moe" half
    diff -r half dst2
}

@test "other content at the same path, of the same size and time, is another conversion" {
    command -v strace >/dev/null || skip "no strace"
    cp -r "$golden/moe" src && chmod -R u+w src && echo '{"model": 1}' >src/tokenizer.json
    find src -exec touch -d 2024-01-01 {} +
    cp -rp src was
    for file in model.safetensors tokenizer.json; do
        rm -rf src dst && cp -rp was src
        run ! strace -f -qq -o /dev/null -e inject=pwrite64:signal=KILL:when=5 d9d-map -q -j1 --shard-size 50kB src dst
        printf '\x3c\x3c' | dd of=src/$file bs=1 conv=notrunc status=none seek=$(($(stat -c %s src/$file) / 2))
        touch -d 2024-01-01 src/$file
        run -0 --separate-stderr d9d-map --shard-size 50kB src dst
        [[ "$stderr" == *"dst.partial: an earlier run made something else there; starting afresh"* ]]
        rm -rf whole && d9d-map -q --shard-size 50kB src whole
        diff -r whole dst
    done
}

@test "a source that is changed while it is read is an error, and nothing is made of it" {
    command -v strace >/dev/null || skip "no strace"
    export ASAN_OPTIONS=detect_leaks=0 # not in a traced process
    d9d-map init -q --model "$golden/moe/config.json" --seed 9 other
    for change in "dd if=/dev/zero of=src/model.safetensors bs=1000 seek=100 count=1 conv=notrunc status=none" \
        "cp other/model.safetensors src/new" "touch src/model.safetensors"; do
        rm -rf src dst.partial && cp -r "$golden/moe" src && chmod -R u+w src
        # It stops in a write until the source is another one.
        rm -f trace
        strace -f -D -o trace -e trace=pwrite64 -e inject=pwrite64:signal=STOP:when=5 \
            d9d-map -q -j1 --shard-size 50kB src dst 2>err &
        pid=$!
        wait_for grep -qs 'stopped by SIGSTOP' trace
        $change
        [ ! -e src/new ] || mv src/new src/model.safetensors
        kill -CONT $pid
        status=0
        wait $pid || status=$?
        [ $status = 1 ]
        assert_equal "$(tail -n 1 err)" 'd9d-map: input/output error: src: was changed while it was read; nothing is made of it'
        [ ! -e dst ]
    done
    d9d-map -q --shard-size 50kB src dst
    d9d-map verify -q dst
}

@test "two conversions into one place do not meet" {
    mkdir dst.partial
    run -1 --separate-stderr flock dst.partial d9d-map -q "$golden/moe" dst
    [ "$stderr" = "d9d-map: input/output error: dst.partial: another process is writing it; wait for its end, or name another" ]
    d9d-map -q "$golden/moe" dst
}
