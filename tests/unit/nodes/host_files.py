"""Trees of files that look like ``/proc`` and ``/sys`` of some machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from slurm_robust.kernel.host import Host
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import View

F = TypeVar("F", bound=Record)

NOW = 1_000_000.0


def plant(root: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Host:
    """Write the files with a line end each, and links to paths below the same root."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    for name, target in (links or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        (root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
        path.symlink_to(root / target.lstrip("/"))
    return Host(root)


def view(
    facts: F, *before: tuple[float, F], baseline: F | None = None, boot_id: str = "b", **more: Any
) -> View[F]:
    """What a judge sees at ``NOW``; ``before`` are facts with their age in seconds, oldest first."""
    samples = tuple(View(at=NOW - age, boot_id="b", facts=old) for age, old in before)
    return View(facts=facts, at=NOW, boot_id=boot_id, before=samples, baseline=baseline, **more)


def only(found: Iterable[Any]) -> Any:
    """The one finding."""
    (one,) = found
    return one
