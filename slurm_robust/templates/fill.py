"""The texts of the files: a template with the choices in it, and the job's configuration. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_robust.config.job import JobConfig
from slurm_robust.config.reference import as_yaml
from slurm_robust.home import page
from slurm_robust.templates.choose import Choice

CONFIG = "job.yaml"
"""The name of the configuration's file."""

_KEYS = (
    "training",
    "preload",
    "limits.per_signature",
    "limits.per_hour",
    "timings.checkpoint_s",
    "checkpoint.directory",
    "checkpoint.keep",
    "checkpoint.every_s",
    "checkpoint.local_directory",
    "detect.hang_factor",
    "detect.first_step_s",
    "detect.phase_s",
    "companions.reservation",
    "notify.channels",
    "metrics.listen",
)
"""What jobs set most."""

_RUN = re.compile(r"^exec srobust run .*$", re.MULTILINE)
_HOW_TO_COPY = re.compile(r"^# Copy it,.*?(?=^#\n)", re.MULTILINE | re.DOTALL)
_WRITTEN = '# Written for this site by srobust init; change what is marked "yours".\n'
_SPARES = re.compile(r"(?<=--spares )\d+")
_COLUMN = 40


def config_text() -> str:
    """Return the configuration with its commonest keys as comments."""
    header = f"""Configuration of a protected job: srobust run --config {CONFIG} …
Remove the '#' of a key, and of the name of its section, to set it. Check: srobust config check {CONFIG}
These are the commonest keys with their defaults; all: {page("configuration.md")}"""
    return as_yaml(JobConfig, header, _KEYS)


def spares_of(text: str) -> int:
    """Return the standbys of a template."""
    found = _SPARES.search(text)
    assert found is not None, "each template says how many"
    return int(found[0])


def filled(text: str, choices: Sequence[Choice]) -> str:
    """Return a template with the choices in its options, and the configuration in its command.

    What follows the batch script on sbatch's line is for ``srobust run``: options, the script, its arguments.
    """
    text = _HOW_TO_COPY.sub(_WRITTEN, text, count=1)
    for choice in choices:
        if choice.name == "spares":
            text = _SPARES.sub(choice.value, text, count=1)
            continue
        sign, value = ("#", f"={choice.value}") if choice.value else ("##", "")
        option = re.compile(rf"^##?SBATCH --{choice.name}(=\S*)?.*$", re.MULTILINE)
        found = option.search(text)
        assert found is not None, "each template has each option"
        line = f"{sign}SBATCH --{choice.name}{value or found[1]}"
        why = choice.why if choice.is_sure or choice.why.startswith("yours") else f"yours; {choice.why}"
        text = f"{text[: found.start()]}{line:{_COLUMN - 1}} # {why}{text[found.end() :]}"
    command = _RUN.search(text)
    assert command is not None, "each template runs srobust"
    run = command[0]
    if f"--config {CONFIG}" not in run:
        run = run.replace(' "$@"', f' --config {CONFIG} "$@"')
    return text[: command.start()] + run + text[command.end() :]
