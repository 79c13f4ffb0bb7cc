#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031 # output is set by run
# d9d-metrics, as a user sees it.

setup() {
    load helper
    cd "$BATS_TEST_TMPDIR" || return 1
    make_run a 3
    make_run b 2.5
}

# A run of five steps whose loss falls from FIRST by a half a step; saved, restarted.
make_run() { # NAME FIRST
    mkdir -p "$1"
    {
        for i in 1 2 3; do record "$i" "$2"; done
        echo '{"end": "saved"}'
        echo '{"restart": 1, "step": 2, "time": "2026-01-31T12:00:00Z"}'
        for i in 3 4 5; do record "$i" "$2"; done
    } >"$1/metrics.jsonl"
}

record() { # STEP FIRST
    awk -v i="$1" -v f="$2" 'BEGIN {
        printf "{\"step\": %d, \"loss\": %g, \"grad_norm\": %s, \"lr\": 0.001, \"tokens\": %d,", i,
            f / 2 ^ (i - 1), i == 4 ? "null" : "1.5", 100 * i
        printf " \"step_ms\": 500, \"tokens_per_s\": %d, \"custom\": {\"x\": 1}}\n", 200 + i }'
}

@test "show has a curve and a table" {
    run -0 --separate-stderr d9d-metrics show a
    [ "${lines[0]}" = loss ]
    [[ "$output" == *"step    loss  grad_norm     lr  tokens  tokens_per_s  step_ms"* ]]
    [ "${lines[-1]}" = "5     0.1875        1.5  0.001     500           205      500" ]
    [[ "${lines[-2]}" == "4      0.375          -"* ]]
    [ -z "$stderr" ]
}

@test "show takes columns and rows, a file or a directory" {
    run -0 d9d-metrics show -k lr,loss --rows 2 a/metrics.jsonl
    [ "${lines[-3]}" = "step     lr    loss" ]
    [ "${lines[-2]}" = "1     0.001       3" ]
    [ "${lines[-1]}" = "5     0.001  0.1875" ]
}

@test "summary counts what happened" {
    run -0 d9d-metrics summary a b
    [[ "$output" == *"last_loss      0.1875  0.15625"* ]]
    run -0 d9d-metrics summary --json a
    python=$(command -v python3) || skip "no python3 to read JSON"
    "$python" -c '
import json, sys
(s,) = json.load(sys.stdin)
assert s["records"] == 5 and s["restarts"] == 1 and s["end"] is None, s
assert s["first_loss"] == 3 and s["min_loss"] == 0.1875 and s["min_loss_step"] == 5, s
assert s["tokens"] == 500 and s["seconds"] == 2.5 and s["tokens_per_s"] == 203, s
assert s["mfu"] is None, s' <<<"$output"
}

# A metric of every third record, null at step 30; and an own value of a step without a record.
make_periodic() { # NAME
    mkdir -p "$1"
    awk 'BEGIN { for (i = 1; i <= 60; i++) {
        acc = i % 3 ? "" : sprintf(", \"accuracy\": %s", i == 30 ? "null" : i / 100)
        printf "{\"step\": %d, \"loss\": %g%s}\n", i, 3 - i / 60, acc }
        print "{\"values\": 63, \"mine/x\": 1}" }' >"$1/metrics.jsonl"
}

@test "records without a column are none of its own" {
    make_periodic p
    run -0 --separate-stderr d9d-metrics show -k accuracy -r 0 p
    [ "$(sed -n '/^step/,$p' <<<"$output" | awk 'NR > 1 { print $1 }' | xargs)" = "$(seq -s ' ' 3 3 60)" ]
    [[ "$output" == *$'\n30           -\n'* ]]
    run -0 --separate-stderr d9d-metrics follow --idle 0 -k accuracy,mine/x p
    [ "$(awk 'NR > 1 { print $1 }' <<<"$output" | xargs)" = "$(seq -s ' ' 3 3 60) 63" ]
    run -0 d9d-metrics spikes --json -k accuracy -w 8 p
    [ "$(jq -c '[.[].spikes[].step]' <<<"$output")" = "[30]" ] # it is not finite
    d9d-metrics plot -q -k accuracy -o p.svg p
    [ "$(grep -c '<polyline .*stroke-linejoin' p.svg)" -eq 2 ] # before and behind step 30
    d9d-metrics report -q -o p.html p
    grep -q '"rows":20,' p.html
    run -0 d9d-metrics summary --json p
    [ "$(jq -c '.[0] | [.records, .last_step, .last_loss]' <<<"$output")" = "[60,60,2]" ]
}

