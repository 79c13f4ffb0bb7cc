#!/usr/bin/env bats
# One checkpoint of several ranks: any number writes it, any other number reads it.

load ../slurm/helper
load launch

driver=$D9D_BUILD/tests/multirank/ranks_save_driver
bin=$D9D_BUILD/bin

setup_file() { no_launcher; }
setup() {
    with_mpi
    cd "$BATS_TEST_TMPDIR" || return 1
}

@test "m ranks read what n ranks wrote" {
    for n in 1 2 5; do
        run -0 mpi -n $n "$driver" write c$n
        "$bin/d9d-map" verify c$n/step-00000001
        for m in 1 3 4; do
            run -0 mpi -n $m "$driver" read c$n
            assert_equal "$(grep -c ': well' <<<"$output")" $m
        done
    done
    # One file per rank and group; readers of weights see one checkpoint.
    files=(c5/step-00000001/*.safetensors)
    [ ${#files[@]} -eq 10 ]
    run -0 "$bin/d9d-map" diff c1/step-00000001 c5/step-00000001
    assert_line --partial "3 tensors"
    [ "$(ls c5)" = step-00000001 ]
}

@test "a rank that cannot write fails the save on all, and no files are left" {
    run -1 mpi -n 3 "$driver" spoil c 1
    assert_equal "$(grep -c 'is not a part of' <<<"$output")" 3
    assert_line --regexp '^2 of 3: rank 1 \(.*\): checkpoint: rows: '
    [ -z "$(ls c)" ]
}

@test "a killed rank leaves no checkpoint, and the next save removes its files" {
    run mpi -n 3 "$driver" die c 1
    [ "$status" -ne 0 ]
    [ "$status" -ne 124 ]
    [ ! -e c/step-00000001 ]
    run -0 mpi -n 2 "$driver" write c
    [ "$(ls c)" = step-00000001 ]
    run -0 "$driver" read c
}

# read_on N: N ranks read the newest checkpoint of c; all must succeed.
read_on() {
    run -0 mpi -n "$1" "$driver" read c
    assert_equal "$(grep -c ': well' <<<"$output")" "$1"
}
# spread: the smallest and largest number of bytes that a rank read, and the sum.
spread() {
    sed -nE 's/.*its ([0-9]+) bytes are as they were written; each of [0-9]+ ranks has read ([0-9]+) to ([0-9]+) of them/\2 \3 \1/p' <<<"$output"
}
# damage FILE: changes bytes without changing the size.
damage() { printf 'XX' | dd of="$1" bs=1 seek=$(($(stat -c %s "$1") - 9)) conv=notrunc status=none; }

@test "ranks verify a checkpoint in parallel, each a part of the bytes" {
    run -0 mpi -n 4 "$driver" write c
    largest=$(stat -c %s c/step-00000001/*.safetensors | sort -n | tail -1)
    all=$(cat c/step-00000001/*.safetensors | wc -c)
    for n in 4 3; do
        read_on $n
        read -r least most sum <<<"$(spread)"
        [ "$sum" -eq "$all" ]
        [ "$least" -lt "$most" ] || [ "$least" -eq "$((all / n))" ]
        [ "$most" -le $((all / n + largest)) ]
    done
    read_on 1
    [ -z "$(spread)" ]
}

@test "damage found by any rank is reported once, and the previous checkpoint is used" {
    run -0 mpi -n 4 "$driver" write c
    run -0 mpi -n 4 "$driver" write c 2
    files=(c/step-00000002/*.safetensors)
    for file in "${files[@]}"; do
        cp -r c whole
        damage "$file"
        read_on 4
        assert_equal "$(grep -c 'checkpoint passed over' <<<"$output")" 1
        [[ $output = *"checkpoint passed over: "*"$file: bytes 0 to "*" are not those that were written"* ]]
        [[ $output = *"c/step-00000001: its "* ]]
        grep -oE 'passed over: (rank [0-9])?' <<<"$output" >>finders
        rm -rf c && mv whole c
    done
    [ "$(sort -u finders | wc -l)" -eq 4 ] # the message of rank 0 has no rank
    rm -f "${files[0]}"
    read_on 4
    [[ $output = *"checkpoint passed over: ${files[0]} is missing"* ]]
}

@test "if every checkpoint is damaged all ranks fail, and none starts from scratch" {
    run -0 mpi -n 4 "$driver" write c
    damage c/step-00000001/model-r00003.safetensors
    run -1 mpi -n 4 "$driver" read c
    assert_equal "$(grep -c 'none of 1 checkpoints can be used; the newest: .*model-r00003.safetensors: bytes 0 to' <<<"$output")" 4
}
