#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031 # output is set by run
# d9d-metrics report: one HTML page about runs.

setup() {
    load helper
    cd "$BATS_TEST_TMPDIR" || return 1
}

# A run of N steps with evaluations, experts, a spike with its document, saves, a kill and a restart.
make_run() { # DIR N [LR]
    mkdir -p "$1"
    cat >"$1/config.json" <<JSON
{"data": {"dataset": "gone", "split": "train"}, "optimizer": {"name": "adamw", "lr": ${3:-0.001}},
 "trainer": {"run": {"name": "$1", "steps": $2}}}
JSON
    echo '{"schema": "d9d.run.v1", "description": "a try", "version": "0.1.0", "started": "2026-01-31T12:00:00Z"}' >"$1/manifest.json"
    awk -v n="$2" 'function step(i) {
            printf "{\"step\": %d, \"loss\": %g, \"grad_norm\": 1.5, \"lr\": 0.001, \"tokens\": %d, \"samples\": %d,", i, i == 30 ? 40 : 8 / i + 2, 100 * i, i
            printf " \"step_ms\": 500, \"tokens_per_s\": 200, \"data_ms\": 5, \"mfu\": 0.4, \"mem_bytes\": 1073741824,"
            printf " \"tokens_per_joule\": 3, \"expert_imbalance\": 1.5, \"expert_entropy\": 0.9"
            for (l = 0; l < 2; l++) for (e = 0; e < 4; e++) printf ", \"expert_load/%d/%d\": %d", l, e, e == 3 ? 70 : 10
            print "}"
        }
        BEGIN {
            for (i = 1; i <= n / 2 + 5; i++) step(i)
            printf "{\"save\": %d, \"blocked_ms\": 1500, \"total_ms\": 9000, \"time\": \"2026-01-31T12:04:00Z\"}\n", n / 2
            printf "{\"local_save\": %d, \"blocked_ms\": 300, \"total_ms\": 4000, \"time\": \"2026-01-31T12:04:00Z\"}\n", n / 2 - 1
            printf "{\"restart\": 1, \"step\": %d, \"time\": \"2026-01-31T12:10:00Z\"}\n", n / 2
            for (i = n / 2 + 1; i <= n; i++) {
                step(i)
                if (i % 10 == 0) printf "{\"evaluation\": \"valid\", \"step\": %d, \"valid/loss\": %g, \"valid/ms\": 700, \"valid/f1\": 0.5}\n", i, 3
            }
            print "{\"documents\": 30, \"tokens\": 64, \"worst\": [{\"sample\": 17, \"document\": 2, \"tokens\": 9, \"mean_loss\": 90}]}"
            printf "{\"end\": \"done\", \"step\": %d, \"time\": \"2026-01-31T12:20:00Z\"}\n", n
        }' >"$1/metrics.jsonl"
}

# Two ranks, a stage each, four micro-batches.
add_pipeline() { # DIR
    sed -i '/"end"/d' "$1/metrics.jsonl"
    for i in 38 39 40; do
        echo "{\"pipeline\": $i, \"schedule\": \"1f1b\", \"micro_batches\": 4, \"rows\": 1, \"pipeline_ms\": 30, \"bubble\": 0.2, \"compute_ms\": [24, 24], \"forward_ms\": [2, 2], \"dgrad_ms\": [2, 2], \"wgrad_ms\": [2, 2]}"
    done >>"$1/metrics.jsonl"
}

# The page as text: tags are blanks, blanks are one.
words() { sed -e '1,/<body>/d' -e '/<script/,$d' -e 's/<[^>]*>/ /g' "$1" | tr -s ' \n' ' '; }
has_words() { # PAGE WORDS...
    local page=$1 text w
    text=$(words "$page")
    shift
    for w; do [[ "$text" == *"$w"* ]] || { echo "no \"$w\" in: $text"; return 1; }; done
}
sections() { grep -oE '<section id="[a-z]+"' "$1" | cut -d'"' -f2 | xargs; }

