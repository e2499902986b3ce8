"""The agent's part of a drill: what it does to a worker, to its data loader, or to itself."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import msgspec

from slurm_robust.agent.stacks.taker import kind_by_name
from slurm_robust.model.drill import DrillFault
from slurm_robust.model.stacks import ProcessKind
from slurm_robust.util import proc
from slurm_robust.util.files import write_atomically
from slurm_robust.wire.messages import Inject
from slurm_robust.worker.drilling import DRILL_SIGNAL, DrillOrder, order_path


class CannotDrill(Exception):
    """The fault cannot be planted; the message says why."""


def plant(order: Inject, pid: int | None, record: Path | None) -> None:
    """Plant the fault of ``order`` in the worker ``pid`` with this step record, or in what belongs to it.

    Raises :class:`CannotDrill`.
    """
    if order.fault == DrillFault.KILL_AGENT.value:
        os.kill(os.getpid(), signal.SIGKILL)
    if pid is None:
        raise CannotDrill(f"rank {order.rank} does not run")
    try:
        fault = DrillFault(order.fault)
    except ValueError:
        raise CannotDrill(f"this release does not know the fault '{order.fault}'") from None
    if fault.in_loader:
        _signal(
            _loader(pid, order.rank), signal.SIGKILL if fault is DrillFault.KILL_LOADER else signal.SIGSTOP
        )
    elif fault.in_script:
        _ask_script(order.drill, fault, pid, record)


def _loader(pid: int, rank: int) -> int:
    """Return a process of the data loader of the worker ``pid``."""
    for child in proc.descendants(proc.process_table(), pid):
        if kind_by_name(child.name) is ProcessKind.LOADER and child.state not in proc.DEAD:
            return child.pid
    raise CannotDrill(
        f"rank {rank} has no process of a data loader (torch.utils.data.DataLoader with num_workers above 0)"
    )


def _ask_script(drill: int, fault: DrillFault, pid: int, record: Path | None) -> None:
    """Have the worker do it to itself, if it has the handler: the signal would end it without."""
    if record is None or not _handles(pid):
        raise CannotDrill(
            "the program is not a Python script that srobust runs, or it has taken over the signal"
        )
    order = msgspec.json.encode(DrillOrder(drill=drill, fault=fault))
    try:
        write_atomically(order_path(record), order, durable=False, mode=0o600)
    except OSError as error:
        raise CannotDrill(f"the order cannot be written: {error.strerror}") from error
    _signal(pid, DRILL_SIGNAL)


def _handles(pid: int) -> bool:
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.removeprefix("SigCgt:"), 16) & 1 << (DRILL_SIGNAL - 1))
    return False


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError as error:
        raise CannotDrill(f"process {pid}: {error.strerror}") from error
