#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of the helpers
# The end of a cluster whose daemons have gone before it: no process of its jobs stays.

load helper
load cluster

setup() {
    unset "${!D9D_@}" "${!SLURM_@}"
    cluster_can || skip "no Slurm here: $cluster_why"
    cd "$BATS_TEST_TMPDIR" || return 1
    cluster_start 1
}
teardown() { cluster_stop; }

@test "a job outlives its daemons, and not the cluster" {
    cat >deaf <<'SH'
#!/bin/bash
trap '' TERM
echo $$ >begun
until [ -e done ]; do sleep 0.1; done
SH
    chmod +x deaf
    sbatch -c 1 --output=log --wrap "srun ./deaf"
    wait_for [ -s begun ]
    deaf=$(<begun)
    # Neither the node's daemon nor the controller can end it now.
    mapfile -t daemons <"$cluster_dir/pids"
    kill -KILL "${daemons[@]:1}"
    for pid in "${daemons[@]:1}"; do wait_for is_gone "$pid"; done
    assert [ -e "/proc/$deaf" ]
    dir=$cluster_dir
    cluster_patience=1 cluster_stop
    wait_for is_gone "$deaf"
    assert [ ! -e "$dir" ]
    cluster_dir=$dir
    assert cluster_is_over
}
