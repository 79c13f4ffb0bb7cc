#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2034,SC2086 # variables of bats and of topology.bash; options
# Ranks on several hosts.  Groups within one host use symmetric staging buffers (d9d/comm/comm.h),
# groups across two hosts cannot; the results are those of one rank.  A host is a namespace.

load ../slurm/helper

layers=8 batch=24 steps=3 eps=1e-6
load topology

primes="--set model_provider.model.layer.num_attention_heads=12 --set model_provider.model.layer.num_key_value_heads=12
    --set model_provider.model.num_hidden_layers=2"
experts="$primes --set model_provider.model.layer.num_experts=15"
dual='--set trainer.pipelining.schedule.schedule=dual_pipe_v'

setup() {
    with_mpi && enter
    unshare --mount --uts true 2>/dev/null || skip "no name spaces"
    export D9D_P2P=force
}

# train_single NAME MODEL [OPTION...]: trains on one rank, once per NAME.
train_single() {
    [ -e "$1/export" ] || d9d-train -q --device cpu --set trainer.run.dir="$1" "${@:3}" "$2.json"
}

# agree LETTERS MODEL MESH WITH [OPTION...]: trains on hosts (a letter per rank) and compares with run WITH.
agree() {
    local through=("$BATS_TEST_DIRNAME/on_hosts" "$1")
    rm -rf run
    if ! { train "$2" "$3" run "${@:5}" && same run "$4"; }; then
        echo "$2, mesh $3 on hosts $1: not the run of one rank"
        return 1
    fi
}

@test "tensor and context parallelism within and across hosts equal one rank" {
    agree aaab dense "1 2 1 1 2 1" dense
    agree aaba dense "1 2 2 1 1 1" dense
    agree aab dense "2 2 1 1 2 1" dense
}

@test "expert parallelism within and across hosts equals one rank, with two interleaved stages per rank" {
    agree aaab moe "1 4 1 1 1 2" moe
    agree aaaabaaa moe "1 4 1 1 1 2 2" moe $dual
    agree aaaaaaab moe "1 4 1 1 1 2 2" moe $dual
    agree a moe "1 4 1 1 1 2 2" moe $dual
}

@test "tokens that go once to each host and there to its ranks give the losses of one rank" {
    agree aabb moe "1 4 1 1 1 4" moe --set mesh.expert_parallel_local=2
    agree aaaabbbb moe "2 2 1 1 2 8" moe --set mesh.expert_parallel_local=4
    agree aabbccdd moe "1 4 1 1 1 4 2" moe $dual --set mesh.expert_parallel_local=2
}

@test "three and five ranks, alternating hosts, a host per replica, and prime degrees equal one rank" {
    train_single primes dense $primes
    train_single experts moe $experts
    agree aaabbbbb dense "2 2 2 1 1 1" dense
    agree aaabbb dense "2 1 1 1 3 1" primes $primes
    agree ab dense "2 1 1 1 3 1" primes $primes
    agree aab dense "1 3 1 1 1 1" primes $primes
    agree aaab moe "1 2 3 1 1 3" experts $experts
    agree aab moe "1 1 5 1 1 5" experts $experts
    agree aaaaabb moe "1 2 1 1 3 3 2" experts $experts
}

@test "twelve to thirty-two ranks equal one" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    train_single primes dense $primes
    train_single experts moe $experts
    agree aaaaaaaaaaabbbbbbbbbbbbb dense "2 1 1 1 12 1" primes $primes
    agree aaaabbbbcccc moe "3 2 2 1 1 3" experts $experts
    agree aaaaaaaaab dense "2 2 2 1 2 1" primes $primes
    agree aaaaaaaab moe "2 4 3 1 1 3" experts $experts
    agree abc moe "2 4 1 2 2 1" experts $experts
}

# Each rank sends its host once, in 16 bytes and 8 of their number.  Handles, one per array, are sent
# to ranks of the same host only.
@test "buffer handles are exchanged only where peer memory is used" {
    local ways=$D9D_BUILD/tests/multirank/hosts_driver
    run -0 mpi -n 4 "$BATS_TEST_DIRNAME/on_hosts" aabb "$ways" bytes
    assert_equal "$(grep -c ': 96 bytes, made 0, MiB 0' <<<"$output")" 4
    D9D_P2P=off run -0 mpi -n 4 "$ways" bytes
    assert_equal "$(grep -c ': 96 bytes, made 0, MiB 0' <<<"$output")" 4
    D9D_COMM_SHARE=0 run -0 mpi -n 4 "$ways" bytes # D9D_P2P=force takes precedence
    assert_equal "$(grep -c 'made 4, MiB 8' <<<"$output")" 4
    D9D_P2P="" D9D_COMM_SHARE=0 run -0 mpi -n 4 "$ways" bytes # the variable of 0.1
    assert_equal "$(grep -c ': 96 bytes, made 0, MiB 0' <<<"$output")" 4
    run -0 mpi -n 4 "$ways" bytes
    assert_equal "$(grep -c 'made 4, MiB 8' <<<"$output")" 4
    [ "$(sed -n 's/.*: \([0-9]*\) bytes.*/\1/p' <<<"$output" | sort -u)" -gt 96 ]
}

@test "staging buffers grow, and growing is retried after a failure" {
    run -0 mpi -n 2 "$D9D_BUILD/tests/multirank/hosts_driver" refuse
    for rank in 0 1; do
        assert_line "rank $rank: both 1, MiB 4"
        assert_line "rank $rank: refused, MiB 4, lines 1"
        assert_line "rank $rank: tried again after 64, MiB 4, lines 1"
        assert_line "rank $rank: had after 128, MiB 8, open 1"
    done
}
