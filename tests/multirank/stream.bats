#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Runs over streams of unknown length: killed anywhere they end with the same bits, any number of ranks
# reads the same rows, and what comes late, never or damaged is said.

load ../slurm/helper
load workroom

setup_file() {
    workroom
    mkdir texts
    # Texts of 2 to 41 words, of three files.
    awk 'function draw() { return (state = state * 16807 % 2147483647) / 2147483647 }
        BEGIN { state = 3000009; n = split("the a cat dog sat on mat and ran over under big small house tree red", w, " ")
        for (f = 0; f < 3; f++) for (i = 0; i < 60; i++) {
            s = w[1 + int(n * draw())]; for (k = int(40 * draw()); k >= 0; k--) s = s " " w[1 + int(n * draw())]
            print "{\"n\": " i ", \"text\": \"" s "\"}" >("texts/part-" f ".jsonl") } }'
    config '"path": "texts"' >train.json
    d9d-train -q --device cpu --set trainer.run.dir=alone train.json
}
setup() { enter; }

# config KEYS: a run over a stream with these keys.
config() {
    cat <<JSON
{"data": {"dataset": "web", "source": {"name": "stream", "tokenizer": "$root/examples/tokenizer", "length": 32, "append_eos": "<|endoftext|>", $1}},
 "model_provider": {"name": "qwen3_dense", "model": {"num_hidden_layers": 2,
   "layer": {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6, "intermediate_size": 48},
   "rope_base": 10000, "max_position_ids": 64, "initializer_range": 0.02, "split_vocab_size": {"regular": 2048}, "split_vocab_order": ["regular"]}},
 "trainer": {"run": {"name": "web", "steps": 1000}, "batching": {"global_batch_size": 4, "microbatch_size": 1},
  "checkpointing": {"period_steps": 3, "num_to_keep": 2}},
 "optimizer": {"name": "adamw", "lr": 1e-3}}
JSON
}
train() { d9d-train -q --device cpu --set "trainer.run.dir=$1" "${@:2}" "${json:-train.json}"; }
# steps RUN: steps that have a record, each once.
steps() { numbers step "$1" | sort -nu | wc -l; }
model() { echo "$1/export/model.safetensors"; }

@test "the end of the stream ends the run, and the same command again does nothing" {
    n=$(steps alone)
    [ "$n" -gt 20 ]
    [ "$n" -lt 1000 ]
    run -0 d9d-train --device cpu --set trainer.run.dir=alone train.json
    assert_output --partial "all $n steps are done already"
    run -0 d9d-train --device cpu --set trainer.run.dir=bound --set trainer.run.steps=5 train.json
    [ "$(steps bound)" -eq 5 ]
    close_to 0 <(numbers loss bound) <(numbers loss alone | head -n 5)
}

@test "killed anywhere, again and again, a run ends with the bits of one that was not" {
    n=$(steps alone)
    for k in 2 4 9 14 "$((n - 1))"; do
        d9d-train -q --device cpu --set trainer.run.dir=killed train.json & pid=$!
        reached() { [ "$(steps killed 2>/dev/null)" -ge "$k" ] || is_gone "$pid"; }
        wait_for reached
        kill -9 "$pid" 2>/dev/null || true
        wait "$pid" || true
    done
    [ -e "$(model killed)" ] || train killed
    cmp "$(model killed)" "$(model alone)"
}

@test "the last step of a stream has one local checkpoint" {
    export D9D_LOCAL_DIR=$work
    n=$(steps alone)
    train local --set trainer.checkpointing.local_period_steps=1
    assert_equal "$(numbers local_save local)" "$(seq $((n - 1)))" # recorded when the next one begins
    cmp "$(model local)" "$(model alone)"
    assert_equal "$(find "$work" -maxdepth 1 -type f -name 'd9d-*')" ""
}

@test "any number of ranks reads the same rows, and goes on with those of another number" {
    with_mpi
    for mesh in data_parallel_shard=2 data_parallel_replicate=4 pipeline_parallel=2 context_parallel_shard=2; do
        mpi -n "${mesh#*=}" d9d-train -q --device cpu --set "mesh.$mesh" --set "trainer.run.dir=$mesh" train.json
        close_to 1e-5 <(numbers loss "$mesh") <(numbers loss alone)
        [ "$(numbers tokens "$mesh" | sort -u)" = "$(numbers tokens alone | sort -u)" ]
    done
    train changes --set trainer.run.steps=7 && rm -r changes/export
    mpi -n 4 d9d-train -q --device cpu --set mesh.data_parallel_shard=4 --set trainer.run.dir=changes --set trainer.run.steps=16 train.json
    rm -r changes/export
    mpi -n 2 d9d-train -q --device cpu --set mesh.data_parallel_shard=2 --set trainer.run.dir=changes train.json
    close_to 1e-5 <(numbers loss changes) <(numbers loss alone)
}

