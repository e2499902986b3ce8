#!/usr/bin/env bash
# Sets up everything that the demo and the tests need, and only what is missing:
#   1. Debian packages for the sandbox (Slurm, munge, MariaDB, PostgreSQL, ip, unshare, cc, bindfs), by apt-get, when root;
#   2. a virtual environment in .venv with PyTorch and this package in editable mode.
# Words name more commands, each with its package: tools/setup.sh rpmbuild rpm
# A second run costs a few milliseconds: a stamp tells that nothing has changed.
#
# Variables:
#   SROBUST_PYTHON  the Python to make .venv from (default: the first of python3, python3.15 … 3.10 that fits)
#   SROBUST_TORCH   words for "pip install" that bring PyTorch (default: the torch of tools/constraints.txt). On
#                   a machine without GPUs the CPU build is much smaller: "torch==2.13.0+cpu --index-url URL"
#                   with the URL that PyTorch's installation page names for CPU builds.
# The other packages have the versions of tools/constraints.txt, but beside another PyTorch what goes with that.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv
readonly STAMP=$VENV/.srobust-setup
readonly PINS=tools/constraints.txt
readonly POLICY=/usr/sbin/policy-rc.d
OLDEST_PYTHON=$(sed -n 's/^requires-python = ">=\(.*\)"$/\1/p' pyproject.toml)
OLDEST_TORCH=$(sed -n 's/^train = \["torch>=\([0-9.]*\)".*/\1/p' pyproject.toml)
PINNED_TORCH=$(sed -n 's/^torch==//p' $PINS)
readonly OLDEST_PYTHON OLDEST_TORCH PINNED_TORCH
readonly TORCH=${SROBUST_TORCH:-torch==$PINNED_TORCH}

# What the sandbox still needs and this script could not install.
LACKING=

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }

# -- Debian packages ------------------------------------------------------------------------------

