#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# d9d-map certify on several ranks: a mesh against one rank.

load ../slurm/helper
load launch

setup() {
    with_mpi
    PATH=$D9D_BIN:$PATH
    mkdir "$BATS_TEST_TMPDIR/work" "$BATS_TEST_TMPDIR/tmp" && cd "$BATS_TEST_TMPDIR/work" || return 1
    export TMPDIR=$BATS_TEST_TMPDIR/tmp
}

root=$BATS_TEST_DIRNAME/../..

# compile: libmine.so of mine.c
compile() {
    # shellcheck disable=SC2046 # words
    ${CC:-cc} -std=c11 -D_GNU_SOURCE ${D9D_SAN:+-fsanitize=$D9D_SAN} -shared -fPIC -o libmine.so \
        -I"$root/libcore/include" -I"$root/kernels/include" $(pkg-config --cflags jansson) mine.c -L"$D9D_BUILD/lib" -ld9d
}

@test "a mesh computes what one rank computes" {
    mpi -n 4 d9d-map certify qwen3_moe >out
    grep -q '^meshes  *ok .*  4 ranks, dps 2 tp 2 ep 2, 4 steps$' out
    [ "$(wc -l <out)" -eq 11 ]
    mpi -n 3 d9d-map certify --json gpt2 >out
    grep -q '"detail": "3 ranks, dps 3, 4 steps"' out
    [ -z "$(compgen -G "$TMPDIR/d9d-*")" ]
}

# found FILE: model, checks, results and figures of certificates
found() {
    sed -E 's/.*"family": "([^"]*)", "task": "([^"]*)".*"config": (\{.*\}), "checks".*/model \1 \2 \3/' "$1"
    grep -oE '"check": "[^"]*", "result": "[^"]*", "figure": [^,]*' "$1" | sed -E 's/"check": |"result": |"figure": |[",]//g'
}

@test "the certificates of docs/reference are what this tree finds" {
    local stored=$root/docs/reference/certificates.jsonl
    export ASAN_OPTIONS=detect_leaks=0 # MPI leaks memory
    export D9D_MPIRUN="mpirun --mca mpi_yield_when_idle 0 --mca pml ob1 --oversubscribe --bind-to none -n 4"
    export HWLOC_COMPONENTS=-pci,-linuxio
    "$root/tools/certificates.sh" "$D9D_BIN" mistral modernbert >now.jsonl
    grep -E '"family": "(mistral|modernbert)"' "$stored" >before.jsonl
    [ "$(wc -l <now.jsonl)" -eq 4 ]
    found now.jsonl >now
    found before.jsonl >before
    # Figures of rounding are of the processor's; those that are zero, such as bits that differ, are not.
    paste -d'|' now before | awk -F'|' '
        $1 == $2 { next }
        { a = $1; b = $2; sub(/.* /, "", a); sub(/.* /, "", b); sub(/ [^ ]*$/, "", $1); sub(/ [^ ]*$/, "", $2)
          if ($1 != $2 || a + 0 == 0 || b + 0 == 0 || (a - b) ^ 2 > (1e-6 + 0.5 * b) ^ 2) { print $0 ": " a " " b; bad = 1 } }
        END { exit bad || NR != 40 }'
}

@test "a mesh computes the losses of tasks too" {
    mpi -n 4 d9d-map certify modernbert >out
    grep -q '^modernbert: modernbert, masked_lm, ' out
    grep -q '^meshes  *ok .*  4 ranks, dps 2 tp 2, 4 steps$' out
    mpi -n 4 d9d-map certify --task classification qwen3_moe >out
    grep -q '^meshes  *ok .*  4 ranks, dps 2 tp 2 ep 2, 4 steps$' out
    for f in llama modernbert; do
        mpi -n 2 d9d-map certify --task embedding "$f" >out
        grep -q '^meshes  *ok .*  2 ranks, tp 2, 4 steps$' out
    done
}

@test "a family that one rank computes otherwise has failed" {
    {
        echo '#include <stdlib.h>'
        echo 'static int wrong(void) { const char *r = getenv("OMPI_COMM_WORLD_RANK"); return r != NULL && *r == 49; }'
        sed 's/(&l->self_attn, t, h,/(\&l->self_attn, t, wrong() ? in->x : h,/' "$root/examples/plugins/seed_oss.c"
    } >mine.c
    compile
    run -1 mpi -n 2 d9d-map certify --plugin ./libmine.so seed_oss
    grep -q '^meshes  *FAILED .*  2 ranks, tp 2, 4 steps$' <<<"$output"
    grep -q 'verification failed: seed_oss: 1 of 9 checks failed' <<<"$output"
    [ "$(grep -c '^d9d-map: ' <<<"$output")" -eq 1 ]
    # a layer that is another one whenever it is computed again, and memory that a plan does not see
    sed $'1i static int odd(void) { static int n; return n++ % 2; }\ns/(&l->mlp, t, h, x, y)/(\\&l->mlp, t, h, odd() ? h : x, y)/' \
        "$root/examples/plugins/seed_oss.c" >mine.c
    compile
    run -1 mpi -n 2 d9d-map certify --plugin ./libmine.so seed_oss
    grep -q '^recompute  *FAILED ' <<<"$output"
    sed 's/^    return d9d_block_ffn_forward/    if (d9d_tape_device(t)->stream == NULL)\
        D9D_TRY(d9d_tape_output(t, D9D_F32, D9D_SHAPE(1 << 16), y));\
&/' "$root/examples/plugins/seed_oss.c" >mine.c
    compile
    run -1 mpi -n 2 d9d-map certify --plugin ./libmine.so seed_oss
    grep -q '^memory  *FAILED ' <<<"$output"
    grep -q '^meshes  *ok ' <<<"$output"
    run -2 mpi -n 2 d9d-map certify lama
    [ "$(grep -c 'neither a folder nor a family' <<<"$output")" -eq 1 ]
}
