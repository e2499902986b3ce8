"""Plays the lives of a spec on all processors, and keeps those that are done."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path

import msgspec

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record
from slurm_robust.simulator.figures import LifeFigures, figures_of
from slurm_robust.simulator.life import PolicyLife
from slurm_robust.simulator.spec import Spec
from slurm_robust.version import __version__


class OtherLives(SrobustError):
    """The file of lives is of another spec, of another release, or no such file."""

    exit_code = ExitCode.USAGE
    fix = "name another file, or remove that one"


class _Header(Record):
    spec: str
    version: str


def live(spec: Spec, seed: int) -> LifeFigures:
    """Play one life, and return its figures."""
    return figures_of(PolicyLife(spec, seed).play())


def play(spec: Spec, seeds: int, processes: int = 0, kept: Path | None = None) -> Iterator[LifeFigures]:
    """Yield the figures of the lives of seeds 0, 1, …, each as soon as it is known.

    ``processes``: how many play at a time, 0 for as many as there are processors. ``kept``: a file of lives:
    those that it has are not played again, and others are added. Raises :class:`OtherLives`.
    """
    known = _known(kept, spec) if kept is not None else {}
    yield from (known[seed] for seed in range(seeds) if seed in known)
    missing = iter([seed for seed in range(seeds) if seed not in known])
    processes = processes or len(os.sched_getaffinity(0))
    if processes == 1 or seeds == 1:
        for one in missing:
            yield _keep(live(spec, one), kept)
        return
    with ProcessPoolExecutor(processes) as pool:
        # Few are handed out ahead, so that Ctrl-C has little to wait for.
        running = {
            pool.submit(live, spec, seed) for _, seed in zip(range(2 * processes), missing, strict=False)
        }
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                if (seed := next(missing, None)) is not None:
                    running.add(pool.submit(live, spec, seed))
                yield _keep(future.result(), kept)


def _keep(figures: LifeFigures, kept: Path | None) -> LifeFigures:
    if kept is not None:
        with kept.open("ab") as file:
            file.write(msgspec.json.encode(figures) + b"\n")
    return figures


def _known(kept: Path, spec: Spec) -> dict[int, LifeFigures]:
    """Return the lives that the file has; a new file gets its header, and a line that was cut is ignored."""
    lives = _without_seeds(spec)
    header = _Header(spec=hashlib.sha256(msgspec.json.encode(lives)).hexdigest()[:16], version=__version__)
    if not kept.exists():
        kept.write_bytes(msgspec.json.encode(header) + b"\n")
        return {}
    first, *lines = kept.read_bytes().split(b"\n")
    try:
        found = msgspec.json.decode(first, type=_Header)
    except msgspec.DecodeError as error:
        raise OtherLives(f"{kept} is no file of simulated lives") from error
    if found != header:
        raise OtherLives(f"{kept} has the lives of another spec, or of slurm_robust {found.version}")
    known: dict[int, LifeFigures] = {}
    for line in lines:
        try:
            one = msgspec.json.decode(line, type=LifeFigures)
        except msgspec.DecodeError:
            continue
        known[one.seed] = one
    return known


def _without_seeds(spec: Spec) -> Spec:
    """Return ``spec`` without what changes no life: its name, and how many there are."""
    return msgspec.structs.replace(spec, name="", seeds=1)
