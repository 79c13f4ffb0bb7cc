#!/usr/bin/env bats
# shellcheck disable=SC2154 # variables of bats
# Random training runs, saved on one mesh and resumed on another, equal one rank; random_runs
# describes what is random.  D9D_DRAWS="FIRST N" selects others.

load ../slurm/helper
load launch

setup() {
    no_launcher
    [ -e "$D9D_BUILD/lib/libd9d_mpi.so.0" ] || skip "built without MPI"
    [ -n "${D9D_LONG:-}" ] || skip "make test-long"
}

@test "random runs equal one rank" {
    # shellcheck disable=SC2086 # two arguments
    run "$BATS_TEST_DIRNAME/random_runs" ${D9D_DRAWS:-1000 100}
    echo "$output"
    echo "# ${lines[-1]}" >&3
    [ "$status" -eq 0 ]
}
