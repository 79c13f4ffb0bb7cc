#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031,SC2154 # output and stderr are set by run
# d9d-metrics eval, as a user sees it.

setup() {
    load helper
    cd "$BATS_TEST_TMPDIR" || return 1
    printf '%s\n' '{"prediction": 0.9, "target": 1}' '' '{"prediction": 0.4, "target": 0}' \
        '{"prediction": 0.6, "target": false, "weight": 3}' '{"prediction": 0.2, "target": true}' >p
}

@test "eval prints a line a value" {
    run -0 --separate-stderr d9d-metrics eval -m f1 -m accuracy,threshold=0.5 -m confusion_matrix p
    [ "$output" = "metric                value
f1                      0.5
accuracy                0.5
confusion_matrix/0/0      1
confusion_matrix/0/1      1
confusion_matrix/1/0      1
confusion_matrix/1/1      1" ]
}

@test "eval says in JSON what it was asked" {
    run -0 --separate-stderr d9d-metrics eval -q --json -m binary_auroc -m recall,threshold=0.1 p p
    python=$(command -v python3) || skip "no python3 to read JSON"
    "$python" -c '
import json, sys
r = json.load(sys.stdin)
assert r["rows"] == 8, r
auroc, recall = r["metrics"]
assert auroc["name"] == "binary_auroc" and auroc["value"] == 0.5, auroc
assert auroc["config"]["num_bins"] == 0, auroc
assert recall["value"] == 1 and recall["config"]["threshold"] == 0.1, recall' <<<"$output"
}

@test "eval reads standard input, a last line without its newline, other keys, weights" {
    printf '{"p": 1, "w": 1}\n{"p": 4, "w": 0.5}' >q
    run -0 --separate-stderr d9d-metrics eval -q -m mean -p p -y '' -w w - <q
    [ "${lines[1]}" = "mean        2" ]
    run -0 --separate-stderr d9d-metrics eval -q -m '{"name": "sum"}' -p p -y '' q
    [ "${lines[1]}" = "sum         5" ]
}

@test "weights are refused by metrics that count all rows alike" {
    echo '{"prediction": 0.6, "target": 1, "w": 3}' >q
    for m in binary_auroc f1 accuracy confusion_matrix min max; do
        run -2 --separate-stderr d9d-metrics eval -q -m mean -m $m -w w q
        assert_equal "$stderr" "d9d-metrics: invalid configuration: metrics: $m counts all rows alike and takes no weights, here \"w\"; sum and mean do"
    done
    run -0 d9d-metrics eval -q -m mean -m sum -w w q
}

@test "a wrong metric is a mistake, with the nearest name" {
    run -2 d9d-metrics eval -m f3 p
    [[ "$output" == *'metrics[0].name: unknown word "f3"; expected sum, mean'* ]]
    run -2 d9d-metrics eval -m f1,treshold=0.3 p
    [[ "$output" == *'did you mean "threshold"'* ]]
    run -2 d9d-metrics eval -m f1,problem=multiclass p
    [[ "$output" == *"num_classes: needed where the problem is multiclass"* ]]
    run -2 d9d-metrics eval -m mean,sum p
    [[ "$output" == *'metric "mean,sum": "sum" is not KEY=VALUE'* ]]
    run -2 d9d-metrics eval -m '{"name": ' p
    run -2 d9d-metrics eval p
    [[ "$output" == *"--metric"* ]]
}

@test "a wrong line is named" {
    echo '{"prediction": [0.1, 0.2], "target": 1}' >>p
    run -1 d9d-metrics eval -m f1 p
    [[ "$output" == *'p:6: "prediction" has 2 numbers, and in the first line 1'* ]]
    echo '{"prediction": 0.1}' >p
    run -1 d9d-metrics eval -m f1 p
    [[ "$output" == *'p:1: no "target"'* ]]
    echo '{"prediction": "a", "target": 0}' >p
    run -1 d9d-metrics eval -m f1 p
    [[ "$output" == *'p:1: "prediction" must be a number or a list of numbers'* ]]
    echo '{"prediction": 0.1, "target": 2}' >p
    run -1 d9d-metrics eval -m f1 p
    [[ "$output" == *"f1: row 0: the target 2 is none of 2 classes"* ]]
    echo '[1' >p
    run -1 d9d-metrics eval -m f1 p
    [[ "$output" == *"p:1"* ]]
    run -2 d9d-metrics eval -m f1 absent
    [[ "$output" == *"absent: cannot open"* ]]
}

@test "lines with null are left out, and said to be" {
    run -0 --separate-stderr d9d-metrics eval -q -m f1 p
    whole=$output
    printf '%s\n' '{"prediction": null, "target": 1}' '{"prediction": 0.7, "target": null}' >>p
    run -0 --separate-stderr d9d-metrics eval -m f1 p
    assert_equal "$output" "$whole"
    [[ "$stderr" == *"2 of 6 lines have null for their prediction, target or weight, and are left out"* ]]
    run -0 d9d-metrics eval -q --json -m f1 p
    [[ "$output" == *'"rows": 4'*'"left_out": 2'* ]]
    printf '{"prediction": null}\n' >q
    run -0 --separate-stderr d9d-metrics eval -q -m f1 q
    [[ "$stderr" == *"all 1 lines have null for their prediction, target or weight, and are left out"* ]]
}

@test "no rows are no value" {
    : >p
    run -0 --separate-stderr d9d-metrics eval -q -m binary_auroc -m mean p
    [ "${lines[1]}" = "binary_auroc      -" ]
}
