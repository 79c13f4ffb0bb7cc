# shellcheck shell=bash
# lib.sh - what the batch scripts share; they source it.  In the order in which a script
# uses it: say, need, need_file, need_restarts, own, ready, tool, step; then what jobs need to restart.
#
# In an array %a in a setting is the number of the task, as in Slurm's names of files.

set -u

# The job for scontrol and squeue: of an array the task, since the last task's own number is the
# array's, and means all of them.
d9d_job=${SLURM_JOB_ID:-}
d9d_task=${SLURM_ARRAY_TASK_ID:-}
declare -A d9d_names_task=() # settings that had %a
if [ -n "$d9d_task" ]; then
    d9d_job=${SLURM_ARRAY_JOB_ID:-$d9d_job}_$d9d_task
    for d9d_name in "${!D9D_@}"; do
        case ${!d9d_name} in *%a*)
            d9d_names_task[$d9d_name]=1
            printf -v "$d9d_name" %s "${!d9d_name//%a/$d9d_task}"
            ;;
        esac
    done
fi

# Talk goes to stderr, which is the job's log; a name in front tells whose it is.
d9d_me=${SLURM_JOB_NAME:-$(basename "$0" .sbatch)}
say() { printf '%s: %s\n' "$d9d_me" "$*" >&2; }
die() { # STATUS SENTENCE
    local status=$1
    shift
    say "$*"
    exit "$status"
}

# need NAME WHAT: a setting without a default.  Status 2: retrying cannot help.
need() {
    [ -n "${!1:-}" ] || die 2 "$1 is not set: $2"
}

# need_file NAME WHAT: the same, of a file that is there when the job is submitted.
need_file() {
    need "$@"
    [ -r "${!1}" ] || die 2 "$1 is \"${!1}\", which is no file that can be read: $2"
}

# need_restarts: D9D_MAX_IDLE_RESTARTS is a whole number.
need_restarts() {
    [[ $D9D_MAX_IDLE_RESTARTS =~ ^[1-9][0-9]*$ ]] ||
        die 2 "D9D_MAX_IDLE_RESTARTS is \"$D9D_MAX_IDLE_RESTARTS\": must be a whole number, at least 1"
}

# own NAME [FILE]: what a task of an array makes is its own, where NAME does not say %a: a folder of
# NAME with its number; or of a file NAME-3.jsonl in place of NAME.jsonl.
own() {
    local at=${!1:-} end=
    [ -n "$d9d_task" ] && [ -n "$at" ] && [ -z "${d9d_names_task[$1]:-}" ] || return 0
    [ "${2:-}" = FILE ] || { printf -v "$1" %s "$at/$d9d_task" && return; }
    case ${at##*/} in ?*.*) end=.${at##*.} ;; esac
    printf -v "$1" %s "${at%"$end"}-$d9d_task$end"
}

# ready: the settings are complete.  With D9D_CHECK=1 that is all (pipeline.sh asks so,
# before it submits anything).
ready() {
    [ -z "${D9D_CHECK:-}" ] || exit 0
    [ -n "${SLURM_JOB_ID:-}" ] || die 2 "not inside a Slurm job; submit me: sbatch $0"
    export D9D_LOG_TIME=${D9D_LOG_TIME-1}
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
    # srun no longer takes --cpus-per-task over from the job; and with few nodes a fence
    # of the PMIx plugin's tree kind lets tasks through early.
    export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}
    # Where Slurm does not say when the job began and ends, ask: the tools save in time.
    job_time SLURM_JOB_START_TIME %S
    job_time SLURM_JOB_END_TIME %e
    say "job $d9d_job${SLURM_RESTART_COUNT:+, restart $SLURM_RESTART_COUNT}," \
        "${SLURM_JOB_NUM_NODES:-1} node(s), ${SLURM_NTASKS:-1} task(s): ${SLURM_JOB_NODELIST:-$(uname -n)}"
}

# job_time VARIABLE FIELD: exports what squeue says, in seconds, unless the variable is set.
job_time() {
    local at
    [ -n "${!1:-}" ] || {
        at=$(squeue -h -j "$d9d_job" -o "$2" 2>/dev/null | head -n 1) && [ -n "$at" ] &&
            at=$(date -d "$at" +%s 2>/dev/null) && export "$1=$at"
    } || :
}

