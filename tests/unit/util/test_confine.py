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
found = confine.confine_changes([inside, "/not/there", "/dev"])
print(found)
if found:
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


@pytest.mark.parametrize("by_kernel", ["yes", "no"])
def test_only_what_is_allowed_can_be_changed(tmp_path: Path, by_kernel: str) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        for name in ("old", "kept", "read"):
            (folder / name).write_text(name)
    done = run_python("-c", CHANGES, str(inside), str(outside), by_kernel)
    assert done.returncode == 0, done.stderr
    first, *tried = done.stdout.split()
    assert tried == ["done"] * 6 + ["PermissionError"] * 5 + ["done"]
    assert first == str(by_kernel == "yes") or pytest.skip("this kernel has no Landlock")
    assert sorted(p.name for p in outside.iterdir()) == ["kept", "old", "read"]
    assert (outside / "kept").read_text() == "kept"
