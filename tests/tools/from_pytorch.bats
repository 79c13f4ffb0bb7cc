#!/usr/bin/env bats
# docs/howto/from-pytorch.md: the reference framework's examples, as they stand there.

load helper

@test "the page's commands run, and the model that it pretrains learns" {
    cd "$BATS_TEST_TMPDIR"
    root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    ln -s "$root/examples" .
    unset "${!SLURM_@}" "${!OMPI_COMM@}" "${!PMIX_@}"
    export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1
    awk '/^```/ { yes = $0 == "```sh"; next } yes' "$root/docs/howto/from-pytorch.md" >page.sh
    [ "$(wc -l <page.sh)" -ge 12 ]
    run -0 bash -eu -o pipefail page.sh
    assert_output --partial "model_provider.model.model: is model_provider.model here"
    assert_output --partial "model in model_export"
    assert_output --partial "model in lora_export"
    perplexity=$(sed -nE 's/.*"perplexity": ([0-9.]+).*/\1/p' <<<"$output")
    awk -v p="$perplexity" 'BEGIN { exit !(p > 1 && p < 30) }'
    [ -e logs/events.out.tfevents.0.d9d ] && [ -e saves ] && [ -e merged/model.safetensors ]
}
