# shellcheck shell=bash disable=SC2154 # variables of the helpers
# train_bench.bash - for tests of runs: a bench for each, with what train_helper.bash puts on it.
load ../tools/helper
load ../tools/train_helper

setup_file() { workshop; }
setup() { bench; }
teardown() { clear_bench; }
teardown_file() { rm -rf "$shared"; }
