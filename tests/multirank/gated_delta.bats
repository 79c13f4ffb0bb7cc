#!/usr/bin/env bats
# A gated delta net with its heads sharded over ranks (tensor parallelism), compared with the whole
# one.

load ../slurm/helper
load launch

setup_file() { no_launcher; }

setup() { with_mpi; }

export D9D_COMM_CHECK=1

driver=$D9D_BUILD/tests/multirank/gated_delta_driver

@test "one rank: the sharding plan changes nothing" { run -0 "$driver"; }
@test "two ranks equal one" { all_well 2 "$driver"; }
@test "four ranks equal one" { all_well 4 "$driver"; }
