#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031,SC2034 # variables of bats and of the helpers
# d9d-train and d9d-infer on many ranks: stopping, resuming, rejecting, failing, being killed.

load ../slurm/helper
load launch
load ../tools/train_bench

setup_file() { no_launcher && workshop; }
setup() { with_mpi && bench && leaks_too; }

train="d9d-train --device cpu --set trainer.batching.microbatch_size=1"
sharded="--set mesh.data_parallel_shard=2"
hybrid="--set mesh.data_parallel_shard=2 --set mesh.data_parallel_replicate=2"

# close_to A B: compares the last 20 - 7 losses of two runs to 1e-5.
close_to() {
    paste -d' ' <(history_of "$1" | tail -13) <(history_of "$2" | tail -13) | sed -E 's/"[a-z_]+": |[{},]//g' |
        awk '{ if ($1 != $7 || !(($2 - $8) ^ 2 <= (1e-5 * $8) ^ 2)) { print; bad = 1 } } END { exit bad || NR != 13 }'
}

@test "SIGUSR2 to rank 0 suspends all ranks after one step, and they continue bit for bit" {
    long='data={"dataset": "data", "epochs": 20}'
    # shellcheck disable=SC2086 # options
    mpi -n 2 $train -q $sharded --set "$long" --set trainer.run.steps=200 --set trainer.run.dir=whole c.json
    # shellcheck disable=SC2016,SC2086
    mpi -n 2 bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$@"' _ \
        $train $sharded --set "$long" --set trainer.run.steps=200 --set trainer.run.dir=run c.json 2>err 3>&- &
    pid=$!
    wait_for has_lines run/metrics.jsonl 3
    kill -s USR2 "$(cat pid.1)" # a signal to rank 1 does nothing
    kill -s USR2 "$(cat pid.0)"
    wait_for grep -q asleep: err
    wait_for is_quiet run
    [ "$(records run)" -lt 200 ]
    kill -s USR2 "$(cat pid.0)"
    wait "$pid"
    [ "$(grep -c asleep: err)" = 1 ]
    diff <(history_of whole) <(history_of run)
    cmp whole/export/model.safetensors run/export/model.safetensors
}

@test "a signal to any rank saves on all after one step, and the run resumes bit for bit" {
    # shellcheck disable=SC2086 # options
    mpi -n 2 $train -q $sharded --set trainer.run.dir=whole c.json
    # shellcheck disable=SC2016,SC2086
    mpi -n 2 bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$@"' _ \
        $train $sharded --set trainer.run.dir=run c.json 2>err 3>&- &
    pid=$!
    wait_for has_lines run/metrics.jsonl 3
    kill -s USR1 "$(cat pid.1)" || [ -e run/export ]
    ends 75 0
    [ "$(grep -c 'a signal to another rank: saved after step [0-9]* of 20 in run/checkpoints' err)" -le 1 ]
    [ ! -e run/export ] || skip "the run was faster than the signal"
    grep -q '^d9d-train: .*a signal to another rank: saved after step' err
    # shellcheck disable=SC2086
    mpi -n 2 $train -q $sharded c.json
    diff <(history_of whole) <(history_of run)
    cmp whole/export/model.safetensors run/export/model.safetensors
    for r in 0 1; do
        cmp {whole,run}/checkpoints/step-00000020/ranks-00000/model-r0000$r.safetensors
        cmp {whole,run}/checkpoints/step-00000020/ranks-00000/optimizer-r0000$r.safetensors
    done
}

@test "a checkpoint of one mesh resumes on another" {
    # shellcheck disable=SC2086
    mpi -n 4 $train -q $hybrid --set trainer.run.dir=whole --set trainer.checkpointing.period_steps=7 c.json
    for mesh in dp_shard=1 data_parallel_shard=2 tensor_parallel=2; do
        rm -rf run && cp -r whole run
        rm -r run/export run/checkpoints/step-000000{14,20}
        # shellcheck disable=SC2086
        mpi -n "${mesh#*=}" $train -q --set "mesh.${mesh/dp/data_parallel}" c.json
        [ "$(records run)" -gt 20 ]
        close_to run whole
    done
}

