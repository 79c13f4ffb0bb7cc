# shellcheck shell=bash disable=SC2154 # variables of bats
# launch.bash - ranks under mpirun, for files that load it after slurm/helper.

# Many ranks share a few processors; root runs them in containers.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

# no_launcher, once a file: removes the variables of a launcher that may run the test itself.
no_launcher() { unset "${!SLURM_@}" "${!OMPI_MCA_@}" "${!OMPI_COMM@}" "${!PMIX_@}" "${!PMI_@}"; }

# has_mpi: true for a build with MPI.  with_mpi: skips the test for a build without.
has_mpi() { [ -e "$D9D_BUILD/lib/libd9d_mpi.so.0" ]; }
with_mpi() { has_mpi || skip "built without MPI"; }

# MPI leaks memory.  leaks_too: checks for leaks of d9d nevertheless, by full stacks that tell them
# from those of MPI (lsan.supp); this takes twice the time.
mpi_leaks=detect_leaks=0
leaks_too() { mpi_leaks=fast_unwind_on_malloc=0; }

# mpi OPTION... COMMAND...: runs mpirun with a timeout of $patience seconds, half an hour, since Open
# MPI's launcher may deadlock after its ranks have aborted.  Each launch has its own session directory:
# launchers remove a shared one while others begin to use it.  Bats removes those of killed launches.
# Waiting ranks sleep: yielding would give a time slice to every other busy process.  Nothing is bound to processors:
# launches know nothing of each other, and each would begin with the first.  Half the time of a launch went into
# looking for network cards: nothing reads the PCI bus, and messages go through ob1.
mpi() {
    local session rc=0
    session=$(mktemp -d "${BATS_RUN_TMPDIR:-/tmp}/mpi-XXXXXX") || return 1
    ASAN_OPTIONS=$mpi_leaks HWLOC_COMPONENTS=-pci,-linuxio timeout -k 5 "${patience:-1800}" \
        mpirun --mca orte_tmpdir_base "$session" --mca mpi_yield_when_idle 0 --mca pml ob1 --oversubscribe --bind-to none "$@" 3>&- </dev/null || rc=$?
    rm -rf "$session"
    return $rc
}

# all_well N DRIVER [ARG...]: runs a driver on N ranks, each of which must report success.
all_well() {
    leaks_too
    run -0 mpi -n "$1" "${@:2}"
    [ "$(grep -c "of $1: 0 failed" <<<"$output")" -eq "$1" ]
}
