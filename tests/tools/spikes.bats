#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031 # output is set by run
# d9d-metrics spikes, as a user sees it.

setup() {
    load helper
    cd "$BATS_TEST_TMPDIR" || return 1
    mkdir a
    awk 'BEGIN { for (i = 1; i <= 200; i++) {
        v = 5 - i / 100 + (i * 7919 % 13) / 100
        if (i == 120) v = 9
        printf "{\"step\": %d, \"loss\": %s, \"grad_norm\": %g}\n", i, i == 150 ? "null" : v,
            i == 3 ? 99 : 1 } }' >a/metrics.jsonl
}

@test "what stands out is printed, with what was usual" {
    run -0 --separate-stderr d9d-metrics spikes a
    [ "${#lines[@]}" = 3 ]
    [[ "${lines[0]}" == "step  loss "*" usual  deviations" ]]
    [[ "${lines[1]}" == "120      9  "4.*"  "* ]]
    [[ "${lines[2]}" == "150      -  "* ]]
}

@test "a run that falls and rises a little has none; a lower bar finds more" {
    sed -i '/"step": 120,/d; /"step": 150,/d' a/metrics.jsonl
    run -0 --separate-stderr d9d-metrics spikes a
    [ "$output" = "no spikes: no loss of 198 records is 6 deviations above the 64 before it" ]
    head -n 8 a/metrics.jsonl >few.jsonl
    run -0 --separate-stderr d9d-metrics spikes few.jsonl
    [ "$output" = "no spikes: 8 records, the first 8 are not judged" ]
    run -0 --separate-stderr d9d-metrics spikes -d 0.1 -w 8 a
    [ "${#lines[@]}" -gt 10 ]
}

# steps FIRST LAST VALUE: records whose loss is around VALUE, or null.
steps() {
    awk -v a="$1" -v b="$2" -v v="$3" 'BEGIN { for (i = a; i <= b; i++)
        printf "{\"step\": %d, \"loss\": %s}\n", i, v == "null" ? v : v + (i * 7919 % 13) / 100 }'
}

@test "a rise that lasts is one finding, and the new level is what is usual then" {
    { steps 1 100 2; steps 101 400 5; } >a/metrics.jsonl
    run -0 --separate-stderr d9d-metrics spikes a
    [ "${#lines[@]}" = 3 ]
    [[ "${lines[1]}" == "101   5."*" 2."* ]]
    [ "${lines[2]}" = "from step 101 on 8 records in a row stand out, and the first is named for all" ]
    # What stands out from the new level, and falls back to it, is named again; so is a second rise.
    { steps 1 100 2; steps 101 200 5; steps 201 203 9; steps 204 300 5; steps 301 400 20; } >a/metrics.jsonl
    run -0 --separate-stderr d9d-metrics spikes --json a
    tr -d ' \n' <<<"$output" | grep -o '"step":[0-9]*\|"records":[0-9]*' | paste -sd' ' |
        diff - <(echo '"step":101 "records":8 "step":201 "records":1 "step":202 "records":1 "step":203 "records":1 "step":301 "records":8')
    d9d-metrics report -q -o page.html a
    grep -q '>from 101 on<' page.html
    grep -q '>201<' page.html
}

@test "seven in a row are seven findings, and values that are no longer finite are one" {
    { steps 1 100 2; steps 101 107 5; steps 108 200 2; } >a/metrics.jsonl
    run -0 --separate-stderr d9d-metrics spikes a
    [ "${#lines[@]}" = 8 ]
    { steps 1 100 2; steps 101 102 5; steps 103 300 null; steps 301 305 5; steps 306 400 2; steps 401 401 5; } >a/metrics.jsonl
    run -0 --separate-stderr d9d-metrics spikes a
    [ "${#lines[@]}" = 4 ]
    [[ "${lines[1]}" == "101   5."* ]]
    [[ "${lines[2]}" == "401   5."* ]]
    [ "${lines[3]}" = "from step 101 on 205 records in a row stand out, and the first is named for all" ]
}

@test "the first records are not judged; other columns are" {
    run -0 --separate-stderr d9d-metrics spikes -k grad_norm a
    [[ "$output" == "no spikes: "* ]]
    sed -i 's/{"step": 30, \(.*\)"grad_norm": 1}/{"step": 30, \1"grad_norm": 1.1}/' a/metrics.jsonl
    run -0 --separate-stderr d9d-metrics spikes -k grad_norm -w 8 --json a
    [[ "$output" == *'"key": "grad_norm"'*'"step": 30'*'"value": 1.1'* ]]
    run -2 d9d-metrics spikes -k gradnorm a
    [[ "$output" == *'did you mean "grad_norm"'* || "$output" == *grad_norm* ]]
    run -2 d9d-metrics spikes -w 7 a
}

