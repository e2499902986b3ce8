#!/bin/sh
# Epilog part of slurm_robust: removes what the agents of the ended job may have left in /dev/shm of this
# node when they were killed before they could do it themselves. For slurm.conf:
#   Epilog=/etc/slurm/epilog.d/*        (with a copy of this file there, root's, mode 0755)
# Copies of checkpoints (folders named *-copies) stay when the job comes back, since it continues from them;
# if that cannot be found out in a few seconds, they stay too, and prolog.sh of the next job removes them.
# It always ends with 0, because Slurm drains a node whose epilog fails, and a left-over file is no reason.

PATH=/usr/sbin:/usr/bin:/sbin:/bin      # Slurm gives no PATH
export PATH
LIMIT_S=10
SLURM_S=5
shm=${1:-/dev/shm}                      # arguments are for tests: Slurm gives none
# Slurm's commands are beside its daemon, which started us, or in one of the usual places.
slurm=${2:-$(readlink "/proc/$PPID/exe" 2>/dev/null)}
[ -n "${2:-}" ] || slurm=${slurm%/*}/../bin

job=${SLURM_JOB_ID:-}
uid=${SLURM_JOB_UID:-}
gid=${SLURM_JOB_GID:-$uid}
# Only numbers go on, and never root's own files.
for number in "$job" "$uid" "$gid"; do
    case $number in '' | 0 | *[!0-9]*) exit 0 ;; esac
done

# As the job's user: what these commands can be led to (links, races) is at most what the user may do anyway.
as_user() {
    timeout --kill-after=2 "$LIMIT_S" setpriv --reuid "$uid" --regid "$gid" --clear-groups -- "$@"
}

sweep() {
    as_user find -P "$shm" -xdev -mindepth 1 -maxdepth 1 -type d -user "$uid" -name "srobust-$uid-$job-*" \
        "$@" -exec rm -rf --one-file-system -- {} + ||
        logger -t srobust-epilog "job $job: $shm could not be swept within $LIMIT_S s" 2>/dev/null
}

# Slurm calls every job COMPLETING now, whether it is over or requeued. But a requeue has raised the number of
# its restarts already, and the agent has left the number with which this run began.
comes_back() {
    began=$(as_user head -c 12 -- "$1/run" 2>/dev/null)
    case $began in '' | *[!0-9]*) return 0 ;; esac
    restarts=${SLURM_JOB_RESTART_COUNT:-$(ask_restarts)}
    case $restarts in '' | *[!0-9]*) return 0 ;; esac
    [ "$restarts" -gt "$began" ]
}

ask_restarts() {
    for folder in "$slurm" /usr/bin /usr/local/bin /opt/slurm/bin /usr/local/slurm/bin; do
        [ -x "$folder/scontrol" ] && break
    done
    timeout --kill-after=1 "$SLURM_S" "$folder/scontrol" -o show job "$job" 2>/dev/null |
        sed -n 's/.* Restarts=\([0-9]*\) .*/\1/p'
}

sweep ! -name '*-copies'
left=$(as_user find -P "$shm" -xdev -mindepth 1 -maxdepth 1 -type d -user "$uid" \
    -name "srobust-$uid-$job-*-copies" -print -quit 2>/dev/null)
[ -z "$left" ] || comes_back "$left" || sweep -name '*-copies'
exit 0
