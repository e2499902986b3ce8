"""Plays the lives of specs on all processors, and keeps those that are done."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path

import msgspec

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record
from slurm_robust.simulator.core_life import CoreLife
from slurm_robust.simulator.figures import LifeFigures, figures_of
from slurm_robust.simulator.life import PolicyLife, SimulatedLife
from slurm_robust.simulator.spec import Spec
from slurm_robust.version import __version__


class OtherLives(SrobustError):
    """The file is of another release, or no file of lives."""

    exit_code = ExitCode.USAGE
    fix = "name another file, or remove that one"


class _Header(Record):
    version: str


class _Kept(Record):
    spec: str
    life: LifeFigures


def played(spec: Spec, seed: int) -> SimulatedLife:
    """Play one life by the fidelity that ``spec`` asks for."""
    if spec.fidelity == "core":
        return CoreLife(spec, seed).play()
    return PolicyLife(spec, seed).play()


def live(spec: Spec, seed: int) -> LifeFigures:
    """Play one life, and return its figures."""
    return figures_of(played(spec, seed))


def play(
    specs: Sequence[Spec], seeds: int, processes: int = 0, kept: Path | None = None
) -> Iterator[tuple[int, LifeFigures]]:
    """Yield the figures of the lives of seeds 0, 1, … of each spec, as soon as they are known.

    Each comes with the place of its spec. ``processes``: how many play at a time, 0 for as many as there are
    processors. ``kept``: a file of lives: those that it has are not played again, and others are added.
    Raises :class:`OtherLives`.
    """
    names = [_name(spec) for spec in specs]
    known = _known(kept) if kept is not None else {}
    wanted = [(place, seed) for place in range(len(specs)) for seed in range(seeds)]
    yield from ((place, known[names[place], seed]) for place, seed in wanted if (names[place], seed) in known)
    missing = iter([(place, seed) for place, seed in wanted if (names[place], seed) not in known])
    processes = processes or len(os.sched_getaffinity(0))

    def keep(place: int, life: LifeFigures) -> tuple[int, LifeFigures]:
        if kept is not None:
            with kept.open("ab") as file:
                file.write(msgspec.json.encode(_Kept(spec=names[place], life=life)) + b"\n")
        return place, life

    if processes == 1 or len(wanted) == 1:
        for place, seed in missing:
            yield keep(place, live(specs[place], seed))
        return
    with ProcessPoolExecutor(processes, initializer=_end_at_ctrl_c) as pool:
        # Few are handed out ahead, so that an end has little to wait for.
        ahead = list(islice(missing, 2 * processes))
        running = {pool.submit(live, specs[place], seed): place for place, seed in ahead}
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                place = running.pop(future)
                if (following := next(missing, None)) is not None:
                    running[pool.submit(live, specs[following[0]], following[1])] = following[0]
                yield keep(place, future.result())


def _end_at_ctrl_c() -> None:
    """Have Ctrl-C, which all processes of a terminal get, end this one at once: its life is not kept."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _known(kept: Path) -> dict[tuple[str, int], LifeFigures]:
    """Return the lives that the file has; a new file gets its header, and a line that was cut is ignored."""
    header = _Header(version=__version__)
    if not kept.exists():
        kept.write_bytes(msgspec.json.encode(header) + b"\n")
        return {}
    first, *lines = kept.read_bytes().split(b"\n")
    try:
        found = msgspec.json.decode(first, type=_Header)
    except msgspec.DecodeError as error:
        raise OtherLives(f"{kept} is no file of simulated lives") from error
    if found != header:
        raise OtherLives(f"{kept} has the lives of slurm_robust {found.version}")
    known: dict[tuple[str, int], LifeFigures] = {}
    for line in lines:
        try:
            one = msgspec.json.decode(line, type=_Kept)
        except msgspec.DecodeError:
            continue
        known[one.spec, one.life.seed] = one.life
    return known


def _name(spec: Spec) -> str:
    """Return what tells ``spec`` from others: all but its name and number of lives, which change none."""
    lives = msgspec.structs.replace(spec, name="", seeds=1)
    return hashlib.sha256(msgspec.json.encode(lives)).hexdigest()[:16]
