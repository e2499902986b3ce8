"""Programs for tests: one end of a stream of snapshots of rank 0, each in a process that can be killed.

``python -m tests.unit.agent.copy_processes source SHM JOB PORT MIB`` prints a line when the first snapshot is
there; ``... sink SHM JOB`` prints its port and receives until its input ends.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from slurm_robust.model.copies import Peer
from tests.unit.agent.copy_nodes import MIB, Node, keys_in


def source(shm: Path, job: Path, port: int, size: int) -> None:
    node = Node("source", shm, job, keys_in(job))
    node.launch(1, (0,), peers=(Peer(rank=0, node="sink", address="127.0.0.1", port=port),))
    step, pause = 0, threading.Event()
    while True:
        node.snapshot(0, step, size=size)
        if step == 0:
            print("first", flush=True)
        step += 1
        pause.wait(0.01)


def sink(shm: Path, job: Path) -> None:
    node = Node("sink", shm, job, keys_in(job))
    node.launch(1, (1,))
    print(node.service.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "source":
        source(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]) * MIB)
    else:
        sink(Path(sys.argv[2]), Path(sys.argv[3]))