# tool NAME: its name in a container; else its path, from D9D_BIN, from beside these scripts (a source tree that is
# built, or an installation), or from PATH.
tool() {
    local dir
    [ -z "${D9D_CONTAINER:-}" ] || { printf '%s\n' "$1" && return; }
    for dir in ${D9D_BIN:+"$D9D_BIN"} "$D9D_SLURM_DIR/../build/bin" "$D9D_SLURM_DIR/../../../bin"; do
        [ -x "$dir/$1" ] && (cd "$dir" && printf '%s/%s\n' "$PWD" "$1") && return
    done
    command -v "$1" || die 2 "cannot find $1; set D9D_BIN to the folder that has it"
}

# step COMMAND...: run it under srun, with the options in `placement` (place_tasks); the exit status is the
# command's.
#
# D9D_CONTAINER is an image for enroot's plugin of srun, pyxis: a .sqsh file or a registry's name.  It sees
# this folder, or what D9D_CONTAINER_MOUNTS lists (SRC:DST,...), and has the tools in its PATH.
#
# srun runs in the background, because bash defers traps while a command runs in the
# foreground.  A signal to this script (a time limit, preemption, scancel --full) goes on
# to the tasks, and the script waits on until they have saved and left.
#
# Of tasks that fail srun ends those that have not, and then says the highest status, which is that
# of a task that was killed: 143.  What the first task ended with stands in what srun says of it.
step() {
    local -a options
    local pid status again first talk
    read -ra options <<<"--kill-on-bad-exit=1 ${D9D_SRUN_ARGS:-}"
    options+=(${placement[@]+"${placement[@]}"})
    [ -z "${D9D_CONTAINER:-}" ] || options+=("--container-image=$D9D_CONTAINER" "--container-workdir=$PWD"
        "--container-mounts=${D9D_CONTAINER_MOUNTS:-$PWD:$PWD}")
    step_signal=
    first=$(mktemp) || die 1 "cannot make a file in ${TMPDIR:-/tmp}"
    exec {talk}> >(first_status "$first" >&2)
    local talker=$!
    srun "${options[@]}" "$@" 2>&"$talk" {talk}>&- &
    pid=$!
    exec {talk}>&-
    trap 'step_signal=TERM; kill -TERM "$pid" 2>/dev/null' TERM
    trap 'step_signal=USR1; kill -USR1 "$pid" 2>/dev/null' USR1
    wait "$pid"
    status=$?
    while [ -n "$step_signal" ]; do # the trap ended that wait, perhaps not srun
        say "got SIG$step_signal; waiting for the tasks to save and leave"
        step_signal=
        wait "$pid" 2>/dev/null
        again=$?
        [ $again -eq 127 ] || status=$again # 127: srun had ended before the signal came
    done
    trap - TERM USR1
    wait "$talker" 2>/dev/null
    if [ $status -gt 128 ]; then
        read -r again <"$first" && status=$again
    fi
    rm -f "$first"
    return "$status"
}

# first_status FILE: a filter of what srun says; the first exit status that it tells goes into FILE.
# A signal to all of the job is for the tasks.
first_status() {
    trap '' TERM USR1 USR2 INT
    LC_ALL=C exec awk -v file="$1" '
        { print; fflush() }
        !told && /^srun: error: [^ ]+: tasks? [-0-9,]+: Exited with exit code [0-9]+$/ { print $NF >file; close(file); told = 1 }'
}

# ---- A training run and its restarts -------------------------------------------------------

# saves RUN_DIR: where its checkpoints are, as the configuration of its latest attempt says.
saves() {
    local dir
    dir=$(sed -n '/^    "checkpointing": {/,/^    }/s/^      "save_dir": "\(.*\)",*$/\1/p' "$1/config.json" 2>/dev/null)
    dir=${dir//\\\"/\"} # JSON's escapes; printf knows the others
    printf '%b\n' "${dir:-${1//\\/\\\\}/checkpoints}"
}

# listed_files CHECKPOINT: those of its manifest and of its parts' manifests, "NAME BYTES" a line.
listed_files() {
    (cd "$1" && grep -so '^ *{"name": "[^"]*", "bytes": [0-9]*' /dev/null manifest.json ./*/manifest.json) |
        sed 's|^\./||; s|manifest\.json: *{"name": "||; s|", "bytes": | |'
}

# is_whole CHECKPOINT: a run may go on from it, as far as manifests and sizes say.
is_whole() {
    [ "$(tail -c 2 "$1/manifest.json" 2>/dev/null)" = "}" ] && ! grep -q '^  "finite": false' "$1/manifest.json" &&
        [ -z "$(LC_ALL=C comm -23 <(listed_files "$1" | LC_ALL=C sort) \
            <(find -L "$1" -type f -printf '%P %s\n' | LC_ALL=C sort))" ]
}

# newest_step RUN_DIR: of its newest whole checkpoint, or 0.
newest_step() {
    local dir step n
    dir=$(saves "$1")
    while read -r n step; do
        is_whole "$dir/$step" && echo "$n" && return
    done < <(for step in "$dir"/step-*; do
        n=${step##*/step-}
        case $n in *[!0-9]* | '') continue ;; esac
        echo "$((10#$n)) step-$n"
    done | sort -rn)
    echo 0
}

