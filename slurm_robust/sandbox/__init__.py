"""A real multi-node Slurm cluster on one machine: for demos, tests and trials, made to be broken.

One PID namespace holds all of it; its PID 1 is switch and power rack. Every node, ``head`` with slurmctld
and n1..nN with a slurmd each, is a nested set of pid, net, mount, uts and ipc namespaces. The machine
itself sees no link, mount, user or changed file, only processes, and killing PID 1 ends them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_robust.sandbox.config import SandboxConfig
from slurm_robust.sandbox.errors import SandboxError

if TYPE_CHECKING:
    from slurm_robust.sandbox.sandbox import Sandbox

__all__ = ["Sandbox", "SandboxConfig", "SandboxError"]


def __getattr__(name: str) -> object:
    """Load the machinery on use only: the command line needs the configuration's defaults at each start."""
    if name == "Sandbox":
        from slurm_robust.sandbox.sandbox import Sandbox

        return Sandbox
    raise AttributeError(f"module 'slurm_robust.sandbox' has no attribute {name!r}")
