#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031 # output is set by run
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
    files=(c5/step-00000001/*/*.safetensors)
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
    largest=$(stat -c %s c/step-00000001/*/*.safetensors | sort -n | tail -1)
    all=$(cat c/step-00000001/*/*.safetensors | wc -c)
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
    files=(c/step-00000002/*/*.safetensors)
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
    damage c/step-00000001/ranks-00002/model-r00003.safetensors
    run -1 mpi -n 4 "$driver" read c
    assert_equal "$(grep -c 'none of 1 checkpoints can be used; the newest: .*model-r00003.safetensors: bytes 0 to' <<<"$output")" 4
}

@test "a checkpoint of d9d.checkpoint.v1 is verified and read by any number of ranks" {
    mkdir c && cp -r "$BATS_TEST_DIRNAME/checkpoint_v1/step-00000001" c/
    for n in 1 2 3 4; do read_on $n; done
    run -0 "$bin/d9d-map" verify c/step-00000001
    run -0 mpi -n 4 "$driver" write new
    run -0 "$bin/d9d-map" diff c/step-00000001 new/step-00000001
    damage c/step-00000001/model-r00001.safetensors
    run -1 mpi -n 4 "$driver" read c
    run -1 "$bin/d9d-map" verify c/step-00000001
    assert_line --partial "model-r00001.safetensors: bytes 0 to"
    # and the next run replaces it
    run -0 mpi -n 4 "$driver" write c
    read_on 3
    [ ! -e c/step-00000001/model-r00001.safetensors ]
}

@test "a directory's manifest that is lost, cut or another's is damage" {
    run -0 mpi -n 4 "$driver" write c
    run -0 mpi -n 4 "$driver" write c 2
    part=c/step-00000002/ranks-00002/manifest.json
    for harm in 'rm "$part"' 'truncate -s 100 "$part"' 'cp c/step-00000002/ranks-00000/manifest.json "$part"' 'damage "$part"'; do
        cp -r c whole
        eval "$harm"
        read_on 4
        [[ $output = *"checkpoint passed over: "*"$part"* ]]
        [[ $output = *"c/step-00000001: its "* ]]
        run -1 "$bin/d9d-map" verify c/step-00000002
        assert_output --partial "$part"
        rm -rf c && mv whole c
    done
}

@test "a rank reads the root, and the manifests of the directories that it needs" {
    command -v strace >/dev/null || skip "no strace"
    run -0 mpi -n 6 "$driver" write c
    run -0 mpi -n 5 "$driver" read c : -n 1 strace -f -qq -e trace=openat -o calls "$driver" read c
    assert_equal "$(grep -c ': well' <<<"$output")" 6
    grep -q 'c/step-00000001/manifest.json' calls
    grep -q 'ranks-00004/manifest.json' calls
    grep -q 'ranks-00004/model-r00005' calls
    # its sixth of the bytes and its slices are there, and rank 0 wrote what is the same on all
    grep -q 'ranks-00000/model-r00000' calls
    run ! grep -q 'ranks-00002' calls
}