# job_state: RUNNING, or what is being done to the job (CANCELLED, PREEMPTED, ...).
job_state() {
    scontrol show job "$d9d_job" 2>/dev/null | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p' | head -n 1
}

# restart_check FILE LABEL COMMAND...: count the attempts of this job (its first start and its restarts) that made
# no progress, and stop after D9D_MAX_IDLE_RESTARTS of them.  COMMAND prints the progress as a number, and
# LABEL stands before that number in a sentence.  The count is in FILE until the job ends: "PROGRESS IDLE", the
# progress when this attempt began and the number of attempts just before it that made none.
restart_check() {
    restart_file=$1 progress_label=$2 restart_idle=0
    progress_command=("${@:3}")
    progress_at_start=$("${progress_command[@]}")
    local before former=${restart_file%.restarts}.lives # as 0.1 called it
    [ -e "$restart_file" ] || [ ! -e "$former" ] || mv "$former" "$restart_file" || die 1 "cannot rename $former"
    if [ -s "$restart_file" ] && read -r before restart_idle <"$restart_file"; then
        [ "$progress_at_start" -gt "$before" ] && restart_idle=0 || restart_idle=$((restart_idle + 1))
        [ "$restart_idle" -lt "$D9D_MAX_IDLE_RESTARTS" ] || restart_give_up "$progress_at_start" "$restart_idle"
    fi
    echo "$progress_at_start $restart_idle" >"$restart_file" || die 1 "cannot write $restart_file"
}

# restart_give_up PROGRESS ATTEMPTS: so many made none.
restart_give_up() {
    rm -f "$restart_file" # so that whoever releases the job by hand starts to count anew
    die 1 "no progress in $2 attempts: $progress_label $1; stopping"
}

# all_answer: does each node of the job?  The ranks beside one that has died give up sooner
# than Slurm does.
all_answer() {
    local n=${SLURM_JOB_NUM_NODES:-1}
    [ "$n" -eq 1 ] ||
        timeout -k 5 60 srun --overlap --mpi=none --nodes="$n" --ntasks="$n" --ntasks-per-node=1 --cpus-per-task=1 true
}

# ---- Spare nodes, and fewer replicas -----------------------------------------------------------
#
# An allocation may have more nodes than a run uses.  After a failure the next start takes those that
# answer, in the allocation's order; where they are too few, it has fewer data-parallel replicas.

# is_placed: the job has a choice of nodes.
is_placed() { [ "$D9D_SPARE_NODES" -gt 0 ] || [ -n "$D9D_MIN_REPLICAS" ]; }

# need_placement: its settings are whole numbers, and leave a node.
need_placement() {
    [[ $D9D_SPARE_NODES =~ ^[0-9]+$ ]] || die 2 "D9D_SPARE_NODES is \"$D9D_SPARE_NODES\": must be a whole number"
    [[ $D9D_MIN_REPLICAS =~ ^([1-9][0-9]*)?$ ]] ||
        die 2 "D9D_MIN_REPLICAS is \"$D9D_MIN_REPLICAS\": must be a whole number, at least 1"
    [ "$D9D_SPARE_NODES" -eq 0 ] || [ "$D9D_SPARE_NODES" -lt "${SLURM_JOB_NUM_NODES:-1}" ] ||
        die 2 "D9D_SPARE_NODES is $D9D_SPARE_NODES, and the job has ${SLURM_JOB_NUM_NODES:-1} node(s)"
}

