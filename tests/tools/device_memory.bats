#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats and of the helper
# A device whose memory is almost full: the same losses, and a word about steps that wait for memory.

load train_bench

losses() { grep -o '"loss": [^,]*' "$1/metrics.jsonl"; }

@test "with the least memory that is enough, losses are the same and the wait is said once" {
    run -0 d9d-train -q -d cpu --set trainer.run.steps=15 --set trainer.run.dir=all c.json
    refute_output --partial 'memory is short'
    most=$(grep -o '"mem_bytes": [0-9]*' all/metrics.jsonl | tail -n 1 | tr -dc 0-9)
    for ((k = 100; k <= 130; k++)); do
        rm -rf least
        run d9d-train -q -d cpu@$((most * k / 100)) --set trainer.run.steps=15 --set trainer.run.dir=least c.json
        [ "$status" = 0 ] && break
        assert_output --partial 'out of device memory'
    done
    [ "$status" = 0 ]
    diff <(losses all) <(losses least)
    [ "$(grep -c 'cpu: memory is short: [0-9]* times in the last 10 steps' <<<"$output")" = 1 ]
}
