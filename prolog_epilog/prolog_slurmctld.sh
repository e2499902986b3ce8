#!/bin/sh
# PrologSlurmctld: beside slurmctld, as SlurmUser, when a job gets its nodes. Optional. In slurm.conf:
#   PrologSlurmctld=/usr/libexec/slurm-robust/prolog_slurmctld.sh
# Records which nodes the job got, and warns if we have drained one of them. Always ends with 0, because
# Slurm requeues the job otherwise.
SROBUST_NODE=/usr/bin/srobust-node
here=$(/usr/bin/dirname "$(/usr/bin/readlink -f "$0")") # an installed script has its path instead
. "$here/hook.sh"
ours prolog_slurmctld 30
exit 0
