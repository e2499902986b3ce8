"""The options of ``sbatch`` that a job was, or will be, submitted with. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from slurm_robust.model.record import Record
from slurm_robust.slurm.records import Submission

# Options of sbatch(1) that stand alone, or take their value only behind "=". All others take one.
_ALONE = frozenset(
    {"contiguous", "exclusive", "get-user-env", "help", "hold", "ignore-pbs", "nice", "no-kill", "no-requeue"}
    | {"overcommit", "oversubscribe", "parsable", "propagate", "quiet", "reboot", "requeue", "resv-ports"}
    | {"spread-job", "spread-segments", "consolidate-segments", "stepmgr", "test-only", "usage"}
    | {"use-min-nodes", "verbose", "version", "wait"}
)
_LETTERS = {
    "H": "hold",
    "N": "nodes",
    "O": "overcommit",
    "Q": "quiet",
    "V": "version",
    "W": "wait",
    "h": "help",
    "k": "no-kill",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "w": "nodelist",
}
# Variables that sbatch reads, with the option that each stands for.
_VARIABLES = {
    "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_NO_KILL": "no-kill",
    "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_REQUEUE": "requeue",
    "SBATCH_SIGNAL": "signal",
    "SBATCH_TIMELIMIT": "time",
}
OFF = "off"
"""The value of an option that was taken back (``--no-requeue``, ``--no-kill=off``)."""


class Options(Record):
    """Long names with their values, "" for an option that stands alone.

    ``complete``: an option that is not ``given`` was not given; else a part of them is not known.
    """

    given: dict[str, str] = {}
    complete: bool = True


class Signal(Record):
    """``--signal=[B:]NAME[@seconds]``."""

    name: str
    """Without ``SIG``; a number stays a number."""

    before_s: int = 60
    to_batch: bool = False


def of_script(script: str, environ: Mapping[str, str]) -> Options:
    """What ``sbatch`` would take from a batch script and from the environment, which overrides it."""
    return Options(given=_merged(_of_script(script), _of_environment(environ)))


def of_submission(submission: Submission, environ: Mapping[str, str]) -> Options:
    """What a job was submitted with. ``environ``: of the job, which has what sbatch had, or of nobody."""
    line = _of_words(_split(submission.line)[1:])
    return Options(
        given=_merged(_of_script(submission.script), _of_environment(environ), line),
        complete=bool(submission.line and submission.script),
    )


def parse_signal(text: str) -> Signal | None:
    """The value of ``--signal``; None for one that sbatch refuses."""
    match = re.fullmatch(r"(?:([RB]+):)?(?:SIG)?(\w+)(?:@(\d+))?", text.strip(), re.IGNORECASE)
    if match is None:
        return None
    flags, name, before = match.groups()
    return Signal(
        name={"10": "USR1"}.get(name, name.upper()),
        before_s=60 if before is None else int(before),
        to_batch="B" in (flags or "").upper(),
    )


def _of_script(script: str) -> dict[str, str]:
    """Only lines before the first command count."""
    words: list[str] = []
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            words += _split(line.removeprefix("#SBATCH"), comments=True)
        elif line.strip() and not line.startswith("#"):
            break
    return _of_words(words)


def _of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return _named((option, environ[name]) for name, option in _VARIABLES.items() if name in environ)


def _of_words(words: Sequence[str]) -> dict[str, str]:
    """Up to the first word that is no option: the batch script, whose own options follow."""
    found: list[tuple[str, str]] = []
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] != "--":
        word, index = words[index], index + 1
        if word.startswith("--"):
            name, has_value, value = word[2:].partition("=")
        else:
            name, value = _LETTERS.get(word[1:2], word[1:2]), word[2:]
            has_value = value
        if not has_value and name not in _ALONE and index < len(words):
            value, index = words[index], index + 1
        found.append((name, value))
    return _named(found)


def _named(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Opposites under one name; the last one counts."""
    given: dict[str, str] = {}
    for name, value in found:
        if name == "no-requeue":
            given["requeue"] = OFF
        else:
            given[name] = value
    return given


def _merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """Later ones override earlier ones; what was taken back stays visible for ``requeue`` only."""
    merged = {name: value for layer in layers for name, value in layer.items()}
    return {name: value for name, value in merged.items() if (name, value) != ("no-kill", OFF)}


def _split(text: str, *, comments: bool = False) -> list[str]:
    try:
        return shlex.split(text, comments=comments)
    except ValueError:  # a quote that does not end: Slurm does not keep how words were quoted
        return text.split()
