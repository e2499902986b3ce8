"""``srobust-node``: the hooks as a program. Whatever happens, it ends in time, with a code that is meant.

This process does next to nothing: a child reads the configuration, imports what it needs and does the work,
and is left behind where it hangs.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn, cast

from slurm_robust.health.isolate import call, tell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType, ModuleType

    from slurm_robust.config.node import NodeConfig
    from slurm_robust.health.isolate import Answer

USAGE = """usage: srobust-node prolog|epilog|periodic|watch|prolog_slurmctld|epilog_slurmctld [--config FILE]
The programs that Slurm calls on a node or beside slurmctld; see srobust-node(8)."""
HOOKS = ("prolog", "epilog", "periodic")
RECORDS = ("prolog_slurmctld", "epilog_slurmctld")
WATCH = "watch"
OPEN, CLOSED = 0, 1
BAD_USAGE = 64

CONFIGURATION_S = 4.0
"""How long reading the configuration may take, which may lie on a file system that hangs."""

_NO_LIMIT_S = 86400.0


def program() -> NoReturn:
    """Run one hook and end at once: taking an interpreter down takes a tenth of a hook's time."""
    try:
        code = main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else BAD_USAGE
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


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
    gc.disable()  # A hook ends before there is anything to collect.
    file = words[2] if words[2:] else ""
    try:
        return _watch(file, os.environ) if words[0] == WATCH else _hook(words[0], file, os.environ)
    except Exception as error:  # noqa: BLE001 - a bug must neither drain nodes nor hold jobs
        print(f"srobust-node: internal error: {error!r}", file=sys.stderr)
        return OPEN


def _hook(name: str, file: str, environ: Mapping[str, str]) -> int:
    """Run the hook in a child that is left behind at the end of its time, whatever it hangs in."""

    def task() -> bytes:
        config, limit_s = _begin(name, file, environ)
        return _run(name, config, environ, limit_s)

    answer = call({name: task}, {name: CONFIGURATION_S}, _NO_LIMIT_S)[name]
    if answer.value is None:
        return CLOSED if _tell_failure(name, answer, environ) else OPEN
    code, _, message = answer.value.partition(b" ")
    if message:
        from slurm_robust.util.text import one_line

        print(f"srobust-node: {name}: {one_line(message.decode(errors='replace'))}", file=sys.stderr)
    return int(code)


def _watch(file: str, environ: Mapping[str, str]) -> int:
    """Look again and again, each time in a child."""
    _import_msgspec()
    from slurm_robust.health.registry import CHECKS  # noqa: F401 - read once, and not in every child
    from slurm_robust.node.hooks import Hook, run
    from slurm_robust.node.watch import Round, watch

    gc.enable()
    try:
        import pynvml  # noqa: F401 - the same
    except ImportError:
        pass

    def look(one: Round, known: str) -> str | None:
        def task() -> bytes:
            config, limit_s = _begin(WATCH, file, environ)
            before = known if one.only else None
            ended = run(Hook.PERIODIC, config, environ, limit_s, only=one.only, known=before)
            return ended.failing.encode()

        answer = call({WATCH: task}, {WATCH: CONFIGURATION_S}, _NO_LIMIT_S)[WATCH]
        if answer.value is None:
            _tell_failure(WATCH, answer, environ)
            return None
        return answer.value.decode(errors="replace")

    return watch(_configuration_of_watch(file), look)


# -- in the child -----------------------------------------------------------------------------------------


def _begin(name: str, file: str, environ: Mapping[str, str]) -> tuple[NodeConfig, float]:
    """The configuration, and how long the hook may still take, which the parent learns as well."""
    _import_msgspec()
    import msgspec

    from slurm_robust.config import nodefile  # noqa: F401 - before the clock runs
    from slurm_robust.health.runner import node_name
    from slurm_robust.node.log import EventLog

    begun = time.monotonic()
    config, problem = _configuration(file)
    limit_s = max(0.0, _budget_s(name, config) - (time.monotonic() - begun))
    is_closed = name == "prolog" and config.hooks.on_error == "closed"
    tell(msgspec.msgpack.encode((is_closed, config.paths)), limit_s)
    if problem:
        EventLog(config.paths, node_name(environ)).write("configuration_refused", problem=problem)
    return config, limit_s


def _run(name: str, config: NodeConfig, environ: Mapping[str, str], limit_s: float) -> bytes:
    """``1 srobust: gpu3 XID 79``."""
    if name in RECORDS:
        from slurm_robust.node.allocation import record

        record(name, config, environ)
        return b"0 "
    from slurm_robust.node.hooks import Hook, run

    ended = run(Hook(name), config, environ, limit_s)
    return f"{ended.exit_code} {ended.message}".encode()


def _budget_s(name: str, config: NodeConfig) -> float:
    hooks = config.hooks
    budgets = {
        "prolog": hooks.prolog_s,
        "epilog": hooks.epilog_s,
        "periodic": hooks.periodic_s,
        WATCH: hooks.periodic_s,
    }
    return budgets.get(name, 2 * hooks.slurm_s)


def _configuration(file: str) -> tuple[NodeConfig, str]:
    """What the files say; the defaults, which only observe, where they cannot be used, and why."""
    from pathlib import Path

    from slurm_robust.config.node import NodeConfig
    from slurm_robust.config.nodefile import FILE, NodeConfigError, load

    try:
        return load(Path(file) if file else FILE), ""
    except NodeConfigError as error:
        return NodeConfig(), str(error)


def _import_msgspec() -> None:
    """Leave out what costs a hook as much as the rest of msgspec."""
    if "msgspec" not in sys.modules:
        # msgspec takes one function from it where it is there, and the standard library's where not.
        sys.modules.setdefault("typing_extensions", cast("ModuleType", None))
        import msgspec  # noqa: F401

        del sys.modules["typing_extensions"]


# -- in the parent ----------------------------------------------------------------------------------------


def _configuration_of_watch(file: str) -> NodeConfig:
    import msgspec

    from slurm_robust.config.node import NodeConfig

    def task() -> bytes:
        return msgspec.msgpack.encode(_configuration(file)[0])

    answer = call({WATCH: task}, {WATCH: CONFIGURATION_S}, CONFIGURATION_S)[WATCH]
    return NodeConfig() if answer.value is None else msgspec.msgpack.decode(answer.value, type=NodeConfig)


def _tell_failure(name: str, answer: Answer, environ: Mapping[str, str]) -> bool:
    """Whether the site wants this hook to be closed then."""
    import msgspec

    from slurm_robust.config.node import Paths
    from slurm_robust.health.runner import node_name
    from slurm_robust.node.log import EventLog
    from slurm_robust.util.text import one_line

    closed, paths, error = False, Paths(), answer.error
    if answer.told:
        closed, paths = msgspec.msgpack.decode(answer.told, type=tuple[bool, Paths])
    elif answer.hung:
        error = f"reading the configuration took longer than {CONFIGURATION_S:g} s"
    EventLog(paths, node_name(environ)).write("hook_failed", hook=name, error=error, closed=closed)
    print(f"srobust-node: {name} failed: {one_line(error)}", file=sys.stderr)
    return closed


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
    program()
