#!/usr/bin/env bash
# Builds the .deb and the .rpm of the node's side:  packaging/build.sh [deb] [rpm]
# Variables: DIST (folder of the packages, dist), WORK (of the build, build/packages), PYTHON (see below).
#
# The package brings its Python modules with it, in /usr/lib/slurm-robust, and runs them with the
# distribution's own python3: no virtual environment (which breaks when python3 is upgraded), nothing from the
# network on a node, and no module that a site's own Python could replace. Since some of the modules are
# compiled, a package is for one Python version; PYTHON names it (default: /usr/bin/python3).
# Two builds of one commit are the same to the last byte.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "packaging: $*" >&2; exit 1; }

readonly PYTHON=${PYTHON:-/usr/bin/python3}
readonly VENV=${VENV_PYTHON:-.venv/bin/python}
readonly PIP=("$VENV" -m pip --disable-pip-version-check --quiet --no-input)
readonly WORK=${WORK:-$PWD/build/packages}
readonly DIST=${DIST:-$PWD/dist}
readonly STAGE=$WORK/root
readonly LIB=$STAGE/usr/lib/slurm-robust
readonly DOC=$STAGE/usr/share/doc/slurm-robust
HOMEPAGE=$(sed -n 's/^Homepage = "\(.*\)"$/\1/p' pyproject.toml)
readonly HOMEPAGE
readonly MAINTAINER='slurm_robust maintainers <maintainers@users.noreply.github.com>'
readonly SUMMARY='checks the health of Slurm nodes in prolog, epilog and between jobs'

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
PYTHON_VERSION=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
export SOURCE_DATE_EPOCH
VERSION=$("$VENV" setup.py --version 2>/dev/null) || fail "$VENV has no setuptools-scm: make setup"
# A version of dpkg and rpm: what comes before a release has a tilde there.
readonly PACKAGE_VERSION=${VERSION/.dev/~dev}
export TZ=UTC LC_ALL=C.UTF-8
umask 022

# Our modules and those of pyproject.toml in the versions that the tests ran with.
modules() {
    local constraints=$WORK/constraints.txt
    "$VENV" -m pip freeze --exclude-editable >"$constraints"
    # A copy, so that the build leaves nothing in the tree; only what git knows or does not ignore.
    mkdir -p "$WORK/source"
    git ls-files -z --cached --others --exclude-standard pyproject.toml setup.py README.md LICENSE slurm_robust \
        prolog_epilog man monitoring sbatch_templates |
        while IFS= read -rd '' name; do [ ! -e "$name" ] || printf '%s\0' "$name"; done |
        tar --null --files-from=- -cf - | tar -xf - -C "$WORK/source"
    SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION "${PIP[@]}" wheel --no-deps --no-build-isolation \
        --wheel-dir "$WORK/wheels" "$WORK/source"
    "${PIP[@]}" install --target "$LIB" --no-compile --python-version "$PYTHON_VERSION" --only-binary=:all: \
        --constraint "$constraints" "$WORK/wheels/slurm_robust-$VERSION"-*.whl
    rm -rf "$LIB"/{share,etc,include,example.py}
    # What names this machine, or the order in which pip worked.
    find "$LIB" \( -name direct_url.json -o -name RECORD -o -name INSTALLER -o -name REQUESTED \) -delete
    find "$LIB" -name __pycache__ -type d -prune -exec rm -rf {} +
    # Programs of the modules; py-spy is for agents, which run in the environment of the training.
    rm -rf "$LIB"/bin "$LIB"/py_spy-*
    # What is for compiling against pyzmq.
    find "$LIB/zmq" \( -name '*.pxd' -o -name '*.h' -o -name '*.c' \) -delete
}

# Isolated (-I): no module of the user's, of PYTHONPATH or of the current folder in a program that root runs.
# Without the distribution's own modules (-S), which also starts faster.
launcher() { # name, module, function
    install -d "$STAGE/usr/bin"
    cat >"$STAGE/usr/bin/$1" <<EOF
#!/usr/bin/python$PYTHON_VERSION -IS
import sys

sys.path.insert(0, "/usr/lib/slurm-robust")
sys.executable = "/usr/lib/slurm-robust/python"
try:
    from $2 import $3

    code = $3()
except ImportError as error:
    # While the package is being replaced. Not 1, which would say that the node must not run jobs.
    print(f"$1: {error}", file=sys.stderr)
    sys.exit(70)
sys.exit(code)
EOF
    chmod 755 "$STAGE/usr/bin/$1"
}

# What our programs call as "python -m slurm_robust.MODULE".
interpreter() {
    cat >"$LIB/python" <<EOF
#!/usr/bin/python$PYTHON_VERSION -IS
import runpy
import sys

sys.path.insert(0, "/usr/lib/slurm-robust")
sys.executable = "/usr/lib/slurm-robust/python"
if len(sys.argv) < 3 or sys.argv[1] != "-m":
    sys.exit("usage: python -m MODULE [ARGUMENTS]; the modules of slurm-robust only")
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
EOF
    chmod 755 "$LIB/python"
}

