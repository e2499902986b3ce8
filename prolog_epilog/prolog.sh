#!/bin/sh
# Prolog part of slurm_robust: removes copies of checkpoints that jobs left in /dev/shm of this node and will
# not use again, so that the node's memory belongs to the job that starts. For slurm.conf:
#   Prolog=/etc/slurm/prolog.d/*        (with a copy of this file there, root's, mode 0755)
# Of each folder srobust-<uid>-<job id>-...-copies, whoever owns it, Slurm is asked whether the job still
# exists. Without an answer within a few seconds nothing is removed. It always ends with 0, because Slurm
# drains a node whose prolog fails.

PATH=/usr/sbin:/usr/bin:/sbin:/bin      # Slurm gives no PATH
export PATH
LIMIT_S=10
SLURM_S=5
MOST=500                                # folders in one go: nobody can keep the prolog busy
shm=${1:-/dev/shm}                      # arguments are for tests: Slurm gives none
# Slurm's commands are beside its daemon, which started us, or in one of the usual places.
slurm=${2:-$(readlink "/proc/$PPID/exe" 2>/dev/null)}
[ -n "${2:-}" ] || slurm=${slurm%/*}/../bin

this=${SLURM_JOB_ID:-}
case $this in '' | *[!0-9]*) exit 0 ;; esac

# Owner, group and name; names with anything but these characters are not ours. Never root's own files.
found=$(timeout --kill-after=1 "$LIMIT_S" find -P "$shm" -xdev -mindepth 1 -maxdepth 1 -type d \
    -regextype posix-extended -regex '.*/srobust-[0-9]+-[0-9]+-[A-Za-z0-9_.-]+-copies' ! -user 0 \
    -printf '%U %G %f\n' 2>/dev/null | head -n "$MOST")
[ -n "$found" ] || exit 0

for folder in "$slurm" /usr/bin /usr/local/bin /opt/slurm/bin /usr/local/slurm/bin; do
    [ -x "$folder/squeue" ] && break
done

# Number, state and nodes of all these jobs, as far as Slurm knows them, and of the one that starts here.
jobs=$(printf '%s\n' "$found" | sed 's/^[^-]*-[0-9]*-\([0-9]*\)-.*$/\1/' | sort -u | tr '\n' ',')
known=$(timeout --kill-after=1 "$SLURM_S" \
    "$folder/squeue" -a -h -j "$jobs$this" -t all -o '%A %T %N' 2>/dev/null) || exit 0
# An answer that does not know the job whose prolog this is says nothing about others either.
printf '%s\n' "$known" | grep -q "^$this " || exit 0

# Whether copies of a job may still be used here. A job that runs without this node cannot reach them, and has
# gone on from what it could reach: should it ever come back to this node, it restores something newer.
is_needed() {
    line=$(printf '%s\n' "$known" | grep "^$1 ") || return 1
    state=${line#* }
    nodes=${state#* }
    case ${state%% *} in
        BOOT_FAIL | CANCELLED | COMPLETED | DEADLINE | FAILED) return 1 ;;
        NODE_FAIL | OUT_OF_MEMORY | PREEMPTED | REVOKED | TIMEOUT) return 1 ;;
        RUNNING) [ -n "${SLURMD_NODENAME:-}" ] || return 0 ;;
        # Among the rest is COMPLETING, which a job is as well while it is being requeued.
        *) return 0 ;;
    esac
    names=$(timeout --kill-after=1 "$SLURM_S" "$folder/scontrol" show hostnames "$nodes" 2>/dev/null) ||
        return 0
    [ -n "$names" ] || return 0
    printf '%s\n' "$names" | grep -Fxq -- "$SLURMD_NODENAME"
}

end=$(($(date +%s) + LIMIT_S))
printf '%s\n' "$found" | while read -r uid gid name; do
    [ "$(date +%s)" -lt "$end" ] || break
    rest=${name#srobust-}
    owner=${rest%%-*}
    rest=${rest#*-}
    job=${rest%%-*}
    # Somebody who names a folder after another user's job gains nothing: it is judged, and goes, with his.
    [ "$owner" = "$uid" ] && [ "$job" != "$this" ] || continue
    is_needed "$job" && continue
    # As the owner: what rm can be led to (links, races) is at most what the owner may do anyway.
    timeout --kill-after=2 "$LIMIT_S" setpriv --reuid "$uid" --regid "$gid" --clear-groups -- \
        rm -rf --one-file-system -- "$shm/$name" </dev/null 2>/dev/null ||
        logger -t srobust-prolog "copies of job $job in $shm could not be removed" 2>/dev/null
done
exit 0
