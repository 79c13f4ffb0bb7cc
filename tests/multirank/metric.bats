#!/usr/bin/env bats
# Metrics of 100,000 predictions, distributed over ranks and saved in the middle, compared with
# those of one rank.

load ../slurm/helper
load launch

setup_file() { no_launcher; }

setup() { with_mpi; }

export D9D_COMM_CHECK=1

driver=$D9D_BUILD/tests/multirank/metric_driver

@test "one rank: saved and resumed" { run -0 "$driver"; }
@test "two ranks count every row once" { all_well 2 "$driver"; }
@test "four ranks count every row once" { all_well 4 "$driver"; }
