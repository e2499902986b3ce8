#!/usr/bin/env bash
# Runs the unit tests that touch PyTorch with other releases of Python and PyTorch than those of .venv:
#   tools/test_versions.sh                  the oldest pair that pyproject.toml admits, then the newest there is
#   tools/test_versions.sh PYTHON TORCH     one pair: tools/test_versions.sh 3.12 'torch==2.9.*'
# Tests that touch PyTorch: those in every folder below tests/unit of which a file imports torch, or next to it
# if it is a program in a folder without tests; and each file of tests/unit itself that does.
# A Python is the first of pythonX.Y, pyenv's and uv's; one that is not on this machine is named and passed by.
# Each pair has an environment of its own in build/versions (several GB with PyTorch's usual build), which goes
# when its tests have passed.
#
# Variables:
#   TESTS     files or folders in place of these tests
#   KEEP_ENV  1: environments stay, for the next time
set -uo pipefail
cd "$(dirname "$0")/.."

readonly FOLDER=build/versions
readonly PYTHONS=(3.15 3.14 3.13 3.12 3.11 3.10)  # newest first
OLDEST_PYTHON=$(sed -n 's/^requires-python = ">=\(.*\)"$/\1/p' pyproject.toml)
OLDEST_TORCH=$(sed -n 's/^torch = \["torch>=\([0-9.]*\)".*/\1/p' pyproject.toml)
readonly OLDEST_PYTHON OLDEST_TORCH

say() { echo "test-versions: $*" >&2; }

find_python() {
    local python
    while read -r python; do
        # pyenv's own command of that name runs only where its user has chosen that version.
        "$python" -c 'import ensurepip, venv' 2>/dev/null && echo "$python" && return
    done < <(
        command -v "python$1"
        find "${PYENV_ROOT:-$HOME/.pyenv}/versions/" -path "*/$1.*/bin/python" 2>/dev/null | sort -rV
        uv python find --no-python-downloads "$1" 2>/dev/null
    )
    return 1
}

folders() {
    local file folder
    grep -rlE --include='*.py' '^\s*(import|from) torch' tests/unit | while read -r file; do
        folder=$(dirname "$file")
        until compgen -G "$folder/test_*.py" >/dev/null; do folder=$(dirname "$folder"); done
        [ "$folder" = tests/unit ] && folder=$file  # its folder would be all unit tests
        echo "$folder"
    done | sort -u
}

# Tests one pair. 2: there is no such Python here, or no such PyTorch or numpy for it.
pair() {
    local version=$1 torch=$2 python env tests
    python=$(find_python "$version") || { say "no Python $version on this machine"; return 2; }
    env=$FOLDER/python$version-${torch//[^a-z0-9.]/}
    mkdir -p $FOLDER
    say "Python $version ($python), $torch"
    "$python" -m venv "$env" && "$env/bin/python" -m pip install --quiet --upgrade pip || return 1
    "$env/bin/python" -m pip install --quiet --no-cache-dir --only-binary=torch,numpy --dry-run --no-deps \
        "$torch" numpy || {
        say "no wheel of $torch or numpy for Python $version"
        rm -rf "$env"
        return 2
    }
    "$env/bin/python" -m pip install --quiet --no-cache-dir --editable '.[dev]' "$torch" || return 1
    # A transformers that wants a newer PyTorch is as good as none; without it its tests are skipped.
    "$env/bin/python" -c 'import sys, transformers; sys.exit(not transformers.utils.is_torch_available())' ||
        "$env/bin/python" -m pip uninstall --quiet --yes transformers
    read -ra tests <<<"${TESTS:-$(folders | tr '\n' ' ')}"
    say "$("$env/bin/python" -c 'import sys, torch; print(*sys.version.split()[:1], "torch", torch.__version__)')"
    "$env/bin/python" -m pytest -q -p no:cacheprovider -n 2 --dist loadfile "${tests[@]}" || return 1
    [ "${KEEP_ENV:-}" = 1 ] || rm -rf "$env"
}

newest() {
    local version code
    for version in "${PYTHONS[@]}"; do
        pair "$version" torch
        code=$?
        [ $code = 2 ] || return $code
    done
    return 2
}

if [ $# = 2 ]; then
    pair "$1" "$2"
else
    pair "$OLDEST_PYTHON" "torch==$OLDEST_TORCH.*"
    oldest=$?
    newest && exit $oldest
fi
