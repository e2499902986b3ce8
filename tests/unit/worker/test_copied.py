"""Paths, commands and search paths that lead into a release's copy."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from slurm_robust.model.job import CommandKind
from slurm_robust.model.release import CodeRoot
from slurm_robust.worker.copied import CopiedCode, editable_links, editable_tables, search_in

FILES = ("train.py", "sub/deep/tool.py", "run.sh", "log.txt", "app/__main__.py", "pack/__init__.py")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a project, a library beside it, and links to both."""
    for root in ("project", "lib dir/src"):
        for name in FILES:
            path = tmp_path / "home" / root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
    (tmp_path / "home" / "way").symlink_to("project")
    return tmp_path / "home"


@pytest.fixture
def copy(home: Path, tmp_path: Path) -> CopiedCode:
    roots = (
        CodeRoot(path=str(home / "project"), folder="project"),
        CodeRoot(path=str(home / "lib dir/src"), folder="src"),
    )
    place = tmp_path / "srobust-0-1-run-code" / ("a" * 12)
    for root in roots:
        for name in FILES:
            path = place / root.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
    os.chmod(place / "project/run.sh", 0o555)
    return CopiedCode(release="a" * 12, place=str(place), roots=roots)


@pytest.mark.parametrize(
    ("cwd", "script", "mapped"),
    [
        ("project", "train.py", "project/train.py"),
        ("project", "./train.py", "project/train.py"),
        ("project", "sub/deep/../../train.py", "project/train.py"),
        ("project/sub", "../train.py", "project/train.py"),
        (".", "way/train.py", "project/train.py"),
        (".", "project//sub/deep/tool.py", "project/sub/deep/tool.py"),
        ("way", "sub/deep/tool.py", "project/sub/deep/tool.py"),
        (".", "lib dir/src/train.py", "src/train.py"),
        ("project", "app", "project/app"),
        ("project", "app/", "project/app"),
        ("lib dir", "../project/train.py", "project/train.py"),
    ],
)
def test_a_script_is_found_in_the_copy_however_its_path_is_written(
    copy: CopiedCode, home: Path, cwd: str, script: str, mapped: str
) -> None:
    for given in (script, str(home / cwd / script)):
        found = copy.command(CommandKind.SCRIPT, (given, "--lr", "1"), str(home / cwd))
        assert found == (f"{copy.place}/{mapped}", "--lr", "1")


@pytest.mark.parametrize("script", ["gone.py", "/usr/bin/env", "../elsewhere.py", "../projects/train.py"])
def test_what_is_not_in_the_copy_stays(copy: CopiedCode, home: Path, script: str) -> None:
    assert copy.command(CommandKind.SCRIPT, (script,), str(home / "project")) == (script,)


def test_of_a_program_what_is_read_is_of_the_copy(copy: CopiedCode, home: Path) -> None:
    words = ("bash", "run.sh", "train.py", "log.txt", "gone.py", "--flag", "", "app")
    place = f"{copy.place}/project"
    assert copy.command(CommandKind.EXEC, words, str(home / "project")) == (
        *("bash", f"{place}/run.sh", f"{place}/train.py", "log.txt", "gone.py", "--flag", "", f"{place}/app"),
    )
    assert copy.command(CommandKind.EXEC, ("./run.sh",), str(home / "project"))[0] == f"{place}/run.sh"


def test_a_search_path_leads_into_the_copy(copy: CopiedCode, home: Path) -> None:
    entries = [".", "pack", str(home / "lib dir/src"), "/usr/lib", "gone"]
    assert copy.search_path(entries, str(home / "way")) == [
        *(f"{copy.place}/project", f"{copy.place}/project/pack", f"{copy.place}/src", "/usr/lib", "gone"),
    ]


def test_programs_find_in_the_copy_what_files_in_site_packages_name(copy: CopiedCode, home: Path) -> None:
    """After what the user's own PYTHONPATH names."""
    entries = ["/usr/lib", str(home / "lib dir/src")]
    found = copy.python_path("lib:.", entries, str(home / "project")).split(":")
    assert found == ["lib", f"{copy.place}/project", f"{copy.place}/src", copy.links]
    assert copy.python_path(None, ["/usr/lib"], "/") == copy.links


def test_each_place_of_the_copy_belongs_to_one_of_the_user(copy: CopiedCode, home: Path) -> None:
    assert copy.origin_of(f"{copy.place}/src/out/x") == str(home / "lib dir/src/out/x")
    for nowhere in (
        f"{copy.place}/src",
        copy.place,
        f"{copy.place}/other/x",
        f"{copy.place}x/src/y",
        "/etc/x",
    ):
        assert copy.origin_of(nowhere) is None


def test_packages_that_setuptools_finds_by_a_table_are_of_the_copy(
    copy: CopiedCode, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = ModuleType("__editable___lib_finder")
    table = {"pack": str(home / "lib dir/src/pack"), "tool": str(home / "project/train"), "os": "/usr/lib/os"}
    finder.MAPPING = dict(table)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, finder.__name__, finder)
    monkeypatch.setattr(sys, "path", ["/usr/lib", str(home / "project")])
    assert editable_links(copy, [table]) == {
        "pack": f"{copy.place}/src/pack",
        "tool.py": f"{copy.place}/project/train.py",
    }

    search_in(copy, str(home))
    assert sys.path == ["/usr/lib", f"{copy.place}/project", copy.links]
    mapped = {"pack": f"{copy.place}/src/pack", "tool": f"{copy.place}/project/train", "os": "/usr/lib/os"}
    assert editable_tables(sys.modules)[-1] == mapped
    search_in(None, str(home))
    assert sys.path == ["/usr/lib", str(home / "project")]
    assert table == finder.MAPPING
