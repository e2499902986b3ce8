"""The specs that the package brings, each under its name, which ``srobust simulate`` takes like a file."""

from __future__ import annotations

from pathlib import Path

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.util.text import did_you_mean, near

_FOLDER = Path(__file__).parent / "specs"
_SUFFIX = ".yaml"


class NoSuchSpec(SrobustError):
    """Neither a file nor a shipped spec."""

    exit_code = ExitCode.USAGE


def names() -> tuple[str, ...]:
    """Return the names of all shipped specs."""
    return tuple(sorted(path.stem for path in _FOLDER.glob(f"*{_SUFFIX}")))


def located(spec: Path) -> Path:
    """Return the file that ``spec`` means: itself, or the shipped one of that name.

    Raises :class:`NoSuchSpec`.
    """
    if spec.exists() or spec.suffix == _SUFFIX:
        return spec
    known = names()
    if str(spec) in known:
        return _FOLDER / f"{spec}{_SUFFIX}"
    hint = did_you_mean(near(str(spec), known))
    raise NoSuchSpec(
        f"{spec} is neither a file nor a shipped spec",
        fix=hint or f"name a YAML file, or one of {', '.join(known)}",
    )
