#!/usr/bin/env bats
# Tensor parallelism: what ranks compute together against what each computes alone.

load ../slurm/helper
load launch

setup_file() { no_launcher; }

setup() { [ -e "$D9D_BUILD/lib/libd9d_mpi.so.0" ] || skip "built without MPI"; }

export D9D_COMM_CHECK=1

driver=$D9D_BUILD/tests/dist/tensor_driver

# tensor N: that many ranks, all of them well.
tensor() {
    run -0 mpi -n "$1" "$driver"
    [ "$(grep -c "of $1: 0 failed" <<<"$output")" -eq "$1" ]
}

@test "one rank: the plan changes nothing" { run -0 "$driver"; }
@test "two ranks compute what one does" { tensor 2; }
@test "three ranks compute what one does" { tensor 3; }
@test "four ranks compute what one does" { tensor 4; }
