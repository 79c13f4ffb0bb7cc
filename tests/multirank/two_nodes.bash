# shellcheck shell=bash disable=SC2154 # variables of bats
# two_nodes.bash - ranks under mpirun, and under srun on two nodes of a real Slurm where there can be
# one, for files that load it after slurm/helper.
load launch
load ../slurm/cluster

setup_file() {
    no_launcher
    cluster_can || { export cluster_why && return; }
    cluster_start 2
    export cluster_dir
}
teardown_file() { cluster_stop; }

# slurm N COMMAND...: runs N ranks on each node, with a timeout of ten minutes.  The nodes are one
# host and share its shared memory names, so messages go by TCP.
slurm() {
    local ASAN_OPTIONS=detect_leaks=0 OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo # PMIx leaks memory
    export ASAN_OPTIONS OMPI_MCA_btl OMPI_MCA_btl_tcp_if_include
    [ -z "${cluster_why:-}" ] || skip "no Slurm here: $cluster_why"
    timeout -k 5 1800 srun --mpi=pmix --kill-on-bad-exit=1 -N 2 --ntasks-per-node="$1" "${@:2}" 3>&-
}
