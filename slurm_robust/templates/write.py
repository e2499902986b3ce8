"""Writes the files of a new job, and says what to do with them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from slurm_robust.home import page
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record
from slurm_robust.templates.catalog import Template
from slurm_robust.templates.choose import Choice
from slurm_robust.templates.fill import CONFIG, config_text, filled
from slurm_robust.templates.offer import Offer
from slurm_robust.util.files import read_regular, write_atomically

USUAL = "train.py"
"""What a training's script is mostly called."""

_MAX_SCRIPT = 10_000_000  # bytes
_CHECKPOINTS = re.compile(rb"\b(Checkpointer|RobustCallback)\b")


class FilesExist(SrobustError):
    """What would be written is there already."""

    fix = "--force writes them anew, --dir DIR writes them elsewhere"


class CannotWriteFiles(SrobustError):
    """The folder takes no files."""

    exit_code = ExitCode.JOB_DIR


class NewJob(Record):
    """What was written, why it says what it says, and what comes next."""

    kind: str
    folder: str
    files: tuple[str, ...]
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]
    next: tuple[str, ...]
    """Commands, ready for a shell."""


def write(
    template: Template, choices: Sequence[Choice], offer: Offer, script: str, folder: Path, *, force: bool
) -> NewJob:
    """Write the batch script and the configuration into ``folder``, both or neither.

    Raises :class:`FilesExist` without ``force``, :class:`CannotWriteFiles`.
    """
    texts = {
        template.file: filled(template.text, choices),
        CONFIG: config_text(),
    }
    check_free(template, folder, force=force)
    new: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            path = folder / name
            if not path.exists():
                new.append(path)
            write_atomically(path, text.encode(), durable=False)
    except BaseException as error:
        for path in new:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CannotWriteFiles(
                f"{folder} cannot be written: {error.strerror}", fix="--dir names another folder"
            ) from error
        raise
    return NewJob(
        kind=template.kind,
        folder=str(folder),
        files=tuple(texts),
        choices=tuple(choices),
        notes=tuple(_notes(offer, script, folder)),
        next=_next(template.file, script, folder),
    )


def check_free(template: Template, folder: Path, *, force: bool) -> None:
    """Raise :class:`FilesExist` if a file would be overwritten, unless ``force`` allows it."""
    there = [
        name for name in (template.file, CONFIG) if (folder / name).is_symlink() or (folder / name).exists()
    ]
    if there and not force:
        what = " and ".join(str(folder / name) for name in there)
        raise FilesExist(f"{what} {'are' if len(there) > 1 else 'is'} there already; nothing was written")


def _notes(offer: Offer, script: str, folder: Path) -> list[str]:
    notes = []
    if offer.silence:
        notes.append(
            f"Slurm does not answer here ({offer.silence}): run it again on a login node, or fill in the "
            'lines marked "yours" of the script'
        )
    if script:
        try:
            text = read_regular(folder / script, _MAX_SCRIPT)
        except OSError:
            notes.append(f"{script} is not in {folder}: put it there before you submit")
        else:
            if not _CHECKPOINTS.search(text):
                notes.append(
                    f"{script} has no slurm_robust.Checkpointer: after a fault it starts anew, and continues "
                    f"only if it resumes from files of its own ({page('checkpoints.md')})"
                )
    return notes


def _next(file: str, script: str, folder: Path) -> tuple[str, ...]:
    words = shlex.join((file, script or USUAL))
    change = () if folder.resolve() == Path.cwd() else (f"cd {shlex.quote(str(folder))}",)
    return (
        *change,
        f"srobust doctor {words}",
        f'job=$(sbatch --parsable {words}) && echo "job $job"',
        'srobust status "$job"',
    )
