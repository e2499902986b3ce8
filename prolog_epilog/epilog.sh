#!/bin/sh
# Epilog part of slurm_robust: removes what the agents of the ended job may have left in /dev/shm of this
# node when they were killed before they could do it themselves. For slurm.conf:
#   Epilog=/etc/slurm/epilog.d/*        (with a copy of this file there, root's, mode 0755)
# It always ends with 0, because Slurm drains a node whose epilog fails, and a left-over file is no reason.

PATH=/usr/sbin:/usr/bin:/sbin:/bin      # Slurm gives no PATH
export PATH
LIMIT_S=10

job=${SLURM_JOB_ID:-}
uid=${SLURM_JOB_UID:-}
gid=${SLURM_JOB_GID:-$uid}
# Only numbers go on, and never root's own files.
for number in "$job" "$uid" "$gid"; do
    case $number in '' | 0 | *[!0-9]*) exit 0 ;; esac
done

# As the job's user: what these commands can be led to (links, races) is at most what the user may do anyway.
timeout --kill-after=2 "$LIMIT_S" setpriv --reuid "$uid" --regid "$gid" --clear-groups -- \
    find -P /dev/shm -xdev -mindepth 1 -maxdepth 1 -type d -user "$uid" -name "srobust-$uid-$job-*" \
    -exec rm -rf --one-file-system -- {} + ||
    logger -t srobust-epilog "job $job: /dev/shm could not be swept within $LIMIT_S s" 2>/dev/null
exit 0
