"""What a build brings: real files, the version of its tag, addresses of pages; it is always the same."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.home import HOME, page, with_addresses
from slurm_robust.util.text import version_numbers
from slurm_robust.version import __version__

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "slurm_robust"
TAG = "99.1.0"
EPOCH = "1700000000"


# -- addresses -----------------------------------------------------------------------------------------------


def test_the_addresses_of_the_project_are_at_its_home() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    urls = re.findall(r'^\w+ = "(https:.*)"$', project.partition("[project.urls]")[2], re.MULTILINE)
    assert urls[0] == HOME
    assert all(url.startswith(HOME) for url in urls)


def test_a_page_that_a_text_names_gets_its_address() -> None:
    address = f"{HOME}/blob/main/docs/hooks.md"
    assert with_addresses("slurm.conf(5); docs/hooks.md, drains") == f"slurm.conf(5); {address}, drains"
    assert with_addresses(f"see {address}") == f"see {address}"


def texts(path: Path) -> Iterator[str]:
    """What a module may print: its strings, without docstrings."""
    text = path.read_text()
    tree = ast.parse(text if "docs/" in text else "")  # most need not be parsed
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value


MODULES = sorted(PACKAGE.rglob("*.py"))


def test_messages_name_pages_by_their_address() -> None:
    """Where a rule of the doctor names a page, the report has its address."""
    rules = PACKAGE / "doctor" / "rules"
    named = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in MODULES
        if rules not in path.parents and path.name != "home.py"
        for text in texts(path)
        if re.search(r"(?<!/)docs/[\w/-]+\.md", text)
    ]
    assert not named, f"write page(…) of slurm_robust.home: {named}"


def pages_named() -> Iterator[tuple[str, str]]:
    """Where which page is named, by :func:`page` or in a text."""
    for path in MODULES:
        for name in re.findall(r"\bpage\([\"']([^\"']+)", path.read_text()):
            yield str(path.relative_to(ROOT)), name
    others = ("sbatch_templates/*", "prolog_epilog/*.sh", "monitoring/*.yml", "man/*")
    for path in (*MODULES, *(path for pattern in others for path in ROOT.glob(pattern))):
        for name in re.findall(r"docs/([\w/-]+\.md(?:#[\w-]+)?)", path.read_text()):
            yield str(path.relative_to(ROOT)), name


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("where", "name"), sorted(set(pages_named())), ids=lambda it: str(it))
def test_a_page_that_is_named_exists(where: str, name: str) -> None:
    file, _, anchor = name.partition("#")
    found = ROOT / "docs" / file
    assert found.exists(), f"{where} names {page(name)}"
    assert not anchor or anchor in anchors(found.read_text()), f"{where} names {page(name)}"


# -- extras --------------------------------------------------------------------------------------------------


def project() -> dict[str, Any]:
    """``[project]`` of pyproject.toml; Python 3.10 cannot read it."""
    tomllib = pytest.importorskip("tomllib")
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_each_extra_that_a_text_names_exists() -> None:
    folders = ("slurm_robust", "docs", "examples", "tools", "tests/unit")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    named = {
        extra
        for path in (ROOT / "README.md", *files)
        if path.suffix in (".py", ".md", ".sh")
        for found in re.findall(r"(?:slurm[_-]robust|install '\.)\[([a-z,]+)\]", path.read_text())
        for extra in found.split(",")
    }
    assert {"train", "admin"} <= named
    assert named <= project()["optional-dependencies"].keys()


def test_all_has_every_extra_of_users_but_the_one_under_the_gpl() -> None:
    extras = project()["optional-dependencies"]
    (every,) = extras["all"]
    assert {*every.removeprefix("slurm_robust[").rstrip("]").split(",")} == extras.keys() - {
        "all",
        "dev",
        "pyslurm",
    }


# -- notes ---------------------------------------------------------------------------------------------------


def test_the_newest_release_has_a_date_and_notes_below_what_is_not_released() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    _, *sections = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    heads, bodies = sections[::2], sections[1::2]
    assert heads[0] == "Unreleased"
    assert re.fullmatch(r"\d+\.\d+\.\d+ — 20\d\d-\d\d-\d\d", heads[1])
    assert bodies[1].count("\n- ") > 3
    assert version_numbers(heads[1]) <= version_numbers(__version__)


@pytest.mark.parametrize(
    ("version", "why"),
    [("", "which one?"), ("0.2", "which one?"), (TAG, "slurm_robust/version.py says another version")],
)
def test_a_release_that_does_not_fit_the_tree_is_refused(clean: Path, version: str, why: str) -> None:
    assert why in refused(clean, version)


def test_a_release_of_a_changed_tree_is_refused(clean: Path) -> None:
    (clean / "CHANGELOG.md").write_text("changed")
    assert "the tree is not clean" in refused(clean, __version__)


def test_a_release_whose_notes_stand_under_unreleased_is_refused(clean: Path) -> None:
    notes = f"## Unreleased\n\n- New\n\n## {__version__} — 2026-11-30\n\n- Old\n"
    (clean / "CHANGELOG.md").write_text(notes)
    git(clean, "commit", "-qam", "Notes")
    assert "has lines under Unreleased" in refused(clean, __version__)


def refused(tree: Path, version: str) -> str:
    command = ["tools/release.sh", *filter(None, [version])]
    done = subprocess.run(command, cwd=tree, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert git(tree, "tag") == "", "nothing is tagged"
    return done.stderr


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A clean tree with what a release looks at before it builds."""
    for name in ("tools/release.sh", "slurm_robust/version.py", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    commit(tmp_path)
    return tmp_path


# -- builds --------------------------------------------------------------------------------------------------


def run(folder: Path, *command: str | Path, **environ: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH, **environ},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def git(folder: Path, *words: str) -> str:
    return run(folder, "git", "-c", "user.name=x", "-c", "user.email=x@example.org", *words)


def commit(folder: Path) -> None:
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Release")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree, as a release of its own."""
    pytest.importorskip("setuptools_scm", reason="make setup")
    copy = tmp_path_factory.mktemp("tree")
    run(ROOT, "sh", "-c", f"git ls-files -zco --exclude-standard | tar --null -T- -cf- | tar -xf- -C {copy}")
    commit(copy)
    git(copy, "tag", f"v{TAG}")
    return copy


def build(tree: Path, out: Path, umask: str) -> dict[str, Path]:
    command = f"umask {umask}; exec {sys.executable} -m build --no-isolation --outdir {out} ."
    run(tree, "sh", "-c", command, PIP_NO_INDEX="1")
    return {path.name.removeprefix(f"slurm_robust-{TAG}"): path for path in out.iterdir()}


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tree, tmp_path_factory.mktemp("built"), "022")


