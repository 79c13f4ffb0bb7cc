#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031,SC2154 # bats sets output and stderr
# d9d-shard, as a user sees it.

setup() {
    load helper
    tok=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)/examples/tokenizer/tokenizer.json
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
}

# corpus N: JSON lines with some of everything.
corpus() {
    awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++) {
        t = "Document " i ":"; for (j = 0; j < (i * 7919) % 60; j++) t = t " int x" (i * j) % 97 " = " j ";"
        printf "{\"id\": %d, \"text\": \"%s \\u00e9 e\\u0301 \\ud83d\\ude00\\n\"}\n", i, t } }'
}

@test "the same bytes with any number of jobs, and verify is content" {
    corpus 3000 >a.jsonl
    for j in 1 2 7; do
        d9d-shard -q -t "$tok" -o "j$j" --jobs "$j" --max-length 100 --bucket-edges 32,64 \
            --shuffle-seed 3 --split train=0.9,valid=0.1 --shard-size 40kB a.jsonl
    done
    diff -r j1 j2
    diff -r j1 j7
    cmp "$tok" j1/tokenizer.json
    [ -e j1/tokens-00003.bin ]
    d9d-shard verify -q j7
}

@test "compressed input and a pipe give what the plain file gives" {
    corpus 200 >a.jsonl
    gzip -k a.jsonl
    { head -n 90 a.jsonl | gzip; head -c 3000 /dev/zero; tail -n +91 a.jsonl | gzip; head -c 9000 /dev/zero; } >two.jsonl.gz
    d9d-shard -q -t "$tok" -o plain a.jsonl
    d9d-shard -q -t "$tok" -o gz a.jsonl.gz
    d9d-shard -q -t "$tok" -o two two.jsonl.gz
    d9d-shard -q -t "$tok" -o pipe - <a.jsonl
    for d in gz two pipe; do
        cmp plain/tokens-00000.bin $d/tokens-00000.bin
        cmp plain/index.lmdb $d/index.lmdb
    done
    if command -v zstd >/dev/null; then
        zstd -q a.jsonl
        d9d-shard -q -t "$tok" -o zst a.jsonl.zst
        cmp plain/tokens-00000.bin zst/tokens-00000.bin
    fi
}

@test "text is a document a file, or a line" {
    printf 'int a;\nint b;\r\nint c;' >a.txt
    d9d-shard -q -t "$tok" -o file a.txt
    d9d-shard -q -t "$tok" -o lines --format text --lines a.txt
    [[ "$(d9d-shard inspect file)" == *"1 sample,"* ]]
    [[ "$(d9d-shard inspect lines)" == *"3 samples"* ]]
    printf '{"text": "int b;"}\n' >b.jsonl
    d9d-shard -q -t "$tok" -o b b.jsonl
    run d9d-shard inspect b --sample 0
    [[ "$(d9d-shard inspect lines --sample 1 | tail -n +2)" == "$(tail -n +2 <<<"$output")" ]]
}

@test "given ids and labels come back as they were" {
    printf '%s\n' '{"input_ids": [5, 6, 7], "labels": [-100, 9, 8]}' '{"labels": [1], "input_ids": [2]}' >a.jsonl
    d9d-shard -q --format tokens -o data a.jsonl
    run -0 d9d-shard inspect data --sample 0 --json
    [[ "$output" == *'"input_ids": [5, 6, 7], "labels": [-100, 9, 8], "position_ids": [0, 1, 2]'* ]]
    [ "$(stat -c %s data/labels-00000.bin)" = 16 ]
    run -0 d9d-shard inspect data --json
    [[ "$output" == *'"targets": "labels"'* && "$output" == *'"vocab_size": 10,'* ]]
}

@test "an end token is appended to every document" {
    printf '{"input_ids": [5, 6]}\n{"input_ids": [7]}\n' >a.jsonl
    eos=$(grep -o '<|[a-z_]*|>' "$tok" | head -n 1)
    d9d-shard -q -t "$tok" --format tokens --append-eos "$eos" -o data a.jsonl
    run -0 d9d-shard inspect data --json
    [[ "$output" == *'"samples": 2'* ]]
    run -2 d9d-shard -q -t "$tok" --format tokens --append-eos '<|none|>' -o d2 a.jsonl
    [[ "$output" == *'--append-eos: '*'has no token "<|none|>"'* ]]
}

@test "documents without a target are counted and left out" {
    printf '{"text": ""}\n\n{"text": "int main(void)"}\n' >a.jsonl
    run -0 --separate-stderr d9d-shard --json -t "$tok" -o data a.jsonl
    [[ "$output" == *'"documents": 2'* && "$output" == *'"too_short": 1'* ]]
}

