# shellcheck shell=bash disable=SC2154 # variables of bats
# launch.bash - ranks under mpirun, for files that load it after slurm/helper.

# Many ranks share a few processors; root runs them in containers.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

# no_launcher, once a file: what may have launched the test itself is not what launches its ranks.
no_launcher() { unset "${!SLURM_@}" "${!OMPI_MCA_@}" "${!OMPI_COMM@}" "${!PMIX_@}" "${!PMI_@}"; }

# Was it built with MPI?  with_mpi: else the test is skipped.
has_mpi() { [ -e "$D9D_BUILD/lib/libd9d_mpi.so.0" ]; }
with_mpi() { has_mpi || skip "built without MPI"; }

# MPI leaves some.  leaks_too: ours are found all the same, by whole stacks that tell those of MPI
# (lsan.supp) and take twice the time.
mpi_leaks=detect_leaks=0
leaks_too() { mpi_leaks=fast_unwind_on_malloc=0; }

# mpi OPTION... COMMAND...: it ends within $patience seconds, half an hour, whatever mpirun does: Open
# MPI's launcher, which sees its ranks abort at once, may lock itself up when they are gone.  Each has a
# session directory of its own: launchers remove the one they share while others begin to use it.
# Bats removes those of launches that are killed.  Ranks that wait sleep: to give the processor away takes
# a turn of each busy process beside.
mpi() {
    local session rc=0
    session=$(mktemp -d "${BATS_RUN_TMPDIR:-/tmp}/mpi-XXXXXX") || return 1
    ASAN_OPTIONS=$mpi_leaks timeout -k 5 "${patience:-1800}" \
        mpirun --mca orte_tmpdir_base "$session" --mca mpi_yield_when_idle 0 --oversubscribe "$@" 3>&- </dev/null || rc=$?
    rm -rf "$session"
    return $rc
}

# all_well N DRIVER [ARG...]: so many ranks of a driver, each of which says that nothing failed.
all_well() {
    leaks_too
    run -0 mpi -n "$1" "${@:2}"
    [ "$(grep -c "of $1: 0 failed" <<<"$output")" -eq "$1" ]
}