# Fifty steps and evaluations of two sets: of valid at 0 and every seventh step and at the end, of
# few at 21 and 42.
make_evaluated() { # NAME ADDED
    mkdir -p "$1"
    awk -v d="$2" 'function valid(i) { printf "{\"evaluation\": \"valid\", \"step\": %d, \"valid/tokens\": 9, \"valid/loss\": %s, \"valid/f1\": %g, \"valid/mean\": 1, \"valid/confusion_matrix/0/1\": 3}\n",
            i, i == 49 ? "null" : 9 - i / 10 + (i > 28) * 3 + d, i / 100 }
        BEGIN { valid(0)
            for (i = 1; i <= 50; i++) {
                printf "{\"step\": %d, \"loss\": %g, \"step_ms\": 100}\n", i, 8 - i / 10
                if (i % 7 == 0 || i == 50) valid(i)
                if (i % 21 == 0) printf "{\"evaluation\": \"few\", \"step\": %d, \"few/loss\": 3}\n", i
            } }' >"$1/metrics.jsonl"
}

@test "evaluations have their columns, at their steps" {
    make_evaluated e 0
    run -0 d9d-metrics show e
    [[ "$output" == *"step  loss  grad_norm  lr  tokens  tokens_per_s  step_ms  valid/loss  valid/f1  valid/mean  few/loss"* ]] || { echo "$output"; return 1; }
    [[ "$output" == *$'\nvalid/loss\n'* ]] # a curve of its own
    table=$(sed -n '/^step/,$p' <<<"$output")
    [ "$(awk 'NR > 1 && $8 != "-" { print $1 }' <<<"$table" | xargs)" = "0 7 14 21 28 35 42 50" ] || { echo "$table"; return 1; }
    [ "$(wc -l <<<"$table")" = 21 ]
    # Of its own column each record has a value, and those of other columns alone are left out.
    run -0 d9d-metrics show -k valid/loss e
    [ "$(sed -n '/^step/,$p' <<<"$output" | awk 'NR > 1 { print $1 ":" $2 }' | xargs)" = "0:9 7:8.3 14:7.6 21:6.9 28:6.2 35:8.5 42:7.8 49:- 50:7" ]
    run -0 d9d-metrics show -k loss -r 0 e
    [ "$(grep -cE '^[0-9]+  +[0-9.]+$' <<<"$output")" = 50 ] || { echo "$output"; return 1; }
}

@test "summary has the last and the best of each evaluation" {
    make_evaluated e 0
    run -0 d9d-metrics summary e a
    for line in "first_step 1 1" "last_step 50 5" "records 50 5" "last_valid/loss 7 -" "last_valid/loss_step 50 -1" \
        "best_valid/loss 6.2 -" "best_valid/loss_step 28 -1" "best_valid/f1 0.5 -" "best_valid/f1_step 50 -1" \
        "last_valid/mean 1 -" "last_few/loss 3 -" "best_few/loss_step 21 -1"; do
        tr -s ' ' <<<"$output" | grep -qxF -- "$line" || { echo "no $line in:"; echo "$output"; return 1; }
    done
    [[ "$output" != *"best_valid/mean"* && "$output" != *confusion* && "$output" != *valid/tokens* ]]
    run -0 d9d-metrics summary a
    [[ "$output" != *valid* ]]
    run -0 d9d-metrics summary --json e
    [[ "$(tr -d ' \n' <<<"$output")" == *'"evaluation":{"valid/loss":{"last":7,"last_step":50,"best":6.2,"best_step":28},"valid/f1":{"last":0.5,"last_step":50,"best":0.5,"best_step":50},"valid/mean":{"last":1,"last_step":50,"best":null,"best_step":-1},"few/loss":'* ]] || { echo "$output"; return 1; }
    run -0 d9d-metrics summary --json a
    [[ "$output" != *evaluation* ]]
}