# killed SPLIT: a run that is killed time and again, and one that is not.
killed() {
    rm -rf whole cut
    set -- -q -t "$tok" --pack 256 --shuffle-seed 1 --split "$1" --unit-size 500kB a.jsonl b.jsonl.gz
    d9d-shard -o whole "$@"
    kills=0
    RANDOM=${D9D_SEED:-7}
    for ((n = 0; n < ${D9D_LONG:+200} + 10; n++)); do
        d9d-shard -o cut "$@" &
        pid=$!
        sleep 0.0$((RANDOM % 10))$((RANDOM % 10))
        kill -9 $pid 2>/dev/null && kills=$((kills + 1))
        wait $pid || true
        if [ -d cut ]; then # whole, so that it must be right
            diff -r whole cut
            rm -r cut
        fi
    done
    d9d-shard -o cut "$@"
    [ $kills -gt 0 ]
    diff -r whole cut
    [ ! -e cut.partial ]
}

@test "a run that is killed goes on to the same bytes" {
    corpus 5000 >a.jsonl
    gzip -c a.jsonl >b.jsonl.gz
    killed a=0.9,b=0.1
    killed b=50
}

# cut DIR ARG...: a run that is killed when it has done some units, and not all.
cut() {
    until [ -e "$1.partial/unit-00003-0000.json" ]; do
        rm -rf "$1" "$1.partial"
        d9d-shard -o "$@" &
        pid=$!
        wait_for some_or_all "$1"
        kill -9 $pid 2>/dev/null || true
        wait $pid || true
    done
}
some_or_all() { [ -e "$1.partial/unit-00003-0000.json" ] || [ -e "$1" ]; }

@test "a run that goes on does only what is left" {
    corpus 10000 >a.jsonl
    set -- -q -t "$tok" --unit-size 400kB a.jsonl
    d9d-shard -o whole "$@"
    cut cut "$@"
    before=$(stat -c %i cut.partial/unit-00000-0000.tokens-000)
    touch cut.partial/{manifest.json,unit-00003-0000.json}.tmp-4194303-0 # of a run that was killed
    d9d-shard -o cut "$@"
    [ "$(stat -c %i cut/tokens-00000.bin)" = "$before" ]
    diff -r whole cut

    # Other options do not go on from there.
    cut other "$@"
    d9d-shard -o other --append-eos '<|endoftext|>' "$@"
    d9d-shard -o fresh --append-eos '<|endoftext|>' "$@"
    diff -r fresh other

    # Nor does another task, whose part would have units of this one.
    cut part --task 0/1 "$@"
    for i in 0 1 2 3; do d9d-shard -o "part${i#0}" --task "$i/4" "$@"; done
    d9d-shard merge -q merged part part[123]
    diff -r whole merged
}

@test "tasks that share the work, merged, give what one run gives" {
    corpus 2000 >a.jsonl
    corpus 1000 | gzip >b.jsonl.gz
    corpus 20 >c.jsonl
    printf 'one document' >d.txt
    set -- -q -t "$tok" --unit-size 200kB --shard-size 100kB a.jsonl b.jsonl.gz c.jsonl d.txt
    for options in "--max-length 64 --bucket-edges 32" "--pack 256 --shuffle-seed 2" \
        "--pack 100 --pack-mode concat --split a=0.8,b=0.2 --shuffle-seed 0" \
        "--max-length 50 --split valid=333 --shuffle-seed 1" "--pack 128 --split a=0.9,b=0.1,c=99,d=2"; do
        rm -rf one merged part*
        # shellcheck disable=SC2086 # they are several
        d9d-shard $options -o one "$@"
        for n in 1 3 7; do
            for ((i = 0; i < n; i++)); do
                # shellcheck disable=SC2086
                d9d-shard $options -o "part$i" --task "$i/$n" --jobs $((i % 3 + 1)) "$@"
            done
            d9d-shard merge -q merged part*
            diff -r one merged
            rm -rf merged part*
        done
    done
}

@test "empty inputs belong to a task, wherever they stand" {
    corpus 20 | gzip >b.jsonl.gz
    : >empty.jsonl
    set -- -q -t "$tok" --unit-size 512 empty.jsonl b.jsonl.gz empty.jsonl
    d9d-shard -o one "$@"
    for i in 0 1 2; do d9d-shard -o "part$i" --task "$i/3" "$@"; done
    d9d-shard merge -q merged part*
    diff -r one merged
}