@test "several ranks read what grows, and find damage, as one does" {
    with_mpi
    ranks() { mpi -n 3 d9d-train -q --device cpu --set mesh.data_parallel_replicate=3 --set trainer.batching.global_batch_size=6 --set "trainer.run.dir=$1" --set "data.source.path=$2" "${@:3}" train.json; }
    mkdir several
    cp texts/part-0.jsonl several/
    ranks three several
    : >slow.jsonl
    ranks grown slow.jsonl --set data.source.follow=true & pid=$!
    for ((at = 0; at < $(stat -c %s texts/part-0.jsonl); at += 777)); do
        tail -c +$((at + 1)) texts/part-0.jsonl | head -c 777 >>slow.jsonl
    done
    touch slow.jsonl.end
    wait "$pid"
    cmp "$(model grown)" "$(model three)"
    sed '50s/"text"/"txt"/' texts/part-0.jsonl >several/part-0.jsonl
    byte=$(head -n 49 texts/part-0.jsonl | wc -c)
    run ! ranks harmed several
    assert_output --partial "several/part-0.jsonl: byte $((byte + $(sed -n 50p several/part-0.jsonl | wc -c) - 1)), in the line at byte $byte: "
    [ "$(steps harmed)" -gt 3 ] # what stands before it is learnt
    cp texts/part-0.jsonl several/
    ranks harmed several
    cmp "$(model harmed)" "$(model three)"
}

@test "ranks that read a stream have the timeout of the start, not that of a step" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    with_mpi
    ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o hang.so "$BATS_TEST_DIRNAME/hang_preload.c" -ldl
    run ! mpi -n 2 env HANG_AT=part-2.jsonl HANG_RANK=1 LD_PRELOAD="$PWD/hang.so" d9d-train -q --device cpu \
        --set mesh.data_parallel_replicate=2 --set trainer.run.dir=hung --set trainer.timeout.init_timeout=14 \
        --set trainer.timeout.step_timeout=5 train.json
    assert_output --partial "; while a stream is read, trainer.timeout.init_timeout is 14 s"
}

@test "a folder that grows while the run reads it gives the same bits, a stall is said, and SIGTERM saves" {
    mkdir grows
    json=grows.json
    config '"path": "grows", "follow": true' >$json
    cp texts/part-0.jsonl grows/
    d9d-train --device cpu --set trainer.run.dir=late $json 2>err & pid=$!
    stalled() { grep -q "warning: web: waits since [0-9]* s for samples [0-9]* to [0-9]* of the stream" err; }
    wait_for stalled
    kill -TERM "$pid"
    rc=0
    wait "$pid" || rc=$?
    [ "$rc" -eq 75 ]
    train late & pid=$!
    for f in 1 2; do
        cp texts/part-$f.jsonl grows/.part && mv grows/.part grows/part-$f.jsonl
    done
    touch grows/END
    wait "$pid"
    cmp "$(model late)" "$(model alone)"
}

@test "a signal to one of several ranks that wait saves, and the run goes on with the same bits" {
    with_mpi
    struck d9d-train
    ranks() { PATH=$work/bin:$PATH mpi -n 3 d9d-train --device cpu --set mesh.data_parallel_replicate=3 --set trainer.batching.global_batch_size=6 \
        --set "trainer.run.dir=$1" --set data.source.path=waits --set data.source.follow=true --set trainer.checkpointing.period_steps=last_step train.json; }
    mkdir waits
    cp texts/part-0.jsonl waits/
    ranks waiting 2>err & pid=$!
    stalled() { grep -q "warning: web: waits since" err; }
    wait_for stalled
    kill -TERM "$(cat pid.1)"
    wait "$pid" || true
    grep -q "a signal to another rank: saved after step [0-9]* of" err
    saved=$(steps waiting)
    cp texts/part-1.jsonl waits/
    touch waits/END
    ranks waiting
    ranks whole
    [ "$(steps whole)" -gt "$saved" ]
    cmp "$(model waiting)" "$(model whole)"
}

