"""What dead ranks leave in sessions of their own ends with them; what others have started stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ADOPTS = """
import os, subprocess, sys, time
from slurm_robust.util.process import adopt_orphans
from slurm_robust.worker.orphans import children, end_orphans

def lives(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

adopt_orphans()
helper = subprocess.Popen(["sleep", "60"], start_new_session=True)
same = subprocess.Popen(["sleep", "60"])
kept = children()
rank = subprocess.Popen(["sh", "-c", sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True, text=True)
left = [int(line) for line in rank.stdout.read().split()]
rank.wait()
assert all(map(lives, left)), left
ended = end_orphans(kept)
assert set(left) <= set(ended), (left, ended)
assert not any(map(lives, left))
assert helper.poll() is None and same.poll() is None
assert end_orphans(kept) == ()
helper.kill()
same.kill()
print("right")
"""


@pytest.mark.parametrize(
    "rank",
    [
        "setsid sleep 60 >/dev/null & echo $!",
        # A daemon: its parent has ended before the rank does.
        "sh -c 'setsid sleep 60 >/dev/null & echo $!'",
        # One that starts others in sessions of their own.
        "setsid sh -c 'setsid sleep 60 & sleep 60' >/dev/null & echo $!",
        # One that ignores all that can be ignored.
        """setsid sh -c 'trap "" TERM HUP INT; sleep 60; sleep 60' >/dev/null & echo $!""",
    ],
)
def test_children_in_sessions_of_their_own_end(rank: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADOPTS, rank], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("right\n", "")
