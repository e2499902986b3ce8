#!/usr/bin/env bash
# Makes a release of the commit that is checked out:  tools/release.sh 0.2.0
# Tests what packages bring, builds wheel, sdist, .deb and, where rpmbuild is, .rpm into dist/ with SHA256SUMS, prints the
# notes and, if all of that went well, tags the commit. It pushes and uploads nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VERSION=${1:-} PYTHON=.venv/bin/python TREE=build/release
fail() { echo "release: $*" >&2; exit 1; }
say() { echo "release: $*" >&2; }

# What CHANGELOG.md has below a heading that begins so.
below() { awk -v head="## $1" 'index($0, head) == 1 {on = 1; next} /^## / {on = 0} on' CHANGELOG.md; }
is_blank() { [ -z "$(tr -d '[:space:]')" ]; }

check() {
    [[ $VERSION =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "which one? make release VERSION=0.2.0"
    [ -z "$(git status --porcelain)" ] || fail "the tree is not clean: commit what it has, or remove it"
    grep -qx "__version__ = \"$VERSION\"" slurm_robust/version.py || fail "slurm_robust/version.py says another version"
    below "$VERSION — " | is_blank && fail "CHANGELOG.md has no notes under '## $VERSION — DATE'"
    below Unreleased | is_blank || fail "CHANGELOG.md has lines under Unreleased: move them below $VERSION"
    if git rev-parse --quiet --verify "refs/tags/v$VERSION" >/dev/null; then
        [ "$(git rev-parse "v$VERSION^{commit}")" = "$(git rev-parse HEAD)" ] || fail "v$VERSION is another commit"
    fi
}

run_tests() {
    local tests=(tests/unit/test_package.py tests/unit/test_licenses.py tests/unit/test_constraints.py)
    [ "$(id -u)" != 0 ] || tests+=(tests/cluster/test_install.py)
    say "testing ${tests[*]}"
    OMP_NUM_THREADS=1 $PYTHON -m pytest -q "${tests[@]}" >&2
}

build() {
    local formats=(deb)
    command -v rpmbuild >/dev/null && formats+=(rpm) || say "no .rpm: rpmbuild is not here (on Debian: apt-get install rpm)"
    rm -rf dist $TREE
    # A tree of its own has nothing of earlier builds.
    git clone --quiet . $TREE
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    export SOURCE_DATE_EPOCH SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION
    say "building wheel and sdist"
    $PYTHON -m build --no-isolation --outdir dist $TREE >build/release.log 2>&1 || fail "see build/release.log"
    say "building ${formats[*]}"
    packaging/build.sh "${formats[@]}" >/dev/null
    (cd dist && sha256sum -- * >../build/SHA256SUMS && mv ../build/SHA256SUMS .)
    rm -rf $TREE
}

check
run_tests
build
git tag --list "v$VERSION" | grep -q . || git tag --annotate --message "slurm_robust $VERSION" "v$VERSION"
echo "slurm_robust $VERSION"
below "$VERSION — "
cat dist/SHA256SUMS
say "dist/ is ready, and the commit is tagged; to publish: git push origin v$VERSION, and upload dist/"
