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

@test "a mesh computes what one rank computes" {
    mpi -n 4 d9d-map certify qwen3_moe >out
    grep -q '^meshes  *ok .*  4 ranks, dps 2 tp 2 ep 2, 4 steps$' out
    [ "$(wc -l <out)" -eq 11 ]
    mpi -n 3 d9d-map certify --json gpt2 >out
    grep -q '"detail": "3 ranks, dps 3, 4 steps"' out
    [ -z "$(compgen -G "$TMPDIR/d9d-*")" ]
}

@test "a family that one rank computes otherwise has failed" {
    root=$BATS_TEST_DIRNAME/../..
    {
        echo '#include <stdlib.h>'
        echo 'static int wrong(void) { const char *r = getenv("OMPI_COMM_WORLD_RANK"); return r != NULL && *r == 49; }'
        sed 's/(&l->self_attn, t, h,/(\&l->self_attn, t, wrong() ? in->x : h,/' "$root/examples/plugins/seed_oss.c"
    } >mine.c
    # shellcheck disable=SC2046 # words
    ${CC:-cc} -std=c11 -D_GNU_SOURCE ${D9D_SAN:+-fsanitize=$D9D_SAN} -shared -fPIC -o libmine.so \
        -I"$root/libcore/include" -I"$root/kernels/include" $(pkg-config --cflags jansson) mine.c -L"$D9D_BUILD/lib" -ld9d
    run -1 mpi -n 2 d9d-map certify --plugin ./libmine.so seed_oss
    grep -q '^meshes  *FAILED .*  2 ranks, tp 2, 4 steps$' <<<"$output"
    grep -q 'verification failed: seed_oss: 1 of 9 checks failed' <<<"$output"
    [ "$(grep -c '^d9d-map: ' <<<"$output")" -eq 1 ]
    run -2 mpi -n 2 d9d-map certify lama
    [ "$(grep -c 'neither a folder nor a family' <<<"$output")" -eq 1 ]
}
