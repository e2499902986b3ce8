"""Hazards of what a batch script does around ``srobust run``, or instead of it."""

from __future__ import annotations

from slurm_robust.doctor.facts import Facts, Unseen, known
from slurm_robust.doctor.rule import bad, note
from slurm_robust.doctor.rules.site import has_code
from slurm_robust.doctor.shape import ScriptShape
from slurm_robust.slurm.options import parse_signal
from slurm_robust.slurm.records import SlurmVersion

_COUNTED = SlurmVersion(major=26, minor=11)
"""From here on SLURM_RESTART_COUNT is 0 in the first run."""

_HARMLESS = frozenset({"CONT", "CHLD", "URG", "WINCH"})


def _shape(facts: Facts) -> ScriptShape:
    return known(facts.shape, "the batch script")


def _exit_requeued(facts: Facts) -> str:
    code = _shape(facts).code
    for key in ("RequeueExit", "RequeueExitHold"):
        if code is not None and has_code(facts.setting(key), code):
            return f"the script always ends with {code}, which {key} has"
    return ""


def _unheard(facts: Facts) -> str:
    shape, asked = _shape(facts), facts.option("signal")
    signal = parse_signal(asked) if asked is not None else None
    if shape.protected or shape.replaced or signal is None or not signal.to_batch:
        return ""
    if signal.name in _HARMLESS or signal.name in shape.traps:
        return ""
    return f"--signal={asked} goes to the shell of the script, which has no trap for it"


def _restart_count(facts: Facts) -> str:
    try:
        if facts.release >= _COUNTED:
            return ""
    except Unseen:
        pass
    return _shape(facts).restarts


RULES = (
    bad(
        name="job.open_quote",
        needs=("shape",),
        why="all that follows is one string, which the shell refuses: srobust run does not start",
        fix="close the quote, or write \\ before an apostrophe",
        source="bash(1), QUOTING",
        judge=lambda facts: (
            f"the quote in line {line} does not end" if (line := _shape(facts).open_quote) is not None else ""
        ),
    ),
    note(
        name="job.exit_code",
        needs=("shape",),
        why="Slurm, RequeueExit and jobs that depend on this one do not see whether the training is done, or "
        "the job has given up",
        fix="write exec before srobust run, or end the script with its exit code (code=$?; …; exit $code)",
        source="docs/exit-codes.md; slurm.conf(5) RequeueExit",
        judge=lambda facts: (
            f"the script's exit code is not that of srobust run: {hides}"
            if (hides := _shape(facts).hides)
            else ""
        ),
    ),
    bad(
        name="job.exit_requeued",
        needs=("shape", "slurm"),
        why="Slurm requeues, or holds, the job also when its training is done, and when it has given up",
        fix="end the script with the exit code of srobust run, which requeues the job itself",
        source="slurm.conf(5) RequeueExit, RequeueExitHold",
        judge=_exit_requeued,
    ),
    bad(
        name="job.signal_unheard",
        needs=("shape", "options"),
        why="a shell that waits for a command dies of the signal, and the job with it: all since the last "
        "checkpoint is lost, earlier than at the time limit",
        fix="write exec srobust run, or a trap that passes the signal on and waits",
        source="sbatch(1) --signal; bash(1), SIGNALS",
        judge=_unheard,
    ),
    bad(
        name="job.trap_wait",
        needs=("shape",),
        why="a signal ends the wait; behind its trap the script goes on to its end, and Slurm kills steps "
        "and programs that still save",
        fix="wait again: while kill -0 $pid; do wait $pid; done, or a wait in the trap; or write "
        "exec srobust run",
        source="bash(1), SIGNALS; sbatch(1): the job ends with its script",
        judge=lambda facts: (
            f"there is a trap, and a single '{once}' for what runs in the background"
            if (once := _shape(facts).waits_once)
            else ""
        ),
    ),
    note(
        name="job.restart_count",
        needs=("shape",),
        why="SLURM_RESTART_COUNT is not set in the first run before Slurm 26.11: the test fails, and set -u "
        "ends the script",
        fix="write ${SLURM_RESTART_COUNT:-0}",
        source="sbatch(1), OUTPUT ENVIRONMENT VARIABLES",
        judge=_restart_count,
    ),
)
