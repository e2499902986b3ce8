"""A program for tests: a node that streams snapshots of rank 0 to a peer until it is killed.

``python -m tests.unit.agent.source SHM JOB PORT MIB``: prints a line when the first snapshot is there.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from slurm_robust.model.copies import Peer
from tests.unit.agent.nodes import MIB, Node, keys_in


def main() -> None:
    shm, job, port, size = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) * MIB
    node = Node("source", shm, job, keys_in(job))
    node.launch(1, (0,), peers=(Peer(rank=0, node="sink", address="127.0.0.1", port=port),))
    step, pause = 0, threading.Event()
    while True:
        node.snapshot(0, step, size=size)
        if step == 0:
            print("first", flush=True)
        step += 1
        pause.wait(0.01)


if __name__ == "__main__":
    main()
