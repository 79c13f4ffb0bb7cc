#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031 # output is set by run
# d9d-lrplot and the options that every tool has.

setup() {
    load helper
    config=$BATS_TEST_TMPDIR/train.json
    cat >"$config" <<'JSON'
{"mesh": {"pipeline_parallel": 4},
 "optimizer": {"name": "adamw", "lr": 0.1},
 "lr_scheduler": {"name": "piecewise", "scheduler": {"initial_multiplier": 0.0, "phases": [
   {"mode": "steps", "steps": 2, "target_multiplier": 1.0, "curve": {"type": "linear"}},
   {"mode": "percentage", "percentage": 0.5, "target_multiplier": 0.1},
   {"mode": "rest", "target_multiplier": 0.01, "curve": {"type": "linear"}}]}}}
JSON
}

@test "the table has a line a step" {
    run -0 --separate-stderr d9d-lrplot --table --steps 10 "$config"
    [ "${#lines[@]}" = 10 ]
    [ "${lines[0]}" = $'0\t0.0' ]
    [ "${lines[2]}" = $'2\t0.1' ]
    [ "${lines[7]}" = $'7\t0.0064' ]
    [ -z "$stderr" ]
}

@test "a section alone, or its scheduler alone, will do; - is standard input" {
    section='{"name": "piecewise", "scheduler": {"initial_multiplier": 1, "phases": [
        {"mode": "steps", "steps": 3, "target_multiplier": 1}]}}'
    run -0 d9d-lrplot -t - <<<"$section"
    [ "$output" = $'0\t1.0\n1\t1.0\n2\t1.0' ]
    run -0 d9d-lrplot -t - <<<'{"initial_multiplier": 1, "phases": [
        {"mode": "steps", "steps": 2, "target_multiplier": 0}]}'
    [ "$output" = $'0\t1.0\n1\t0.5' ]
}

@test "a run without lr_scheduler, or with null there, has a constant rate, and every example has a rate" {
    run -0 --separate-stderr d9d-lrplot -t -n 2 - <<<'{"optimizer": {"name": "adamw", "lr": 0.1}}'
    [ "$output" = $'0\t0.1\n1\t0.1' ]
    run -0 --separate-stderr d9d-lrplot -t -n 2 - <<<'{"optimizer": {"name": "adamw", "lr": 0.1}, "lr_scheduler": null}'
    [ "$output" = $'0\t0.1\n1\t0.1' ]
    for config in "$BATS_TEST_DIRNAME"/../../examples/{demo,lora,qwen3}/{train,lora}.json; do
        [ ! -e "$config" ] || d9d-lrplot -q -t -n 100 "$config" >"$BATS_TEST_TMPDIR/rates" || { echo "$config"; false; }
    done
}

@test "--json is a list, --set overrides" {
    run -0 d9d-lrplot --json -n 4 --set optimizer.lr=1 \
        --set 'lr_scheduler.scheduler.phases[1].percentage=1' "$config"
    [ "${lines[2]}" = ' {"step": 2, "lr": 1.0},' ]
    [ "${lines[3]}" = ' {"step": 3, "lr": 0.55}]' ]
}

@test "the terminal plot is as wide as COLUMNS, braille or letters" {
    COLUMNS=50 run -0 --separate-stderr d9d-lrplot -n 100 "$config"
    [ "${lines[0]}" = "Learning rate" ]
    [[ "$output" == *⠤* && "$output" != *$'\033'* ]]
    for line in "${lines[@]}"; do [ "${#line}" -le 50 ]; done
    LC_ALL=C run -0 --separate-stderr d9d-lrplot -n 100 "$config"
    [[ "$output" == *'*'* ]]
    run -1 grep -P '[^\x00-\x7f]' <<<"$output"
}

@test "the same SVG every time" {
    for f in a.svg b.svg; do
        run -0 d9d-lrplot -q -n 100 -o "$BATS_TEST_TMPDIR/$f" "$config"
        [ -z "$output" ]
    done
    cmp "$BATS_TEST_TMPDIR/a.svg" "$BATS_TEST_TMPDIR/b.svg"
    [ "$(cd "$BATS_TEST_TMPDIR" && echo [ab].*)" = "a.svg b.svg" ]
}

