#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2030,SC2031 # variables of bats and of the helper
# The data section of a configuration: blends, packed documents, skipped samples, samples.jsonl,
# prefetch threads.

load train_bench

setup_file() {
    workshop
    cd "$shared" || return 1
    head -n 30 "$golden/moe/train.jsonl" >some.jsonl
    d9d-shard -q --format tokens --out some some.jsonl
    d9d-shard -q --format tokens --pack 40 --out packed "$golden/moe/train.jsonl"
}

setup() {
    bench
    ln -s "$shared/some" some
    ln -s "$shared/packed" packed
}

blend='data=[{"dataset": "data", "weight": 3, "order": "shuffled"}, {"dataset": "some", "weight": 1, "epochs": null}]'

# steps_of RUN: the ledger without the braces.
steps_of() { sed -E 's/^\{(.*)\}$/\1/' "$1/samples.jsonl"; }

# samples_of RUN STEP: their numbers, as d9d-metrics has them.
samples_of() { d9d-metrics samples "$1" -s "$2" | awk '$1 ~ /^[0-9]+$/ { printf "%s%s", n++ ? " " : "", $2 }'; }

@test "the ledger says which samples made each step, in the order of the rows" {
    d9d-train -q c.json
    [ "$(wc -l <run/samples.jsonl)" = 20 ]
    [ "$(sed -n 1p run/samples.jsonl)" = '{"step": 1, "first": 0, "count": 4, "sampler": [{"samples": 80, "order": "sequential", "seed": 0, "weight": 1.0}]}' ]
    [ "$(sed -n 20p run/samples.jsonl)" = '{"step": 20, "first": 76, "count": 4}' ]
    [ "$(samples_of run 1)" = '0 1 2 3' ]
    [ "$(samples_of run 20)" = '76 77 78 79' ]
    d9d-train -q --set trainer.run.dir=none --set trainer.logging.samples=false c.json
    [ ! -e none/samples.jsonl ]
}

@test "a blend keeps its shares, says whose samples they are, and goes on bit for bit" {
    d9d-train -q --set "$blend" --set trainer.checkpointing.period_steps=5 c.json
    # 80 samples of the first are 106 of the blend.
    [ "$(records run)" = 26 ]
    # Of every step of four one sample is of the second dataset.
    for s in $(seq 26); do d9d-metrics samples run -s "$s" | awk '$1 ~ /^[0-9]+$/ { print $3 }'; done >whose
    [ "$(grep -c data whose) $(grep -c some whose)" = "78 26" ]
    for s in $(seq 26); do d9d-metrics samples run -s "$s" | grep -c some; done | sort -u >shares
    [ "$(cat shares)" = 1 ]
    d9d-train -q --set "$blend" --set trainer.run.dir=other --set trainer.run.steps=7 \
        --set trainer.data_loading.num_workers=0 c.json
    rm -r other/export
    d9d-train -q --set "$blend" --set trainer.run.dir=other --set trainer.data_loading.num_workers=3 c.json
    same_run run other
    diff run/samples.jsonl other/samples.jsonl
    # Another weight is another stream.
    run -2 --separate-stderr d9d-train -q --set "${blend/3/2}" --set trainer.checkpointing.resume=true c.json
    [[ "$stderr" == *'was trained with another data.split, data.order, data.weight or data.seed' ]]
}

@test "what a blend refuses is a sentence" {
    refused() {
        run -2 --separate-stderr d9d-train -q --set "$1" "${@:3}" c.json
        [[ "$stderr" == *"$2"* ]]
    }
    refused 'data=[]' 'c.json: data: '
    refused 'data=[{"dataset": "data"}, {"dataset": "some", "weigth": 2}]' 'c.json: data[1].weigth: unknown key; did you mean "weight"?'
    refused 'data=[{"dataset": "data"}, {"dataset": "some", "weight": 0}]' 'data[1].weight'
    refused 'data=[{"dataset": "data"}, {"dataset": "some", "order": "bucketed"}]' 'data and some: of datasets that are blended all are bucketed or none'
    refused 'data.epochs=null' 'data.epochs is null, so trainer.run.steps must say when the run ends'
    refused "$blend" 'data has 26 steps of 4 samples in 1 epoch of its part in the blend; raise data.epochs' --set trainer.run.steps=27
    refused 'data.skip_samples=3,80' 'data: sample 80 is to be skipped, the split has 80'
    refused 'data.skip_samples=40-79 0-50' 'data: all 80 samples of the split are to be skipped, and nothing is left'
    refused 'data=[{"dataset": "data"}, {"dataset": "some", "skip_samples": "0-29"}]' 'some: all 30 samples of the split are to be skipped'
    [ ! -e run ]
    refused 'data.skip_samples=3-' 'list of samples: "3-" at byte 0 is no number or range'
}

