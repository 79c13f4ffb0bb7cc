#!/usr/bin/env bats
# One checkpoint of several ranks: any number writes it, any other number reads it.

load ../slurm/helper
load launch

driver=$D9D_BUILD/tests/dist/ranks_save_driver
bin=$D9D_BUILD/bin

setup_file() { no_launcher; }
setup() {
    with_mpi
    cd "$BATS_TEST_TMPDIR" || return 1
}

@test "what n ranks wrote m ranks read" {
    for n in 1 2 5; do
        run -0 mpi -n $n "$driver" write c$n
        "$bin/d9d-map" verify c$n/step-00000001
        for m in 1 3 4; do
            run -0 mpi -n $m "$driver" read c$n
            assert_equal "$(grep -c ': well' <<<"$output")" $m
        done
    done
    # A file a rank and group; and to who reads weights they are one checkpoint.
    files=(c5/step-00000001/*.safetensors)
    [ ${#files[@]} -eq 10 ]
    run -0 "$bin/d9d-map" diff c1/step-00000001 c5/step-00000001
    assert_line --partial "3 tensors"
    [ "$(ls c5)" = step-00000001 ]
}

@test "a rank that cannot write ends the save on all, and nothing is left" {
    run -1 mpi -n 3 "$driver" spoil c 1
    assert_equal "$(grep -c 'is not a part of' <<<"$output")" 3
    assert_line --regexp '^2 of 3: rank 1 \(.*\): checkpoint: rows: '
    [ -z "$(ls c)" ]
}

@test "a rank that is killed leaves no checkpoint, and the next save sweeps" {
    run mpi -n 3 "$driver" die c 1
    [ "$status" -ne 0 ]
    [ "$status" -ne 124 ]
    [ ! -e c/step-00000001 ]
    run -0 mpi -n 2 "$driver" write c
    [ "$(ls c)" = step-00000001 ]
    run -0 "$driver" read c
}
