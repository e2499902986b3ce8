"""``srobust init``: looks at the site, asks a person in a terminal, writes, and prints what comes next."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import structs
from rich.console import Group, RenderableType
from rich.padding import Padding

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record
from slurm_robust.slurm.select import make_client
from slurm_robust.templates.catalog import template, templates
from slurm_robust.templates.choose import Choice, Wish, choose
from slurm_robust.templates.fill import spares_of
from slurm_robust.templates.offer import Offer, look
from slurm_robust.templates.write import USUAL, NewJob, check_free, write
from slurm_robust.terminal.console import Paste, Wrapped, plain_table, section, show

_PATIENCE_S = 5.0
"""How long each question to Slurm may take; after one without an answer there is no other."""


class InputEnded(SrobustError):
    """A person gave no more answers."""

    exit_code = ExitCode.USAGE
    fix = "--yes takes all defaults"


class Listed(Record):
    """A kind of batch script, without its text."""

    kind: str
    file: str
    purpose: str


def list_kinds(*, json: bool) -> int:
    """Print the kinds, and what each is for."""
    listed = [Listed(kind=one.kind, file=one.file, purpose=one.purpose) for one in templates()]
    show(listed, _list, json=json)
    return 0


def main(
    kind: str, wish: Wish, script: str | None, folder: Path, *, yes: bool, force: bool, json: bool
) -> int:
    """Write the files of a job. Raises the errors of :func:`choose` and :func:`write`."""
    chosen = template(kind)
    check_free(chosen, folder, force=force)
    offer = look(make_client("cli", _PATIENCE_S), getpass.getuser())
    spares = spares_of(chosen.text)
    said = script is not None or wish != Wish()
    if script is None:
        script = USUAL if (folder / USUAL).exists() else ""
    if not (said or yes or json) and sys.stdin.isatty() and sys.stdout.isatty():
        wish, script = _ask(offer, spares, script)
    written = write(chosen, choose(wish, offer, spares), offer, script, folder, force=force)
    show(written, _render, json=json)
    return 0


# -- questions ---------------------------------------------------------------------------------------


def _ask(offer: Offer, spares: int, script: str) -> tuple[Wish, str]:
    """Ask for what a person may want otherwise. Each answer changes the defaults of what follows."""
    print("Enter takes what stands in brackets; Ctrl-C ends this, and nothing is written.")
    if offer.silence:
        print(f"Slurm does not answer here: {offer.silence}")
    script = _answer("script of the training", script)
    wish = Wish()
    for name, text, convert in (
        ("partition", "partition", str),
        ("spares", "standbys", _number),
        ("nodes", "nodes of the job, standbys included", _number),
        ("gpus_per_node", "GPUs of each node", _number),
        ("time", "time limit", str),
    ):
        wish = _asked(wish, offer, spares, name, text, convert)
    return wish, script


def _asked(
    wish: Wish, offer: Offer, spares: int, name: str, text: str, convert: Callable[[str], Any]
) -> Wish:
    """Ask until the answer fits."""
    choice = next(one for one in choose(wish, offer, spares) if one.name == name.replace("_", "-"))
    while True:
        given = _answer(f"{text} ({choice.why.removeprefix('yours: ')})", choice.value)
        if given == choice.value:
            return wish
        try:
            answered: Wish = structs.replace(wish, **{name: convert(given)})
            choose(answered, offer, spares)
            return answered
        except SrobustError as error:
            print(f"  {error.in_full()}")
        except ValueError as error:
            print(f"  {error}")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise ValueError(f"{text!r} is not a number")
    return int(text)


def _answer(text: str, default: str) -> str:
    """Return what is typed. Raises :class:`InputEnded`."""
    try:
        return input(f"{text} [{default}]: ").strip() or default
    except EOFError:
        raise InputEnded("the input ended; nothing was written") from None


# -- words -------------------------------------------------------------------------------------------


def _list(listed: list[Listed]) -> RenderableType:
    table = plain_table("kind", "what it is for")
    for one in listed:
        table.add_row(one.kind, one.purpose)
    return table


def _render(written: NewJob) -> RenderableType:
    return Group(*_parts(written))


def _parts(written: NewJob) -> Iterator[RenderableType]:
    yield f"written: {', '.join(str(Path(written.folder) / name) for name in written.files)}"
    table = plain_table("option", "value", "why")
    for choice in written.choices:
        table.add_row(
            choice.name, choice.value or "-", choice.why if _is_sure(choice) else f"{choice.why} (yours)"
        )
    yield table
    yield from (Wrapped(f"note: {note}", "  ") for note in written.notes)
    yield from section("next:", *(Padding(Paste(command), (0, 0, 0, 2)) for command in written.next))


def _is_sure(choice: Choice) -> bool:
    return choice.is_sure or choice.why.startswith("yours")
