"""A rank of a replay, which ends after a few steps.

``python -m slurm_robust.worker.replay_rank KIND COMMAND ...`` runs it, in the environment that torchrun sets.
"""

from __future__ import annotations

import os
import sys

import msgspec

from slurm_robust.model.job import CommandKind
from slurm_robust.util import process
from slurm_robust.worker import rendezvous, script, trial
from slurm_robust.worker.copied import CopiedCode
from slurm_robust.worker.replay import CODE, PARENT


def main() -> None:
    """Run the script as Python would have, with the recorder of its steps."""
    process.die_with_parent(int(os.environ[PARENT]))
    process.set_title(int(os.environ["RANK"]))
    process.prefer_for_oom()
    kind, command = CommandKind(sys.argv[1]), tuple(sys.argv[2:])
    copied = os.environ.pop(CODE, "")
    code = msgspec.json.decode(copied, type=CopiedCode) if copied else None
    command = trial.enter(kind, command, os.getcwd(), code)
    # Imports torch, so it comes after this process ends with its parent and finds modules as the script does.
    from slurm_robust.worker.replay_recorder import record_steps

    record_steps(os.environ)
    rendezvous.await_rank_zero()
    script.run(kind, command)


if __name__ == "__main__":
    # By the module's own name: this copy of it gives way to the user's __main__.
    from slurm_robust.worker import replay_rank

    replay_rank.main()