# A run over texts of one kind but for one of them, which step 23 meets.
run_of_texts() {
    local golden=$BATS_TEST_DIRNAME/../golden/tokenizer i
    for ((i = 0; i < 200; i++)); do
        [ $i = 131 ] && printf '%s\n' '{"text": "Żółć!!  qwv\n\t@@  {}[]<>  9583  #$%  jkl;  uvw  +=~`|  7246  QZXJ"}' ||
            echo '{"text": "the cat sat on the mat and the dog sat on the log. the cat sat on the mat and the dog sat on the log."}'
    done >docs.jsonl
    d9d-shard -q --tokenizer "$golden/gpt2.tokenizer.json" --pack 128 --pack-mode concat --out text docs.jsonl
    cat >t.json <<'JSON'
{"data": {"dataset": "text"},
 "model_provider": {"name": "qwen3_dense", "model": {"num_hidden_layers": 1,
   "layer": {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 16},
   "max_position_ids": 256, "initializer_range": 0.02, "split_vocab_size": {"all": 601}, "split_vocab_order": ["all"]}},
 "trainer": {"run": {"name": "texts", "dir": "run"}, "batching": {"global_batch_size": 2, "microbatch_size": 2},
   "logging": {"documents": 2}, "checkpointing": {"period_steps": "disable"}},
 "optimizer": {"name": "adamw", "lr": 2e-2}}
JSON
    d9d-train -q --device cpu t.json
}

@test "the document that made a spike is named, and the loss without it" {
    run_of_texts
    run -0 --separate-stderr d9d-metrics spikes -w 8 run
    [ "${#lines[@]}" = 6 ]
    [[ "${lines[1]}" == 23\ * ]]
    [ "${lines[2]}" = "step 23:" ] || [ "${lines[3]}" = "step 23:" ]
    worst=$(grep -A2 '^step 23:' <<<"$output" | tail -n 1)
    [[ "$worst" == *"  text, train: Żółć!!  qwv  @@ "*"…" ]]
    read -r _ document tokens loss without _ <<<"$worst"
    [ "$document" = 1 ]
    [ "$tokens" -gt 40 ]
    awk -v l="$loss" -v w="$without" 'BEGIN { exit !(l > 5 && w < 1) }'
    # (loss of the step) x (its tokens) is that of the document and that of the others
    run -0 --separate-stderr d9d-metrics spikes -w 8 --json run
    tr -d ' ,"\n' <<<"$output" | grep -o 'step:23.*' | sed 's/[{}]/\n/g' | sed -E 's/([a-z_]+):/\n\1 /g' | awk '
        { v[$1] = v[$1] == "" ? $2 : v[$1] }
        END { all = 256; x = (v["value"] * all - v["mean_loss"] * v["tokens"]) / (all - v["tokens"]) - v["without"]; exit !(x ^ 2 < 1e-18) }'
}

@test "numbers are there without the dataset; one that is named must be it" {
    run_of_texts
    mv text moved
    run -0 --separate-stderr d9d-metrics spikes -w 8 run
    [[ "$output" == *"  text, train"* && "$output" != *qwv* ]]
    run -0 --separate-stderr d9d-metrics spikes -w 8 --dataset moved run
    [[ "$output" == *"  moved, train: Żółć!!"* ]]
    run -2 d9d-metrics spikes -w 8 --dataset nowhere run
    [[ "$output" == *"nowhere/manifest.json"*"--dataset DIR"* ]]
    run -2 d9d-metrics spikes -w 8 --dataset moved,moved run
    [[ "$output" == *"has 1 dataset; 2 are given"* ]]
    # of samples that were made under that name there are no words, whatever lies there
    mv moved text
    sed -i.kept 's/"source": null/"source": {"name": "random"}/' run/config.json
    run -0 --separate-stderr d9d-metrics spikes -w 8 run
    [[ "$output" == *"  text, train"* && "$output" != *qwv* ]]
    mv run/config.json.kept run/config.json
    mv text moved
    cp run/metrics.jsonl alone.jsonl
    run -0 --separate-stderr d9d-metrics spikes -w 8 alone.jsonl
    [[ "$output" == *"step 23:"* ]]
}

@test "documents that cannot be are refused" {
    run_of_texts
    for bad in '"sample": 900' '"sample": -1' '"document": 70' '"tokens": 1e3' '"sample": "x"'; do
        key=${bad%%:*}
        sed -E "/^\{\"documents\": 23,/s/$key: [0-9]+/$bad/" run/metrics.jsonl >bad.jsonl
        mkdir -p bad && mv bad.jsonl bad/metrics.jsonl && cp run/config.json bad/
        cmp -s bad/metrics.jsonl run/metrics.jsonl && return 1
        run d9d-metrics spikes -w 8 bad
        [ "$status" = 1 ] || [ "$status" = 2 ] || { echo "$bad: $status $output"; return 1; }
        [ "${#lines[@]}" = 1 ]
    done
}
