"""Slurm from a hook. Imported when a hook asks Slurm for something, which on a healthy node is never."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from slurm_robust.config.node import NodeConfig
from slurm_robust.hooks.environment import slurm_environment
from slurm_robust.nodes.reasons import has_ours
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.process import CommandTimeout, CompletedCommand, run_command
from slurm_robust.util.hostlist import InvalidHostlist, expand


def slurm_client(config: NodeConfig, deadline: float) -> SlurmClient:
    """Return a client for hooks: no environment assumed, each command bounded, all of them by ``deadline``.

    ``deadline`` is a time of ``time.monotonic()``.
    """

    def run(command: Sequence[str], *, timeout_s: float, **more: object) -> CompletedCommand:
        left = min(timeout_s, deadline - time.monotonic())
        if left <= 0:
            raise CommandTimeout(command, 0.0)
        return run_command(command, timeout_s=left, **more)  # type: ignore[arg-type]  # passed through

    return CliSlurmClient(config.hooks.slurm_s, environ=slurm_environment(config, os.environ.get), run=run)


def drained_by_us(config: NodeConfig, hostlist: str) -> dict[str, str]:
    """Return the reasons of the nodes that we have drained; empty also without an answer of Slurm."""
    try:
        client = slurm_client(config, time.monotonic() + config.hooks.slurm_s)
        nodes = client.nodes(expand(hostlist))
    except (SlurmError, InvalidHostlist):
        return {}
    return {node.name: node.reason for node in nodes if node.is_drained and has_ours(node.reason)}
