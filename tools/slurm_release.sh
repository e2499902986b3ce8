#!/usr/bin/env bash
# Runs tests on another release of Slurm, as root: tools/slurm_release.sh RELEASE [COMMAND ...]
#   1. a tree with that release from Debian's packages (debootstrap), kept in build/ for the next time;
#   2. namespaces of their own whose root is that tree, with this checkout and its Python read-only in it;
#   3. there, the tests marked "releases" and a short demo, or COMMAND.
# What is written there lies in memory and goes with the last process.
#
# Variables:
#   SROBUST_DEBIAN_MIRROR    where the packages come from (default: the mirror that apt uses on this machine)
#   SROBUST_REQUIRE_CLUSTER  1: a machine that cannot do this is a failure, not a message
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

readonly CHECKOUT=$PWD
readonly SELF=$CHECKOUT/tools/slurm_release.sh
readonly PYTHON=$CHECKOUT/.venv/bin/python
# python3 for the libraries that every Python needs; the checkout's own one is used.
readonly PACKAGES=slurmctld,slurmd,slurmdbd,slurm-client,munge,mariadb-server-core,mariadb-client-core,iproute2,procps,gcc,libc6-dev,python3

say() { echo "slurm_release: $*" >&2; }
fail() { say "$*"; exit 1; }
cannot() { say "$*"; exit "$([ "${SROBUST_REQUIRE_CLUSTER:-}" = 1 ] && echo 1 || echo 0)"; }

suite_of() {
    case $1 in
        22.05) echo bookworm ;;
        24.11) echo trixie ;;
        26.05) echo sid ;;
        *) fail "no suite of Debian for Slurm '$1'; there are: 22.05 (bookworm), 24.11 (trixie), 26.05 (sid)" ;;
    esac
}

# -- the tree -------------------------------------------------------------------------------------

mirror() {
    if [ -n "${SROBUST_DEBIAN_MIRROR:-}" ]; then
        echo "$SROBUST_DEBIAN_MIRROR"
    else
        apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sed 1q
    fi
}

# Version of Slurm's package in a suite, so that a tree is made anew when Debian has another one.
version_in() {
    local index
    index=$(mktemp)
    if apt_helper download-file "$1/dists/$2/main/binary-$(dpkg --print-architecture)/Packages.xz" "$index.xz"; then
        apt_helper cat-file "$index.xz" |
            awk '$1 == "Package:" { here = $2 == "slurmctld" } here && $1 == "Version:" { print $2 }'
    fi
    rm -f "$index" "$index.xz"
}

apt_helper() { /usr/lib/apt/apt-helper -qq "$@"; }

make_tree() {
    local tree=$1 suite=$2 mirror=$3 partial=$1.partial
    rm -rf --one-file-system "$partial"
    mkdir -p "$partial"
    say "making $tree from $suite of $mirror (some minutes; the log is $tree.log)"
    # In namespaces: whatever stops it, no mount and no daemon of these packages is left.
    unshare --mount --pid --fork --kill-child -- "$SELF" --make "$partial" "$suite" "$mirror" >"$tree.log" 2>&1 ||
        fail "this did not work; the end of $tree.log: $(tail -n 3 "$tree.log")"
    rm -rf --one-file-system "$tree"
    mv "$partial" "$tree"
}

make_in_namespaces() {
    local tree=$1 suite=$2 mirror=$3
    debootstrap --variant=minbase --include="$PACKAGES" "$suite" "$tree" "$mirror"
    if [ "$suite" != bookworm ]; then
        # With libmariadb3 11.8.9 slurmdbd ends: "null result from query". That of bookworm is good.
        echo "deb $mirror bookworm main" >>"$tree/etc/apt/sources.list"
        chroot "$tree" apt-get -q -o Acquire::Check-Valid-Until=false update
        chroot "$tree" apt-get -q install --yes --allow-downgrades libmariadb3/bookworm mariadb-client-core/bookworm
    fi
    chroot "$tree" apt-get clean
    rm -rf "$tree"/var/lib/apt/lists/*
}

# Prints the tree's path; made now if there is none of the newest version, or this script is newer.
find_tree() {
    local release=$1 suite mirror version tree
    suite=$(suite_of "$release")
    mirror=$(mirror)
    mirror=${mirror%/}
    version=${mirror:+$(version_in "$mirror" "$suite")}
    tree=$CHECKOUT/build/slurm-$version
    if [ -z "$version" ]; then
        tree=$(find "$CHECKOUT/build" -maxdepth 1 -type d -name "slurm-$release.*[0-9]" | sort -V | tail -n 1)
        [ -n "$tree" ] || fail "no mirror of Debian answers; name one: SROBUST_DEBIAN_MIRROR=http://HOST/debian"
        say "no mirror of Debian answers; taking $tree"
    elif [[ $version != "$release".* ]]; then
        fail "$suite has Slurm $version by now, not $release"
    elif [ ! -d "$tree" ] || [ "$SELF" -nt "$tree" ]; then
        make_tree "$tree" "$suite" "$mirror"
    fi
    echo "$tree"
}

# -- inside ---------------------------------------------------------------------------------------

# pivot_root, not chroot: what enters a sandbox's node lands in the root of its mount namespace.
inside() {
    local tree=$1 base=$2 root=/mnt/root path
    shift 2
    mount -t tmpfs tmpfs /mnt
    mkdir /mnt/changes /mnt/work $root
    mount -t overlay overlay -o "lowerdir=$tree,upperdir=/mnt/changes,workdir=/mnt/work" $root
    mount -t proc proc $root/proc
    mount -t sysfs sysfs $root/sys
    mount --rbind /dev $root/dev
    mount -t tmpfs -o mode=1777 tmpfs $root/dev/shm
    for path in "$CHECKOUT" "$base"; do
        mkdir -p "$root$path"
        mount --bind "$path" "$root$path"
        mount -o remount,bind,ro "$root$path"
    done
    mount -t tmpfs tmpfs "$root$CHECKOUT/build"
    cd $root
    pivot_root . mnt
    umount --lazy /mnt
    cd "$CHECKOUT"
    [ $# -gt 0 ] || set -- sh -ec "$PYTHON -m pytest -p no:cacheprovider -m releases tests/cluster
        $PYTHON demo/run.py --steps 100"
    exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
        TERM="${TERM:-dumb}" PYTHONDONTWRITEBYTECODE=1 SROBUST_REQUIRE_CLUSTER=1 "$@"
}

main() {
    local release=${1:-} tree base
    [ -n "$release" ] || fail "name a release: make test-slurm RELEASE=24.11 (or 22.05, 26.05)"
    shift
    [ "$(id -u)" = 0 ] || cannot "other releases of Slurm need root"
    command -v debootstrap >/dev/null || cannot "other releases of Slurm need Debian and its debootstrap"
    [ -x "$PYTHON" ] || fail "no $PYTHON; make setup brings it"
    base=$("$PYTHON" -c 'import sys; print(sys.base_prefix)')
    [ "$base" != /usr ] ||
        cannot "Debian's own Python cannot go with .venv; make that with another one: SROBUST_PYTHON=PATH make setup"
    mkdir -p build
    exec 9>build/slurm-release.lock
    flock 9  # two at once must not make one tree together
    tree=$(find_tree "$release")
    exec 9>&-
    say "Slurm ${tree##*/slurm-}"
    exec unshare --mount --pid --ipc --uts --fork --kill-child --propagation private -- \
        "$SELF" --inside "$tree" "$base" "$@"
}

case ${1:-} in
    --make) make_in_namespaces "${@:2}" ;;
    --inside) inside "${@:2}" ;;
    *) main "$@" ;;
esac
