#!/usr/bin/env bats
# shellcheck disable=SC2030,SC2031 # output is set by run
# Environment variables with which no tool can work.

setup() {
    load helper
    tools=(d9d-shard d9d-map d9d-train d9d-infer d9d-metrics d9d-lrplot)
    words=("inspect data" "plan model" c.json c.json "show run" c.json)
}

# For all tools: $1 is the value of OMP_NUM_THREADS.
refused() {
    local i
    for i in "${!tools[@]}"; do
        # shellcheck disable=SC2086 # two words
        OMP_NUM_THREADS=$1 run -2 "${tools[$i]}" ${words[$i]}
        [[ $output = *"OMP_NUM_THREADS is \"$1\" in the environment: at most 4096 threads compute"* ]]
        [ "${#lines[@]}" = 1 ]
    done
}

@test "more threads than can be begun are refused by every tool" {
    cd "$BATS_TEST_TMPDIR"
    refused 100000
    refused 4097
}

@test "help and version need no threads" {
    for tool in "${tools[@]}"; do
        OMP_NUM_THREADS=100000 run -0 "$tool" --help
        OMP_NUM_THREADS=100000 run -0 "$tool" --version
    done
}
