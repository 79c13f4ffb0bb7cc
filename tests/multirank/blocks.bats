#!/usr/bin/env bats
# Stacks of attention variants over tensor-parallel ranks, against transformers.

load ../slurm/helper
load launch

setup_file() { no_launcher; }

setup() { with_mpi; }

export D9D_COMM_CHECK=1

# stacks N: runs the driver on N ranks; all must succeed.
stacks() {
    run -0 mpi -n "$1" "$D9D_BUILD/tests/multirank/blocks_driver"
    [ "$(grep -c "of $1: 0 failed" <<<"$output")" -eq "$1" ]
}

@test "two tensor-parallel ranks equal transformers" { stacks 2; }
@test "four ranks, two per key-value head, equal transformers" { stacks 4; }
