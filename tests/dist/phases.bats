#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of the helper
# A rank that hangs ends the job after the limit of the phase that it hangs in, which is named.

load ../slurm/helper
patience=90
load topology

# hung WHERE LIMIT SECONDS [KEY=VALUE...]: rank 1 opens no file of that name.
hung() {
    local where=$1 limit=$2 seconds=$3 sets=() s
    shift 3
    for s; do sets+=(--set "$s"); done
    [ -e hang.so ] || ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o hang.so "$BATS_TEST_DIRNAME/hang.c" -ldl
    rm -rf run
    through=(env HANG_AT="$where" HANG_RANK=1 LD_PRELOAD="$PWD/hang.so")
    run train dense "1 2 1 1 1 1" run "${sets[@]}"
    [ "$status" -ne 0 ] && [ "$status" -ne 124 ]
    [[ $output = *"; $limit is $seconds s"* ]] || { echo "$output"; return 1; }
    echo "$output"
}

@test "each phase has a limit of its own, and the one that ends the job is said" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    # What an older configuration says holds for all of them.
    hung step-00000010.tmp "in a save, trainer.timeout.save_timeout" 3 trainer.timeout.init_timeout=3
    hung step-00000010.tmp "in a save, trainer.timeout.save_timeout" 4 trainer.timeout.save_timeout=4
    hung export.partial "in the export, trainer.timeout.export_timeout" 4 trainer.timeout.export_timeout=4 \
        trainer.timeout.save_timeout=1000
}
