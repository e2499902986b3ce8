"""Files that a confined process, and what it starts, can and cannot change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked_python import run_python

CHANGES = """
import os, subprocess, sys
from slurm_robust.util import confine

inside, outside, by_kernel = sys.argv[1:]
if by_kernel == "no":
    confine._call = lambda *_: -1
try:
    confine.confine_changes([inside, "/not/there", "/dev"])
except confine.NoLandlock as error:
    sys.exit(str(error))
subprocess.run(["touch", outside + "/by-another-program"], stderr=subprocess.DEVNULL)

def tried(what):
    try:
        what()
    except OSError as error:
        print(type(error).__name__)
    else:
        print("done")

for folder in (inside, outside):
    tried(lambda: open(folder + "/made", "w").write("x"))
    tried(lambda: os.mkdir(folder + "/folder"))
    tried(lambda: os.rename(folder + "/old", folder + "/new"))
    tried(lambda: os.truncate(folder + "/kept", 0))
    tried(lambda: os.remove(folder + "/kept"))
    tried(lambda: open(folder + "/read").read())
open("/dev/null", "w").write("x")
"""


def test_only_what_is_allowed_can_be_changed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        for name in ("old", "kept", "read"):
            (folder / name).write_text(name)
    done = run_python("-c", CHANGES, str(inside), str(outside), "yes")
    if "no Landlock" in done.stderr:
        pytest.skip("this kernel has no Landlock")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done"] * 6 + ["PermissionError"] * 5 + ["done"]
    assert sorted(p.name for p in outside.iterdir()) == ["kept", "old", "read"]
    assert (outside / "kept").read_text() == "kept"


def test_a_kernel_that_cannot_is_told_apart(tmp_path: Path) -> None:
    done = run_python("-c", CHANGES, str(tmp_path), str(tmp_path), "no")
    assert done.returncode == 1
    assert "no Landlock" in done.stderr
    assert done.stdout == ""
