"""The child of a hook: reads the configuration, imports what the hook needs and does the work."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.node import NodeConfig, Paths
from slurm_robust.config.nodefile import FILE, load, load_compiled
from slurm_robust.hooks import stages
from slurm_robust.hooks.log import EventLog
from slurm_robust.kernel.host import node_name
from slurm_robust.util.isolate import call, send
from slurm_robust.util.text import one_line

T = TypeVar("T")


def run_hook(name: str, file: str, environ: Mapping[str, str], begun: float) -> bytes:
    """Run one hook; return its exit code and what slurmd's log gets: ``1 srobust: gpu3 XID 79``."""
    # What a hook needs is imported first, so that none of it counts as time of what is done with it.
    if name in stages.RECORDS:
        from slurm_robust.hooks.allocation import record

        config, _ = begin(name, file, environ, begun)
        record(name, config, environ)
        return b"0 "
    from slurm_robust.hooks.hook import Hook, run

    config, limit_s = begin(name, file, environ, begun)
    ended = run(Hook(name), config, environ, limit_s, begun=begun)
    return f"{ended.exit_code} {one_line(ended.message)}".encode(errors="replace")


def begin(name: str, file: str, environ: Mapping[str, str], begun: float) -> tuple[NodeConfig, float]:
    """Return the configuration, and how long the hook may still take, which the parent learns, too.

    ``begun``: when the hook did. Raises ``RuntimeError`` if the start has used up its time.
    """
    config, problem, reading_s = read_configuration(file, begun)
    hooks = config.hooks
    budgets = {
        "prolog": hooks.prolog_s,
        "epilog": hooks.epilog_s,
        "periodic": hooks.periodic_s,
        stages.WATCH: hooks.periodic_s,
    }
    budget_s = budgets.get(name, 2 * hooks.slurm_s)
    start_s = time.monotonic() - begun
    left_s = budget_s - start_s
    is_closed = name == "prolog" and config.hooks.on_error == "closed"
    sent = (stages.IF_CLOSED if is_closed else stages.IF_OPEN) + msgspec.msgpack.encode(config.paths)
    send(sent, left_s if left_s > 0 else stages.REPORT_S)
    log = EventLog(config.paths, node_name(environ))
    if problem:
        log.write("configuration_refused", problem=problem)
    slow = stages.slow_import(f"{start_s - reading_s:.1f} s")
    if left_s <= 0:
        raise RuntimeError(
            f"nothing is left of the hook's {budget_s:g} s: reading the configuration took "
            f"{reading_s:.1f} s, and {slow}"
        )
    if start_s - reading_s > stages.SLOW_SHARE * budget_s:
        log.write("slow_start", hook=name, why=f"{slow}, of {budget_s:g} s for the hook")
    return config, left_s


def read_configuration(file: str, begun: float) -> tuple[NodeConfig, str, float]:
    """Return what the files say, or the defaults, which only observe, and why; and how long that took.

    The parent learns what is being done, and so what it was that did not end.
    """

    path = Path(file) if file else FILE
    spent: list[float] = []

    def read(how: Callable[[Path], T]) -> T:
        since = time.monotonic()
        send(stages.READING, stages.CONFIGURATION_S)
        try:
            return how(path)
        finally:
            spent.append(time.monotonic() - since)

    try:
        config = read(load_compiled)
        if config is None:
            send(stages.IMPORTING, max(0.0, begun + stages.START_S - time.monotonic()))
            from slurm_robust.config import reader  # noqa: F401

            config = read(load)
        return config, "", sum(spent)
    except InvalidSettings as error:
        return NodeConfig(), str(error), sum(spent)


def configuration_of_watch(file: str) -> NodeConfig:
    """Return what the files say, read in a child; the defaults if that takes too long."""

    def task() -> bytes:
        return msgspec.msgpack.encode(read_configuration(file, time.monotonic())[0])

    answer = call({stages.WATCH: task}, {stages.WATCH: stages.START_S}, stages.NO_LIMIT_S)[stages.WATCH]
    return NodeConfig() if answer.value is None else msgspec.msgpack.decode(answer.value, type=NodeConfig)


def report(name: str, error: str, paths: bytes, environ: Mapping[str, str], *, closed: bool) -> bytes:
    """Write into the event log that a hook failed; return the error as a line for slurmd's log."""
    log = EventLog(msgspec.msgpack.decode(paths, type=Paths) if paths else Paths(), node_name(environ))
    log.write("hook_failed", hook=name, error=error, closed=closed)
    return one_line(error).encode(errors="replace")