@test "an array's tasks take their number from Slurm, and parts that do not fit are refused" {
    corpus 3000 >a.jsonl
    set -- -q -t "$tok" --unit-size 500kB a.jsonl
    d9d-shard -o one "$@"
    for i in 0 1 2; do
        SLURM_ARRAY_TASK_ID=$((5 + 2 * i)) SLURM_ARRAY_TASK_MIN=5 SLURM_ARRAY_TASK_STEP=2 \
            SLURM_ARRAY_TASK_COUNT=3 d9d-shard --array -o p$i "$@"
    done
    run -2 --separate-stderr d9d-shard merge all p0 p2
    [[ "$stderr" == *"are the parts of all 3 tasks given?"* ]]
    run -2 --separate-stderr d9d-shard merge all p0 p1 p1 p2
    [[ "$stderr" == *"and so has p1"* ]]
    d9d-shard -o other --task 0/3 --append-eos '<|endoftext|>' "$@"
    run -2 --separate-stderr d9d-shard merge all p0 p1 p2 other
    [[ "$stderr" == *"other: is of other inputs or options than p0"* ]]
    [ ! -e all ]
    [ ! -e all.partial ]
    run -2 --separate-stderr d9d-shard merge --force p1 p0 p1 p2
    [[ "$stderr" == *"p1: is to be replaced, but the input p1 is the same"* ]]
    run -2 --separate-stderr d9d-shard inspect p1
    [[ "$stderr" == *"p1: is a part of a dataset"* ]]
    d9d-shard merge -q all p2 p0 p1
    diff -r one all
    run -2 --separate-stderr d9d-shard --array -o p4 "$@"
    [[ "$stderr" == *"SLURM_ARRAY_TASK_ID is not set"* ]]
    run -2 --separate-stderr d9d-shard --task 3/3 -o p4 "$@"
    [[ "$stderr" == *"tasks are numbered from 0"* ]]
    for bad in 0/9223372036854775808 18446744073709551616/3 0/+3 ' 0/3' 0/3x 0 /3 -0/3 0/; do
        run -2 --separate-stderr d9d-shard --task "$bad" -o p4 "$@"
        [[ "$stderr" == *"--task: \"$bad\" must be I/N, such as 0/16" ]]
    done
    slurm() { SLURM_ARRAY_TASK_ID=$1 SLURM_ARRAY_TASK_MIN=$2 SLURM_ARRAY_TASK_STEP=$3 SLURM_ARRAY_TASK_COUNT=3 run -2 --separate-stderr d9d-shard --array -o p4 "${@:4}"; }
    slurm 18446744073709551616 0 1 "$@"
    [[ "$stderr" == *"--array: SLURM_ARRAY_TASK_ID is 18446744073709551616, must be a number" ]]
    slurm 1 0 0 "$@"
    [[ "$stderr" == *"--array: SLURM_ARRAY_TASK_STEP is 0, must be at least 1" ]]
    slurm 3 0 2 "$@" # or two tasks would make the same part
    [[ "$stderr" == *"--array: SLURM_ARRAY_TASK_ID 3 is not 0 and steps of 2" ]]
    run -2 --separate-stderr d9d-shard --task 0/3 --array -o p4 "$@"
    [[ "$stderr" == *"--task and --array both say which part is made; give one" ]]
    truncate -s -4 p1/*.tokens-000
    run -1 --separate-stderr d9d-shard merge broken p0 p1 p2
    [[ "$stderr" == *"bytes, must have"* ]]
    [ ! -e broken ] && [ ! -e broken.partial ]
}

# flip FILE AT: another byte there.
flip() {
    local byte
    byte=$(od -An -tu1 -j"$2" -N1 "$1")
    # shellcheck disable=SC2059 # an octal number
    printf "\\$(printf %o $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

@test "merge refuses parts that were damaged since they were made" {
    corpus 1000 >a.jsonl
    mkdir tok && cp "$tok" tok && echo '{"a": 1}' >tok/tokenizer_config.json
    for options in "" "--pack 64 --split valid=20"; do
        for k in 0 1; do
            # shellcheck disable=SC2086
            d9d-shard -q -t tok/tokenizer.json $options --task $k/2 --unit-size 60kB -o "p$k" a.jsonl
        done
        d9d-shard -q merge whole p0 p1
        cmp tok/tokenizer_config.json whole/tokenizer_config.json
        for f in p0/tokenizer.json p0/tokenizer_config.json p0/plan.json p1/unit-*-0000.json \
            p1/unit-*-0000.tokens-000 p1/unit-*-0000.records; do
            cp "$f" kept
            flip "$f" $(($(stat -c %s "$f") / 2))
            run -1 d9d-shard -q merge out p0 p1
            [[ "$output" == *"${f##*/}"* ]]
            [ ! -e out ]
            cp kept "$f"
        done
        touch p0/stranger
        d9d-shard -q merge out p0 p1
        diff -r whole out
        rm -r out whole p0 p1
    done
}

@test "a tokenizer that changes under a run is an error" {
    corpus 1000 >a.jsonl
    cp "$tok" tokenizer.json
    rm -rf ds gate
    mkfifo gate
    d9d-shard -q -t tokenizer.json -o ds gate a.jsonl 2>stderr &
    pid=$! rc=0
    wait_for [ -e ds.partial/plan.json ]
    echo >>tokenizer.json
    echo '{"text": "int gate;"}' >gate
    wait $pid || rc=$?
    [ "$rc" -eq 1 ]
    [[ "$(cat stderr)" == *"tokenizer.json: its hash is "*", it was "*" when tokens were made with it"* ]]
    [ ! -e ds ]
}

