from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slurm_robust.sandbox import SandboxConfig
from slurm_robust.sandbox.errors import InvalidSandbox
from slurm_robust.sandbox.linux import MountSpec
from slurm_robust.sandbox.mounts import ReachablePath, closed_to_others, plan_mounts, python_paths


def plan(
    *wanted: ReachablePath, closed: frozenset[str] = frozenset(), node: str = "n1"
) -> tuple[MountSpec, ...]:
    config = SandboxConfig(users=("alice",), shm_mb=64)
    return plan_mounts(config, state="/state", node=node, wanted=wanted, closed=lambda path: path in closed)


def targets(mounts: tuple[MountSpec, ...]) -> list[str]:
    return [item.target for item in mounts]


def test_a_node_has_its_own_disks_and_the_shared_homes() -> None:
    mounts = {item.target: item for item in plan()}
    assert mounts["/dev/shm"].options == "mode=1777,size=64m"
    assert mounts["/dev/shm"].source == ""
    assert mounts["/home/alice"].source == "/state/home/alice"
    assert mounts["/run/slurmd"].source == "/state/spool/n1"
    assert mounts["/etc"] == MountSpec("/etc", "/state/node-etc", read_only=True)
    assert mounts["/etc/slurm"].source == "/state/etc"


def test_no_single_file_is_bound_but_into_folders_of_the_sandbox() -> None:
    """A rename over a file of the machine's ends what is bound over that file."""
    assert [target for target in targets(plan()) if target.startswith("/etc/")] == ["/etc/slurm"]


def test_what_is_wanted_below_etc_is_the_machines() -> None:
    assert MountSpec("/etc/site", "/etc/site") in plan(ReachablePath("/etc/site", read_only=False))


def test_the_head_has_no_slurmd() -> None:
    assert "/run/slurmd" not in targets(plan(node="head"))


def test_each_compute_node_sees_its_own_gpus_where_there_are_any() -> None:
    config = SandboxConfig(gpus_per_node=8)
    for node in ("n1", "n2", "head"):
        mounts = plan_mounts(config, state="/state", node=node, wanted=(), closed=lambda _: False)
        sources = {item.target: item.source for item in mounts}
        own = f"/state/gpus/{node}" if node != "head" else None
        assert sources.get("/run/srobust-gpus") == own
        assert ("/etc/ld.so.cache" in sources) == (node != "head")
    assert "/etc/ld.so.cache" not in targets(plan())


def test_what_everybody_reaches_is_left_alone() -> None:
    assert plan(ReachablePath("/opt/env")) == plan()


def test_a_closed_folder_is_covered_once_and_only_the_wanted_shows() -> None:
    mounts = plan(
        ReachablePath("/root/py/3.11"), ReachablePath("/root/env"), closed=frozenset({"/root", "/root/py"})
    )
    assert [item.target for item in mounts if item.source == ""].count("/root") == 1
    assert MountSpec("/root/py/3.11", "/root/py/3.11", read_only=True) in mounts
    assert MountSpec("/root/env", "/root/env", read_only=True) in mounts
    assert "/root/py" not in targets(mounts)


def test_covers_come_before_what_is_bound_into_them() -> None:
    found = targets(plan(ReachablePath("/root/env"), closed=frozenset({"/root"})))
    assert found.index("/root") < found.index("/root/env")
    assert found.index("/home") < found.index("/home/alice")


def test_what_the_own_disks_would_hide_shows_through() -> None:
    mounts = plan(ReachablePath("/tmp/pytest/x", read_only=False), ReachablePath("/home/dev/env"))
    assert MountSpec("/tmp/pytest/x", "/tmp/pytest/x") in mounts
    assert MountSpec("/home/dev/env", "/home/dev/env", read_only=True) in mounts


@pytest.mark.parametrize("path", ["/", "/home", "/dev", "/tmp", "/etc"])
def test_a_path_that_would_hide_the_own_disks_is_refused(path: str) -> None:
    with pytest.raises(InvalidSandbox, match="fix: name a folder below it"):
        plan(ReachablePath(path))


def test_the_running_python_can_be_found() -> None:
    paths = python_paths()
    for needed in (sys.executable, sys.base_prefix, __import__("slurm_robust").__file__):
        assert any(str(needed).startswith(path) for path in paths)


def test_closed_is_what_others_may_not_search(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir(mode=0o700)
    assert closed_to_others(str(folder))
    folder.chmod(0o711)
    assert not closed_to_others(str(folder))
    assert not closed_to_others(str(tmp_path / "nothing"))
