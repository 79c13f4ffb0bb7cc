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
    [ "${#lines[@]}" = 1 ]
    run -0 --separate-stderr d9d-metrics spikes -d 0.1 -w 8 a
    [ "${#lines[@]}" -gt 10 ]
}

@test "the first records are not judged; other columns are" {
    run -0 --separate-stderr d9d-metrics spikes -k grad_norm a
    [ "${#lines[@]}" = 1 ]
    sed -i 's/{"step": 30, \(.*\)"grad_norm": 1}/{"step": 30, \1"grad_norm": 1.1}/' a/metrics.jsonl
    run -0 --separate-stderr d9d-metrics spikes -k grad_norm -w 8 --json a
    [[ "$output" == *'"key": "grad_norm"'*'"step": 30'*'"value": 1.1'* ]]
    run -2 d9d-metrics spikes -k gradnorm a
    [[ "$output" == *'did you mean "grad_norm"'* || "$output" == *grad_norm* ]]
    run -2 d9d-metrics spikes -w 7 a
}