@test "a run with restarts, evaluations, experts and a pipeline" {
    make_run a 40
    add_pipeline a
    run -0 --separate-stderr d9d-metrics report a -o a.html
    [ -z "$output" ]
    [[ "$stderr" == *"wrote a.html" ]]
    assert_equal "$(sections a.html)" "summary losses spikes speed time optimisation experts memory energy pipeline restarts configuration"
    has_words a.html "description a try" "step 40" "last loss 2.2" "MFU (median) 40.0 %" "device memory, highest 1 GiB" \
        "last valid/loss 3 at step 40" "best valid/f1 0.5 at step 30" \
        "30 40 2.533 118.5 sample 17, document 2 of gone, train: 9 tokens, loss 90; the step without it 31.8182" \
        "computing steps, without the next two 19.8 s" "waiting for data of the steps, data_ms 200 ms" "pipeline bubble of the steps, the mean over ranks 18 ms" \
        "evaluations 1.4 s" "saving checkpoints what blocked the training 1.8 s" "steps done again lost at restarts 2.5 s" \
        "0 – – 3 2.8 0 0.4" "Schedule 1f1b, 4 micro-batches of 1 rows, at step 40." "1f1b: 2 ranks, 2 stages, 4 micro-batches, bubble 20.0 %" \
        "restart 20 2026-01-31 12:10:00 UTC was killed: its record has no end; 5 steps (2.5 s) done again" \
        "checkpoints saved 1 step of the last one 20 training stood still for 1.5 s the slowest took 9 s" \
        "local checkpoints saved 1 step of the last one 19 training stood still for 300 ms the slowest took 4 s" \
        "optimizer.lr 0.001"
    grep -q '<figure class="lanes">' a.html
    [ "$(grep -c '<figure class="chart"' a.html)" = 14 ] || { grep -A1 '<figure class="chart"' a.html; false; }
}

@test "two runs side by side, and the keys in which they differ" {
    make_run a 40
    make_run b 60 0.002
    run -0 --separate-stderr d9d-metrics report -q a b/metrics.jsonl -o ab.html
    [ -z "$stderr" ]
    has_words ab.html "2 runs compared" "step 40 60" "3 of 6 keys differ" "optimizer.lr 0.001 0.002" "trainer.run.steps 40 60"
    # Runs of one name are told apart by their paths.
    mkdir other && cp -r a other/a
    d9d-metrics report -q a other/a -o aa.html
    has_words aa.html "a/metrics.jsonl other/a/metrics.jsonl" "0 of 6 keys differ"
}

# Steps, evaluations, saves and restarts enough that not all of them fit a page.
make_long_run() { # DIR N
    mkdir -p "$1"
    awk -v n="$2" 'BEGIN {
        for (i = 1; i <= n; i++) {
            printf "{\"step\": %d, \"loss\": %.6f, \"grad_norm\": %.6f, \"lr\": %.9f, \"tokens\": %d, \"samples\": %d,", i, 2 + 6 * exp(-i / 9e3) + i % 7 / 100 + (i % 1000 == 0 ? 4 : 0), 1 + i % 13 / 9, 1e-3 * (1 - i / n), 4096 * i, 8 * i
            printf " \"step_ms\": %.3f, \"tokens_per_s\": %.2f, \"data_ms\": 0.1, \"mem_bytes\": 1073741824}\n", 100 + i % 11, 4e4 + i % 17
            if (i % 100 == 0) {
                printf "{\"evaluation\": \"valid\", \"step\": %d, \"valid/loss\": 3}\n{\"evaluation\": \"code\", \"step\": %d, \"code/loss\": 4}\n", i, i
                printf "{\"save\": %d, \"blocked_ms\": 1, \"total_ms\": 2, \"time\": \"2026-01-31T12:04:00Z\"}\n", i
            }
            if (i % 10 == 0) printf "{\"restart\": %d, \"step\": %d, \"time\": \"2026-01-31T12:10:00Z\"}\n", i / 10, i
        }
        printf "{\"end\": \"done\", \"step\": %d, \"time\": \"2026-01-31T12:20:00Z\"}\n", n
    }' >"$1/metrics.jsonl"
}