@test "PNG and PDF by the name, or a sentence where cairo was not there" {
    for f in c.png d.pdf; do
        run d9d-lrplot -q -n 100 -o "$BATS_TEST_TMPDIR/$f" "$config"
        case $output in *"images need cairo"*) assert_equal "$status" 2 && [ ! -e "$BATS_TEST_TMPDIR/$f" ] && skip "no cairo" ;; esac
        [ -z "$output" ]
    done
    [ "$(head -c 4 "$BATS_TEST_TMPDIR/c.png" | tail -c 3)" = PNG ]
    [ "$(head -c 4 "$BATS_TEST_TMPDIR/d.pdf")" = %PDF ]
    [ "$(cd "$BATS_TEST_TMPDIR" && echo [cd].*)" = "c.png d.pdf" ]
}

@test "steps are guessed where they must be, and said" {
    run -0 --separate-stderr d9d-lrplot -t "$config"
    [ "${#lines[@]}" = 1000 ]
    [[ "$stderr" == *"1000 steps"* ]]
}

# Bad input: what the options are, what is said, and the status.
bad() { # STATUS SENTENCE ARGUMENT...
    local status_wanted=$1 sentence=$2
    shift 2
    run -"$status_wanted" --separate-stderr d9d-lrplot "$@"
    [ -z "$output" ]
    [[ "$stderr" == *"$sentence"* ]] || { echo "said: $stderr"; return 1; }
}

@test "bad options are named" {
    bad 2 'unknown option --stpes; did you mean --steps?' --stpes 3 "$config"
    bad 2 'unknown option -z' -z "$config"
    bad 2 '--steps needs a value, N' "$config" --steps
    bad 2 '--steps: "1x" is not an integer' --steps=1x "$config"
    bad 2 '--steps: 0 is below the minimum of 1' -n0 "$config"
    bad 2 '--steps: 1000000000 is above the maximum of 100000000' -n 1000000000 "$config"
    bad 2 '--steps is given twice, as "3" and as "4"' -n 3 "$config" --steps=4
    bad 2 '--out is given twice, as "a.svg" and as "b.svg"' -oa.svg --out b.svg "$config"
    bad 2 '--table takes no value, got "yes"' --table=yes "$config"
    bad 2 'expected CONFIG.json, got 0 operands'
    bad 2 'one operand too many, "b"' a b
    bad 2 'lr.jpg: an image ends in .svg, .png or .pdf' -o lr.jpg "$config"
}

@test "bad configurations are named" {
    bad 2 'absent.json' absent.json
    bad 2 'standard input' - <<<'{"a": 1,}'
    bad 2 'standard input: expected a JSON object' - <<<'[1]'
    bad 2 'standard input: lr_scheduler: required key is missing' - <<<'{}'
    bad 2 'lr_scheduler.nam: unknown key; did you mean "name"?' --set lr_scheduler.nam=x "$config"
    bad 2 'unknown word "piecwise"; did you mean "piecewise"?' --set lr_scheduler.name=piecwise "$config"
    bad 2 'optimizer.lr: expected a number of at least 0' --set optimizer.lr=fast "$config"
    bad 2 'phases[0].steps: 0 is below the minimum of 1' \
        --set 'lr_scheduler.scheduler.phases[0].steps=0' "$config"
    bad 2 'phases[1]: ends at step 1 of 3, before it begins at 2' -n 3 "$config"
    bad 2 '--set x: expected KEY=VALUE' --set x "$config"
    bad 2 'there is no element 9 in a list of 3' --set lr_scheduler.scheduler.phases.9.steps=1 "$config"
}

@test "a full disk is a failure" {
    [ -w /dev/full ] || skip "no /dev/full"
    run -1 bash -c 'd9d-lrplot -n 100 -t "$1" >/dev/full' - "$config"
    [[ "$output" == *"standard output"* ]]
    run -2 d9d-lrplot -q -n 100 -o "$BATS_TEST_TMPDIR/none/lr.svg" "$config"
    [[ "$output" == *"none/lr.svg"* ]]
}

@test "--help and --version need nothing else" {
    run -0 --separate-stderr d9d-lrplot --help
    [[ "${lines[0]}" == "usage: d9d-lrplot "* ]]
    [ -z "$stderr" ]
    run -0 d9d-lrplot -V
    [[ "$output" =~ ^d9d-lrplot\ [0-9]+\.[0-9]+ ]]
}
