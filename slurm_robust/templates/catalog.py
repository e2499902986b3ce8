"""The batch scripts that the package brings, each under the name of its kind."""

from __future__ import annotations

from pathlib import Path

from slurm_robust.model.record import Record

DEFAULT = "standby"
"""The kind of ``train.sbatch``; others are called as their files are."""

_FOLDER = Path(__file__).parent / "data"
_PREFIX, _SUFFIX = "train-", ".sbatch"


class Template(Record):
    """One batch script."""

    kind: str
    file: str
    purpose: str
    """What it is for: its first sentence."""

    text: str


def templates() -> tuple[Template, ...]:
    """Return all, the default first."""
    found = [_template(path) for path in sorted(_FOLDER.glob(f"train*{_SUFFIX}"))]
    return tuple(sorted(found, key=lambda one: one.kind != DEFAULT))


def template(kind: str) -> Template:
    """Return the one of that kind, which is one of :func:`kinds`."""
    return next(one for one in templates() if one.kind == kind)


def kinds() -> tuple[str, ...]:
    """Return the names of all kinds."""
    return tuple(one.kind for one in templates())


def _template(path: Path) -> Template:
    text = path.read_text(encoding="utf-8")
    kind = path.name.removesuffix(_SUFFIX).removeprefix(_PREFIX)
    purpose = text.splitlines()[1].removeprefix("# ")
    return Template(kind=DEFAULT if kind == "train" else kind, file=path.name, purpose=purpose, text=text)