@test "samples that are skipped leave the others where they are" {
    d9d-train -q c.json
    printf '# a spike\n5\n12-15\n' >bad
    d9d-train -q --set trainer.run.dir=skip --skip-samples bad c.json
    [ "$(sed -n 2p skip/samples.jsonl)" = '{"step": 2, "first": 4, "count": 4, "skipped": [5]}' ]
    [ "$(history_of run | sed -n 1p)" = "$(history_of skip | sed -n 1p)" ]
    [ "$(history_of run | sed -n 2p)" != "$(history_of skip | sed -n 2p)" ]
    # Step 4 had nothing else: it learns nothing, and has no loss.
    sed -n 4p skip/metrics.jsonl >fourth
    grep -q '"step": 4' fourth
    [ "$(grep -c '"loss"' fourth)" -eq 0 ]
    # From the checkpoint of step 1 on it is the same whether they were skipped from the beginning.
    d9d-train -q --set trainer.run.dir=late --set trainer.run.steps=1 c.json
    rm -r late/export
    d9d-train -q --set trainer.run.dir=late --skip-samples 5,12-15 c.json
    same_run skip late
    run -2 --separate-stderr d9d-train -q --set "$blend" --skip-samples 5 c.json
    [[ "$stderr" == *'is not the number of a list element'* ]]
}

@test "a killed run's ledger has every step once" {
    d9d-train -q c.json
    d9d-train -q --set trainer.run.dir=cut --set trainer.checkpointing.period_steps=4 --set trainer.run.steps=8 c.json
    rm -r cut/export cut/checkpoints/step-00000008
    printf '{"step": 9, "first": 32, "sam' >>cut/samples.jsonl
    d9d-train -q --set trainer.run.dir=cut c.json
    diff run/samples.jsonl cut/samples.jsonl
}

