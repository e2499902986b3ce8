"""Copies of releases on a node: where they are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.agent.code import CodeCopies
from slurm_robust.model.job import JobDirectory
from slurm_robust.worker.copied import CopiedCode
from tests.builders.specs import job_spec
from tests.there import there
from tests.unit.worker.copied_code import Code
from tests.users import as_root
from tests.waiting import wait_for


@pytest.fixture
def noexec(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory in which nothing may be executed."""
    place = tmp_path / "noexec"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=16m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


@as_root
def test_what_has_to_be_executed_is_where_it_may_be(noexec: Path, tmp_path: Path) -> None:
    code = Code(tmp_path)
    code.write({"script.py": ""})
    plain = code.release()
    code.write({"native.so": "x"})
    native = code.release()
    (tmp_path / "job").mkdir()
    code.store.folder.rename(tmp_path / "job/releases")
    copies = CodeCopies(
        job_spec(run_id=f"7-{os.urandom(4).hex()}"), JobDirectory(tmp_path / "job"), "n1", noexec
    )

    def place(release: CopiedCode) -> Path:
        def is_there() -> bool:
            copies.follow()
            return copies.get(release.release) is not None

        copies.want(release.release)
        wait_for(is_there)
        program = there(there(copies.get(release.release)).program)
        return Path(there(program.code).place)

    places = [place(plain), place(native)]
    assert [path.parent.parent for path in places] == [noexec, Path("/tmp")]
    copies.close()
    assert not any(path.parent.exists() for path in places)
