"""How this node's GPUs reach those of other nodes: ``python -m slurm_robust.agent.fabric``.

The NVLink clique and the state of the IMEX daemon are asked by a process of its own, because a driver may let
a question hang. Slurm's block is in the environment of the step.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.nodes.checks.imex import READY, gather
from slurm_robust.nodes.gpus.nvidia import read_cliques
from slurm_robust.util.process import die_with_parent

ASK_EVERY_S, GIVE_UP_S = 10.0, 900.0
"""Seconds between two looks at a fabric or daemon that is on its way, and until there are no more."""

_MAX_BYTES = 4096


class FabricWatch:
    """The agent's side: a child process looks, until clique and IMEX are settled. No call blocks."""

    def __init__(self, *, possible: bool) -> None:
        """``possible``: there may be GPUs to ask."""
        self._process: subprocess.Popen[bytes] | None = None
        if not possible:
            return
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slurm_robust.agent.fabric", "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,  # a signal to the agent's group is not for it
            )
        except OSError:
            return  # what cannot be asked is not known
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`read` has something; -1 when all is said."""
        return self._process.stdout.fileno() if self._process and self._process.stdout else -1

    def read(self) -> tuple[str, str] | None:
        """Return the NVLink clique and the state of IMEX, "" for what there is not; None without news."""
        if self._process is None or self._process.stdout is None:
            return None
        try:
            data = os.read(self._process.stdout.fileno(), _MAX_BYTES)
        except BlockingIOError:
            return None
        if not data:
            self.close()
            return None
        clique, _, imex = data.decode(errors="replace").splitlines()[-1].partition("\t")
        return clique, imex

    def close(self) -> None:
        """Look no more; a child that hangs in the driver dies later."""
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
            self._process.kill()
            self._process.poll()
            self._process = None


def block_of(environ: Mapping[str, str]) -> str:
    """Return the block of this node by the variables of a step, "" unless it is topology/block's.

    Source: slurmstepd sets ``SLURM_TOPOLOGY_ADDR=b8.tux1`` and ``SLURM_TOPOLOGY_ADDR_PATTERN=block.node``
    (Slurm's topology_block.c).
    """
    if environ.get("SLURM_TOPOLOGY_ADDR_PATTERN") != "block.node":
        return ""
    return environ.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")[0]


def main() -> int:
    """Print clique and state of IMEX, whenever they change and until both are settled."""
    parser = argparse.ArgumentParser(prog="python -m slurm_robust.agent.fabric", description=__doc__)
    parser.add_argument("--parent", type=int, required=True, help="the agent's process id")
    die_with_parent(parser.parse_args().parent)
    host, until, told = Host(), time.monotonic() + GIVE_UP_S, "\t"
    while True:
        cliques, is_coming = read_cliques(host)
        # A node of several cliques is a fault, of which a check tells: it is not of one.
        clique, imex = next(iter(cliques)) if len(cliques) == 1 else "", _imex(host)
        if (line := f"{clique}\t{imex}") != told:
            told = line
            print(f"{line}\n", end="", flush=True)  # in one write: it comes whole, or not at all
        if not (is_coming or imex not in ("", READY)) or time.monotonic() >= until:
            return 0
        time.sleep(ASK_EVERY_S)


def _imex(host: Host) -> str:
    try:
        return gather(host, NodeConfig()).state
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