@test "token files of Megatron-LM come in and go out" {
    golden=$BATS_TEST_DIRNAME/../golden/megatron
    d9d-shard -q --format tokens -o want --pack 64 "$golden/documents.jsonl"
    for name in plain wide parts; do
        d9d-shard -q --format megatron -o $name --pack 64 --unit-size 512 "$golden/$name.bin"
        d9d-shard -q --format megatron -o $name.idx --pack 64 "$golden/$name.idx"
        cmp want/index.lmdb $name.idx/index.lmdb
        cmp want/tokens-00000.bin $name.idx/tokens-00000.bin
        [ -e $name/tokens-00001.bin ]
        d9d-shard verify -q $name
    done
    d9d-shard -q --format tokens -o whole "$golden/documents.jsonl"
    d9d-shard export -q --to megatron whole out
    cmp out.bin "$golden/plain.bin"
    cmp out.idx "$golden/plain.idx"
    d9d-shard -q --format megatron -o back out.bin
    cmp whole/tokens-00000.bin back/tokens-00000.bin
    # From u32 to u16 and from u16 to u16: the demo's vocabulary is small.
    d9d-shard -q -t "$tok" --format tokens -o narrow "$golden/documents.jsonl"
    d9d-shard export -q narrow out2
    cmp out.bin out2.bin
    cmp out.idx out2.idx
}

@test "token files of Megatron-LM that are damaged are refused" {
    golden=$BATS_TEST_DIRNAME/../golden/megatron
    cp "$golden/plain.bin" "$golden/plain.idx" .
    bad 2 'is NAME.bin, with NAME.idx beside it' --format megatron -o data "$golden/documents.jsonl"
    truncate -s -2 plain.bin
    bad 1 'tokens at byte' --format megatron -o data plain.bin
    cp "$golden/plain.bin" . && truncate -s -1 plain.idx
    bad 1 'bytes for 40 sequences and 41 bounds' --format megatron -o data plain.bin
    cp "$golden/plain.idx" . && printf '\x06' | dd of=plain.idx bs=1 seek=17 conv=notrunc status=none
    bad 1 'of type 6, which is no integer type' --format megatron -o data plain.bin
    printf 'X' | dd of=plain.idx bs=1 seek=0 conv=notrunc status=none
    bad 1 'is no Megatron index' --format megatron -o data plain.bin
    cp "$golden/plain.idx" . && printf '\xff\xff\xff\xff' | dd of=plain.idx bs=1 seek=34 conv=notrunc status=none
    bad 1 'sequence 0: -1 tokens' --format megatron -o data plain.bin
    cp "$golden/plain.idx" . && printf '\xff\xff' | dd of=plain.idx bs=1 seek=$((34 + 40 * 12 + 8)) conv=notrunc status=none
    bad 1 'document 0: sequences 0 to 65535 of 40' --format megatron -o data plain.bin
    rm plain.idx
    bad 2 'plain.idx' --format megatron -o data plain.bin
    printf '{"input_ids": [1, 2], "labels": [1, 2]}\n' >l.jsonl
    d9d-shard -q --format tokens -o labels l.jsonl
    run -2 --separate-stderr d9d-shard export labels out
    [[ "$stderr" == *"has labels"* ]]
    [ ! -e out.bin ] && [ ! -e out.idx ]
}

