#!/bin/sh
# Epilog: after a job has ended on this node, as root. In slurm.conf:
#   Epilog=/etc/slurm-robust/slurm.d/epilog/*
# Removes what the job left in /dev/shm, checks the node (with all checks if the job suspected it), and drains
# it with the evidence if it failed. Ends with 0, or with the exit code of a program in
# /etc/slurm-robust/epilog.d: Slurm drains a node whose epilog fails, and does not say why.
SROBUST_NODE=/usr/bin/srobust-node
here=$(/usr/bin/dirname "$(/usr/bin/readlink -f "$0")") # an installed script has its path instead
. "$here/hook.sh"
run_hook epilog 100
