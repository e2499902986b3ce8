#!/bin/sh
# Prolog: before a job begins on this node, as root. In slurm.conf:
#   Prolog=/etc/slurm-robust/slurm.d/prolog/*      SchedulerParameters=...,nohold_on_prolog_fail
#   PrologFlags=Alloc                              PrologEpilogTimeout=120
# Removes copies of checkpoints that no job will use again, and checks the node. Ends with 1 if the node must
# not run jobs and the configuration says "act": Slurm then drains it and requeues the job. Otherwise with 0,
# or with the exit code of a program in /etc/slurm-robust/prolog.d.
SROBUST_NODE=/usr/bin/srobust-node
here=$(/usr/bin/dirname "$(/usr/bin/readlink -f "$0")") # an installed script has its path instead
. "$here/hook.sh"
run_hook prolog 90