# gathers_beside_updates TRACE: the number of all-gathers during each optimizer update, in order.
gathers_beside_updates() {
    sed -nE 's/.*"name": "(unshard|optimizer)[^"]*", .*"tid": ([0-9]+), "ts": ([0-9.]+), "dur": ([0-9.]+).*/\1 \2 \3 \4/p' "$1" | awk '
        BEGIN { n = m = 0 }
        $1 == "optimizer" && $2 == 0 { from[n] = $3; to[n++] = $3 + $4 }
        $1 == "unshard" && $2 > 1 { at[m++] = $3 }
        END { for (i = 0; i < n; i++) {
                  beside = 0
                  for (k = 0; k < m; k++)
                      beside += at[k] >= from[i] && at[k] < to[i]
                  printf "%d ", beside } }'
}

@test "weights of the next step are unsharded during the update, except in the last step" {
    traced='trainer.profiling={"period_steps": 20, "active_steps": 2}'
    # shellcheck disable=SC2086 # options
    mpi -n 2 $train -q $sharded --set "$traced" c.json
    for r in 0 1; do # units: the embedding; attention and experts of a layer
        assert_equal "$(gathers_beside_updates run/traces/step-00000020/rank-$r.json)" "3 0 "
    done
    # shellcheck disable=SC2086
    mpi -n 2 $train -q --set mesh.data_parallel_replicate=2 --set "$traced" --set trainer.run.dir=copies c.json
    assert_equal "$(gathers_beside_updates copies/traces/step-00000020/rank-0.json)" "0 0 "
}

@test "the last step has its own step time" {
    # shellcheck disable=SC2086
    mpi -n 2 $train -q $sharded --set trainer.run.steps=3 c.json
    [ "$(records run)" -eq 3 ]
    sed -nE 's/.*"step_ms": ([0-9.]+).*/\1/p' run/metrics.jsonl | tee ms
    awk '$1 < 0.3 { exit 1 }' ms
}

@test "a wrong configuration is reported once, before anything is written" {
    for wrong in "mesh.data_parallel_shard=3" "trainer.batching.global_batch_size=3" \
        "data.dataset=nowhere" "trainer.nothing=1"; do
        # shellcheck disable=SC2086
        run -2 --separate-stderr mpi -n 2 $train $sharded --set $wrong c.json
        [ "$(grep -cE '^d9d-train: (invalid configuration|not found): ' <<<"$stderr")" -eq 1 ]
        [ ! -e run ]
    done
    # shellcheck disable=SC2086
    run -2 --separate-stderr mpi -n 3 $train --set mesh.tensor_parallel=3 c.json
    [[ "$stderr" == *"mesh.tensor_parallel 3 does not divide num_attention_heads "* ]]
    [ ! -e run ]
    # shellcheck disable=SC2086
    run -2 --separate-stderr mpi -n 2 $train c.json
    [[ "$stderr" == *"mesh: every degree 1 is 1 rank, and this job has 2; data_parallel_shard 2 would fit"* ]]
}

@test "a step that is not finite is reported once, and no rank updates" {
    # shellcheck disable=SC2086
    run -1 --separate-stderr mpi -n 2 $train $sharded --set optimizer.lr=1e6 \
        --set optimizer.weight_decay=1e6 --set trainer.checkpointing.period_steps=1 c.json
    [ "$(grep -cE '^d9d-train: non-finite number: (rank 1 \(.*\): )?step [0-9]+: .*nothing was updated' <<<"$stderr")" -eq 1 ]
    [ "$(grep -c '^d9d-train: non-finite' <<<"$stderr")" -eq 1 ]
    [ "$(records run)" -eq "$(find run/checkpoints/step-* -maxdepth 1 -name manifest.json | wc -l)" ]
    [ ! -e run/export ]
}

