# shellcheck shell=bash disable=SC2034 # cluster_why is for those that load it
# cluster.bash - a real Slurm on this host alone: one controller, a few nodes, a munge of
# its own.  Any user may run it; it needs no systemd, no cgroups and no port that is known
# before.  Load helper first.
#
#     cluster_can || skip "$cluster_why"
#     cluster_start 2           # exports SLURM_CONF; sbatch, srun, ... now mean this one
#     cluster_stop
#
# Everything lies in $cluster_dir: conf, spools, logs, the pids of what was started.

PATH=$PATH:/usr/sbin:/sbin

# cluster_can: could one run here?  If not, cluster_why says what is missing.
cluster_can() {
    local name
    for name in slurmctld slurmd sbatch munged mungekey ip ss; do
        command -v $name >/dev/null || { cluster_why="$name is not installed"; return 1; }
    done
    # Slurm's name lookups ask for the address families of configured interfaces, and the
    # loopback interface does not count.
    ip -o addr show scope global 2>/dev/null | grep -q inet || {
        cluster_why="no address but loopback's, so Slurm finds no host; \"ip addr add 198.18.0.1/32 dev lo\" helps"
        return 1
    }
}

# A run of N+1 free ports.
cluster_ports() {
    local base try port taken
    taken=$(ss -Hltan | awk '{ sub(/.*:/, "", $4); print $4 }')
    for try in $(seq 50); do
        base=$((20000 + (($$ + try * 97) % 1000) * 10))
        for port in $(seq $base $((base + $1))); do
            grep -qx "$port" <<<"$taken" && continue 2
        done
        echo $base
        return
    done
    return 1
}

# cluster_spawn NAME COMMAND...: in the background, remembered; its talk goes to a log.
cluster_spawn() {
    local name=$1
    shift
    "$@" </dev/null >>"$cluster_dir/log/$name.out" 2>&1 3>&- 4>&- &
    echo $! >>"$cluster_dir/pids"
}

cluster_configure() { # NODES PORT
    local n user host listen=
    user=$(id -un) host=$(uname -n)
    host=${host%%.*}
    for n in $(seq "$1"); do mkdir -p "$cluster_dir/spool/n$n" "$cluster_dir/tmp/n$n"; done
    # The controller listens where its host name points to.
    if getent ahostsv4 "$host" | grep -q '^127\.'; then
        listen=CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
    fi
    : >"$cluster_dir/plugstack.conf"
    # The plugin's other kind of fence lets tasks through early on a few nodes.
    echo PMIxCollFence=ring >"$cluster_dir/mpi.conf"
    # A node looks for cgroups even where nothing asks for them, and fails in a container
    # where it may not change them; the older kind is content with a folder.
    mkdir "$cluster_dir/cgroup"
    printf '%s\n' CgroupPlugin=cgroup/v1 "CgroupMountpoint=$cluster_dir/cgroup" >"$cluster_dir/cgroup.conf"
    # GPUs that are counted, and are not there.
    mkdir "$cluster_dir/gpu" && touch "$cluster_dir"/gpu/{0..7}
    echo "Name=gpu File=$cluster_dir/gpu/[0-7]" >"$cluster_dir/gres.conf"
    cat >"$cluster_dir/slurm.conf" <<CONF
ClusterName=one-host
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$2
SlurmUser=$user
SlurmdUser=$user
$listen

# Credentials of a private munge.  A requeued job waits until its old ones expire.
AuthType=auth/munge
AuthInfo=socket=$cluster_dir/munge/socket,cred_expire=5

# Several nodes on one host: what belongs to a node has %n in its path.
GresTypes=gpu
NodeName=n[1-$1] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$(($2 + 1))-$(($2 + $1))] CPUs=${cluster_cpus:-4} RealMemory=500 Gres=gpu:8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
SlurmdSpoolDir=$cluster_dir/spool/%n
TmpFS=$cluster_dir/tmp/%n
SlurmdPidFile=$cluster_dir/%n.pid
SlurmdLogFile=$cluster_dir/log/%n.log
SlurmdParameters=config_overrides

# Nothing of the host's: no cgroups, no accounting, no mail, no plugins configured elsewhere.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
PlugStackConfig=$cluster_dir/plugstack.conf
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU

# Quick: schedule at once, kill soon, keep finished jobs long enough to ask about them.
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
KillWait=3
MinJobAge=600
ReturnToService=2

StateSaveLocation=$cluster_dir/state
SlurmctldPidFile=$cluster_dir/slurmctld.pid
SlurmctldLogFile=$cluster_dir/log/slurmctld.log
CONF
}

cluster_idle() {
    [ "$(timeout 60 sinfo -h -t idle -o %D 2>/dev/null | awk '{ s += $1 } END { print s + 0 }')" = "$1" ]
}

# cluster_start NODES: of 4 processors each, or as many as $cluster_cpus says, on paper
cluster_start() {
    local port n
    port=$(cluster_ports "$1") || { echo "no free ports"; return 1; }
    cluster_dir=$(mktemp -d /tmp/d9d-XXXXXX) # short: sockets live under it
    chmod 755 "$cluster_dir"
    mkdir -m 755 "$cluster_dir"/{state,spool,tmp,log,munge}
    cluster_configure "$1" "$port"
    export SLURM_CONF=$cluster_dir/slurm.conf

    mungekey -c -k "$cluster_dir/munge/key"
    cluster_spawn munged munged --foreground --key-file="$cluster_dir/munge/key" \
        --socket="$cluster_dir/munge/socket" --pid-file="$cluster_dir/munge/pid" \
        --log-file="$cluster_dir/log/munged.log" --seed-file="$cluster_dir/munge/seed"
    wait_for [ -S "$cluster_dir/munge/socket" ] || return 1
    cluster_spawn slurmctld slurmctld -D -c -i -f "$SLURM_CONF"
    for n in $(seq "$1"); do
        cluster_spawn "n$n" slurmd -D -N "n$n" -f "$SLURM_CONF"
    done
    wait_for cluster_idle "$1" || {
        tail -n 15 "$cluster_dir"/log/*
        cluster_stop
        return 1
    }
}

cluster_empty() {
    local jobs
    jobs=$(timeout "${cluster_patience:-60}" squeue -h -o %i) && [ -z "$jobs" ]
}

# cluster_rest: the processes that were begun under this cluster's configuration: step daemons, their
# tasks, srun.
cluster_rest() {
    local environ pid
    while read -r environ; do
        pid=${environ//[!0-9]/}
        is_gone "$pid" || echo "$pid"
    done < <(grep -lzxFs "SLURM_CONF=$cluster_dir/slurm.conf" /proc/[0-9]*/environ)
}
cluster_is_over() { [ -z "$(cluster_rest)" ]; }

# cluster_stop: end all jobs, then what was started, by pid, then what a daemon that had gone could
# not end.  Nothing that fails stops it.  $cluster_patience: seconds for the jobs.
cluster_stop() {
    local pid signal
    [ -n "${cluster_dir:-}" ] && [ -e "$cluster_dir/pids" ] || return 0
    timeout "${cluster_patience:-60}" scancel --user="$(id -un)" 2>/dev/null || :
    patience=${cluster_patience:-60} wait_for cluster_empty >/dev/null || :
    for pid in $(tac "$cluster_dir/pids"); do kill "$pid" 2>/dev/null || :; done
    while read -r pid; do
        patience=60 wait_for is_gone "$pid" >/dev/null || kill -KILL "$pid" 2>/dev/null || :
    done <"$cluster_dir/pids"
    for signal in TERM KILL; do
        for pid in $(cluster_rest); do kill -$signal "$pid" 2>/dev/null || :; done
        patience=10 wait_for cluster_is_over >/dev/null 2>&1 && break
    done
    rm -rf "$cluster_dir"
}

# job_field ID FIELD: of `scontrol show job`.
job_field() {
    timeout 60 scontrol show job "$1" | sed -n "s/.*[ ]$2=\([^ ]*\).*/\1/p;s/^$2=\([^ ]*\).*/\1/p" | head -n 1
}

# job_over ID: it will not run again.
job_over() {
    case $(job_field "$1" JobState) in
    COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL | OUT_OF_MEMORY | BOOT_FAIL) ;;
    *) return 1 ;;
    esac
}