@test "a file that grows by bytes gives the same bits" {
    cat texts/*.jsonl >whole.jsonl
    json=file.json
    config '"path": "file.jsonl", "follow": true' >$json
    : >file.jsonl
    train file & pid=$!
    for ((at = 0; at < $(stat -c %s whole.jsonl); at += 1777)); do
        tail -c +$((at + 1)) whole.jsonl | head -c 1777 >>file.jsonl
    done
    touch file.jsonl.end
    wait "$pid"
    cmp "$(model file)" "$(model alone)"
}

@test "a damaged line is named by its byte, and the run goes on once it is whole" {
    mkdir damaged
    json=damaged.json
    config '"path": "damaged"' >$json
    cp texts/part-0.jsonl damaged/
    sed '30s/"text"/"txt"/' texts/part-1.jsonl >damaged/part-1.jsonl
    cp texts/part-2.jsonl damaged/
    byte=$(head -n 29 texts/part-1.jsonl | wc -c)
    run -1 train bad
    assert_output --partial "damaged/part-1.jsonl: byte $((byte + $(sed -n 30p damaged/part-1.jsonl | wc -c) - 1)), in the line at byte $byte: "
    cp texts/part-1.jsonl damaged/
    train bad
    cmp "$(model bad)" "$(model alone)"
}

@test "a stream that was changed behind the run's back is found out" {
    cp -r texts changed
    json=changed.json
    config '"path": "changed"' >$json
    train edited --set trainer.run.steps=3 && rm -r edited/export
    sed -i 's/"text": "/&dog /' changed/part-0.jsonl
    run -2 train edited
    assert_output --partial "is another one than when the run was saved"
    rm changed/part-0.jsonl
    run -2 train edited
    assert_output --partial "changed: has no file part-0.jsonl any more"
}

@test "a stream evaluates, as far as it is told" {
    valid='evaluation={"data": {"dataset": "held", "source": {"name": "stream", "path": "texts/part-2.jsonl", "tokenizer": "'$root'/examples/tokenizer", "length": 32}}, "samples": 6, "period_steps": 2}'
    train valid --set "$valid" --set trainer.run.steps=4
    [ "$(numbers valid/loss valid | wc -l)" -eq 2 ]
    run -2 train none --set "${valid/, \"samples\": 6/}"
    assert_output --partial "evaluation valid: held is a stream, so samples must say how many"
    for follow in false true; do # nobody waits in an evaluation
        run -2 timeout 60 d9d-train -q --device cpu --set trainer.run.dir=none --set "${valid/\"length\"/\"follow\": $follow, \"length\"}" \
            --set evaluation.samples=1000 train.json
        assert_output --partial "evaluation valid: samples is 1000, and the stream held has fewer"
        [ ! -e none ]
    done
}

@test "what cannot be done with a stream is said before anything is spent" {
    refused() {
        run -2 train none "${@:2}"
        assert_output --partial "$1"
        [ ! -e none ]
    }
    refused "web: is a stream, so trainer.run.steps must say how long the run is at most" --set trainer.run.steps=null
    refused "web: is a stream, whose samples come in their order" --set data.order=shuffled
    refused "web: is a stream, which cannot be read 2 times" --set data.epochs=2
    refused "web: is a stream, which has no split \"valid\": all of it is read" --set data.split=valid
    refused "has no token \"<none>\", which append_eos names" --set data.source.append_eos='<none>'
    mkfifo pipe
    refused "pipe: is no file; a pipe can be read once and by one rank" --set data.source.path=pipe
    refused "longest sample has 128 tokens and the model has 64" --set data.source.length=128
    mkdir empty
    run -2 train short --set data.source.path=empty
    assert_output --partial "web: the stream has ended before it had the 4 samples of a step"
    sed -e 's/ "trainer.*/ "trainer": {"batching": {"microbatch_size": 2}, "model_stage_factory": {"source_checkpoint": "alone\/export"}},/' \
        -e '/checkpointing/d' -e 's/ "optimizer.*/ "task": {"name": "logprobs", "output": "out.jsonl"}}/' train.json >infer.json
    run -2 d9d-infer -q --device cpu infer.json
    assert_output --partial "web: is a stream, and inference needs an end; d9d-shard makes a dataset of its files"
}

@test "a plan of a stream needs no text" {
    mkdir -p later
    run -0 d9d-train --plan --gpu cpu --set data.source.path=later --set data.source.follow=true train.json
}

@test "streams of plugins: one resumes, one goes by" {
    plugin stream "$root/tests/multirank/stream_plugin.c"
    sed 's/^{/{"plugin": "libstream.so", /' train.json >plugin.json
    json=plugin.json
    for kind in again once; do
        source=(--set "data.source={\"name\": \"$kind\", \"rows\": 42}")
        train "whole-$kind" "${source[@]}"
        [ "$(steps "whole-$kind")" -eq 10 ]
        train $kind "${source[@]}" --set trainer.run.steps=5 && rm -r $kind/export
    done
    run -2 train once "${source[@]}"
    assert_output --partial "web: the stream cannot be read again from sample 20 on, so that no run of it resumes"
    train again --set 'data.source={"name": "again", "rows": 42}'
    cmp "$(model again)" "$(model whole-again)"
    run -2 train half --set 'data.source={"name": "half", "rows": 42}'
    assert_output --partial "web: the stream half has one of tell() and seek(); it needs both, or none"
}
