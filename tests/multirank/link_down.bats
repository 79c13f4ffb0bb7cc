#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helpers
# Two hosts, which are network namespaces connected by a virtual cable, with ranks on both: the link
# goes down.

load ../slurm/helper
load launch
load ../tools/train_bench

setup_file() {
    no_launcher
    workshop
    export one=d9d-$$-n1 two=d9d-$$-n2
    if ! { ip netns add $one && ip netns add $two; } 2>/dev/null; then
        export skip_reason="network namespaces need root"
        return
    fi
    ip link add cable netns $one type veth peer name cable netns $two
    ip -n "$one" addr add 10.77.0.1/24 dev cable
    ip -n "$two" addr add 10.77.0.2/24 dev cable
    for host in $one $two; do
        ip -n "$host" link set lo up
        ip -n "$host" link set cable up
        # What the launcher had sent without an answer fails after 51 s, not after a quarter of an hour;
        # and later than the watchdog speaks, on a busy machine too.
        ip netns exec "$host" bash -c 'echo 7 >/proc/sys/net/ipv4/tcp_retries2'
    done
    mkdir "$shared/n1" "$shared/n2"
    # The command that mpirun calls to start its daemon on the other host: HOST COMMAND...
    printf '#!/bin/bash\nshift\nexec %q %q %q n2 bash -c "$*"\n' "$BATS_TEST_DIRNAME/on_host" "$two" "$shared/n2" >"$shared/rsh"
    chmod +x "$shared/rsh"
}
setup() {
    with_mpi
    [ -z "${skip_reason:-}" ] || skip "$skip_reason"
    bench
}
teardown() {
    [ -z "${work:-}" ] || clear_bench
}
teardown_file() {
    [ -n "${skip_reason:-}" ] || for host in $one $two; do
        # shellcheck disable=SC2046 # pids
        kill -9 $(ip netns pids "$host") 2>/dev/null
        ip netns del "$host"
    done
    rm -rf "$shared"
}

# hosts RANKS-PER-HOST COMMAND...: runs mpirun on the first host.  It detects that the other host is lost
# 40 to 65 s later: four questions, the first of which comes up to 25 s after the last answer.
hosts() {
    local n=$1
    shift
    ASAN_OPTIONS=detect_leaks=0 timeout -k 5 1800 "$BATS_TEST_DIRNAME/on_host" "$one" "$shared/n1" n1 \
        mpirun --host "10.77.0.1:$n,10.77.0.2:$n" -n $((2 * n)) --mca plm rsh --mca plm_rsh_agent "$shared/rsh" \
        --mca oob_tcp_keepalive_time 25 --mca oob_tcp_keepalive_intvl 10 --mca oob_tcp_keepalive_probes 4 \
        -x PATH "$@" 3>&- </dev/null
}
cable() { ip -n "$two" link set cable "$1"; }
processes() { { ip netns pids "$one" && ip netns pids "$two"; } | xargs -r ps -o comm= -p; }
without_ranks() { ! processes | grep -q d9d-train; }
deserted() { [ -z "$(processes)" ]; }
train="d9d-train -q --device cpu --set trainer.batching.microbatch_size=1 --set mesh.data_parallel_shard=2
    --set data.epochs=20 --set trainer.run.steps=200 --set trainer.checkpointing.period_steps=10"

@test "ranks on two hosts form one job" {
    # shellcheck disable=SC2016
    run -0 hosts 2 bash -c 'echo "$OMPI_COMM_WORLD_RANK on $(hostname)"'
    assert_equal "$(sort <<<"$output" | tr '\n' ,)" "0 on n1,1 on n1,2 on n2,3 on n2,"
}

@test "link down: all ranks end, the collective is named, the last checkpoint is good" {
    # shellcheck disable=SC2086
    hosts 1 $train --set trainer.run.dir=whole c.json
    # shellcheck disable=SC2086
    hosts 1 $train --set trainer.timeout.step_timeout=15 --set trainer.timeout.init_timeout=15 c.json 2>err &
    pid=$!
    wait_for has_lines run/metrics.jsonl 30
    sleep "0.$((RANDOM % 5))"
    cable down
    wait_for without_ranks
    wait_for deserted
    cable up
    ended=0
    wait $pid || ended=$?
    [ $ended -ne 0 ]
    cat err
    # Either all ranks are in the same call, or some wait for a rank that is still in the previous one.
    [ "$(grep -cE 'd9d-train: error: .* [0-9]+ of .*wait (since [0-9]+\.[0-9] s|for each other)' err)" -eq 1 ]
    [ "$(records run)" -lt 200 ]
    [ ! -e run/export ]
    # shellcheck disable=SC2086
    hosts 1 $train c.json
    cmp {whole,run}/export/model.safetensors
}
