#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of the helper
# A rank that hangs ends the job after the timeout of the phase in which it hangs; the message names
# the phase.

load ../slurm/helper
load topology

# hung DIR FILE LIMIT SECONDS [KEY=VALUE...]: rank 1 hangs when it opens FILE; the message must name
# LIMIT and SECONDS.
hung() {
    local dir=$1 where=$2 limit=$3 seconds=$4 sets=() s status=0
    shift 4
    for s; do sets+=(--set "$s"); done
    # shellcheck disable=SC2034 # of topology.bash
    through=(env HANG_AT="$where" HANG_RANK=1 LD_PRELOAD="$PWD/hang.so")
    train dense "1 2 1 1 1 1" "$dir" "${sets[@]}" >"$dir.out" 2>&1 || status=$?
    [ "$status" -ne 0 ] && [ "$status" -ne 124 ] && grep -F "; $limit is $seconds s" "$dir.out" && return
    echo "$dir: status $status"
    cat "$dir.out"
    return 1
}

@test "each phase has its own timeout, and the message names it" {
    [ -z "${D9D_SAN:-}" ] || skip "two libraries that want to be the first"
    ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o hang.so "$BATS_TEST_DIRNAME/hang_preload.c" -ldl
    local pids=() pid bad=0
    # init_timeout, the key of older configurations, applies to all phases.
    hung old step-00000010.tmp "in a save, trainer.timeout.save_timeout" 12 trainer.timeout.init_timeout=12 & pids+=($!)
    hung save step-00000010.tmp "in a save, trainer.timeout.save_timeout" 13 trainer.timeout.save_timeout=13 & pids+=($!)
    hung export export.partial "in the export, trainer.timeout.export_timeout" 13 trainer.timeout.export_timeout=13 \
        trainer.timeout.save_timeout=1000 & pids+=($!)
    for pid in "${pids[@]}"; do wait "$pid" || bad=1; done
    [ $bad -eq 0 ]
}