# lists RUN: the same ledger as it was written before there were samplers.
lists() {
    local s=0 line
    while read -r line; do
        s=$((s + 1))
        line=${line%%, \"count\"*}
        echo "$line, \"samples\": [$(samples_of "$1" $s | sed 's/ /, /g')]}"
    done <"$1/samples.jsonl"
}

@test "a ledger of an earlier version is gone on with, and says the same" {
    shuffled=(--set data.order=shuffled --set data.epochs=null --set trainer.run.steps=10)
    d9d-train -q "${shuffled[@]}" c.json
    d9d-train -q "${shuffled[@]}" --set trainer.run.steps=6 --set trainer.run.dir=old c.json
    lists old >was
    cp was old/samples.jsonl
    rm -r old/export
    d9d-train -q "${shuffled[@]}" --set trainer.run.dir=old c.json
    head -n 6 old/samples.jsonl | cmp - was
    [ "$(wc -l <old/samples.jsonl)" = 10 ]
    [ "$(sed -n 7p old/samples.jsonl | grep -c sampler)" = 1 ]
    for s in $(seq 10); do [ "$(samples_of run "$s")" = "$(samples_of old "$s")" ]; done
    [ "$(samples_of run 1)" != "0 1 2 3" ]
}

@test "the bucketed order has lists" {
    d9d-train -q --set data.order=bucketed c.json
    [ "$(grep -cE '^\{"step": [0-9]+, "first": [0-9]+, "samples": \[([0-9]+, ){3}[0-9]+\]\}$' run/samples.jsonl)" = 20 ]
}

@test "a long ledger is gone on with from its end" {
    long=(--set data.epochs=null --set trainer.run.steps=1030 --set trainer.checkpointing.period_steps=1026 --set trainer.logging.period_steps=1000)
    d9d-train -q "${long[@]}" c.json
    [ "$(grep -n sampler run/samples.jsonl | cut -d: -f1 | tr '\n' ' ')" = '1 1025 ' ]
    [ "$(wc -c <run/samples.jsonl)" -lt $((1030 * 50)) ]
    cp run/samples.jsonl whole
    rm -r run/export run/checkpoints/step-00001030
    printf '{"step": 1031, "fi' >>run/samples.jsonl
    sed -i '3s/.*/damaged/' run/samples.jsonl # what is not looked at is left
    d9d-train -q "${long[@]}" c.json
    diff <(sed 3d whole) <(sed 3d run/samples.jsonl)
}

@test "epochs null repeats as long as the run takes" {
    d9d-train -q --set data.epochs=null --set trainer.run.steps=23 c.json
    d9d-train -q --set data.epochs=2 --set trainer.run.steps=23 --set trainer.run.dir=two c.json
    same_run run two
}

@test "bucketed order says what it saves" {
    run -0 --separate-stderr d9d-train --set data.order=bucketed --set trainer.run.steps=1 c.json
    [[ "$stderr" =~ 'padding of 80 samples in rows of 2: '[0-9.]+' % bucketed, '[0-9.]+' % shuffled' ]]
}

# losses DIR: of every step.
losses() { sed -n 's/.*"loss": \([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }

@test "padding to a multiple changes no loss and no log-probability" {
    for dataset in data packed; do
        local set=(--set "data.dataset=$dataset" --set trainer.run.steps=3)
        d9d-train -q "${set[@]}" --set trainer.run.dir=$dataset.1 c.json
        d9d-train -q "${set[@]}" --set trainer.run.dir=$dataset.64 --set trainer.data_loading.pad_to_multiple_of=64 c.json
        paste <(losses $dataset.1) <(losses $dataset.64) | awk '
            { d = $1 - $2; if (d * d > 1e-12 * $1 * $1) exit bad = 1 } END { exit bad || NR != 3 }'
    done
    d9d-infer -q i.json
    d9d-infer -q --set trainer.data_loading.pad_to_multiple_of=64 --set task.output=padded.jsonl i.json
    paste <(logprobs out.jsonl) <(logprobs padded.jsonl) | awk '
        { for (i = 1; i <= NF / 2; i++) if (($i - $(i + NF / 2)) ^ 2 > 1e-11) exit bad = 1 } END { exit bad || NR != 80 }'
    run -2 --separate-stderr d9d-train -q --set trainer.data_loading.pad_to_multiple_of=0 c.json
    [[ "$stderr" == *'trainer.data_loading.pad_to_multiple_of'* ]]
}

@test "the name that a key had in 0.1 is accepted, said and shown as what it is now" {
    local old=(--set trainer.data_loading.multiple=64)
    run -0 --separate-stderr d9d-train -q "${old[@]}" --print-config c.json
    [[ "$stderr" == *'c.json: trainer.data_loading.multiple is now pad_to_multiple_of' ]]
    [[ "$output" == *'"pad_to_multiple_of": 64'* && "$output" != *'"multiple"'* ]]
    run -0 --separate-stderr d9d-infer -q "${old[@]}" --print-config i.json
    [[ "$output" == *'"pad_to_multiple_of": 64'* ]]
    run -2 --separate-stderr d9d-train -q "${old[@]}" --set trainer.data_loading.pad_to_multiple_of=64 c.json
    [[ "$stderr" == *'trainer.data_loading.multiple: is the former name of pad_to_multiple_of, which is given too'* ]]
    d9d-train -q "${old[@]}" --set trainer.run.steps=2 --set trainer.run.dir=former c.json
    d9d-train -q --set trainer.data_loading.pad_to_multiple_of=64 --set trainer.run.steps=2 --set trainer.run.dir=now c.json
    cmp <(losses former) <(losses now)
    grep -q '"pad_to_multiple_of": 64' former/config.json
}

# logprobs FILE: every document's log-probabilities as a line, sorted.
logprobs() {
    awk '{ split($0, a, /"logprobs": \[|\], "loss"/); n = split(a[2], p, ", ")
           if (match($0, /"documents": \[[^]]*/)) d = substr($0, RSTART + 14, RLENGTH - 14); else d = n
           m = split(d, sizes, ", "); at = 1
           for (i = 1; i <= m; i++) { for (j = 0; j < sizes[i]; j++) printf "%s ", p[at++]; print "" } }' "$1" | sort
}

@test "a packed document's log-probabilities are those it has alone, to the bit" {
    d9d-infer -q i.json
    d9d-infer -q --set data.dataset=packed --set task.output=packed.jsonl i.json
    [ "$(wc -l <packed.jsonl)" -lt 40 ]
    grep -q '"documents": \[[0-9]*, ' packed.jsonl
    logprobs out.jsonl >alone
    logprobs packed.jsonl >beside
    [ "$(wc -l <alone)" = 80 ]
    diff alone beside
    # Packed otherwise, and in other batches.
    d9d-shard -q --format tokens --pack 64 --shuffle-seed 3 --out p64 "$golden/moe/train.jsonl"
    d9d-infer -q --set data.dataset=p64 --set task.output=p64.jsonl --set trainer.batching.microbatch_size=2 i.json
    diff alone <(logprobs p64.jsonl)
}

@test "packed documents train, on and off the threads" {
    d9d-train -q --set data.dataset=packed --set data.epochs=4 c.json
    d9d-train -q --set data.dataset=packed --set data.epochs=4 --set trainer.run.dir=sync \
        --set trainer.data_loading.num_workers=0 c.json
    same_run run sync
}
