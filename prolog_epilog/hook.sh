# What the scripts beside this file share. POSIX sh; no environment is assumed, since Slurm gives hooks none.
# Programs of the site in /etc/slurm-robust/<hook>.d run around ours: those whose names begin with 0 to 4
# before, all others after. Each is bounded in time; an exit code other than 0 ends the hook with that code.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
DROP_INS=/etc/slurm-robust
DROP_IN_S=30

say() {
    echo "slurm-robust: $1" >&2
    timeout 2 logger -t slurm-robust -- "$1" 2>/dev/null
}

# The last resort: srobust-node ends by itself within its budget, and leaves behind what hangs.
bounded() {
    limit=$1
    shift
    timeout --kill-after=2 "$limit" "$@" </dev/null
}

drop_ins() { # hook, before|after
    for program in "$DROP_INS/$1.d"/*; do
        [ -f "$program" ] && [ -x "$program" ] || continue
        case ${program##*/} in
            *~ | *.bak | *.rpmnew | *.rpmsave | *.rpmorig | *.dpkg-*) continue ;;
            [0-4]*) turn=before ;;
            *) turn=after ;;
        esac
        [ "$turn" = "$2" ] || continue
        bounded "$DROP_IN_S" "$program" || {
            code=$?
            say "$1: $program ended with $code"
            return "$code"
        }
    done
    return 0
}

# One exit code of srobust-node counts: 1 of a prolog means that no job may start here. Any other is a fault
# of ours (not installed, a bug), which is no reason to drain a node.
ours() { # hook, limit in seconds
    for command in "$SROBUST_NODE" /usr/bin/srobust-node /usr/local/bin/srobust-node; do
        [ -x "$command" ] && break
    done
    bounded "$2" "$command" "$1"
    code=$?
    case $1:$code in
        *:0) return 0 ;;
        prolog:1) return 1 ;;
        *) say "$1: $command ended with $code; going on without it" ;;
    esac
    return 0
}

run_hook() { # hook, limit in seconds
    drop_ins "$1" before && ours "$1" "$2" && drop_ins "$1" after
}
