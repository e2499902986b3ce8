"""Which folders are the code of a job."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import slurm_robust
from slurm_robust.model.job import CommandKind
from slurm_robust.releases import roots
from slurm_robust.releases.roots import code_folders, packages_in_place, without_nested
from slurm_robust.releases.select import CannotTakeCode

SCRIPT, MODULE, EXEC = CommandKind.SCRIPT, CommandKind.MODULE, CommandKind.EXEC


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A working directory with code in several places."""
    for name in ("train.py", "src/run.py", "pkg/__init__.py", "pkg/main.py", "lib/other/main.py", "tool.sh"):
        path = tmp_path / "job" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "job/link.py").symlink_to("src/run.py")
    return tmp_path / "job"


@pytest.mark.parametrize(
    ("kind", "command", "folder"),
    [
        (SCRIPT, "train.py", "."),
        (SCRIPT, "./train.py", "."),
        (SCRIPT, "src/run.py", "src"),
        (SCRIPT, "src/../src//run.py", "src"),
        (SCRIPT, "link.py", "src"),  # as Python has it in sys.path
        (MODULE, "pkg.main", "."),
        (MODULE, "other.main", "lib"),  # by PYTHONPATH
        (MODULE, "json.tool", None),
        (MODULE, "pytest", None),
        (EXEC, "python train.py --lr 1", "."),
        (EXEC, "bash -c true", None),
        (EXEC, "torchrun src/run.py", "src"),
        (EXEC, "./tool.sh", "."),
        (EXEC, "/bin/sh -e", None),
    ],
)
def test_the_folder_of_what_runs_is_the_code(
    job: Path, kind: CommandKind, command: str, folder: str | None
) -> None:
    found = code_folders(kind, command.split(), str(job), environ={"PYTHONPATH": f"{job}/lib"})
    assert found == (() if folder is None else (os.path.realpath(job / folder),))


def test_folders_of_the_configuration_replace_the_rule(job: Path) -> None:
    assert code_folders(SCRIPT, ["train.py"], str(job), ("src", str(job / "lib"))) == (
        f"{job}/src",
        f"{job}/lib",
    )
    with pytest.raises(CannotTakeCode, match="is no folder"):
        code_folders(SCRIPT, ["train.py"], str(job), ("srcs",))


def test_a_home_is_no_folder_with_code_unless_its_owner_says_so(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(job))
    with pytest.raises(CannotTakeCode, match="holds more than the code"):
        code_folders(SCRIPT, ["train.py"], str(job))
    assert code_folders(SCRIPT, ["train.py"], str(job), (".",)) == (str(job),)
    assert code_folders(SCRIPT, ["src/run.py"], str(job)) == (f"{job}/src",)


@pytest.mark.parametrize("place", ["/", "/tmp", "/var/tmp", "/dev/shm"])
def test_folders_for_everything_are_no_code(place: str) -> None:
    with pytest.raises(CannotTakeCode):
        code_folders(SCRIPT, [f"{place}/train.py"], "/")


def test_what_is_installed_is_no_code_of_the_job(job: Path) -> None:
    assert code_folders(SCRIPT, [f"{os.path.dirname(sys.executable)}/torchrun"], str(job)) == ()
    (job / ".venv/bin").mkdir(parents=True)
    (job / ".venv/pyvenv.cfg").touch()
    (job / ".venv/bin/python").touch()
    assert code_folders(EXEC, [".venv/bin/python", "-V"], str(job)) == ()


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "venv/lib/site-packages"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(folder)])
    monkeypatch.setattr(roots.site, "getsitepackages", lambda: [str(folder)])
    return folder


def test_packages_that_are_installed_in_place_are_found(site_packages: Path, tmp_path: Path) -> None:
    for name in ("flat/mylib", "layout/src", "listed/pkg", "odd name/src", "single", "named"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("single/tool.py", "named/other.py"):
        (tmp_path / name).touch()
    (site_packages / "__editable__.layout-0.1.pth").write_text(f"{tmp_path}/layout/src\n")
    (site_packages / "easy-install.pth").write_text(
        f"# a comment\nimport os\n{tmp_path}/odd name/src\n/gone\n"
    )
    (site_packages / "__editable___listed_0_1_finder.py").write_text(
        "from __future__ import annotations\n"
        f"MAPPING: dict[str, str] = {{'pkg': {str(tmp_path / 'listed/pkg')!r}, 'one': '/x/one'}}\n"
        "NAMESPACES: dict[str, list[str]] = {}\n"
    )
    (site_packages / "__editable___old_0_1_finder.py").write_text(
        f"MAPPING = {json.dumps({'mylib': str(tmp_path / 'flat/mylib')})}\n"
    )
    modules = {"tool": str(tmp_path / "single/tool"), "other": str(tmp_path / "named/other.py")}
    (site_packages / "__editable___modules_finder.py").write_text(f"MAPPING = {modules!r}\n")
    (site_packages / "__editable___broken_finder.py").write_text("MAPPING = {")
    assert set(packages_in_place()) == {
        str(tmp_path / name)
        for name in ("layout/src", "odd name/src", "listed/pkg", "flat/mylib", "single", "named")
    }


def test_slurm_robust_itself_is_not_the_users_code(site_packages: Path) -> None:
    ours = Path(slurm_robust.__file__).parent
    (site_packages / "a.pth").write_text(f"{ours.parent}\n")
    (site_packages / "__editable___b_finder.py").write_text(f"MAPPING = {{'slurm_robust': {str(ours)!r}}}")
    assert packages_in_place() == ()


def test_the_python_of_the_ranks_is_asked(site_packages: Path, tmp_path: Path) -> None:
    (tmp_path / "layout").mkdir()
    (site_packages / "a.pth").write_text(f"{tmp_path}/layout\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho \'["", "{site_packages}"]\'\n')
    python.chmod(0o755)
    assert packages_in_place(str(python)) == (f"{tmp_path}/layout",)
    assert packages_in_place("/no/such/python") == ()
    python.write_text("#!/bin/sh\necho nonsense\n")
    assert packages_in_place(str(python)) == ()


@pytest.mark.parametrize(
    ("folders", "kept"),
    [
        (("/a", "/a/b"), ("/a",)),
        (("/a/b", "/c", "/a"), ("/a", "/c")),
        (("/a", "/ab"), ("/a", "/ab")),
        (("/c", "/a/x", "/a/y", "/a"), ("/c", "/a")),
        (("/a", "/a"), ("/a",)),
        ((), ()),
    ],
)
def test_a_folder_below_another_is_part_of_it(folders: tuple[str, ...], kept: tuple[str, ...]) -> None:
    assert without_nested(folders) == kept
