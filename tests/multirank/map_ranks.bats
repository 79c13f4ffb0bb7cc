#!/usr/bin/env bats
# shellcheck disable=SC2086,SC2154 # a command is several arguments; variables of bats
# d9d-map on many ranks: under mpirun, and under srun on the nodes of a real Slurm.

load ../slurm/helper
load two_nodes

golden=$BATS_TEST_DIRNAME/../golden
PATH=$D9D_BIN:$PATH

setup() {
    mkdir "$BATS_TEST_TMPDIR/work" && cd "$BATS_TEST_TMPDIR/work" || return 1
    cp -r "$golden/moe" src && mkdir src/deeper && echo x >src/deeper/file
    d9d-map -q --shard-size 50kB src whole
}

convert="d9d-map --shard-size 50kB src"

# spoilt FAULT: a conversion on 3 ranks, with a strace fault on rank 1.
spoilt() {
    command -v strace >/dev/null || skip "no strace"
    mpi -n 1 $convert dst : \
        -n 1 strace -f -qq -o /dev/null -e "inject=$1" $convert dst : -n 1 $convert dst
}

whole() {
    diff -r whole dst
    [ ! -e dst.partial ]
}

@test "mpirun: the files equal one process, and messages are printed once" {
    run -0 --separate-stderr mpi -n 3 $convert dst
    whole
    [ "$(grep -c 'd9d-map: wrote dst' <<<"$stderr")" -eq 1 ]
    # More ranks than chunks; and random weights.
    rm -r dst
    mpi -n 12 $convert dst
    whole
    mpi -n 3 d9d-map init -q --model src one
    d9d-map init -q --model src two
    diff -r one two
}

@test "mpirun: weights go into the folder that they are a part of as by one process" {
    sed -E 's/"num_hidden_layers": [0-9]+/"num_hidden_layers": 3/; s/"num_nextn_predict_layers": [0-9]+/"num_nextn_predict_layers": 1/' \
        "$golden/families/glm4_moe/config.json" >three.json
    d9d-map -q init --expert-layout fused --model three.json all
    sed -i 's/"num_hidden_layers": 3/"num_hidden_layers": 2/' all/config.json
    rm all/manifest.json
    d9d-map -q --to d9d all own
    rm -r whole
    d9d-map -q --shard-size 50kB --into all own whole
    mpi -n 2 d9d-map -q --shard-size 50kB --into all own dst
    whole
    [ "$(d9d-map plan --into all own | grep -c '> .*layers\.2\.')" -gt 5 ]
}

@test "srun: the files of two nodes equal one process" {
    slurm 2 $convert dst
    whole
    run -0 --separate-stderr slurm 1 d9d-map --json --force --shard-size 50kB src dst
    [ "$(grep -c '"path": "dst"' <<<"$output")" -eq 1 ]
    whole
}

@test "a rank that fails ends all with one message; any number of ranks resumes" {
    for again in "mpi -n 2" "" "mpi -n 4"; do
        run -1 --separate-stderr spoilt pwrite64:error=ENOSPC:when=1+
        [ "$(grep -c '^d9d-map: input/output error: rank 1 (.*): dst.partial/.*: cannot write .* No space left on device$' <<<"$stderr")" -eq 1 ]
        [ "$(grep -c '^d9d-map: input/output error' <<<"$stderr")" -eq 1 ]
        [ ! -e dst ]
        run -0 --separate-stderr $again $convert dst
        [[ "$stderr" == *"dst.partial: going on with "[1-9]* ]]
        whole
        rm -r dst
    done
}

@test "a killed rank ends the others; a rerun resumes" {
    run ! spoilt pwrite64:signal=KILL:when=2
    [ ! -e dst ]
    run -0 --separate-stderr mpi -n 3 $convert dst
    [[ "$stderr" == *"dst.partial: going on with "[1-9]* ]]
    whole
}

@test "each rank syncs the files that it wrote before rank 0 commits" {
    command -v strace >/dev/null || skip "no strace"
    run -0 mpi -n 1 $convert dst : \
        -n 1 strace -f -qq -y -o calls -e trace=pwrite64,fsync $convert dst
    # Rank 1 syncs each file that it writes, and writes none of them later.
    run -0 awk '
        { file = $0; sub(/^[^<]*</, "", file); sub(/>.*/, "", file) }
        file !~ /model-[^/]*safetensors$/ { next }
        / pwrite64\(/ { written[file] = NR }
        / fsync\(/ { synced[file] = NR }
        END { for (file in written) { n++; if (synced[file] < written[file]) print file } print n + 0 " files" }
    ' calls
    [[ "$output" == [1-9]" files" ]]
    whole
}

@test "an impossible conversion is reported once, and nothing is written" {
    rm src/model.safetensors
    run -2 --separate-stderr mpi -n 3 $convert dst
    [ "$(grep -c '^d9d-map: ' <<<"$stderr")" -eq 1 ]
    [ ! -e dst ]
    [ ! -e dst.partial ]
    cp "$golden/moe/model.safetensors" src
    run -2 --separate-stderr mpi -n 3 $convert whole
    [ "$(grep -c 'whole: is there already and is not empty' <<<"$stderr")" -eq 1 ]
}

# another COMMAND: rank 1 runs COMMAND, rank 0 $convert dst.
another() { run -2 --separate-stderr mpi -n 1 $convert dst : -n 1 "$@"; }
# refused MESSAGE: checks that MESSAGE was printed once and nothing was written.
refused() {
    [ "$(grep -cE "^d9d-map: invalid configuration: rank 1 \(.*\): $1" <<<"$stderr")" -eq 1 ]
    [ ! -e dst ] && [ ! -e dst.partial ]
}

@test "ranks with different arguments or inputs are rejected" {
    another d9d-map --shard-size 60kB src dst
    refused 'shard-size is 60000 here and 50000 on rank 0'
    another $convert --dtype bfloat16 dst
    refused 'dtype is "bfloat16" here and "as-before" on rank 0'
    another $convert elsewhere
    refused 'operand\.2 is "elsewhere" here and "dst" on rank 0'
    another d9d-map init --model src dst
    refused 'this is d9d-map [0-9.]* init, and rank 0 is d9d-map'
    # The same name on another disk, with other weights.
    mkdir other && cp -r src other
    printf x | dd of=other/src/model.safetensors bs=1 seek=$(($(stat -c %s src/model.safetensors) - 1)) conv=notrunc status=none
    run -2 --separate-stderr mpi -n 1 $convert "$PWD/dst" : -n 1 -wdir "$PWD/other" $convert "$PWD/dst"
    refused 'src: is another one here than on rank 0'
}