@test "a single failing rank is named and ends the others" {
    command -v strace >/dev/null || skip "no strace"
    # The calls of the other ranks do not end by themselves before the timeout of mpi.
    local patient="--set trainer.timeout.step_timeout=9999 --set trainer.timeout.init_timeout=9999"
    # shellcheck disable=SC2086
    mpi_leaks=detect_leaks=0 run -1 --separate-stderr mpi -n 1 $train $sharded $patient c.json : \
        -n 1 strace -f -qq -o /dev/null -e inject=pread64:error=EIO:when=20+ $train $sharded $patient c.json
    [ "$(grep -c '^d9d-train: input/output error: rank 1 of 2 (.*, dps 1): .*: cannot read ' <<<"$stderr")" -eq 1 ]
    [ "$(grep -c '^d9d-train: .* error: ' <<<"$stderr")" -eq 1 ]
    [ ! -e run/export ]
}

@test "a single failing rank is named also after an earlier collective failure" {
    command -v strace >/dev/null || skip "no strace"
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o poor.so "$BATS_TEST_DIRNAME/no_memory_preload.c"
    behind="$sharded --set trainer.checkpointing.period_steps=15 --set trainer.timeout.step_timeout=20"
    poor="-x LD_PRELOAD=$PWD/poor.so"
    # shellcheck disable=SC2086
    run -1 --separate-stderr mpi $poor -n 1 strace -f -qq -o /dev/null -P run/metrics.jsonl -P "$PWD/run/metrics.jsonl" \
        -e inject=write:error=ENOSPC:when=3+ $train $behind c.json : $poor -n 1 $train $behind c.json
    [[ "$stderr" == *": training will wait for every checkpoint"* ]]
    [ "$(grep -c '^d9d-train: input/output error: rank 0 of 2 (.*, dps 0): run/metrics.jsonl: cannot write ' <<<"$stderr")" -eq 1 ]
    [ "$(grep -c '^d9d-train: .*error: ' <<<"$stderr")" -eq 1 ]
}

@test "an error that every rank meets is reported once, without a collective" {
    for n in 2 5; do
        # shellcheck disable=SC2086
        run -1 --separate-stderr mpi -n $n d9d-train --device cpu@50KB --set trainer.batching.microbatch_size=1 \
            --set trainer.batching.global_batch_size=$n --set mesh.data_parallel_shard=$n c.json
        [ "$(grep -c '^d9d-train: out of device memory: rank 0 of ' <<<"$stderr")" -eq 1 ]
        [ "$(grep -c '^d9d-train: out of device memory' <<<"$stderr")" -eq 1 ]
    done
}

@test "a full disk during an asynchronous save ends all ranks after a step; older checkpoints are good" {
    command -v strace >/dev/null || skip "no strace"
    # shellcheck disable=SC2086
    mpi -n 2 $train -q $sharded --set trainer.run.dir=whole c.json
    # shellcheck disable=SC2086
    mpi -n 2 $train -q $sharded --set trainer.run.steps=4 --set export_to=unused c.json
    # shellcheck disable=SC2086
    mpi_leaks=detect_leaks=0 run -1 --separate-stderr \
        mpi -n 1 $train $sharded --set trainer.checkpointing.period_steps=3 c.json : \
        -n 1 strace -f -qq -o /dev/null -e inject=pwrite64:error=ENOSPC \
        $train $sharded --set trainer.checkpointing.period_steps=3 c.json
    [ "$(grep -cE '^d9d-train: input/output error: rank 1 \(.*\): run/checkpoints/step-00000006.tmp-.*/model-r00001.safetensors: cannot write [0-9]+ bytes at [0-9]+: No space left on device' <<<"$stderr")" -eq 1 ]
    [ "$(grep -c '^d9d-train: .* error: ' <<<"$stderr")" -eq 1 ]
    [ "$(ls run/checkpoints)" = step-00000004 ]
    [ "$(records run)" -lt 20 ]
    # shellcheck disable=SC2086
    mpi -n 2 $train -q $sharded c.json
    cmp {whole,run}/export/model.safetensors
}