@pytest.mark.slow
def test_a_build_has_the_version_of_its_tag(built: dict[str, Path]) -> None:
    assert built.keys() == {".tar.gz", "-py3-none-any.whl"}
    with zipfile.ZipFile(built["-py3-none-any.whl"]) as wheel:
        assert f'__version__ = "{TAG}"' in wheel.read("slurm_robust/version.py").decode()
        metadata = wheel.read(f"slurm_robust-{TAG}.dist-info/METADATA").decode()
    assert f"Version: {TAG}\n" in metadata
    links = re.findall(r"\]\(([^)]+)\)", metadata)
    assert f"{HOME}/blob/main/docs/index.md" in links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


@pytest.mark.slow
def test_a_build_holds_the_files_that_links_of_the_tree_lead_to(built: dict[str, Path]) -> None:
    links = [path for path in PACKAGE.rglob("*") if path.is_symlink()]
    assert len(links) == 4
    files = {
        f"{link.relative_to(ROOT)}/{path.name}": path.read_bytes()
        for link in links
        for path in link.iterdir()
        if path.suffix in (".sh", ".sbatch", ".yaml", ".yml", ".json", ".5", ".8")
    }
    assert "slurm_robust/templates/data/train.sbatch" in files
    with zipfile.ZipFile(built["-py3-none-any.whl"]) as wheel:
        assert {name: wheel.read(name) for name in files} == files
    with tarfile.open(built[".tar.gz"]) as source:
        assert not any(member.issym() or member.islnk() for member in source)
        packed = {name: source.extractfile(f"slurm_robust-{TAG}/{name}") for name in files}
        assert {name: file.read() for name, file in packed.items() if file is not None} == files


@pytest.mark.slow
def test_a_build_holds_the_failure_trace_its_origin_and_its_licence(built: dict[str, Path]) -> None:
    folder = "slurm_robust/simulator/data"
    with zipfile.ZipFile(built["-py3-none-any.whl"]) as wheel:
        for name in ("infinitehbd.csv", "README.md"):
            assert wheel.read(f"{folder}/{name}") == (ROOT / folder / name).read_bytes()
        licence = wheel.read(f"slurm_robust-{TAG}.dist-info/licenses/LICENSE").decode()
    assert "Apache License" in licence
    with tarfile.open(built[".tar.gz"]) as source:
        assert f"slurm_robust-{TAG}/{folder}/README.md" in source.getnames()


@pytest.mark.slow
def test_an_installed_wheel_writes_the_files_of_a_first_job(built: dict[str, Path], tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(built["-py3-none-any.whl"]) as wheel:
        wheel.extractall(site)
    srobust = (sys.executable, "-m", "slurm_robust.cli")
    installed = {"PYTHONPATH": str(site), "PATH": "/nowhere"}
    assert run(tmp_path, *srobust, "version", **installed) == f"srobust {TAG}"
    run(tmp_path, *srobust, "init", "chained", "--yes", **installed)
    assert {"train-chained.sbatch", "job.yaml"} <= {path.name for path in tmp_path.iterdir()}
    run(tmp_path, *srobust, "admin", "monitoring", "--dir", "watch", **installed)
    assert {path.name for path in (tmp_path / "watch").iterdir()} == {
        path.name for path in (ROOT / "monitoring").iterdir()
    }


@pytest.mark.slow
def test_two_builds_are_the_same_to_the_last_byte(tree: Path, built: dict[str, Path], tmp_path: Path) -> None:
    again = build(tree, tmp_path, "077")
    assert [name for name, path in again.items() if path.read_bytes() != built[name].read_bytes()] == []


@pytest.mark.slow
def test_a_tree_that_is_no_release_comes_before_the_next_one(tree: Path, tmp_path: Path) -> None:
    pip = (sys.executable, "setup.py", "--version")
    archive = tmp_path / "archive"
    archive.mkdir()
    run(tree, "sh", "-c", f"git archive HEAD | tar -xf- -C {archive}")
    assert run(archive, *pip).splitlines()[-1] == f"{__version__}.dev0"
    shallow = tmp_path / "shallow"
    run(tree, "git", "clone", "-q", "--depth=1", "--no-tags", f"file://{tree}", shallow)
    assert run(shallow, *pip).splitlines()[-1].startswith(f"{__version__}.dev1+g")
