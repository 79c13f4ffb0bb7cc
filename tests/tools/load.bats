#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# d9d-train and d9d-infer read every byte of a checkpoint's weights once, and only after the rest of
# the configuration has been checked.

load train_bench

setup() {
    command -v strace >/dev/null || skip "no strace"
    export ASAN_OPTIONS=detect_leaks=0 # which works by tracing, too
    bench
}

# traced COMMAND...: each call that reads a file of weights, in ./calls.
traced() {
    rm -f all*
    strace -ff -y -s 0 -qq -e signal=none -e trace=open,openat,read,readv,pread64,preadv,preadv2,mmap,copy_file_range,sendfile \
        -o all "$@" || return
    cat all.* >all
    grep '/model[^/ ]*\.safetensors' all | grep -v "$PWD/run" >calls || true
}

# with SOURCE: the options that name it.
with() {
    echo --set "model_provider.hf_config=$1/config.json" --set "trainer.model_stage_factory.source_checkpoint=$1" --device cpu
}

reads_once() { # SOURCE COMMAND...
    reads 1 "$@"
}

# All bytes of the weights, so many times.
reads() { # TIMES SOURCE COMMAND...
    local times=$1 source=$2 bytes
    shift 2
    # shellcheck disable=SC2046 # several words
    traced "$@" $(with "$source")
    bytes=$(cat "$source"/*.safetensors.index.json "$source"/model*.safetensors 2>/dev/null | wc -c)
    run awk -v want=$((times * bytes)) -v times="$times" '
        / = -1 / { next }
        /mmap\(|copy_file_range\(|sendfile\(/ { print "not read but: " $0; exit 1 }
        /open(at)?\(/ { next }
        { sum += $NF }
        /pread64\(/ && ++seen[$1 $(NF - 2)] > times { print "read twice: " $0; exit 1 } # file, offset
        END { if (sum != want) { print sum " bytes are read of " want; exit 1 } }' calls
    [ "$status" = 0 ] || { echo "$source: $output"; return 1; }
    [ "$(grep -c 'open' calls)" = $((times * $(find "$source/" -name 'model*.safetensors*' | wc -l))) ]
}

@test "the weights of every layout are read once, header and index too" {
    d9d-map -q --to d9d --shard-size 50kB "$golden/moe" ours
    rm ours/manifest.json
    for source in "$golden/moe" "$golden/moe_fused" "$golden/moe_sharded" "$PWD/ours"; do
        reads_once "$source" d9d-train -q --set trainer.run.steps=1 --set "trainer.run.dir=run-${source##*/}" c.json
        reads_once "$source" d9d-infer -q --set 'task={"name": "perplexity"}' i.json
        # What may be resumed has a key of the weights' content: of small ones that is all of it.
        reads 2 "$source" d9d-infer -q --set "task.output=${source##*/}.jsonl" i.json
    done
    cmp moe.jsonl ours.jsonl
    cmp moe.jsonl moe_fused.jsonl
}

@test "a run that goes on does not look at its source" {
    d9d-train -q --set trainer.run.steps=2 --set trainer.checkpointing.period_steps=1 c.json
    rm -r run/export run/checkpoints/step-00000002
    # shellcheck disable=SC2046 # several words
    traced d9d-train -q --set trainer.run.steps=2 --set trainer.checkpointing.period_steps=1 c.json
    run cat calls
    assert_output ''
    [ -e run/export/model.safetensors ]
}

@test "a tensor that is missing, unused or mis-shaped costs no byte of weights" {
    cp -r "$golden/moe_sharded" bad && chmod -R u+w bad
    sed -i 's/"moe_intermediate_size": 20/"moe_intermediate_size": 21/' bad/config.json
    # shellcheck disable=SC2046 # several words
    run -2 --separate-stderr traced d9d-train -q $(with bad) c.json
    [[ "$stderr" == *"0 missing, 0 unused, 48 mis-shaped tensors: "* ]]
    cat all.* >all
    grep '/model[^/ ]*\.safetensors' all >calls
    for f in bad/model-*.safetensors; do # the length of the header, the header, and no more
        n=$(od -An -tu8 -N8 "$f" | tr -d ' ')
        [ "$(grep "pread64.*$f" calls | sed 's/.* = //' | tr '\n' ' ')" = "8 $n " ]
    done
    [ ! -e run ]
}
