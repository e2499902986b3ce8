from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.sandbox.cgroups import check_kernel
from slurm_robust.sandbox.errors import RequirementMissing

HEADER = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"


@pytest.mark.parametrize(
    ("rows", "missing"),
    [
        ("memory\t4\t9\t1\nfreezer\t6\t1\t1\n", ""),
        ("memory\t0\t9\t1\nfreezer\t0\t1\t1\n", "memory and freezer"),
        ("memory\t4\t9\t0\nfreezer\t6\t1\t1\n", "memory"),
        ("memory\t4\t9\t1\n", "freezer"),
        ("", "memory and freezer"),
    ],
)
def test_a_kernel_without_version_1_is_a_missing_requirement(tmp_path: Path, rows: str, missing: str) -> None:
    file = tmp_path / "cgroups"
    file.write_text(HEADER + rows)
    if not missing:
        check_kernel(file)
        return
    with pytest.raises(RequirementMissing, match=f"no cgroup version 1 for {missing}"):
        check_kernel(file)
    with pytest.raises(RequirementMissing):
        check_kernel(tmp_path / "none")