@test "inspect shows text with what is trained, and the padding of orders" {
    printf '%s\n' '{"messages": [{"role": "user", "content": "A\u00e9?"}, {"role": "assistant", "content": "yes"}]}' >c.jsonl
    d9d-shard -q -t "$tok" --format chat --template "$BATS_TEST_DIRNAME/../../examples/chat/qwen3.jinja" -o chat c.jsonl
    cmp "$BATS_TEST_DIRNAME/../../examples/chat/qwen3.jinja" chat/chat_template.jinja
    run -0 d9d-shard inspect chat --sample 0 --text
    [ "$output" = '<|im_start|>user
Aé?<|im_end|>
<|im_start|>assistant
⟦<think>

</think>

yes<|im_end|>⟧' ]
    printf '%s\n' '{"text": "int a;"}' '{"text": "int b;"}' >p.jsonl
    d9d-shard -q -t "$tok" -o pack --pack 32 p.jsonl
    # A terminal obeys no text.
    printf '{"text": "int \\u001b[31m\\r\\u0085\\u007fx\\ty"}\n' >esc.jsonl
    d9d-shard -q -t "$tok" -o esc esc.jsonl
    run -0 d9d-shard inspect esc --sample 0 --text
    [ "$output" = $'int⟦ ␛[31m␍\xEF\xBF\xBD␡x\ty⟧' ]
    run -0 d9d-shard inspect pack --sample 0 --text
    [[ "$output" == *'⟦'*'a;⟧
--------
'*'⟦'*'b;⟧' ]]
    corpus 2000 >a.jsonl
    d9d-shard -q -t "$tok" -o data --bucket-edges 64,256,1024 a.jsonl
    run -0 d9d-shard inspect data --batch 8
    [[ "$output" =~ shuffled\ +([0-9]+)\.[0-9]+\ %.*bucketed\ +([0-9]+)\.[0-9]+\ %.*edges ]]
    [ "${BASH_REMATCH[1]}" -gt 20 ]
    [ "${BASH_REMATCH[2]}" -lt 3 ]
    run -2 d9d-shard inspect data --batch 1073741824
    run -0 d9d-shard inspect data --batch 8 --pad-to-multiple-of 64 --json
    [[ "$output" =~ ^\{\"batch\":\ 8,.*\"bucketed\":\ 0\.[0-9]+.*\}\}$ ]]
}

@test "options are taken by the names of 0.1, which are said and not in --help" {
    corpus 400 >a.jsonl
    run -0 --separate-stderr d9d-shard -q -t "$tok" -o was --part-size 20kB a.jsonl
    [ "$stderr" = 'd9d-shard: warning: --part-size is now --unit-size' ]
    run -0 --separate-stderr d9d-shard -q -t "$tok" -o now --unit-size 20kB a.jsonl
    [ -z "$stderr" ]
    parts=(was/tokens-*.bin)
    [ ${#parts[@]} -gt 1 ]
    diff -r was now
    run -0 --separate-stderr d9d-shard inspect was --batch 8 --multiple=64 --json
    local was=$output
    [ "$stderr" = 'd9d-shard: warning: --multiple is now --pad-to-multiple-of' ]
    run -0 d9d-shard inspect was --batch 8 --pad-to-multiple-of=64 --json
    [ "$output" = "$was" ]
    run -0 d9d-shard --help
    [[ "$output" == *--unit-size*--pad-to-multiple-of* && "$output" != *--part-size* && "$output" != *--multiple* ]]
    run -2 d9d-shard -t "$tok" -o bad --part-size 1 a.jsonl
    [[ "$output" == *'--unit-size: units of 1 bytes'* ]]
}

@test "a dataset on a read-only file system is read, and no file appears beside it" {
    corpus 50 >a.jsonl
    d9d-shard -q -t "$tok" -o data a.jsonl
    chmod -R a-w data
    before=$(ls -la data)
    d9d-shard verify -q data
    d9d-shard inspect data --sample 3 >one
    [ "$(ls -la data)" = "$before" ]
    on_read_only "$PWD/data" true 2>/dev/null || skip "no mount can be made here"
    on_read_only "$PWD/data" d9d-shard verify -q data
    on_read_only "$PWD/data" d9d-shard inspect data --sample 3 | diff - one
}

# bad CODE PART ARGUMENT...: exit status and what the sentence has; nothing stays.
bad() {
    local code=$1 part=$2
    shift 2
    run "-$code" --separate-stderr d9d-shard -q "$@"
    [[ "$stderr" == *"$part"* ]] || { echo "said: $stderr"; return 1; }
    [ -z "$output" ] && [ "$(wc -l <<<"$stderr")" = 1 ]
    [ ! -e data ] && [ ! -e data.partial ]
}

@test "what is wrong is said with its file, line and byte" {
    printf '{"text": "a b"}\n{"text": "\xff"}\n' >utf8.jsonl
    printf 'ab\ncd\xc3(' >utf8.txt
    printf '{"text": "a b"}\n{"txet": "c"}\n' >key.jsonl
    printf '{"text": 7}\n' >type.jsonl
    printf '{"text": "a b"\n' >cut.jsonl
    printf '[1]\n' >array.jsonl
    printf '{"input_ids": [1, 99999999]}\n' >big.jsonl
    printf '{"input_ids": [1, 2], "labels": [1]}\n' >count.jsonl
    printf '{"input_ids": [1, 2]}\n{"input_ids": [1, 2], "labels": [1, 2]}\n' >mixed.jsonl
    printf 'hello' | gzip | head -c 15 >cut.txt.gz
    : >empty.jsonl
    bad 1 'utf8.jsonl: line 2, byte 26: 0xff is not valid UTF-8' -t "$tok" -o data utf8.jsonl
    bad 1 'utf8.txt: line 2, byte 5: 0xc3 is not valid UTF-8' -t "$tok" -o data utf8.txt
    bad 1 'key.jsonl: line 2, byte 29: has no "text"' -t "$tok" -o data key.jsonl
    bad 1 'type.jsonl: line 1, byte 9: "text" is not a string' -t "$tok" -o data type.jsonl
    bad 1 "cut.jsonl: line 1, byte 14: ',' or '}' is expected" -t "$tok" -o data cut.jsonl
    printf 'tekken' >tokenizer.model && printf '\377\377\377\377abcdefgh' >stream.jsonl
    printf '{"text": "a", "text": "b"}\n' >twice.jsonl
    bad 2 'tokenizer.model: is no tokenizer.json of HuggingFace' -t tokenizer.model -o data array.jsonl
    bad 1 "stream.jsonl: is a stream of Arrow; read JSON lines of it from a pipe: python3 -c \"import pyarrow" -t "$tok" -o data stream.jsonl
    bad 1 'twice.jsonl: line 1, byte 22: "text" is given twice' -t "$tok" -o data twice.jsonl
    bad 1 'array.jsonl: line 1: an element of the array is not an object' -t "$tok" -o data array.jsonl
    bad 1 'an id must be an integer from 0 to' -t "$tok" --format tokens -o data big.jsonl
    bad 1 'has 1 labels for 2 ids' --format tokens -o data count.jsonl
    bad 1 'mixed.jsonl: line 2: has labels, the documents before it have none' --format tokens -o data mixed.jsonl
    bad 1 'gzip data is cut off' -t "$tok" -o data cut.txt.gz
    bad 1 'no samples: of 0 documents in 1 input,' -t "$tok" -o data empty.jsonl
}

@test "export replaces nothing that is there, and follows no link" {
    corpus 50 >a.jsonl
    d9d-shard -q -t "$tok" -o ds a.jsonl
    d9d-shard -q export ds out
    cp out.bin bin && cp out.idx idx
    d9d-shard -q -f megatron -t "$tok" --pack 16 -o packed out.bin
    for missing in none bin idx; do # either is enough
        cp bin out.bin && cp idx out.idx && rm -f "out.$missing"
        run -2 d9d-shard -q export packed out
        [[ "$output" == *"is there already; --force replaces it"* ]]
        [ "$missing" = bin ] || cmp bin out.bin
        [ "$missing" = idx ] || cmp idx out.idx
    done
    ln -sf nowhere out.bin && rm -f out.idx
    run -2 d9d-shard -q export ds out
    [ -L out.bin ]

    echo precious >mine
    rm -f out.*
    ln -s mine out.bin.partial
    run -2 d9d-shard -q export ds out
    [[ "$output" == *"out.bin.partial: is there already and is not a regular file"* ]]
    [ "$(cat mine)" = precious ]
    [ ! -e out.bin ]
    rm out.bin.partial && echo left >out.bin.partial # of one that was killed
    d9d-shard -q export ds out
    cmp bin out.bin && cmp idx out.idx
    d9d-shard -q export --force packed out
    run cmp -s idx out.idx
    [ "$status" -eq 1 ]
    [ ! -e out.bin.partial ]
    rm out.idx
    for make in mkdir mkfifo; do
        $make out.idx
        run -2 --separate-stderr d9d-shard -q export --force ds out
        [ "$stderr" = "d9d-shard: invalid configuration: out.idx: is there already and is not a regular file" ]
        [ ! -e out.bin.partial ]
        rm -r out.idx
    done
}

@test "a byte order mark is no part of a text" {
    printf 'int a;\nint b;\n' >plain.txt
    { printf '\357\273\277'; cat plain.txt; } >marked.txt
    printf '{"text": "int a;"}\n' >plain.jsonl
    { printf '\357\273\277'; cat plain.jsonl; } >marked.jsonl
    for input in "-f text plain.txt" "-f text --lines plain.txt" "plain.jsonl"; do
        rm -rf plain marked
        # shellcheck disable=SC2086
        d9d-shard -q -t "$tok" -o plain $input
        # shellcheck disable=SC2086
        d9d-shard -q -t "$tok" -o marked ${input/plain/marked}
        cmp plain/tokens-00000.bin marked/tokens-00000.bin
    done
}

@test "what a share leaves is the split train, and a directory has its tokenizer" {
    corpus 500 >a.jsonl
    mkdir tok && cp "$tok" tok
    d9d-shard -q -t "$tok" -o shares --split valid=0.1,train=0.9 a.jsonl
    d9d-shard -q -t tok -o rest --split valid=0.1 a.jsonl
    cmp shares/index.lmdb rest/index.lmdb
}

# changed CHANGE WORDS ARG...: the command CHANGE comes between looking at the inputs and reading
# them, which waits for the pipe.
changed() {
    local change=$1 words=$2 rc=0
    shift 2
    rm -rf ds ds.partial gate
    mkfifo gate
    d9d-shard -q -o ds "$@" 2>stderr &
    local pid=$!
    wait_for [ -e ds.partial/plan.json ]
    eval "$change"
    echo '{"text": "int gate;"}' >gate & # which waits for a reader, and there may be none any more
    local gate=$!
    wait $pid || rc=$?
    kill $gate 2>/dev/null || true
    [ "$rc" -eq 1 ]
    [[ "$(cat stderr)" == *"$words"* ]]
    [ ! -e ds ] && [ ! -e ds.partial ]
}

@test "an input that is changed while it is read is an error, and nothing is made of it" {
    corpus 3000 >docs.jsonl
    corpus 3000 | head -n 36 >few.jsonl
    size=$(stat -c %s docs.jsonl)
    few=$(stat -c %s few.jsonl)
    gzip -k docs.jsonl
    for options in "" "--unit-size 100kB" "--format text --lines" "--format text --lines --unit-size 100kB"; do
        read -ra words <<<"$options"
        cp docs.jsonl a.jsonl
        changed "truncate -s $few a.jsonl" "a.jsonl: has $few bytes, had $size: it was changed while it was read" \
            -t "$tok" "${words[@]}" gate a.jsonl
        cp docs.jsonl a.jsonl
        changed "cat few.jsonl >>a.jsonl" "bytes, had $size: it was changed while it was read" -t "$tok" "${words[@]}" gate a.jsonl
        cp docs.jsonl a.jsonl
        cp docs.jsonl b.jsonl
        changed "mv b.jsonl a.jsonl" "a.jsonl: was changed while it was read" -t "$tok" "${words[@]}" gate a.jsonl
    done
    cp docs.jsonl.gz a.jsonl.gz
    changed "gzip -c few.jsonl >a.jsonl.gz" "it was changed while it was read" -t "$tok" gate a.jsonl.gz
    cp docs.jsonl a.jsonl # which is behind already
    changed "touch -d 2001-01-01 a.jsonl" "a.jsonl: was changed while it was read" -t "$tok" --unit-size 100kB a.jsonl gate
}

@test "inputs that are not there or cannot be read are said before any is" {
    printf '{"text": "a b"}\n' >a.jsonl
    bad 2 'none.jsonl: cannot open: No such file' -t "$tok" -o data a.jsonl none.jsonl
    bad 2 '.: is a directory; name its files' -t "$tok" -o data a.jsonl .
    [ ! -e data.partial ]
}

@test "what texts are in besides is called by its name" {
    printf 'ARROW1\0\0' >a.arrow
    printf 'BZh91AY&SY\x00' >a.jsonl.bz2
    printf '\xfd7zXZ\0\0' >a.jsonl.xz
    printf '\x04\x22\x4d\x18\x60' >a.jsonl.lz4
    printf 'PK\x03\x04\x14' >a.zip
    bad 1 'a.arrow: is an Arrow file; read JSON lines of it from a pipe: python3 -c "import pyarrow' -t "$tok" -o data a.arrow
    bad 1 'a.jsonl.bz2: is compressed with bzip2, and gzip and zstd are read' -t "$tok" -o data a.jsonl.bz2
    bad 1 'a.jsonl.xz: is compressed with xz' -t "$tok" -o data a.jsonl.xz
    bad 1 'a.jsonl.lz4: is compressed with lz4' -t "$tok" -o data a.jsonl.lz4
    bad 1 'a.zip: is a zip archive; unpack it' --format text -t "$tok" -o data a.zip
    # Text that begins with such a word is text.
    printf 'PAR1 and BZh9 are words.' >words.txt
    d9d-shard -q -t "$tok" -o data words.txt
}

@test "what contradicts itself is exit status 2" {
    printf '{"text": "a b"}\n' >a.jsonl
    bad 2 'text needs a --tokenizer' -o data a.jsonl
    bad 2 'out DIR is missing' -t "$tok" a.jsonl
    bad 2 'must be 1' -t "$tok" -o data --split train=0.9 a.jsonl
    bad 2 'split: "../x" is not a plain file name' -t "$tok" -o data --split ../x=1 a.jsonl
    bad 2 '--bucket-edges' -t "$tok" -o data --bucket-edges 1,x a.jsonl
    bad 2 '--bucket-edges: 3 must be above 4' -t "$tok" -o data --bucket-edges 4,3 a.jsonl
    bad 2 'do not fit packs' -t "$tok" -o data --pack 8 --max-length 9 a.jsonl
    printf '{"pre_tokenizer": {"type": "UnicodeScripts"}}' >t.json
    bad 2 't.json: pre_tokenizer: the type "UnicodeScripts" is not supported' -t t.json -o data a.jsonl
    head -c 1100000 /dev/zero | tr '\0' '\n' >lines.jsonl
    bad 2 'units of 1 bytes; each has files of its own, so they are of 512 bytes at least' -t "$tok" -o data --unit-size 1 lines.jsonl
    d9d-shard -q -t "$tok" -o full a.jsonl && touch full/x
    run -2 --separate-stderr d9d-shard -t "$tok" -o full a.jsonl
    [[ "$stderr" == *"--force"* ]]
    d9d-shard -q -t "$tok" -o full --force a.jsonl
    [ ! -e full/x ]
}

@test "a replaced directory does not take the input along" {
    mkdir in && printf '{"text": "a b"}\n' >in/a.jsonl && ln -s "$PWD/in" link
    bad 2 'in: is to be replaced, but the input in/a.jsonl is in it' -t "$tok" --force -o in in/a.jsonl
    bad 2 'link/a.jsonl is in it' -t "$tok" --force -o in link/a.jsonl
    cp "$tok" in/ && bad 2 'in/tokenizer.json is in it' -t in/tokenizer.json --force -o in a.jsonl
    [ -s in/a.jsonl ]
}

@test "closed standard streams lend their numbers to no file" {
    printf '{"text": "a b"}\n' >a.jsonl
    d9d-shard -q -t "$tok" -o open a.jsonl
    d9d-shard -t "$tok" -o closed a.jsonl <&- >&- 2>&-
    diff -r open closed
    run -1 bash -c "d9d-shard -q -t '$tok' -o none - <&-"
    [[ "$output" == *"standard input: cannot read"* ]]
}

@test "damage to any file is found" {
    corpus 50 >a.jsonl
    d9d-shard -q -t "$tok" -o good a.jsonl
    for f in manifest.json index.lmdb tokens-00000.bin tokenizer.json; do
        rm -rf bad && cp -r good bad
        truncate -s -4 bad/$f
        run -1 --separate-stderr d9d-shard verify bad
        [[ "$stderr" == *"bad/$f"* ]]
        rm bad/$f
        run -1 --separate-stderr d9d-shard verify bad
        [[ "$stderr" == *"bad/$f"* ]]
    done
    rm -rf bad && cp -r good bad
    printf X | dd of=bad/tokens-00000.bin bs=1 seek=20 conv=notrunc status=none
    run -1 --separate-stderr d9d-shard verify bad
    [[ "$stderr" == *"tokens-00000.bin: its hash is"* ]]
    printf X | dd of=bad/index.lmdb bs=1 seek=5000 conv=notrunc status=none
    run -1 --separate-stderr d9d-shard inspect bad
    [[ "$stderr" == *"index.lmdb: its hash is"* ]]
    run -2 d9d-shard inspect good --split nope
    [[ "$output" == *'has no split "nope"; it has train'* ]]
}

@test "a full disk is exit status 1, and names the file" {
    corpus 20 >a.jsonl
    run -1 bash -c "ulimit -f 1; trap '' XFSZ; d9d-shard -q -t '$tok' -o data a.jsonl"
    [[ "$output" == *"cannot write"* ]]
    [ ! -e data ]
}

@test "64 KiB of stack are enough" {
    [ -z "${D9D_SAN:-}" ] || skip "sanitizers take stack of their own"
    corpus 20 >a.jsonl
    (ulimit -s 64 && d9d-shard -q -t "$tok" --pack 16 -j 3 -o data a.jsonl && d9d-shard verify -q data)
}

@test "two exports to one name do not finish each other's files" {
    printf '{"input_ids": [5, 6, 7]}\n{"input_ids": [8, 9]}\n' >a.jsonl
    d9d-shard -q --format tokens -o ds a.jsonl
    exec 9>out.bin.partial
    flock 9
    run -1 --separate-stderr d9d-shard -q export ds out
    [ "$stderr" = "d9d-shard: input/output error: out.bin.partial: another process is writing it; wait for its end, or name another" ]
    [ -e out.bin.partial ]
    exec 9>&-
    ln out.bin.partial also
    run -2 --separate-stderr d9d-shard -q export ds out
    [[ "$stderr" == *"out.bin.partial: is there already and has another name besides" ]]
    rm also
    d9d-shard -q export ds out
    [ "$(ls out.*)" = $'out.bin\nout.idx' ]
}

@test "an export that is killed between its two names leaves no index of other tokens" {
    command -v strace >/dev/null || skip "no strace"
    printf '{"input_ids": [5, 6, 7]}\n' >a.jsonl
    printf '{"input_ids": [8, 9, 7]}\n' >b.jsonl
    d9d-shard -q --format tokens -o ds a.jsonl
    d9d-shard -q --format tokens -o ds2 b.jsonl
    d9d-shard -q export ds out
    run ! strace -f -qq -o /dev/null -e inject=rename:signal=KILL:when=2 d9d-shard -q export --force ds2 out
    [ ! -e out.idx ] || { [ ! -e out.bin.partial ] && [ ! -e out.idx.partial ]; }
    d9d-shard -q export --force ds2 out
    [ "$(ls out.*)" = $'out.bin\nout.idx' ]
}

@test "a merged dataset has the tokens themselves where a part has links to them" {
    printf '{"input_ids": [5, 6, 7]}\n' >a.jsonl
    d9d-shard -q --format tokens --task 0/1 -o part a.jsonl
    mkdir disk && mv part/unit-00000-0000.tokens-000 disk/ && ln -s "$PWD/disk/unit-00000-0000.tokens-000" part/
    d9d-shard -q merge merged part
    [ ! -L merged/tokens-00000.bin ]
    rm -r disk part
    d9d-shard -q verify merged
}

@test "numbers that a part or a dataset cannot have are refused before the work" {
    printf '{"input_ids": [5, 6, 7]}\n' >a.jsonl
    run -2 --separate-stderr d9d-shard -q --format tokens --task 0/2147483648 -o part a.jsonl
    [[ "$stderr" == *"2147483648 tasks, must be at most 2147483647" ]]
    run -2 --separate-stderr d9d-shard -q --format tokens --bucket-edges 9,4294967296 -o part a.jsonl
    [[ "$stderr" == *"--bucket-edges: 4294967296 must be above 9, the one before it, and at most "[1-9]* ]]
    [ ! -e part ]
}
