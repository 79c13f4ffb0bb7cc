#!/usr/bin/env bats
# Metrics of 100,000 rows, dealt over ranks and saved in the middle, against those of one rank.

load ../slurm/helper

setup_file() { unset "${!SLURM_@}" "${!OMPI_@}" "${!PMIX_@}" "${!PMI_@}"; }

setup() { [ -e "$D9D_BUILD/lib/libd9d_mpi.so.0" ] || skip "built without MPI"; }

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 D9D_COMM_CHECK=1

driver=$D9D_BUILD/tests/dist/metric_driver

# metric N: that many ranks, all of them well.
metric() {
    local ASAN_OPTIONS=detect_leaks=0 # MPI leaves some
    export ASAN_OPTIONS
    run -0 timeout 100 mpirun --oversubscribe -n "$1" "$driver" 3>&-
    [ "$(grep -c "of $1: 0 failed" <<<"$output")" -eq "$1" ]
}

@test "one rank: saved and gone on with" { run -0 "$driver"; }
@test "two ranks count every row once" { metric 2; }
@test "four ranks count every row once" { metric 4; }