# answering_nodes RUN_DIR: the names of the job's nodes that answer and are not excluded, in their order.
answering_nodes() {
    local -a nodes pids
    local i
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    for i in "${!nodes[@]}"; do
        timeout -k 5 60 srun --overlap --mpi=none --nodes=1 --ntasks=1 --cpus-per-task=1 \
            "--nodelist=${nodes[i]}" true >/dev/null 2>&1 &
        pids[i]=$!
    done
    for i in "${!nodes[@]}"; do
        ! wait "${pids[i]}" || [ -e "$1/excluded_nodes/${nodes[i]}" ] || printf '%s\n' "${nodes[i]}"
    done
}

# mesh_number KEY: a number of the configuration in `resolved`, at the first place where the key is.
resolved=
mesh_number() { sed -n "s/^ *\"$1\": \([0-9]*\),*\$/\1/p" <<<"$resolved" | head -n 1; }

# fewer_replicas TASKS: as many replicas as so many tasks make, of which the batch is a multiple; false if
# that is less than D9D_MIN_REPLICAS.
fewer_replicas() {
    local all=$1 of_one shard batch micro experts stage
    shard=$(mesh_number data_parallel_shard) batch=$(mesh_number global_batch_size) micro=$(mesh_number microbatch_size)
    experts=$(mesh_number expert_parallel)
    of_one=$((full_tasks / full_replicas)) stage=$((full_tasks / full_replicas / $(mesh_number pipeline_parallel)))
    for ((replicas = all / of_one; replicas >= D9D_MIN_REPLICAS; replicas--)); do
        [ $((batch % (micro * replicas * shard))) -ne 0 ] || [ $((replicas * stage % experts)) -ne 0 ] || return 0
    done
    return 1
}

# place_tasks RUN_DIR: sets `placement`, options of srun, and `replicas`, "" for all.  False if too few nodes
# answer.
place_tasks() {
    local per=$((${SLURM_NTASKS:-1} / ${SLURM_JOB_NUM_NODES:-1})) want=$((${SLURM_JOB_NUM_NODES:-1} - D9D_SPARE_NODES)) tasks
    local -a nodes
    is_placed || return 0
    mapfile -t nodes < <(answering_nodes "$1")
    full_tasks=$((want * per)) tasks=$((want * per)) replicas=
    if [ ${#nodes[@]} -lt "$want" ]; then
        full_replicas=$(mesh_number data_parallel_replicate)
        [ -n "$D9D_MIN_REPLICAS" ] && fewer_replicas $((${#nodes[@]} * per)) || return 1
        tasks=$((full_tasks * replicas / full_replicas)) want=$(((full_tasks * replicas / full_replicas + per - 1) / per))
        say "${#nodes[@]} node(s) answer: going on with $replicas of $full_replicas replicas"
    fi
    nodes=("${nodes[@]:0:want}")
    placement=("--nodes=$want" "--ntasks=$tasks" "--ntasks-per-node=$per" "--nodelist=$(IFS=, && echo "${nodes[*]}")")
}

# excluded_nodes RUN_DIR: the nodes that a run found to corrupt data, as a list for Slurm.
excluded_nodes() {
    (shopt -s nullglob && cd "$1/excluded_nodes" 2>/dev/null && printf '%s\n' *) | paste -sd,
}

# restart_request WHY [NODES]: requeue the job for another attempt, on other nodes than these.
restart_request() {
    local now state excluded=${2:-}
    now=$("${progress_command[@]}")
    if [ "$now" -le "$progress_at_start" ] && [ $((restart_idle + 1)) -ge "$D9D_MAX_IDLE_RESTARTS" ]; then
        restart_give_up "$now" $((restart_idle + 1))
    fi
    state=$(job_state)
    [ "$state" = RUNNING ] ||
        die 75 "$1; the job is being ended from outside (${state:-unknown}), so it is not requeued"
    say "$1; the job is to be requeued${excluded:+ without $excluded}" # before: this script is ended by it
    trap '' TERM # only a job that is requeued already can be kept off nodes
    scontrol requeue "$d9d_job" ||
        die 75 "the job could not be requeued; submit it again to go on"
    [ -z "$excluded" ] || scontrol update "JobId=$d9d_job" "ExcNodeList=$excluded" ||
        say "$excluded could not be excluded: sbatch --exclude=$excluded does it"
    exit 75
}
