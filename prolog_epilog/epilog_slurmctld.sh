#!/bin/sh
# EpilogSlurmctld: beside slurmctld, as SlurmUser, when a job has released its nodes. Optional. In slurm.conf:
#   EpilogSlurmctld=/usr/libexec/slurm-robust/epilog_slurmctld.sh
# Records the end of the job. Always ends with 0.
SROBUST_NODE=/usr/bin/srobust-node
here=$(/usr/bin/dirname "$(/usr/bin/readlink -f "$0")") # an installed script has its path instead
. "$here/hook.sh"
ours epilog_slurmctld 30
exit 0