@test "the page of a long run is small, and what it marks is marked from begin to end" {
    steps=30000
    [ -z "${D9D_LONG:-}" ] || steps=1000000
    make_long_run long $steps
    d9d-metrics report -q long -o long.html
    size=$(wc -c <long.html)
    [ "$size" -gt 300000 ] && [ "$size" -lt 1000000 ] || { echo "$size bytes"; false; }
    for marks in restarts spikes; do
        grep -oE "\"$marks\":\[[0-9,]*\]" long.html | grep -oE '[0-9]+' >$marks
        [ "$(wc -l <$marks)" -le 1000 ]
    done
    assert_equal "$(wc -l <restarts)" 1000 # of 3000, a third of them in each third of the run
    assert_equal "$(sed -n '1p;$p' restarts | xargs)" "10 $steps"
    awk -v n=$steps '$1 > n / 3 && $1 <= 2 * n / 3 { k++ } END { exit !(k > 330 && k < 337) }' restarts
    [ "$(tail -n 1 spikes)" -ge $((steps - 1000)) ]
}

@test "the page is well-formed, whole and the same every time" {
    make_run a 40
    add_pipeline a
    d9d-metrics report -q a -o a.html
    d9d-metrics report -q a -o again.html
    cmp a.html again.html
    [ "$(tail -n 1 a.html)" = "</html>" ]
    run ! grep -E 'https?://' <(grep -v 'xmlns="http://www.w3.org/2000/svg"' a.html | grep -v 'NS = "http')
    command -v xmllint >/dev/null || skip "no xmllint to parse it"
    run -0 xmllint --noout a.html
}

