#!/bin/sh
# A real SLURM of this machine, of one controller and one node on loopback: cluster.sh start|stop|restart FOLDER
# `start FOLDER 2` has two nodes, both of them this machine.
# Everything lies in FOLDER; export SLURM_CONF=FOLDER/slurm.conf to use it. Needs root, and Debian's slurm-wlm and munge.
set -eu
what=$1
folder=$(realpath -m "$2")
node=$(hostname -s)
for program in munged slurmctld slurmd sbatch; do
    PATH="$PATH:/usr/sbin" command -v $program >/dev/null || {
        echo "There is no $program: apt-get install slurm-wlm munge" >&2
        exit 1
    }
done
PATH="$PATH:/usr/sbin"

configure() {
    mkdir -p "$folder/state" "$folder/spool"
    chmod 700 "$folder"
    head -c 64 /dev/urandom >"$folder/munge.key"
    chmod 400 "$folder/munge.key"
    cat >"$folder/slurm.conf" <<CONF
ClusterName=loopback
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=16817
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=900
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=1,requeue_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=5
PartitionName=normal Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=2
CONF
    port=16818
    for name in $names; do
        about="NodeHostname=$node NodeAddr=127.0.0.1 Port=$port CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2"
        echo "NodeName=$name $about ThreadsPerCore=1 RealMemory=4000" >>"$folder/slurm.conf"
        port=$((port + 1))
    done
}

controller() {
    slurmctld -f "$folder/slurm.conf" "$@"
}

end() {
    [ -f "$folder/$1.pid" ] || return 0
    pid=$(cat "$folder/$1.pid")
    kill "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
}

case $what in
start)
    names=$node
    [ "${3:-1}" = 1 ] || names="$node $node-2"
    configure
    munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
    controller -c
    for name in $names; do slurmd -f "$folder/slurm.conf" -N "$name"; done
    ;;
restart)
    end slurmctld
    sleep "${3:-0}"
    controller
    ;;
stop)
    for daemon in slurmctld "slurmd-$node" "slurmd-$node-2" munged; do end "$daemon"; done
    ;;
esac
