"""``srobust-node``: the hooks as a program. Whatever happens, it ends in time, with a code that is meant.

This process does next to nothing: a child reads the configuration, imports what it needs and does the work,
and is left behind if it hangs.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, NoReturn, cast

from slurm_robust.hooks import stages
from slurm_robust.util.isolate import call
from slurm_robust.util.standard_files import open_standard_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType, ModuleType

    from slurm_robust.util.isolate import CallResult

USAGE = """usage: srobust-node prolog|epilog|periodic|watch|prolog_slurmctld|epilog_slurmctld [--config FILE]
The programs that Slurm calls on a node or beside slurmctld; see srobust-node(8)."""
OPEN, CLOSED = 0, 1
BAD_USAGE = 64


def program() -> NoReturn:
    """Run one hook and end immediately: taking an interpreter down takes a tenth of a hook's time."""
    open_standard_files()
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
    if (
        len(args) not in (1, 3)
        or args[0] not in (*stages.HOOKS, *stages.RECORDS, stages.WATCH)
        or args[1:2] not in ([], ["--config"])
    ):
        print(USAGE, file=sys.stdout if args[:1] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if args[:1] in (["-h"], ["--help"]) else BAD_USAGE
    signal.signal(signal.SIGTERM, _end)
    gc.disable()  # A hook ends before there is anything to collect.
    file = args[2] if args[2:] else ""
    try:
        return _watch(file, os.environ) if args[0] == stages.WATCH else _hook(args[0], file, os.environ)
    except Exception as error:  # noqa: BLE001 - a bug must neither drain nodes nor hold jobs
        print(f"srobust-node: internal error: {error!r}", file=sys.stderr)
        return OPEN


def _hook(name: str, file: str, environ: Mapping[str, str]) -> int:
    """Run the hook in a child that is left behind at the end of its time, whatever it hangs in."""
    task = partial(_run_in_child, name, file, environ, time.monotonic())
    answer = call({name: task}, {name: stages.START_S}, stages.NO_LIMIT_S)[name]
    if answer.value is None:
        return CLOSED if _report_failure(name, answer, environ) else OPEN
    code, _, message = answer.value.partition(b" ")
    if message:
        print(f"srobust-node: {name}: {message.decode(errors='replace')}", file=sys.stderr)
    return int(code)


def _run_in_child(name: str, file: str, environ: Mapping[str, str], begun: float) -> bytes:
    _import_msgspec()
    from slurm_robust.hooks.child import run_hook

    return run_hook(name, file, environ, begun)


def _watch(file: str, environ: Mapping[str, str]) -> int:
    """Run the checks again and again, each time in a child."""
    _import_msgspec()
    # All of it is imported once, and not in every child.
    from slurm_robust.hooks.watch import watch

    gc.enable()
    return watch(file, environ, partial(_report_failure, stages.WATCH))


def _import_msgspec() -> None:
    """Leave out what costs a hook as much as the rest of msgspec."""
    if "msgspec" not in sys.modules:
        # msgspec takes one function from it if it is there, else the standard library's.
        sys.modules.setdefault("typing_extensions", cast("ModuleType", None))
        import msgspec  # noqa: F401

        del sys.modules["typing_extensions"]


def _report_failure(name: str, answer: CallResult, environ: Mapping[str, str]) -> bool:
    """Return whether the site wants this hook to be closed then.

    A child tells of it, since what that needs may not be importable in time either.
    """
    stage, paths = answer.sent[:1], answer.sent[1:]
    closed, error = stage == stages.IF_CLOSED, answer.error
    if answer.hung and stage == stages.IMPORTING:
        error = stages.slow_import(f"longer than {stages.START_S:g} s")
    elif answer.hung and stage == stages.READING:
        error = (
            f"reading the configuration took longer than {stages.CONFIGURATION_S:g} s: repair the file "
            "system that it is on, or keep it on a local disk"
        )
    task = partial(_report_in_child, name, error, paths, environ, closed=closed)
    sent = call({name: task}, {name: stages.REPORT_S}, stages.REPORT_S)[name].value
    text = ascii(error)[1:-1] if sent is None else sent.decode()
    print(f"srobust-node: {name} failed: {text}", file=sys.stderr)
    return closed


def _report_in_child(
    name: str, error: str, paths: bytes, environ: Mapping[str, str], *, closed: bool
) -> bytes:
    _import_msgspec()
    from slurm_robust.hooks.child import report

    return report(name, error, paths, environ, closed=closed)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    program()
