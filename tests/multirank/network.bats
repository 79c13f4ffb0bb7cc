#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helpers
# Bytes between hosts, which are network namespaces (on_network).  What ranks give to MPI is compared with
# arithmetic, to the byte, and with the plan; what the hosts' interfaces have sent, with that.

load ../slurm/helper
load workroom

# A model of float32 weights, each of which 2 to 64 ranks divide evenly: elements of all, of the head, which
# stays unsharded from forward to backward, of a layer's vectors, which buckets pad, and of the rest.
hidden=64 heads=4 kv_heads=2 head=64 vocab=192 layers=2 positions=64
matrix=$((hidden * (2 * heads + 2 * kv_heads) * head + 3 * hidden * 128)) vector=$((2 * hidden + 2 * head))
all=$((2 * vocab * hidden + layers * (matrix + vector) + hidden)) last=$((vocab * hidden))

setup_file() {
    workroom
    has_mpi || return 0
    unshare --net --mount --pid --fork true 2>/dev/null || { export skip_reason="no name spaces" && return; }
    # shellcheck disable=SC2046 # several options
    ${CC:-cc} -std=gnu11 -shared -fPIC -O2 -I"$root/libcore" -I"$root/libcore/include" -I"$root" -I"$root/kernels/include" \
        -o count.so "$BATS_TEST_DIRNAME/count_messages_preload.c" $(mpicc --showme:compile) -ldl
    awk -v n=$((positions + 1)) 'BEGIN { for (i = 0; i < 128; i++) {
        for (j = 0; j < n; j++) printf "%s%d", j ? ", " : "{\"input_ids\": [", (7 * i + j * j) % 157; print "]}" } }' |
        "$D9D_BIN/d9d-shard" -q --format tokens --out data -
    config dense '"intermediate_size": 128' >dense.json
    config moe '"intermediate_size": 32, "num_experts": 64, "experts_top_k": 64' >moe.json
}
setup() {
    with_mpi
    [ -z "${skip_reason:-}" ] || skip "$skip_reason"
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    enter
}

