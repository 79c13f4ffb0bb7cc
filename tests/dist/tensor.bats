#!/usr/bin/env bats
# Tensor parallelism: what ranks compute together against what each computes alone.

load ../slurm/helper

setup_file() { unset "${!SLURM_@}" "${!OMPI_@}" "${!PMIX_@}" "${!PMI_@}"; }

setup() { [ -e "$D9D_BUILD/lib/libd9d_mpi.so.0" ] || skip "built without MPI"; }

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 D9D_COMM_CHECK=1

driver=$D9D_BUILD/tests/dist/tensor_driver

# tensor N: that many ranks, all of them well.
tensor() {
    local ASAN_OPTIONS=detect_leaks=0 # MPI leaves some
    export ASAN_OPTIONS
    run -0 timeout 100 mpirun --oversubscribe -n "$1" "$driver" 3>&-
    [ "$(grep -c "of $1: 0 failed" <<<"$output")" -eq "$1" ]
}

@test "one rank: the plan changes nothing" { run -0 "$driver"; }
@test "two ranks compute what one does" { tensor 2; }
@test "three ranks compute what one does" { tensor 3; }
@test "four ranks compute what one does" { tensor 4; }
