#!/bin/bash
# pipeline.sh - submit shard, map, train, infer and metrics as one chain.
usage() {
    cat <<'TEXT'
usage: pipeline.sh [-n] [--from STAGE] [--to STAGE]

Submit the chain to Slurm and print one line a job, "STAGE JOBID".  Each job starts when
those it needs have succeeded, and is cancelled when one of them fails:

    shard --.
             train -- infer -- metrics
    map ----'

  -n, --dry-run      print the commands, submit nothing
      --from STAGE   begin there; what comes before is taken as done
      --to STAGE     end there
  -h, --help         show this help

Settings come from the environment and are listed at the top of each STAGE.sbatch.  Also:

  D9D_SBATCH         more options of sbatch for every job, such as "--partition=gpu"
  D9D_SBATCH_TRAIN   more for one stage (_SHARD, _MERGE, _MAP, _TRAIN, _INFER, _METRICS), such as
                     "--nodes=2 --ntasks-per-node=8 --gpus-per-node=8 --time=24:00:00"
  D9D_SHARD_TASKS    make the dataset as an array of so many tasks, and a    1
                     stage "merge" of their parts, behind "shard"
  D9D_LOGS           folder of the jobs' logs                              logs
  D9D_CONTAINER      an image that has the tools, for enroot and pyxis     (none)
  D9D_DATASET        what shard, map and train make, and the stages        data/dataset
  D9D_CKPT           behind them take, whatever their configurations say;  ckpt
  D9D_EXPORT         of one that is empty these say what is taken          D9D_RUN_DIR/export

Exit status: 0 submitted, 1 Slurm refused a job (those before it are cancelled), 2 usage or
a missing setting or configuration (nothing was submitted).
TEXT
}

stages=(shard merge map train infer metrics)
declare -A needs=([merge]="shard" [train]="shard merge map" [infer]="train" [metrics]="train infer")

set -u
D9D_SLURM_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 1
export D9D_SLURM_DIR
: "${D9D_LOGS:=logs}" "${D9D_SBATCH:=}" "${D9D_SHARD_TASKS:=1}"

refuse() {
    printf 'pipeline.sh: %s\n' "$*" >&2
    exit 2
}

case $D9D_SHARD_TASKS in '' | 0* | *[!0-9]*) refuse "D9D_SHARD_TASKS is \"$D9D_SHARD_TASKS\", no number of tasks" ;; esac
declare -A array
if [ "$D9D_SHARD_TASKS" -gt 1 ]; then
    array[shard]=--array=0-$((D9D_SHARD_TASKS - 1))
else
    stages=("${stages[0]}" "${stages[@]:2}") # without merge
fi

# place STAGE: its number in the chain.
place() {
    local i
    for i in "${!stages[@]}"; do
        [ "${stages[i]}" = "$1" ] && echo "$i" && return
    done
    refuse "\"$1\" is no stage; one of ${stages[*]}"
}

dry=
first=0
last=$((${#stages[@]} - 1))
while [ $# -gt 0 ]; do
    case $1 in
    -n | --dry-run) dry=1 ;;
    --from | --to)
        [ $# -ge 2 ] || refuse "$1 needs a stage"
        at=$(place "$2") || exit
        [ "$1" = --from ] && first=$at || last=$at
        shift
        ;;
    -h | --help) usage && exit ;;
    *) refuse "unknown argument \"$1\"; see --help" ;;
    esac
    shift
done
[ "$first" -le "$last" ] || refuse "--from ${stages[first]} comes after --to ${stages[last]}"

# What a stage makes the next ones take, unless a setting is empty.
for stage in "${stages[@]:first:last-first+1}"; do
    case $stage in
    shard | merge) export D9D_DATASET=${D9D_DATASET-data/dataset} ;;
    map) export D9D_CKPT=${D9D_CKPT-ckpt} ;;
    infer) # of a train that is in the chain too
        [ "$first" -gt "$(place train)" ] || export D9D_EXPORT=${D9D_EXPORT-${D9D_RUN_DIR:-runs/d9d}/export}
        ;;
    esac
done

# All settings are looked at before the first job is submitted.
bad=
for stage in "${stages[@]:first:last-first+1}"; do
    D9D_CHECK=1 bash "$D9D_SLURM_DIR/$stage.sbatch" || bad=1
done
[ -z "$bad" ] || exit 2

declare -A job
undo() {
    printf 'pipeline.sh: sbatch refused %s; cancelling %s\n' "$1" "${job[*]:-nothing}" >&2
    [ ${#job[@]} -eq 0 ] || scancel "${job[@]}"
    exit 1
}

[ -n "$dry" ] || mkdir -p "$D9D_LOGS" || exit 1
for stage in "${stages[@]:first:last-first+1}"; do
    before=
    for other in ${needs[$stage]:-}; do
        before+=${job[$other]:+:${job[$other]}}
    done
    own=D9D_SBATCH_${stage^^}
    read -ra more <<<"$D9D_SBATCH ${!own:-}"
    log=%x-%j # of an array the job and the task
    [ -z "${array[$stage]:-}" ] || log=%x-%A_%a
    command=(sbatch --parsable --output="$D9D_LOGS/$log.log"
        ${before:+--dependency=afterok$before --kill-on-invalid-dep=yes}
        ${array[$stage]:+"${array[$stage]}"} "${more[@]}" "$D9D_SLURM_DIR/$stage.sbatch")
    if [ -n "$dry" ]; then
        printf '%s\n' "${command[*]@Q}"
        job[$stage]="<$stage>"
        continue
    fi
    id=$("${command[@]}") || undo "$stage"
    job[$stage]=${id%%;*} # "ID;CLUSTER" where there are several clusters
    printf '%s %s\n' "$stage" "${job[$stage]}"
done