# config MODEL LAYER-JSON
config() {
    cat <<JSON
{"data": {"dataset": "data"},
 "model_provider": {"name": "qwen3_$1", "model": {"num_hidden_layers": $layers,
   "layer": {"hidden_size": $hidden, "num_attention_heads": $heads, "num_key_value_heads": $kv_heads, "head_dim": $head,
     "rms_norm_eps": 1e-6, $2},
   "rope_base": 10000, "max_position_ids": 512, "initializer_range": 0.02,
   "split_vocab_size": {"regular": $vocab}, "split_vocab_order": ["regular"]}},
 "trainer": {"run": {"name": "wire", "steps": 1, "dir": "run"}, "batching": {"microbatch_size": 1}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
}

# network HOSTS RANKS MICRO-BATCHES REPLICAS MODEL OPTION...: trains a step on HOSTS of RANKS each.  REPLICAS:
# groups of ranks with a sample each.
network() {
    hosts=$1 ranks=$2 options=(--set trainer.batching.global_batch_size=$(($3 * $4)) "${@:6}" "$5.json")
    rm -rf run lab sent.*
    if ! timeout -k 5 1800 "$BATS_TEST_DIRNAME/on_network" "$hosts" "$ranks" "$PWD/lab" env LD_PRELOAD="$PWD/count.so" \
        COUNT_DIR="$PWD" "$D9D_BIN/d9d-train" -q --device cpu "${options[@]}" 3>&-; then
        echo "$hosts hosts of $ranks ranks: the run failed"
        return 1
    fi
}

# between COLLECTIVE: bytes from hosts to others, without those in small messages.
between() {
    awk -v coll="$1" -v ranks="$ranks" 'FNR == 1 { n = split(FILENAME, at, "."); from = at[n] }
        $1 == coll && int(from / ranks) != int($2 / ranks) { sum += $4 - (coll == "all_reduce" ? $5 : 0) }
        END { printf "%d\n", sum }' sent.*
}

# sends COLLECTIVE BYTES: what hosts have sent to others in these calls is that.
sends() {
    local got
    got=$(between "$1")
    [ "$got" -eq "$2" ] || { echo "$hosts hosts of $ranks ranks, $1: $got bytes between hosts, expected $2"; return 1; }
}

# The interfaces have sent what the ranks have, in packets: 66 bytes around 1448 and those that acknowledge,
# headers of each message, and the start.
wire_is_that() {
    local wire payload messages
    wire=$(awk '{ sum += $1 } END { print sum }' lab/wire)
    read -r payload messages < <(awk -v ranks="$ranks" 'FNR == 1 { n = split(FILENAME, at, "."); from = at[n] }
        int(from / ranks) != int($2 / ranks) { sum += $4; n_messages += $3 } END { print sum, n_messages }' sent.*)
    { [ "$wire" -ge "$payload" ] && [ "$wire" -le $((payload * 108 / 100 + messages * 256 + hosts * ranks * 65536)) ]; } || {
        echo "$hosts hosts of $ranks ranks: interfaces sent $wire bytes, ranks $payload in $messages messages"
        return 1
    }
}

# The plan has, for rank 0, what rank 0 has sent in each collective over a network or a node; of single
# messages, also what it has received.
plan_is_that() {
    local call planned got
    "$D9D_BIN/d9d-train" --plan --json --gpu cpu "${options[@]}" >plan.json
    for call in "$@"; do
        planned=$(tr -d '\n ' <plan.json | grep -o "\"call\":\"$call\",\"link\":\"[a-z]*\",\"calls\":[0-9]*,\"bytes\":[0-9.e+]*" |
            sed 's/.*://' | awk '{ sum += $1 } END { printf "%d\n", sum }')
        got=$(awk -v coll="$call" '$1 == coll && (FILENAME == "sent.0" || (coll == "send_recv" && $2 == 0)) { sum += $4 }
            END { printf "%d\n", sum }' sent.*)
        [ "$planned" -eq "$got" ] || { echo "$call: planned $planned bytes, sent $got"; return 1; }
    done
}

# fsdp HOSTS RANKS: weights are gathered for forward and again for backward, gradients scattered after each
# micro-batch; or each once a step.  A rank sends its part to all others.
fsdp() {
    local n=$(($1 * $2)) away=$(($1 * $2 - $2))
    network "$1" "$2" 2 $n dense --set mesh.data_parallel_shard=$n
    sends all_gather $((4 * away * 2 * (2 * all - last)))
    sends reduce_scatter $((4 * away * 2 * all))
    sends all_reduce 0
    wire_is_that
    plan_is_that all_gather reduce_scatter
    network "$1" "$2" 2 $n dense --set mesh.data_parallel_shard=$n --set trainer.sharding.reshard_after_forward=false \
        --set trainer.sharding.reshard_after_backward=false --set trainer.gradient_manager.reduce=step
    sends all_gather $((4 * away * all))
    sends reduce_scatter $((4 * away * all))
    plan_is_that all_gather reduce_scatter
}

# in_8_bits HOSTS RANKS RECIPE PASSES MAXIMA OPTION...: matrices of layers travel as a byte an element, PASSES
# times in the two micro-batches; and once a step the MAXIMA of each layer to all others, of 4 bytes.
in_8_bits() {
    local n=$(($1 * $2)) away=$(($1 * $2 - $2)) narrow=$((layers * matrix))
    network "$1" "$2" 2 $n dense --set mesh.data_parallel_shard=$n \
        --set "trainer.fp8={\"recipe\": \"$3\", \"fsdp_float8_all_gather\": true}" "${@:6}"
    sends all_gather $((away * (4 * 2 * (2 * (all - narrow) - last) + $4 * narrow)))
    sends reduce_scatter $((4 * away * 2 * all))
    assert_equal $(($(reduced) - alone)) $((4 * (n - 1) * layers * $5))
    wire_is_that
    plan_is_that all_gather reduce_scatter
}
# Bytes that rank 0 sends in all-reduces.
reduced() { awk '$1 == "all_reduce" { sum += $4 } END { print sum + 0 }' sent.0; }

# hsdp HOSTS RANKS: a replica a host.  Only sums of sharded gradients leave it: as a reduce-scatter and an
# all-gather over the hosts.  A bucket pads each array to 256 bytes.
hsdp() {
    local shard=$2
    network "$1" "$2" 2 $(($1 * $2)) dense --set mesh.data_parallel_replicate="$1" --set mesh.data_parallel_shard="$2"
    sends all_gather 0
    sends reduce_scatter 0
    sends all_reduce $((2 * ($1 - 1) * shard * $(bucket_bytes)))
    wire_is_that
    plan_is_that all_gather reduce_scatter
}
# narrow HOSTS RANKS: gradients that travel as bfloat16 are exchanged, at half the bytes, and each part of a
# parameter in multiples of 8 elements.  Sums over replicas come back as bfloat16 too: of the hosts each sends
# an equal part of the bucket.
narrow() {
    local n=$(($1 * $2)) away=$(($1 * $2 - $2)) half=(--set trainer.gradient_manager.reduce_dtype=bfloat16)
    local shard=$2 bucket part
    network "$1" "$2" 2 $n dense --set mesh.data_parallel_shard=$n "${half[@]}"
    sends all_gather $((4 * away * 2 * (2 * all - last)))
    sends all_to_all $((2 * away * 2 * n * ((all - layers * vector - hidden) / n + layers * (2 * $(eights $hidden) + 2 * $(eights $head)) + $(eights $hidden))))
    sends reduce_scatter 0
    plan_is_that all_gather all_to_all
    network "$1" "$2" 2 $n dense --set mesh.data_parallel_replicate="$1" --set mesh.data_parallel_shard="$2" "${half[@]}"
    bucket=$(bucket_bytes)
    part=$((2 * ((bucket / 4 + $1 - 1) / $1)))
    sends all_to_all $(($1 * shard * ($1 - 1) * part))
    sends all_gather $(($1 * shard * ($1 - 1) * part))
    plan_is_that all_gather all_to_all
}
eights() { echo $((($1 / n + 7) / 8 * 8)); }
bucket_bytes() {
    echo $((4 * (all - layers * vector - hidden) / shard + layers * (2 * $(padded $hidden) + 2 * $(padded $head)) + $(padded $hidden)))
}
padded() { echo $((($1 * 4 / shard + 255) / 256 * 256)); }

# experts HOSTS RANKS: every token has experts on every rank.  It goes to all ranks of other hosts or, by
# levels, once to each host; so do results, and gradients of both.
experts() {
    local n=$(($1 * $2)) row=$((4 * 4 * hidden + 3 * 4 * 64))
    local tokens=$((n * positions * layers))
    network "$1" "$2" 1 $n moe --set mesh.data_parallel_shard=$n --set mesh.expert_parallel=$n
    sends all_to_all $((tokens * (n - $2) * row))
    network "$1" "$2" 1 $n moe --set mesh.data_parallel_shard=$n --set mesh.expert_parallel=$n --set mesh.expert_parallel_local="$2"
    sends all_to_all $((tokens * ($1 - 1) * row))
    wire_is_that
}

# context HOSTS RANKS: keys and values to all others, again in backward, and their gradients back; or heads.
context() {
    local n=$(($1 * $2)) away=$(($1 * $2 - $2)) all_positions=$((2 * positions * layers))
    local kv=$((2 * kv_heads * head * 4)) qo=$((2 * heads * head * 4))
    network "$1" "$2" 2 1 dense --set mesh.context_parallel_replicate=$n
    sends all_gather $((all_positions * away * 2 * kv))
    sends reduce_scatter $((all_positions * away * kv))
    plan_is_that all_gather reduce_scatter
    [ $((kv_heads % n)) -eq 0 ] || return 0
    network "$1" "$2" 2 1 dense --set mesh.context_parallel_replicate=$n --set mesh.context_parallel_method=all_to_all
    sends all_to_all $((all_positions * away * 2 * (kv + qo) / n))
    plan_is_that all_to_all
    wire_is_that
}

# ring HOSTS RANKS: keys and values go to every rank that sees them, in forward and in backward, and their
# gradients back.  Of two ranks one sees both chunks of the other, which sees one of its.  A sample has two
# positions of each rank at least.
ring() {
    local n=$(($1 * $2)) away=$(($1 * $2 - $2)) padded=$positions
    [ "$padded" -ge $((2 * n)) ] || padded=$((2 * n))
    network "$1" "$2" 2 1 dense --set mesh.context_parallel_replicate=$n --set mesh.context_parallel_method=ring
    sends send_recv $((2 * layers * padded * away * 2 * kv_heads * head * 4 * 9 / 4))
    sends all_gather 0
    plan_is_that send_recv
    wire_is_that
}

# all_heads HOSTS RANKS: with as many heads as ranks, these are exchanged for positions.
all_heads() {
    local n=$(($1 * $2)) away=$(($1 * $2 - $2)) padded=$positions size=8
    [ "$padded" -ge $((2 * n)) ] || padded=$((2 * n))
    network "$1" "$2" 2 1 dense --set mesh.context_parallel_replicate=$n --set mesh.context_parallel_method=all_to_all \
        --set model_provider.model.layer.num_attention_heads=$n --set model_provider.model.layer.num_key_value_heads=$n \
        --set model_provider.model.layer.head_dim=$size
    sends all_to_all $((2 * layers * padded * away * 2 * 4 * size * 4))
    sends all_gather 0
    plan_is_that all_to_all
    wire_is_that
}

@test "FSDP: gathers and reduce-scatters send what arithmetic says, and the plan" { fsdp 2 2; }
@test "FSDP in 8 bits: a byte for each element of the layers' matrices, and the plan" {
    local alone sides=$((2 * (2 * hidden + (heads + kv_heads) * head) + 3 * (hidden + 128)))
    network 2 2 2 4 dense --set mesh.data_parallel_shard=4 --set 'trainer.fp8={}'
    alone=$(reduced)
    in_8_bits 2 2 rowwise 4 $sides
    in_8_bits 2 2 tensorwise 4 7
    in_8_bits 2 2 rowwise 6 $sides --set model_provider.checkpointing=full # backward reads both copies
    in_8_bits 2 2 tensorwise 4 7 --set model_provider.checkpointing=full
}
@test "HSDP: only sums over replicas leave a host" { hsdp 2 2; }
@test "gradients that travel as bfloat16 are half the bytes" { narrow 2 2; }
@test "experts: by levels a token goes once to a host" { experts 2 2; }
@test "context parallelism: keys and values, or heads" { context 2 1; }
@test "context parallelism: a ring of keys and values, or as many heads as ranks" {
    ring 2 2
    all_heads 2 2
}

@test "32 ranks on 8 hosts" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    fsdp 8 4
    hsdp 8 4
    narrow 8 4
    experts 8 4
    context 8 1
}
@test "64 ranks on 8 hosts" {
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
    hsdp 8 8
    fsdp 8 8
    experts 8 8
    ring 8 8
    all_heads 8 8
}

networks() { (ip netns list && ip -o link) 2>/dev/null | sort; }
left() { pgrep -f "^sleep 98765.$$" >/dev/null; }
not_left() { ! pgrep -f "sleep 98765.$$" >/dev/null; }
@test "a network that is killed leaves nothing" {
    networks >before
    "$BATS_TEST_DIRNAME/on_network" 2 1 "$PWD/lab" sleep "98765.$$" 3>&- &
    pid=$!
    wait_for left
    kill -9 $pid
    wait_for not_left
    networks | diff before -
}
