#!/usr/bin/env bats
# Generation by blocks with heads sharded over ranks: a gated delta net, multi-head latent
# attention.

load ../slurm/helper
load launch

setup_file() { no_launcher; }

setup() { with_mpi; }

export D9D_COMM_CHECK=1

driver=$D9D_BUILD/tests/multirank/generate_mesh_driver

@test "one rank: prefill in chunks equals the whole sequence" { run -0 "$driver"; }
@test "two ranks equal one" { all_well 2 "$driver"; }
@test "four ranks equal one" { all_well 4 "$driver"; }
