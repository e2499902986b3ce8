"""Hazards of what a batch script does around ``srobust run``, or instead of it."""

from __future__ import annotations

from slurm_robust.doctor.facts import Facts, Unseen, known
from slurm_robust.doctor.launchers import instead, launcher_of
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


def _unprotected(facts: Facts) -> str:
    shape = _shape(facts)
    if shape.protected:
        return ""
    if shape.elsewhere and not shape.training:
        raise Unseen(f"whether {shape.elsewhere} calls srobust run")
    found = f": it starts {' '.join(shape.training)[:60]}" if shape.training else ""
    return f"the script does not call srobust run{found}"


def _launcher(facts: Facts) -> str:
    launcher = launcher_of(known(facts.run, "srobust run in the script").command)
    return f"srobust run runs {launcher}, which starts ranks of its own" if launcher else ""


FIRST = (
    bad(
        name="job.unprotected",
        needs=("shape",),
        why="nothing restarts this training",
        fix="start it with srobust run",
        source="docs/user-guide.md",
        judge=_unprotected,
        exactly=lambda facts: f"write instead: {instead(_shape(facts).training)}",
    ),
    bad(
        name="job.launcher",
        needs=("run",),
        why="srobust run starts the ranks itself, with the environment that torchrun sets",
        fix="give srobust run the script itself",
        source="srobust run --help",
        judge=_launcher,
        exactly=lambda facts: (
            f"write instead: {instead(run.command, run.options)}" if (run := facts.run) is not None else ""
        ),
    ),
    bad(
        name="job.script_missing",
        needs=("missing",),
        why="the job ends with 66 as soon as it has started",
        fix="correct the path, or run srobust doctor in the folder in which sbatch will run",
        source="docs/exit-codes.md",
        judge=lambda facts: (
            f"srobust run runs {facts.missing}, and there is no such file here"
            if facts.missing and not (facts.run is not None and launcher_of(facts.run.command))
            else ""
        ),
    ),
)
"""What ends the training in its first second, or leaves it without protection; these come first."""

RULES = (
    note(
        name="job.working_folder",
        needs=("shape",),
        why="each node has this folder for itself: the training's files are on the first node only",
        fix="change to a folder on shared storage",
        source="docs/security.md",
        judge=lambda facts: (
            f"the script changes to it: {local.text}" if (local := _shape(facts).local) is not None else ""
        ),
    ),
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
