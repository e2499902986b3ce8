"""``srobust-node``: the hooks as a program. Whatever happens, it ends in time, with a code that is meant."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, NoReturn, cast

if TYPE_CHECKING:
    from slurm_robust.config.node import NodeConfig
    from slurm_robust.node.log import EventLog

USAGE = """usage: srobust-node prolog|epilog|periodic|watch|prolog_slurmctld|epilog_slurmctld [--config FILE]
The programs that Slurm calls on a node or beside slurmctld; see srobust-node(8)."""
HOOKS = ("prolog", "epilog", "periodic")
RECORDS = ("prolog_slurmctld", "epilog_slurmctld")
WATCH = "watch"
OPEN, CLOSED = 0, 1
BAD_USAGE = 64


def main(argv: Sequence[str] | None = None) -> int:
    """Run one hook; its exit code. Only a prolog may have another one than 0."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_standard_files()
    if (
        len(words) not in (1, 3)
        or words[0] not in (*HOOKS, *RECORDS, WATCH)
        or words[1:2] not in ([], ["--config"])
    ):
        print(USAGE, file=sys.stdout if words[:1] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if words[:1] in (["-h"], ["--help"]) else BAD_USAGE
    signal.signal(signal.SIGTERM, _end)
    _start_lightly()
    file = Path(words[2]) if words[2:] else None
    try:
        return _watch(file, os.environ) if words[0] == WATCH else _guarded(words[0], file, os.environ)
    except Exception as error:  # noqa: BLE001 - a bug must neither drain nodes nor hold jobs
        print(f"srobust-node: internal error: {error!r}", file=sys.stderr)
        return OPEN


def _guarded(name: str, file: Path | None, environ: Mapping[str, str]) -> int:
    """Run the hook in a child that is left behind at the end of its time, whatever it hangs in."""
    # None of this at the head of the file: a wrong option is told without it.
    from slurm_robust.health.isolate import call
    from slurm_robust.health.runner import node_name
    from slurm_robust.model.text import one_line
    from slurm_robust.node.log import EventLog

    config, problem = _configuration(file)
    log = EventLog(config.paths, node_name(environ))
    if problem:
        log.write("configuration_refused", problem=problem)
    limit_s = _budget_s(name, config)
    answer = call({name: lambda: _run(name, config, environ, limit_s)}, {name: limit_s}, limit_s + 1.0)[name]
    if answer.value is not None:
        code, _, message = answer.value.partition(b" ")
        if message:
            print(f"srobust-node: {name}: {one_line(message.decode(errors='replace'))}", file=sys.stderr)
        return int(code)
    closed = name == "prolog" and config.hooks.on_error == "closed"
    _tell_failure(log, name, answer.error, closed=closed)
    return CLOSED if closed else OPEN


def _watch(file: Path | None, environ: Mapping[str, str]) -> int:
    """Look again and again, each time in a child."""
    from slurm_robust.health.isolate import call
    from slurm_robust.health.registry import CHECKS  # noqa: F401 - read once, and not in every child
    from slurm_robust.health.runner import node_name
    from slurm_robust.node.hooks import Hook, run
    from slurm_robust.node.log import EventLog
    from slurm_robust.node.watch import Round, watch

    gc.enable()
    try:
        import pynvml  # noqa: F401 - the same
    except ImportError:
        pass

    def look(one: Round, known: str) -> str | None:
        config, problem = _configuration(file)
        log = EventLog(config.paths, node_name(environ))
        if problem:
            log.write("configuration_refused", problem=problem)
        limit_s = config.hooks.periodic_s
        before = known if one.only else None

        def task() -> bytes:
            ended = run(Hook.PERIODIC, config, environ, limit_s, only=one.only, known=before)
            return ended.failing.encode()

        answer = call({WATCH: task}, {WATCH: limit_s}, limit_s + 1.0)[WATCH]
        if answer.value is None:
            _tell_failure(log, WATCH, answer.error, closed=False)
            return None
        return answer.value.decode(errors="replace")

    return watch(_configuration(file)[0], look)


def _run(name: str, config: NodeConfig, environ: Mapping[str, str], limit_s: float) -> bytes:
    """In the child: ``1 srobust: gpu3 XID 79``."""
    if name in RECORDS:
        from slurm_robust.node.allocation import record

        record(name, config, environ)
        return b"0 "
    from slurm_robust.node.hooks import Hook, run

    ended = run(Hook(name), config, environ, limit_s)
    return f"{ended.exit_code} {ended.message}".encode()


def _budget_s(name: str, config: NodeConfig) -> float:
    hooks = config.hooks
    budgets = {"prolog": hooks.prolog_s, "epilog": hooks.epilog_s, "periodic": hooks.periodic_s}
    return budgets.get(name, 2 * hooks.slurm_s)


def _configuration(file: Path | None) -> tuple[NodeConfig, str]:
    """What the files say; the defaults, which only observe, where they cannot be used, and why."""
    from slurm_robust.config.node import NodeConfig
    from slurm_robust.config.nodefile import FILE, NodeConfigError, load

    try:
        return load(file or FILE), ""
    except NodeConfigError as error:
        return NodeConfig(), str(error)


def _tell_failure(log: EventLog, name: str, error: str, *, closed: bool) -> None:
    from slurm_robust.model.text import one_line

    log.write("hook_failed", hook=name, error=error, closed=closed)
    print(f"srobust-node: {name} failed: {one_line(error)}", file=sys.stderr)


def _start_lightly() -> None:
    """Leave out what costs a hook a fifth of its time before it has begun."""
    gc.disable()  # It ends before there is anything to collect.
    if "msgspec" not in sys.modules:
        # msgspec takes one function from it where it is there, and the standard library's where not.
        sys.modules.setdefault("typing_extensions", cast(ModuleType, None))
        import msgspec  # noqa: F401

        del sys.modules["typing_extensions"]


def _open_standard_files() -> None:
    """Where Slurm gives none, the next file that is opened would take their place."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