@test "evaluations are compared where both have them, and drawn as lines" {
    make_evaluated e 0
    make_evaluated f 0.25
    run -0 d9d-metrics compare -k valid/loss -r 0 e f
    [ "${#lines[@]}" = 11 ] || { echo "$output"; return 1; }
    [ "$(tr -s ' ' <<<"${lines[2]}")" = "7 8.3 8.55 0.25" ] || { echo "$output"; return 1; }
    [[ "${lines[-1]}" == *"(9 common steps)" ]]
    run -0 d9d-metrics compare e f -k loss
    [[ "${lines[-1]}" == *"(50 common steps)" ]]
    run -0 d9d-metrics plot -q e -o p.svg
    grep -q '>valid/loss<' p.svg
    grep -q '>few/loss<' p.svg
    run -0 d9d-metrics plot -q e -k valid/f1 -o p.svg
    [ "$(grep -oE '<polyline[^>]*points="[^"]*"' p.svg | grep -oE '[0-9.]+,[0-9.]+' | wc -l)" -ge 9 ] || { cat p.svg; return 1; }
    # Records that have no value of the kind do not stand out by that.
    for i in {1..40}; do
        echo "{\"step\": $i, \"loss\": 1}"
        [ $((i % 2)) = 1 ] || echo "{\"evaluation\": \"v\", \"step\": $i, \"v/loss\": $((i == 30 ? 9 : 2))}"
    done >s.jsonl
    run -0 d9d-metrics spikes -k v/loss s.jsonl
    [ "$(grep -cE '^[0-9]' <<<"$output")" = 1 ] || { echo "$output"; return 1; }
}

@test "follow shows an evaluation that comes behind its step" {
    d9d-metrics follow a >out 2>err 3>&- &
    pid=$!
    d9d-metrics follow --json a >out.json 2>err 3>&- &
    json=$!
    wait_for grep -q '^ *5 ' out
    wait_for grep -q '"step": 5' out.json
    echo '{"evaluation": "valid", "step": 5, "valid/loss": 2.75}' >>a/metrics.jsonl
    wait_for grep -q valid/loss out
    wait_for grep -q valid/loss out.json
    { record 6 3; echo '{"end": "done"}'; } >>a/metrics.jsonl
    wait $pid $json
    [ "$(sed -n '/valid.loss/,$p' out | tr -s ' ' | sed 's/^ //')" = "step loss grad_norm lr tokens tokens_per_s step_ms valid/loss
5 - - - - - - 2.75
6 0.09375 1.5 0.001 600 206 500 -" ] || { cat out; return 1; }
    grep -qxF '{"step": 5, "valid/loss": 2.75}' out.json || { cat out.json; return 1; }
}

@test "compare goes by step" {
    run -0 d9d-metrics compare a b
    [ "${lines[1]}" = "1          3      2.5        -0.5" ]
    [ "${lines[-1]}" = "b: largest difference from a is 0.5, at step 1 (5 common steps)" ]
    echo '{"step": 9, "loss": 1}' >c.jsonl
    run -2 d9d-metrics compare a c.jsonl
    [[ "$output" == *"no step was logged by all of the 2 runs"* ]]
}

@test "follow prints what comes, to the end of the run" {
    d9d-metrics follow a >out 2>err 3>&- &
    pid=$!
    wait_for grep -q '^ *5 ' out
    printf '{"step": 6, "lo' >>a/metrics.jsonl
    sleep 0.3
    printf 'ss": 7}\n{"end": "done"}\n' >>a/metrics.jsonl
    wait $pid
    [ "$(awk '{ print $1 }' out | xargs)" = "step 1 2 3 4 5 6" ] || { cat out; return 1; }
    grep -q 'the run ended: done' err
}

@test "follow stops on a signal or when nothing comes" {
    d9d-metrics follow --json a >out 3>&- &
    pid=$!
    wait_for grep -q '"step": 5' out
    kill -INT $pid
    wait $pid
    [ "$(wc -l <out)" = 5 ]
    run -0 d9d-metrics follow --idle 1 a
    run -0 timeout 600 d9d-metrics follow --json --idle 0 a
    [ "${#lines[@]}" = 5 ]
}

@test "plot draws into a file" {
    run -0 d9d-metrics plot -q a b -o p.svg
    grep -q '>grad_norm<' p.svg
    run d9d-metrics plot -q a -k loss --log -o p.png
    [[ "$output" == *"images need cairo"* ]] || [ "$(head -c 4 p.png | tail -c 3)" = PNG ]
    run -2 d9d-metrics plot a
    [[ "$output" == *"--out FILE is needed"* ]]
    run -2 d9d-metrics plot a -o p.gif
    [ ! -e p.gif ]
}

@test "export writes CSV" {
    run -0 d9d-metrics export --to csv a b
    [ "${lines[0]}" = run,step,loss,grad_norm,lr,tokens,step_ms,tokens_per_s ]
    [ "${lines[4]}" = a,4,0.375,,0.001,400,500,204 ]
    [ "${#lines[@]}" = 11 ]
    run -0 d9d-metrics export --to csv -o x.csv a b
    [ -z "$output" ]
    [ "$(wc -l <x.csv)" = 11 ]
}

@test "export writes event files" {
    run -0 d9d-metrics export -q --to tfevents -o tb a b
    [ "$(cd tb && find . -type f | sort | xargs)" = \
        "./a/events.out.tfevents.0.d9d ./b/events.out.tfevents.0.d9d" ]
    grep -q brain.Event:2 tb/a/events.out.tfevents.0.d9d
    run -2 d9d-metrics export --to tfevents a
    run -2 d9d-metrics export --to tfevents -o tb a ./a/
    [[ "$output" == *"are both called a"* ]]
}

@test "a run has a name even where it is given as a dot" {
    cd a
    run -0 d9d-metrics export --to csv . ../a/
    [[ "${lines[1]}" == a,1,* && "${lines[6]}" == a,1,* ]]
    cp metrics.jsonl ..
    run -0 d9d-metrics export --to csv ..
    [[ "${lines[1]}" != ..,* ]]
}

@test "a line that is being written is left out" {
    printf '{"step": 6, "loss": 1' >>a/metrics.jsonl
    run -0 --separate-stderr d9d-metrics summary a
    [[ "$output" == *"last_step           5"* ]]
    [[ "$stderr" == *"the last line is not complete"* ]]
}

@test "escape sequences in a file do not reach the terminal" {
    echo '{"step": 1, "loss": 1, "\u001b[31mred": 2}' >esc.jsonl
    run -0 d9d-metrics show -k $'\033[31mred' esc.jsonl
    [[ "$output" != *$'\033'* ]]
}

# Bad input: what is said, and the status.
bad() { # STATUS SENTENCE ARGUMENT...
    local status_wanted=$1 sentence=$2
    shift 2
    run -"$status_wanted" --separate-stderr d9d-metrics "$@"
    [ -z "$output" ]
    [[ "$stderr" == *"$sentence"* ]] || { echo "said: $stderr"; return 1; }
}

@test "names in CSV have no control characters, and are quoted where they must be" {
    esc=$'e\033[31mvil\nrun'
    mkdir "$esc"
    printf '{"step": 1, "loss": 2, "a,\\"b\\u001b[2J": 3}\n' >"$esc/metrics.jsonl"
    run -0 d9d-metrics export --to csv "$esc"
    assert_equal "$output" $'run,step,loss,"a,""b?[2J"\ne?[31mvil?run,1,2,3'
}

@test "bad command lines are named" {
    bad 2 'expected a command'
    bad 2 'unknown command "sumary"; did you mean "summary"?' sumary a
    bad 2 'expected RUN..., got 0 operands' show
    bad 2 'expected RUN RUN..., got 1 operand' compare a
    bad 2 'one operand too many, "b"' follow a b
    bad 2 'no run has the key "los"; did you mean "loss"?' show -k los a
    bad 2 'no run has the key "custom"' compare --key custom a b
    bad 2 '--to: unknown word "cvs"; did you mean "csv"?' export --to cvs a
    bad 2 '--to FORMAT is needed' export a
    bad 2 '--keys: an empty word in its list' show -k loss,,lr a
    bad 2 '--rows: -1 is below the minimum of 0' show --rows -1 a
}

@test "a file takes the place of a file alone, behind a link too" {
    mkfifo pipe
    bad 2 'pipe: is there already and is not a regular file' export --to csv -o pipe a
    [ -p pipe ]
    echo old >target && ln -s target link
    d9d-metrics export -q --to csv -o link a
    [ -L link ] && grep -q '^run,step' target
}

@test "numbers near the largest are left out of a drawing" {
    printf '{"step": 1, "loss": %s}\n{"step": 2, "loss": %s}\n' 1e308 -1e308 >big.jsonl
    run -0 d9d-metrics show big.jsonl
    [[ "$output" != *nan* && "$output" != *2147483648* ]]
}

@test "bad files are named" {
    bad 2 'none: there is no such file, nor a run directory' show none
    mkdir empty
    bad 2 'empty/metrics.jsonl: there is no such file' show empty
    echo '{"step": 1} x' >bad.jsonl
    bad 1 'malformed data: bad.jsonl: line 1: it is not a JSON object' show bad.jsonl
    printf '{"loss": 2}\n{"loss": 1}\n' >bad.jsonl
    bad 1 'bad.jsonl: line 1: a record needs its step' summary bad.jsonl
    head -c 3000000 /dev/zero >bad.jsonl
    bad 1 'bad.jsonl: line 1: it is longer than 1048576 bytes' summary bad.jsonl
    bad 1 'bad.jsonl' show a bad.jsonl
}

@test "a run without records is no error" {
    : >none.jsonl
    run -0 d9d-metrics summary none.jsonl
    run -0 d9d-metrics show none.jsonl
    run -0 d9d-metrics export --to csv none.jsonl
    [ "$output" = run,step ]
    run -2 d9d-metrics plot none.jsonl -o p.svg
}

# A run directory of three steps whose samples are texts.
make_samples() {
    printf '{"text": "int main(%s)"}\n' a b c d e >docs.jsonl
    d9d-shard -q -t "$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json" -o data docs.jsonl
    mkdir run
    echo '{"data": [{"dataset": "data", "split": "train"}, {"dataset": "lost", "split": "train"}]}' >run/config.json
    {
        echo '{"step": 1, "first": 0, "samples": [3, 1]}'
        echo '{"step": 2, "first": 2, "samples": [4, 0], "datasets": [0, 1], "skipped": [4]}'
        printf '{"step": 3, "first": 4, "sam'
    } >run/samples.jsonl
}

@test "samples that are made have no text, whatever lies under their name" {
    make_samples
    echo '{"data": {"dataset": "data", "source": {"name": "random"}, "split": "train"}}' >run/config.json
    run -0 --separate-stderr d9d-metrics samples run --step 1
    [ "${lines[2]}" = '     0            3  data, train' ]
    run -2 d9d-metrics samples run --step 1 --text
    assert_output "d9d-metrics: not found: data: its samples are made by random and have no text"
    run -0 --separate-stderr d9d-metrics samples run --step 1 --text --dataset data
    assert_line 'int⟦ main(d)⟧'
}

@test "samples tells what made a step" {
    make_samples
    run -0 --separate-stderr d9d-metrics samples run --step 2
    [ "$output" = 'step 2: 2 samples, 2 to 3 of the stream
left out: 4
   row       sample  dataset
     0            4  data, train
     1            0  lost, train' ]
    run -0 --separate-stderr d9d-metrics samples run --step 1 --text
    [ "$output" = 'step 1: 2 samples, 0 to 1 of the stream

=== row 0: sample 3 of data, train
int⟦ main(d)⟧

=== row 1: sample 1 of data, train
int⟦ main(b)⟧' ]
    run -0 --separate-stderr d9d-metrics samples run/samples.jsonl -s 2 --text --dataset data,data --json
    [[ "$(tr -d ' \n' <<<"$output")" == *'"dataset":"data","split":"train","sample":0,"text":"int⟦main(a)⟧\n"}],"skipped":[4]}' ]]
}

@test "samples refuses with a sentence" {
    make_samples
    refused() { # STATUS SENTENCE ARGUMENT...
        run "-$1" --separate-stderr d9d-metrics samples "${@:3}"
        [[ "$stderr" == *"$2"* ]] || { echo "$stderr"; false; }
        [ -z "$output" ]
    }
    refused 2 '--step N is needed' run
    refused 2 'run/samples.jsonl: has no step 3; it has 1 to 2' run -s 3 # its line is not whole
    refused 2 'a/samples.jsonl: cannot open' a -s 1
    refused 2 '--dataset DIR says where' run -s 2 --text
    refused 2 'run/config.json: has 2 datasets; 1 are given in their place' run -s 2 -d data
    echo '{"step": 1, "first": 0, "samples": [5, -1]}' >run/samples.jsonl
    refused 1 '"samples" has no number' run -s 1
    echo '{"step": 1, "first": 0, "samples": [5]}' >run/samples.jsonl
    refused 2 'sample 5 of the split' run -s 1 --text
    echo '{"step": 1, "first": 0, "samples": [0], "datasets": [2]}' >run/samples.jsonl
    refused 1 '"datasets" has no number below 2' run -s 1
    echo 'x' >run/samples.jsonl
    refused 1 'line 1 is of no step' run -s 1
    echo '{"step": 1, "first": 0, "count": 2}' >run/samples.jsonl
    refused 1 'step 1 has neither samples nor a sampler' run -s 1
    for stream in '' '{}' '{"samples": 0, "order": "shuffled", "seed": 1, "weight": 1}' '{"samples": 5, "order": "bucketed", "seed": 1, "weight": 1}'; do
        echo '{"step": 1, "first": 0, "count": 2, "sampler": ['"$stream"']}' >run/samples.jsonl
        refused 1 'run/samples.jsonl: ' run -s 1
    done
    echo '{"step": 1, "first": 0, "count": -2, "sampler": [{"samples": 5, "order": "shuffled", "seed": 1, "weight": 1}]}' >run/samples.jsonl
    refused 1 '"count"' run -s 1
}

@test "a link to nothing where a file is to be made stays, and is said" {
    ln -s nowhere made.csv
    ln -s loop.csv loop.csv
    for out in made.csv loop.csv; do
        run -2 --separate-stderr d9d-metrics export --to csv -o "$out" a
        [ "$stderr" = "d9d-metrics: unusable path: $out: cannot create: a link to nothing has its name" ]
        [ -L "$out" ]
    done
}

@test "what is made of a run does not take the place of its record" {
    cp a/metrics.jsonl before
    ln -s a/metrics.jsonl link
    for out in a/metrics.jsonl ./a/../a/metrics.jsonl link; do
        run -2 --separate-stderr d9d-metrics export --to csv -o "$out" b a
        [[ "$stderr" == *"$out: is to be replaced, but the input a/metrics.jsonl is the same" ]]
        cmp before a/metrics.jsonl
    done
    cp a/metrics.jsonl a.svg
    run -2 --separate-stderr d9d-metrics plot -o a.svg a.svg
    cmp before a.svg
    d9d-metrics export --to csv -o a/metrics.csv a
}
