#!/usr/bin/env bats
# Experts on several ranks: the block over a group gives what one rank with all tokens gives.

load ../slurm/helper
load launch

driver=$D9D_BUILD/tests/dist/experts_driver

setup_file() { no_launcher; }
setup() { [ -e "$D9D_BUILD/lib/libd9d_mpi.so.0" ] || skip "built without MPI"; }

# all_well RANKS [EP]
all_well() {
    run -0 mpi -n "$1" "$driver" ${2:+"$2"}
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
