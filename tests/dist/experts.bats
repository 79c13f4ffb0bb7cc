#!/usr/bin/env bats
# Experts on several ranks: the block over a group gives what one rank with all tokens gives.

load ../slurm/helper

driver=$D9D_BUILD/tests/dist/experts_driver

setup_file() { unset "${!SLURM_@}" "${!OMPI_@}" "${!PMIX_@}" "${!PMI_@}"; }
setup() { [ -e "$D9D_BUILD/lib/libd9d_mpi.so.0" ] || skip "built without MPI"; }

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1

# all_well RANKS [EP]
all_well() {
    local ASAN_OPTIONS=detect_leaks=0 # MPI leaves some
    export ASAN_OPTIONS
    run -0 timeout 100 mpirun --oversubscribe -n "$1" "$driver" ${2:+"$2"} 3>&-
    assert_equal "$(grep -c "of $1: well" <<<"$output")" "$1"
}

@test "alone" {
    run -0 "$driver"
    assert_output "0 of 1: well"
}

@test "two, three and four ranks" {
    for n in 2 3 4; do all_well $n; done
}

@test "eight ranks, in one group and in two" {
    all_well 8
    all_well 8 4
}
