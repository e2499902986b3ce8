"""``python -m slurm_robust.diagnostics.replay.rank KIND COMMAND ...``: one rank of a group.

Its environment is what torchrun would give it, and what :mod:`slurm_robust.worker.replay` reads.
"""

from __future__ import annotations

import os
import sys

from slurm_robust.model.job import CommandKind
from slurm_robust.util import process
from slurm_robust.worker import rendezvous, replay, script

PARENT = "SROBUST_REPLAY_PARENT"
"""Process id of the node's part, with which every rank ends."""


def main() -> None:
    """Run the script as Python would have, with the recorder of its steps."""
    process.die_with_parent(int(os.environ[PARENT]))
    process.set_title(int(os.environ["RANK"]))
    process.prefer_for_oom()
    kind, command = CommandKind(sys.argv[1]), tuple(sys.argv[2:])
    entry = script.first_path_entry(kind, command, os.getcwd())
    if entry is not None:
        sys.path[0] = entry
    replay.record_steps(os.environ)
    rendezvous.await_rank_zero()
    script.run(kind, command)


if __name__ == "__main__":
    main()