@test "a dataset file truncated during the run is named" {
    cp -rL data cut
    # shellcheck disable=SC2086
    mpi -n 2 $train -q $sharded --set data.dataset=cut --set data.epochs=1000 --set trainer.run.steps=9999 c.json 2>err 3>&- &
    pid=$!
    wait_for has_lines run/metrics.jsonl 3
    truncate -s 0 cut/index.lmdb
    ends 1
    grep -E '^d9d-train: input/output error: rank [01] \(.*\): .*/cut/index.lmdb: what is mapped of it cannot be read any more: ' err
}

@test "a rank with a file size limit runs without a flight recorder, and fails as on a full disk" {
    limited="ulimit -f 24; exec \"\$@\"" # in KiB
    # shellcheck disable=SC2086
    run -1 --separate-stderr mpi -n 1 $train $sharded c.json : -n 1 bash -c "$limited" _ $train $sharded c.json
    [ "$(grep -cE '^d9d-train: input/output error: rank 1 \(.*\): run/checkpoints/step-.*: cannot (write|make it) .*: File too large' <<<"$stderr")" -eq 1 ]
    [ -z "$(find run/checkpoints -name 'step-*')" ]
}

@test "a killed rank ends the others; the last checkpoint is good" {
    # shellcheck disable=SC2016,SC2086
    mpi -n 2 bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$@"' _ \
        $train -q $sharded --set trainer.checkpointing.period_steps=1 c.json 2>/dev/null 3>&- &
    pid=$!
    wait_for has_lines run/metrics.jsonl 5
    kill -9 "$(cat pid.1)"
    ends 137 1 9 0
    # shellcheck disable=SC2086
    mpi -n 2 $train -q $sharded c.json
    # shellcheck disable=SC2086
    mpi -n 2 $train -q $sharded --set trainer.run.dir=whole c.json
    cmp {whole,run}/export/model.safetensors
}

@test "a hanging rank 0 is named by another rank, and all end" {
    # shellcheck disable=SC2016,SC2086
    mpi -n 2 bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$@"' _ \
        $train -q $sharded --set data.epochs=1000 --set trainer.run.steps=9999 --set trainer.timeout.step_timeout=20 c.json 2>err 3>&- &
    pid=$!
    wait_for has_lines run/metrics.jsonl 5
    kill -s STOP "$(cat pid.0)"
    wait_for is_gone "$(cat pid.0)"
    wait_for is_gone "$(cat pid.1)"
    ends 1 143 137
    grep -E '^d9d-train: error: .*rank 0 \(.*, dps 0\), which is stopped' err || { cat err; return 1; }
}

# Until the first step is done, and during saves and evaluations, a call may take init_timeout.
@test "a rank stopped while init_timeout applies ends the job within the step timeout" {
    for _ in $(seq 2000); do cat "$golden/moe/train.jsonl"; done | d9d-shard -q --format tokens --out many -
    # shellcheck disable=SC2016,SC2086
    mpi -n 2 bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$@"' _ \
        $train -q $sharded --set 'evaluation=[{"data": {"dataset": "many"}, "at_start": true}]' \
        --set trainer.timeout.step_timeout=20 c.json 2>err 3>&- &
    pid=$!
    wait_for test -s run/flight/rank-1.bin
    sleep 1
    kill -s STOP "$(cat pid.1)"
    wait_for is_gone "$(cat pid.0)"
    wait_for is_gone "$(cat pid.1)"
    ends 1 143 137
    [ "$(records run)" = 0 ] # stopped before the first step
    grep -E '^d9d-train: error: .*rank 1 \(.*, dps 1\), which is stopped' err || { cat err; return 1; }
}

@test "a rank that hangs during bootstrap ends the job" {
    # Open MPI's launcher may hang when it has to end a task that never connected to it.
    # shellcheck disable=SC2016,SC2086
    run --separate-stderr mpi -n 2 \
        bash -c '[ $OMPI_COMM_WORLD_RANK = 0 ] || { kill -s STOP $$; exit 1; }; exec "$@"' _ \
        $train $sharded --set trainer.timeout.init_timeout=15 c.json
    [ "$status" -ne 0 ]
    [[ "$stderr" == *"PMIx: rank 0 waits since 15 s for other ranks, of which one at least has not started or stands still"* ]]
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    ${CC:-cc} -shared -fPIC -o halt.so "$BATS_TEST_DIRNAME/hang_in_mpi_init_preload.c"
    for rank in 0 1; do
        # shellcheck disable=SC2086
        HALT=$rank run --separate-stderr mpi -n 2 -x LD_PRELOAD="$work/halt.so" \
            $train $sharded --set trainer.timeout.init_timeout=15 c.json
        [ "$status" -ne 0 ]
        [[ "$stderr" == *"the first that fell silent is rank $rank ("*", dps $rank), which is stopped"* ]]
    done
}

