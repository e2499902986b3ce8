"""Threads that read the first images of a process at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import Buffer, TensorSpec

PROGRAM = """
import sys, threading
from pathlib import Path
from slurm_robust.checkpoint.image import open_image
sys.setswitchinterval(1e-6)
path = Path(sys.argv[1])
together = threading.Barrier(8)
def read():
    together.wait()
    open_image(path).close()
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.slow
def test_threads_may_read_the_first_image_together(tmp_path: Path) -> None:
    """A process whose threads first asked for a type at the same time crashed about twice in five."""
    header = PartHeader(run_id="run", layout="1x1", generation=1, step=3, rank=0, world_size=1)
    buffer = Buffer(tmp_path / "image")
    buffer.begin(header, [TensorSpec(dtype="uint8", shape=(4,), nbytes=4)], b"tree")
    buffer.commit()
    for _ in range(20):
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "image")], check=False)
        assert done.returncode == 0
    buffer.close()