# One line per command that must be there: command, package that brings it.
needed_commands() {
    [ $# -lt 2 ] || printf '%s %s\n' "$@"
    cat <<'LIST'
slurmctld slurmctld
slurmd slurmd
slurmdbd slurmdbd
srun slurm-client
munged munge
mariadbd mariadb-server
pg_createcluster postgresql
ip iproute2
bindfs bindfs
mkfs.ext4 e2fsprogs
unshare util-linux
cc gcc
cc libc6-dev
LIST
}

missing_packages() {
    local command package
    while read -r command package; do
        PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin command -v "$command" >/dev/null || echo "$package"
    done < <(needed_commands "$@") | sort -u
}

remove_policy() { rm -f "$POLICY"; }

install_packages() {
    local packages=("$@") words policy_is_ours=
    words="apt-get install --no-install-recommends ${packages[*]}"
    if ! command -v apt-get >/dev/null; then
        say "this is no Debian: install what brings these by yourself for the sandbox: ${packages[*]}"
        LACKING="${packages[*]}"
        return 0
    fi
    if [ "$(id -u)" != 0 ]; then
        say "missing for the sandbox (demo and cluster tests) or for other tests: ${packages[*]}"
        say "not root, so please run: sudo $words"
        LACKING="${packages[*]}"
        return 0
    fi
    say "installing ${packages[*]} (apt-get)"
    # The daemons of these packages must not start on this machine: the sandbox has its own.
    if [ ! -e "$POLICY" ]; then
        trap remove_policy EXIT
        printf '#!/bin/sh\nexit 101\n' >"$POLICY"
        chmod 755 "$POLICY"
        policy_is_ours=1
    fi
    export DEBIAN_FRONTEND=noninteractive
    local apt=(apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0)
    "${apt[@]}" update || say "apt-get update failed; trying with the lists that are here"
    "${apt[@]}" install --yes --no-install-recommends "${packages[@]}" >/dev/null ||
        fail "apt-get could not install them; to see why: $words"
    if [ -n "$policy_is_ours" ]; then
        remove_policy
        trap - EXIT
    fi
    if [ -d /run/systemd/system ]; then
        say "the services of these packages were not started, but systemd will start them at the next boot;"
        say "the sandbox does not need them: systemctl disable munge mariadb postgresql slurmctld slurmd slurmdbd"
    fi
}

# -- Python ---------------------------------------------------------------------------------------

fits() { "$1" -c "import sys; sys.exit(sys.version_info < (${OLDEST_PYTHON/./, }))" 2>/dev/null; }

# Prints the version of PyTorch that a Python sees, and fails if there is none or it is too old.
torch_of() {
    "$1" -c '
import importlib.metadata as metadata, sys
numbers = lambda version: tuple(int(part) for part in version.split(".")[:2])
try:
    found = metadata.version("torch")
except metadata.PackageNotFoundError:
    sys.exit(1)
print(found)
sys.exit(numbers(found) < numbers(sys.argv[1]))' "$OLDEST_TORCH"
}

find_python() {
    local candidate
    if [ -n "${SROBUST_PYTHON:-}" ]; then
        fits "$SROBUST_PYTHON" || fail "SROBUST_PYTHON=$SROBUST_PYTHON is no Python of $OLDEST_PYTHON or later"
        echo "$SROBUST_PYTHON"
        return
    fi
    for candidate in python3 /usr/bin/python3 python3.15 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if command -v "$candidate" >/dev/null && fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

make_venv() {
    local python options=()
    if [ -x $VENV/bin/python ] && fits $VENV/bin/python && $VENV/bin/python -m pip --version >/dev/null 2>&1; then
        return
    fi
    python=$(find_python) || { install_packages python3 python3-venv; python=$(find_python); } ||
        fail "no Python of $OLDEST_PYTHON or later; install one, or name it: SROBUST_PYTHON=/path/to/python3 make setup"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
    # A PyTorch that a site has installed already (for its GPUs) is better than any that we would fetch.
    if [ -z "${SROBUST_TORCH:-}" ] && torch_of "$python" >/dev/null; then
        options=(--system-site-packages)
    fi
    say "making $VENV with $("$python" --version)"
    "$python" -m venv --clear "${options[@]}" $VENV ||
        fail "'$python -m venv' failed; on Debian: apt-get install python3-venv"
}

install_python_packages() {
    local pip=($VENV/bin/python -m pip --disable-pip-version-check --quiet) pins=(--constraint $PINS)
    if [ -n "${SROBUST_TORCH:-}" ]; then
        say "installing PyTorch: pip install $TORCH"
        # shellcheck disable=SC2086  # words on purpose: the variable may hold options
        "${pip[@]}" install $TORCH
    elif ! torch_of $VENV/bin/python >/dev/null; then
        say "installing PyTorch: pip install $TORCH (set SROBUST_TORCH for another build)"
        "${pip[@]}" install "${pins[@]}" "$TORCH"
    fi
    # Another PyTorch may want other versions of what is pinned.
    [[ $(torch_of $VENV/bin/python) == "$PINNED_TORCH"* ]] || pins=()
    say "installing this package and its tools (pip)"
    "${pip[@]}" install "${pins[@]}" --editable '.[dev]'
}

# What the environment was made from: when this text is the stamp's, nothing is to do.
wanted() { { cat pyproject.toml tools/setup.sh $PINS; echo "$TORCH"; pwd; } | cksum; }

say_the_end() {
    if [ -z "$LACKING" ]; then
        say "done"
    else
        say "$VENV is ready; the sandbox is not (make demo, make test-cluster): it lacks $LACKING"
    fi
}

main() {
    local missing
    exec 9<tools/setup.sh
    flock 9  # two "make" at once must not build one environment together
    mapfile -t missing < <(missing_packages "$@")
    if [ ${#missing[@]} -gt 0 ]; then
        install_packages "${missing[@]}"
    fi
    if [ -f $STAMP ] && [ "$(cat $STAMP)" = "$(wanted)" ] && $VENV/bin/python -c '' 2>/dev/null; then
        return
    fi
    make_venv
    install_python_packages
    wanted >$STAMP
    say_the_end
}

main "$@"