@test "what a run says stays text" {
    evil=$'</script><script>alert(1)</script>"\''
    make_run a 40
    jq=${evil//\"/\\\"}
    echo "{\"evaluation\": \"$jq\", \"step\": 40, \"$jq/loss\": 1}" >>a/metrics.jsonl
    echo "{\"description\": \"$jq\"}" >a/manifest.json
    echo "{\"$jq\": \"$jq\", \"data\": {\"dataset\": \"$jq\", \"split\": \"train\"}}" >a/config.json
    d9d-metrics report -q a -o a.html
    run ! grep -q '<script>alert' a.html
    [ "$(grep -o '</script>' a.html | wc -l)" = 2 ]
    grep -q '&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;' a.html
    command -v xmllint >/dev/null || skip "no xmllint to parse it"
    run -0 xmllint --noout a.html
}

@test "the plan stands beside what was measured" {
    make_run a 40
    echo '{"schema": "d9d.plan.v1", "step_s": 0.4, "tokens": 100, "mfu": 0.5, "schedule": null, "bubble": 0, "stages": [{"bytes": 2147483648, "work": [{"kind": "gemm", "calls": 7, "seconds": 0.25}], "messages": [{"group": "dp_shard", "call": "all_gather", "calls": 3, "seconds": 0.1}]}]}' >plan.json
    run -0 d9d-metrics report -q a --plan plan.json -o a.html
    has_words a.html "time of a step 400 ms 500 ms 1.25" "tokens per second 250 200 0.8" "MFU 50.0 % 40.0 % 0.8" \
        "device memory of a rank 2 GiB 1 GiB 0.5" "gemm 7 250 ms" "all_gather of dp_shard 3 100 ms"
    echo '{"schema": "d9d.dataset.v1"}' >other.json
    refuse 1 'other.json' a --plan other.json -o b.html
    refuse 2 'not found: none.json' a --plan none.json -o b.html
    refuse 2 '2 plans are given for 1 run; each run needs its own' a --plan plan.json,plan.json -o b.html
}

# refuse STATUS SENTENCE ARGUMENT...: the sentence, and no file.
refuse() {
    local wanted=$1 sentence=$2
    shift 2
    run -"$wanted" --separate-stderr d9d-metrics report "$@"
    [ -z "$output" ]
    [[ "$stderr" == *"$sentence"* ]] || { echo "said: $stderr"; return 1; }
    [ ! -e b.html ]
}

@test "bad input is named, and writes nothing" {
    make_run a 40
    refuse 2 'none: there is no such file, nor a run directory' none -o b.html
    refuse 2 'none: there is no such file, nor a run directory' a none -o b.html
    mkdir empty
    refuse 2 'empty/metrics.jsonl: there is no such file' empty -o b.html
    echo 'no run' >notes.txt
    refuse 1 'notes.txt: line 1: it is not a JSON object' notes.txt -o b.html
    refuse 2 '--out FILE is needed' a
    refuse 2 'expected RUN..., got 0 operands' -o b.html
    refuse 2 'gone/b.html' a -o gone/b.html
    refuse 2 '--out: 2 files are given, and one page is written' a -o b.html -o c.html
    [ ! -e c.html ]
    refuse 2 'a/metrics.jsonl' a -o a/metrics.jsonl
    grep -q '"loss"' a/metrics.jsonl
    echo '{"optimizer": ' >a/config.json
    refuse 1 'a/config.json' a -o b.html
}

@test "a run that has just begun has a page" {
    mkdir new && echo '{"step": 1, "loss": 3}' >new/metrics.jsonl
    run -0 d9d-metrics report -q new -o new.html
    assert_equal "$(sections new.html)" "summary losses"
    : >none.jsonl
    run -0 d9d-metrics report -q none.jsonl -o none.html
    # A file that is not called metrics.jsonl has no run directory around it.
    echo '{"mine": 1}' >config.json
    echo '{"step": 1, "loss": 3}' >one.jsonl
    d9d-metrics report -q one.jsonl -o one.html
    run ! grep -q configuration one.html
}

@test "a browser draws every chart, without an error" {
    browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || skip "no chromium"
    make_run a 40
    add_pipeline a
    d9d-metrics report -q a -o a.html
    "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$PWD/profile" --enable-logging=stderr \
        --dump-dom "file://$PWD/a.html" >dom 2>log 3>&- </dev/null || { cat log; skip "chromium does not start here"; }
    [ -s dom ] || skip "chromium shows nothing here"
    run ! grep CONSOLE log
    [ "$(grep -o '<path class="line"[^>]* d="M' dom | wc -l)" -ge 15 ] || { cat log; grep -c 'class="chart"' dom; false; }
    grep -q '<circle class="dot"' dom     # evaluations
    grep -q '<line class="restart"' dom
    grep -q '<path class="spike"' dom
    run ! grep -q '<div id="tools" hidden' dom

    # Evaluations of one run are told apart, and dense restarts leave the curve to be seen.
    make_long_run long 3000
    d9d-metrics report -q long -o long.html
    "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$PWD/profile" --dump-dom "file://$PWD/long.html" >dom 2>/dev/null 3>&- </dev/null
    grep -oE '<svg.*' dom | grep -m 1 -oE 'class="s[0-9]">|stroke-dasharray="[0-9 ]*"' | head -n 5 | xargs >looks
    assert_equal "$(cat looks)" "class=s0> class=s1> stroke-dasharray=5 3 class=s2> stroke-dasharray=2 3"
    [ "$(grep -o '<line class="restart"' dom | wc -l)" -lt 900 ] # 300 in each of 8 charts were 2400
}

@test "experts that the page shows are not said to be left out" {
    mkdir many
    for step in 1 2 3; do
        printf '{"step": %d, "loss": 2' $step
        for e in {0..63}; do printf ', "expert_load/0/%d": %d' "$e" $((e + 1)); done
        echo '}'
    done >many/metrics.jsonl
    run -0 --separate-stderr d9d-metrics report many -o many.html
    assert_equal "$stderr" "d9d-metrics: wrote many.html"
    grep -q '<section id="experts"' many.html
    # where they are columns, of which there are not so many, it is said
    run -0 --separate-stderr d9d-metrics show many
    [[ "$stderr" == *'many/metrics.jsonl: more than 32 keys of layers, experts or classes; "expert_load/0/32" is left out'* ]]
}