@test "a run killed at any moment resumes to the same result" {
    # shellcheck disable=SC2086
    mpi -n 2 $train -q $sharded --set trainer.run.dir=whole c.json
    for ((i = 0; i < ${D9D_LONG:+200} + 3; i++)); do
        rm -f pid.*
        # shellcheck disable=SC2016,SC2086
        mpi -n 2 bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$@"' _ \
            $train -q $sharded --set trainer.checkpointing.period_steps=2 --set trainer.timeout.step_timeout=9999 \
            --set trainer.timeout.init_timeout=9999 c.json >out 2>&1 3>&- &
        pid=$! ended=0
        wait_for has_lines pid.$((i % 2)) 1
        sleep "$(printf '0.%03d' $((RANDOM % 1000)))$((RANDOM % 10))"
        kill -9 "$(cat pid.$((i % 2)))" 2>/dev/null || true
        wait $pid || ended=$?
        [ $ended -ne 124 ] # not the timeout of mpi
        [ ! -e run/export ] || rm -rf run
    done
    # shellcheck disable=SC2086
    mpi -n 2 $train -q $sharded c.json
    cmp {whole,run}/export/model.safetensors
}

@test "steps without targets on one rank or on all equal one rank" {
    yes '{"input_ids": [1, 2, 3], "labels": [-100, -100, -100]}' | head -n 4 >none.jsonl
    head -n 5 "$golden/moe/train.jsonl" | cat none.jsonl - none.jsonl >mixed.jsonl
    d9d-shard -q --format tokens --out mixed mixed.jsonl
    mixed="--set data.dataset=mixed --set data.epochs=3 --set trainer.batching.global_batch_size=2"
    # shellcheck disable=SC2086
    $train -q $mixed --set trainer.run.dir=one c.json
    for mesh in data_parallel_shard=2 data_parallel_replicate=2; do
        rm -rf run
        # shellcheck disable=SC2086
        mpi -n 2 $train -q $mixed --set mesh.$mesh c.json
        "$D9D_BUILD/tests/multirank/topology_driver" run/export one/export
    done
}

# numbers FILE: all numbers of FILE, one per line.
numbers() { tr -cs '0-9.e+-' '\n' <"$1" | grep '[0-9]'; }

@test "inference writes the lines of one rank, in order" {
    d9d-infer -q --device cpu --set task.output=one.jsonl i.json
    # shellcheck disable=SC2086
    for mesh in "2 $sharded" "3 --set mesh.data_parallel_replicate=3" "4 $hybrid"; do
        rm -f out.jsonl
        mpi -n "${mesh%% *}" d9d-infer -q --device cpu ${mesh#* } i.json
        cmp one.jsonl out.jsonl
    done
    d9d-infer --device cpu --json --set 'task={"name": "perplexity"}' i.json | grep -v tokens_per_s >one
    # shellcheck disable=SC2086
    mpi -n 2 d9d-infer --device cpu --json $sharded --set 'task={"name": "perplexity"}' i.json 2>/dev/null |
        grep -v tokens_per_s | cmp one
    # shellcheck disable=SC2086
    mpi -n 2 d9d-infer -q --device cpu --set mesh.tensor_parallel=2 --set task.output=two.jsonl i.json
    paste <(numbers one.jsonl) <(numbers two.jsonl) |
        awk '{ n++; if (NF != 2 || !(($1 - $2) ^ 2 <= (1e-5 * (1 + $1 * $1)) ^ 2)) { print; bad = 1 } }
             END { exit bad || n < 100 }'
}
