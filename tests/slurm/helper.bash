# shellcheck shell=bash disable=SC2034 # variables are for those that load it
# helper.bash - shared by tests/slurm/*.bats; load it first.
bats_require_minimum_version 1.5.0
load /usr/lib/bats/bats-support/load
load /usr/lib/bats/bats-assert/load
load ../workplace

top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
scripts=$top/slurm

# fake_slurm DIR: its commands and stand-in tools come first in PATH; calls go to FAKE_LOG.
fake_slurm() {
    local name
    mkdir -p "$1"
    for name in srun sbatch scontrol squeue scancel; do ln -sf "$BATS_TEST_DIRNAME/fake/fake" "$1/$name"; done
    for name in shard map train infer metrics; do ln -sf "$BATS_TEST_DIRNAME/standin/tool" "$1/d9d-$name"; done
    export FAKE_LOG=$1/log D9D_BIN=$1 PATH=$1:$PATH
    : >"$FAKE_LOG"
}
