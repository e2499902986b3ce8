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

from slurm_robust.util.isolate import call, send

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import FrameType, ModuleType
    from typing import TypeVar

    from slurm_robust.config.node import NodeConfig
    from slurm_robust.util.isolate import CallResult

    T = TypeVar("T")

USAGE = """usage: srobust-node prolog|epilog|periodic|watch|prolog_slurmctld|epilog_slurmctld [--config FILE]
The programs that Slurm calls on a node or beside slurmctld; see srobust-node(8)."""
HOOKS = ("prolog", "epilog", "periodic")
RECORDS = ("prolog_slurmctld", "epilog_slurmctld")
WATCH = "watch"
OPEN, CLOSED = 0, 1
BAD_USAGE = 64

START_S = 20.0
"""How long Python may take to import what a hook needs: from slow storage, on a node that is busy. What
follows when it takes longer ends before the scripts' own limits, of 30 s and more."""

CONFIGURATION_S = 4.0
"""How long reading the configuration may take, which may lie on a file system that hangs."""

REPORT_S = 3.0
"""How long it may take to report a hook that failed, maybe because nothing can be imported."""

SLOW_SHARE = 0.25
"""Of a hook's budget: a start that takes longer is sent."""

# What the child says of itself: first that it imports, then that it reads, then, with the paths of its
# configuration, whether its failure lets jobs start.
_IMPORTING, _READING, _IF_OPEN, _IF_CLOSED = b"", b"r", b"o", b"c"

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
    args = list(sys.argv[1:] if argv is None else argv)
    _open_standard_files()
    if (
        len(args) not in (1, 3)
        or args[0] not in (*HOOKS, *RECORDS, WATCH)
        or args[1:2] not in ([], ["--config"])
    ):
        print(USAGE, file=sys.stdout if args[:1] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if args[:1] in (["-h"], ["--help"]) else BAD_USAGE
    signal.signal(signal.SIGTERM, _end)
    gc.disable()  # A hook ends before there is anything to collect.
    file = args[2] if args[2:] else ""
    try:
        return _watch(file, os.environ) if args[0] == WATCH else _hook(args[0], file, os.environ)
    except Exception as error:  # noqa: BLE001 - a bug must neither drain nodes nor hold jobs
        print(f"srobust-node: internal error: {error!r}", file=sys.stderr)
        return OPEN


def _hook(name: str, file: str, environ: Mapping[str, str]) -> int:
    """Run the hook in a child that is left behind at the end of its time, whatever it hangs in."""
    begun = time.monotonic()

    def task() -> bytes:
        config, limit_s = _begin(name, file, environ, begun)
        return _run(name, config, environ, limit_s, begun)

    answer = call({name: task}, {name: START_S}, _NO_LIMIT_S)[name]
    if answer.value is None:
        return CLOSED if _report_failure(name, answer, environ) else OPEN
    code, _, message = answer.value.partition(b" ")
    if message:
        from slurm_robust.util.text import one_line

        print(f"srobust-node: {name}: {one_line(message.decode(errors='replace'))}", file=sys.stderr)
    return int(code)


def _watch(file: str, environ: Mapping[str, str]) -> int:
    """Run the checks again and again, each time in a child."""
    _import_msgspec()
    from slurm_robust.hooks.hook import Hook, run
    from slurm_robust.hooks.watch import Round, watch
    from slurm_robust.nodes.registry import CHECKS  # read once, and not in every child

    gc.enable()
    try:
        import pynvml  # noqa: F401 - the same
    except ImportError:
        pass

    def run_round(one: Round, known: str) -> str | None:
        def task() -> bytes:
            config, limit_s = _begin(WATCH, file, environ, time.monotonic())
            before = known if one.only else None
            ended = run(Hook.PERIODIC, config, environ, limit_s, only=one.only, known=before)
            return ended.failing.encode()

        answer = call({WATCH: task}, {WATCH: START_S}, _NO_LIMIT_S)[WATCH]
        if answer.value is None:
            _report_failure(WATCH, answer, environ)
            return None
        return answer.value.decode(errors="replace")

    return watch(_configuration_of_watch(file), CHECKS, run_round)


# -- in the child -----------------------------------------------------------------------------------------


def _begin(name: str, file: str, environ: Mapping[str, str], begun: float) -> tuple[NodeConfig, float]:
    """The configuration, and how long the hook may still take, which the parent learns, too.

    ``begun``: when the hook did. Raises ``RuntimeError`` where the start has used up its time.
    """
    _import_all(name)
    import msgspec

    from slurm_robust.hooks.log import EventLog
    from slurm_robust.nodes.runner import node_name

    config, problem, reading_s = _configuration(file, begun)
    budget_s = _budget_s(name, config)
    start_s = time.monotonic() - begun
    left_s = budget_s - start_s
    is_closed = name == "prolog" and config.hooks.on_error == "closed"
    sent = (_IF_CLOSED if is_closed else _IF_OPEN) + msgspec.msgpack.encode(config.paths)
    send(sent, left_s if left_s > 0 else REPORT_S)
    log = EventLog(config.paths, node_name(environ))
    if problem:
        log.write("configuration_refused", problem=problem)
    slow = _slow(f"{start_s - reading_s:.1f} s")
    if left_s <= 0:
        raise RuntimeError(
            f"nothing is left of the hook's {budget_s:g} s: reading the configuration took "
            f"{reading_s:.1f} s, and {slow}"
        )
    if start_s - reading_s > SLOW_SHARE * budget_s:
        log.write("slow_start", hook=name, why=f"{slow}, of {budget_s:g} s for the hook")
    return config, left_s


def _import_all(name: str) -> None:
    """What this hook needs, so that none of it counts as time of what is done with it."""
    _import_msgspec()
    from slurm_robust.config import nodefile  # noqa: F401

    if name in RECORDS:
        from slurm_robust.hooks import allocation  # noqa: F401
    else:
        from slurm_robust.hooks import hook  # noqa: F401
        from slurm_robust.nodes import registry  # noqa: F401


def _run(name: str, config: NodeConfig, environ: Mapping[str, str], limit_s: float, begun: float) -> bytes:
    """``1 srobust: gpu3 XID 79``."""
    if name in RECORDS:
        from slurm_robust.hooks.allocation import record

        record(name, config, environ)
        return b"0 "
    from slurm_robust.hooks.hook import Hook, run

    ended = run(Hook(name), config, environ, limit_s, begun=begun)
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


def _configuration(file: str, begun: float) -> tuple[NodeConfig, str, float]:
    """What the files say, or the defaults, which only observe, and why; and how long reading them took.

    The parent learns what is being done, and so what it was that did not end.
    """
    from pathlib import Path

    from slurm_robust.config.errors import InvalidSettings
    from slurm_robust.config.node import NodeConfig
    from slurm_robust.config.nodefile import FILE, load, load_compiled

    path = Path(file) if file else FILE
    spent: list[float] = []

    def read(how: Callable[[Path], T]) -> T:
        since = time.monotonic()
        send(_READING, CONFIGURATION_S)
        try:
            return how(path)
        finally:
            spent.append(time.monotonic() - since)

    try:
        config = read(load_compiled)
        if config is None:
            send(_IMPORTING, max(0.0, begun + START_S - time.monotonic()))
            from slurm_robust.config import reader  # noqa: F401

            config = read(load)
        return config, "", sum(spent)
    except InvalidSettings as error:
        return NodeConfig(), str(error), sum(spent)


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
        return msgspec.msgpack.encode(_configuration(file, time.monotonic())[0])

    answer = call({WATCH: task}, {WATCH: START_S}, _NO_LIMIT_S)[WATCH]
    return NodeConfig() if answer.value is None else msgspec.msgpack.decode(answer.value, type=NodeConfig)


def _report_failure(name: str, answer: CallResult, environ: Mapping[str, str]) -> bool:
    """Whether the site wants this hook to be closed then.

    A child tells of it, since what that needs may not be importable in time either.
    """
    stage, paths = answer.sent[:1], answer.sent[1:]
    closed, error = stage == _IF_CLOSED, answer.error
    if answer.hung and stage == _IMPORTING:
        error = _slow(f"longer than {START_S:g} s")
    elif answer.hung and stage == _READING:
        error = (
            f"reading the configuration took longer than {CONFIGURATION_S:g} s: repair the file system that "
            "it is on, or keep it on a local disk"
        )

    def task() -> bytes:
        _import_msgspec()
        import msgspec

        from slurm_robust.config.node import Paths
        from slurm_robust.hooks.log import EventLog
        from slurm_robust.nodes.runner import node_name
        from slurm_robust.util.text import one_line

        log = EventLog(msgspec.msgpack.decode(paths, type=Paths) if paths else Paths(), node_name(environ))
        log.write("hook_failed", hook=name, error=error, closed=closed)
        return one_line(error).encode(errors="replace")

    sent = call({name: task}, {name: REPORT_S}, REPORT_S)[name].value
    text = ascii(error)[1:-1] if sent is None else sent.decode()
    print(f"srobust-node: {name} failed: {text}", file=sys.stderr)
    return closed


def _slow(took: str) -> str:
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return (
        f"importing Python modules took {took}: the node is overloaded, or the file system of {folder} is "
        "slow (install slurm_robust on a local disk)"
    )


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
