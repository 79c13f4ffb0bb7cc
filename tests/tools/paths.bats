#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# Every tool rejects unusable paths: exit status 2, one message with the path, and nothing is made.

load train_bench

# What is wrong with a path, by what it is to be.  closed, secret and ro may not be entered, read,
# written to; nowhere is a link to nothing.
declare -gA wrong=(
    [file]="none plain/x empty secret closed/x nowhere"
    [input]="none plain/x closed/x nowhere"
    [dir]="none plain empty closed nowhere pipe"
    [run]="none plain/x empty secret closed nowhere pipe"
    [adapter]="none plain empty closed nowhere pipe"
    [out]="plain/x ro/x closed/x nowhere/x pipe/x"
)

# A line: what @ is to be, and the command.
table() {
    cat <<'LINES'
file d9d-shard --format tokens --out made @
file d9d-shard --tokenizer @ --out made text.jsonl
file d9d-shard --format chat --tokenizer tokenizer.json --template @ --out made text.jsonl
out d9d-shard --format tokens --out @ train.jsonl
dir d9d-shard inspect @
input d9d-shard verify @
dir d9d-shard export @ made
out d9d-shard export plain_data @
dir d9d-shard merge made @
input d9d-map @ made
out d9d-map moe @
file d9d-map --mapper @ moe made
adapter d9d-map --adapter @ moe made
input d9d-map --model @ moe made
input d9d-map plan @
dir d9d-map verify @
dir d9d-map diff moe @
dir d9d-map diff @ moe
input d9d-map init --model @ made
out d9d-map init --model moe/config.json @
run d9d-metrics show @
run d9d-metrics summary @
run d9d-metrics compare lived @
run d9d-metrics follow @
run d9d-metrics plot -o made.svg @
out d9d-metrics plot -o @.svg lived
run d9d-metrics export --to csv @
out d9d-metrics export --to csv -o @ lived
out d9d-metrics export --to tfevents -o @ lived
input d9d-metrics samples --step 1 @
run d9d-metrics spikes @
dir d9d-metrics flight @
file d9d-metrics eval -m f1 @
file d9d-lrplot @
out d9d-lrplot -n 5 -o @.svg rate.json
file d9d-train @
dir d9d-train --set data.dataset=@ c.json
input d9d-train --set model_provider.hf_config=@ c.json
dir d9d-train --set trainer.model_stage_factory.source_checkpoint=@ c.json
file d9d-train --skip-samples @ c.json
out d9d-train --set trainer.run.dir=@ c.json
out d9d-train --set trainer.checkpointing.save_dir=@ c.json
out d9d-train --set export_to=@ c.json
file d9d-infer @
dir d9d-infer --set data.dataset=@ i.json
dir d9d-infer --set trainer.model_stage_factory.source_checkpoint=@ i.json
adapter d9d-infer --set trainer.model_stage_factory.source_adapter=@ i.json
out d9d-infer --set task.output=@ i.json
LINES
}

setup() {
    bench
    cp -r "$golden/moe" moe
    cp moe/train.jsonl "$BATS_TEST_DIRNAME/../../examples/tokenizer/tokenizer.json" .
    mkdir lived empty
    echo '{"step": 1, "loss": 1.0}' >lived/metrics.jsonl
    echo '{"text": "a"}' >text.jsonl
    echo '{"input_ids": [1, 2, 3]}' >ids.jsonl
    d9d-shard -q --format tokens --out plain_data ids.jsonl
    echo '{"name": "piecewise", "scheduler": {"initial_multiplier": 1.0, "phases":
        [{"mode": "rest", "target_multiplier": 1.0, "curve": {"type": "linear"}}]}}' >rate.json
    echo plain >plain
    echo secret >secret
    mkdir closed ro
    chmod 0 secret closed
    chmod 555 ro
    ln -s gone nowhere
    mkfifo pipe
    # The superuser may do all that, but without these capabilities.
    may=()
    [ "$(id -u)" -ne 0 ] || may=(setpriv "--bounding-set=-dac_override,-dac_read_search")
}
teardown() { chmod 700 closed ro && clear_bench; }

# refused PATH: by the command that was run.
refused() {
    [ "$status" -eq 2 ] && [ -z "$output" ] && [ "${#stderr_lines[@]}" -eq 1 ] &&
        [[ "$stderr" == *": ${1%/x}"* && "$stderr" != *" is there already"* ]] &&
        [ "$(ls -A)" = "$before" ]
}

@test "a path that cannot be used is refused by every tool, as its user's mistake" {
    local tried=0 before kind words path command
    : >found
    before=$(ls -A)
    while read -r kind words; do
        for path in ${wrong[$kind]}; do
            read -ra command <<<"${words//@/$path}"
            run --separate-stderr "${may[@]}" timeout 600 "${command[@]}" --quiet </dev/null
            refused "$path" || echo "${command[*]}: exit status $status: $output$stderr"
            tried=$((tried + 1))
        done
    done < <(table) >found
    cat found
    [ ! -s found ]
    [ "$tried" -gt 100 ]
}
