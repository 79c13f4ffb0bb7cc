# shellcheck shell=bash disable=SC2154 # variables of bats
# workplace.bash - one working directory for all tests of a file, beside its golden files; load it.
load ../workplace

# golden_workplace FOLDER, first in setup_file: $golden is that folder.  Makes the directory $work and
# enters it; the tools are on the path, with one thread.
golden_workplace() {
    golden=$1
    work=$(workplace)
    PATH=$D9D_BIN:$PATH
    export golden work PATH OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
    cd "$work" || return 1
}
teardown_file() { rm -rf "$work"; }