stage() {
    rm -rf "$WORK"
    mkdir -p "$LIB"
    modules
    interpreter
    launcher srobust slurm_robust.cli.__main__ program
    launcher srobust-node slurm_robust.hooks.command program
    (cd "$LIB" && PYTHONPATH=. "$PYTHON" -s -c '
import sys
from slurm_robust.admin.items import Layout, package_items, unit, UNIT_FILES
from slurm_robust.admin.files import Tree
from pathlib import Path
layout = Layout(node_command="/usr/bin/srobust-node", prefix="/usr", packaged=True)
tree = Tree(Path(sys.argv[1]))
for item in package_items(layout):
    path = tree.path(item.path)
    if item.kind == "folder":
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(item.text)
    path.chmod(item.mode)
units = tree.path("/usr/lib/systemd/system")
units.mkdir(parents=True)
for name in UNIT_FILES:
    (units / name).write_text(unit(name, layout))
' "$STAGE")
    find "$LIB" -name __pycache__ -type d -prune -exec rm -rf {} +
    gzip -9n "$STAGE"/usr/share/man/man*/*
    install -d "$DOC"
    "$VENV" packaging/copyright.py text "$LIB" >"$DOC/copyright" || fail "the licences above are not told"
    gzip -9n <CHANGELOG.md >"$DOC/changelog.gz"
    # Checked by hash never: root alone writes here, and hooks start faster.
    "$PYTHON" -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$STAGE" -p / "$LIB"
    find "$STAGE" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

build_deb() {
    local arch out tree=$WORK/deb
    arch=$(dpkg --print-architecture)
    out=$DIST/slurm-robust_${PACKAGE_VERSION}-1_$arch.deb
    cp -a "$STAGE" "$tree"
    # Where Debian's zsh looks.
    mv "$tree"/usr/share/zsh/{site-functions,vendor-completions}
    gzip -9n >"$tree${DOC#"$STAGE"}/changelog.Debian.gz" <<EOF
slurm-robust (${PACKAGE_VERSION}-1) unstable; urgency=medium

  * $VERSION, built from its own tree: changelog.gz says what is new.

 -- $MAINTAINER  $(date -R -d "@$SOURCE_DATE_EPOCH")
EOF
    install -d "$tree/DEBIAN"
    cat >"$tree/DEBIAN/control" <<EOF
Package: slurm-robust
Version: ${PACKAGE_VERSION}-1
Architecture: $arch
Maintainer: $MAINTAINER
Homepage: $HOMEPAGE
Installed-Size: $(du -sk --apparent-size "$STAGE" | cut -f1)
Depends: python$PYTHON_VERSION
Recommends: slurm-client | slurm-wlm, logrotate
Section: admin
Priority: optional
Description: $SUMMARY
 A node that is not fit gets no job, and is drained with the evidence. Nothing is
 drained until the configuration says so, and nothing runs until srobust admin
 install was told to: see srobust-admin(8).
EOF
    (cd "$STAGE" && find etc -type f | sort | sed 's,^,/,') >"$tree/DEBIAN/conffiles"
    install -m 755 packaging/prerm packaging/postrm "$tree/DEBIAN/"
    (cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
    find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$out" >/dev/null
    echo "$out"
}

build_rpm() {
    command -v rpmbuild >/dev/null || fail "the .rpm needs rpmbuild (on Debian: apt-get install rpm)"
    local top=$WORK/rpm
    mkdir -p "$top"
    (cd "$STAGE" && find etc/slurm-robust etc/logrotate.d usr \( -type f -o -type l \) | sort |
        sed -e 's,^etc,%config(noreplace) /etc,' -e 's,^usr,"/usr,' -e '/^"/s,$,",' -e 's,^"/.*/copyright"$,%license &,') >"$top/files"
    (cd "$STAGE" && find etc/slurm-robust usr/{lib,libexec,share/doc}/slurm-robust -type d | sort |
        sed 's,.*,%dir "/&",') >>"$top/files"
    rpmbuild -bb --quiet --define "_topdir $top" --define "_rpmdir $DIST" --define "_build_name_fmt \
%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" --define "our_stage $STAGE" --define "our_files $top/files" \
        --define "our_version $PACKAGE_VERSION" --define "our_python /usr/bin/python$PYTHON_VERSION" \
        --define "our_license $("$VENV" packaging/copyright.py expression)" \
        --define "our_url $HOMEPAGE" --define "our_maintainer $MAINTAINER" \
        --define "our_date $(date -d "@$SOURCE_DATE_EPOCH" '+%a %b %d %Y')" \
        --define "our_summary $SUMMARY" --define "our_prerm $PWD/packaging/prerm" packaging/slurm-robust.spec
    ls "$DIST"/slurm-robust-"$PACKAGE_VERSION"-1.*.rpm
}

main() {
    local format
    [ -x "$PYTHON" ] || fail "$PYTHON is not there; PYTHON names another one"
    mkdir -p "$DIST"
    stage
    for format in "${@:-deb}"; do
        case $format in
            deb | rpm) "build_$format" ;;
            *) fail "unknown format $format" ;;
        esac
    done
}

main "$@"
