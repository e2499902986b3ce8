#!/bin/sh
# HealthCheckProgram: now and then on every node, as root. In slurm.conf:
#   HealthCheckProgram=/etc/slurm-robust/slurm.d/healthcheck
#   HealthCheckInterval=61                         HealthCheckNodeState=ANY,CYCLE
# Checks the node, drains it with the evidence or returns it to service. Slurm kills it after 60 s and ignores
# its exit code. Programs in /etc/slurm-robust/periodic.d run around it.
SROBUST_NODE=/usr/bin/srobust-node
here=$(/usr/bin/dirname "$(/usr/bin/readlink -f "$0")") # an installed script has its path instead
. "$here/hook.sh"
run_hook periodic 50
