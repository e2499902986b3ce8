"""What starts ranks in a command line, and the ``srobust run`` to write instead. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_robust.model.job import CommandKind
from slurm_robust.model.record import Record

_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun"})
_OF_TORCH = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})
_PYTHON = re.compile(r"python[\d.]*")
_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run")
"""Folders that each node has for itself."""


class RunLine(Record):
    """``srobust run`` as a batch script has it."""

    options: tuple[str, ...]
    """Its own options, with their values."""

    kind: CommandKind
    command: tuple[str, ...]
    """What it runs."""


def launcher_of(words: Sequence[str]) -> str:
    """Return the program that would start ranks of its own, "" for none."""
    for index, word in enumerate(words[:4]):
        name = word.rpartition("/")[2]
        if name in _LAUNCHERS:
            return name
        if word in _OF_TORCH and words[index - 1] == "-m":
            return f"python -m {word}"
        if word.endswith(".py"):
            return ""
    return ""


def starts_ranks(words: Sequence[str]) -> bool:
    """Return whether a command of a batch script starts a training."""
    launcher = launcher_of(words)
    python = any(_PYTHON.fullmatch(word.rpartition("/")[2]) for word in words[:3])
    is_module = "-m" in words[1:3] and words[-1] not in ("venv", "pip")
    trains = any(word.endswith(".py") for word in words) or is_module
    return launcher not in ("", "srun") or (trains and (python or launcher == "srun"))


def instead(words: Sequence[str], options: Sequence[str] = ()) -> str:
    """Return the line that has ``srobust run`` start the ranks of a command."""
    text = " ".join(words)
    per_node = re.search(r"--(?:nproc[-_]per[-_]node|num_processes|num_gpus)[= ](\d+)", text)
    own = [*options]
    if per_node and "--nproc-per-node" not in own and "num_processes" not in per_node[0]:
        own += ["--nproc-per-node", per_node[1]]
    modules = (i for i, word in enumerate(words[:-1]) if word == "-m" and words[i + 1] not in _OF_TORCH)
    start = next((i for i, word in enumerate(words) if word.endswith(".py")), next(modules, None))
    rest = words[start:] if start is not None else ("train.py",)
    return " ".join(["exec srobust run", *own, *rest])


def is_local(folder: str) -> bool:
    """Return whether each node has a folder of this path for itself."""
    plain = folder.strip("\"'").rstrip("/")
    return any(plain == local or plain.startswith(f"{local}/") for local in _LOCAL)
