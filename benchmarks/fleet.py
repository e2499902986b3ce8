"""The fleet index with a million incidents: how long each question takes, on SQLite and on PostgreSQL.

Jobs of a made-up site of 10,000 nodes, all of which work on each day of a year, go in as a collection adds
them. Then each question of ``srobust fleet``, ``nodes`` and ``incidents --all`` is asked again and again,
each time on a new connection, as a command does.

python -m benchmarks.fleet SQLite in a temporary folder python -m benchmarks.fleet --url postgresql://… an
empty database of a server that runs
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks import common
from slurm_robust.fleet import queries
from slurm_robust.fleet.accept import CAUSES, JobEntry, NodePlace
from slurm_robust.fleet.answers import IncidentFilter
from slurm_robust.fleet.index import FleetIndex
from slurm_robust.model.jobsummary import IncidentSummary, NodeWork

NODES, DAYS = 10_000, 365
INCIDENTS, PER_JOB = 1_000_000, 50
WIDTH = 16
DAY_S, BEGIN = 86400.0, 20_000 * 86400.0
TARGET_S = 1.0
NAMES = tuple(f"gpu{number:05d}" for number in range(NODES))
PLACES = {
    name: NodePlace(type="8xh200" if number % 4 else "8xh100", rack=f"r{number // 32:03d}")
    for number, name in enumerate(NAMES)
}


def entry(
    job_id: int, start: float, end: float, nodes: tuple[str, ...], *incidents: IncidentSummary
) -> JobEntry:
    """A job of the site."""
    life = end - start
    return JobEntry(
        cluster="bench",
        job_id=job_id,
        submitted=int(start),
        uid=1000 + job_id % 200,
        user=f"user{job_id % 200}",
        started=start,
        ended=end,
        exit_code=0,
        wall_s=life,
        since_start_s=life,
        effective_s=0.95 * life,
        nodes=len(nodes),
        generations=1 + len(incidents),
        write_s=60.0,
        verified=True,
        work=(NodeWork(nodes=nodes, start=start, end=end),),
        incidents=incidents,
    )


def busy_fleet() -> Iterator[JobEntry]:
    """On each day one job on all nodes."""
    for day in range(DAYS):
        start = BEGIN + day * DAY_S
        yield entry(10_000_000 + day, start, start + 0.9 * DAY_S, NAMES)


def jobs(incidents: int, rnd: random.Random) -> Iterator[JobEntry]:
    """Jobs of 16 nodes, each with fifty incidents."""
    for job_id in range(1, incidents // PER_JOB + 1):
        first, start = rnd.randrange(NODES - WIDTH), BEGIN + rnd.random() * (DAYS - 2) * DAY_S
        nodes, life = NAMES[first : first + WIDTH], 2 * DAY_S
        made = (
            IncidentSummary(
                number=number,
                t=start + life * number / (PER_JOB + 1),
                symptom="crash",
                cause=(cause := rnd.choice(CAUSES)),
                nodes=(rnd.choice(nodes),) if cause in ("node", "network") else (),
                detail="rank 17 exited with code 1 after it had lost its peer",
                recover_s=rnd.expovariate(1 / 60),
                lost_node_s={"recovering": rnd.expovariate(1 / 900)},
            )
            for number in range(1, PER_JOB + 1)
        )
        yield entry(job_id, start, start + life, nodes, *made)


def fill(index: FleetIndex, incidents: int) -> dict[str, float]:
    """Add all; what that took."""
    begun, many = time.monotonic(), 0
    for one in busy_fleet():
        index.add([one], PLACES)
    with_work = time.monotonic()
    batch: list[JobEntry] = []
    for one in jobs(incidents, random.Random(1)):
        batch.append(one)
        many += len(one.incidents)
        if len(batch) == 100:
            index.add(batch, PLACES)
            batch = []
    if batch:
        index.add(batch, PLACES)
    took_s = time.monotonic() - with_work
    return {
        "node_days_s": with_work - begun,
        "incidents": many,
        "incidents_s": took_s,
        "incidents_per_s": many / took_s,
    }


def questions() -> dict[str, Callable[[sa.Connection], Any]]:
    """All that the commands ask."""
    end = BEGIN + DAYS * DAY_S
    month, year = end - 28 * DAY_S, BEGIN
    found: dict[str, Callable[[sa.Connection], Any]] = {
        "incidents, newest 100": lambda c: queries.incidents(c, IncidentFilter()),
        "incidents of a node": lambda c: queries.incidents(c, IncidentFilter(nodes=(NAMES[4242],))),
        "incidents of a rack": lambda c: queries.incidents(
            c, IncidentFilter(nodes=NAMES[320:352], since=month)
        ),
        "incidents by cause": lambda c: queries.incidents(c, IncidentFilter(cause="network", since=month)),
        "incidents of a user": lambda c: queries.incidents(c, IncidentFilter(user="user7", limit=1000)),
    }
    for name, since in (("28 days", month), ("a year", year)):
        found |= {
            f"totals, {name}": partial(queries.totals, since=since),
            f"by cause, {name}": partial(queries.causes, since=since, node_hours=1e6),
            f"by type, {name}": partial(queries.groups, since=since, by="type"),
            f"by rack, {name}": partial(queries.groups, since=since, by="rack"),
            f"worst nodes, {name}": partial(queries.nodes, since=since, limit=10),
            f"all nodes, {name}": partial(queries.nodes, since=since),
            f"rate for spares, {name}": partial(queries.node_failures, since=since, names=None),
        }
    found["who blames whom, 28 days"] = lambda c: queries.accusations(c, month)
    return found


def ask(url: str, reps: int) -> dict[str, dict[str, float]]:
    """Median and worst seconds of each question."""
    found: dict[str, dict[str, float]] = {}
    for name, question in questions().items():
        times = []
        for _ in range(reps):
            with FleetIndex(url) as index:
                begun = time.monotonic()
                index.read(question)
                times.append(time.monotonic() - begun)
        found[name] = {"median_s": sorted(times)[len(times) // 2], "worst_s": max(times)}
        print(f"{name:32} {found[name]['median_s']:7.3f} s, worst {found[name]['worst_s']:.3f} s", flush=True)
    return found


def main() -> int:
    """Fill, ask, write ``build/bench/fleet.json``; 1 if a question took longer than a second."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--incidents", type=int, default=INCIDENTS)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--url", help="an empty database (default: a file of SQLite)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="srobust-fleet-") as folder:
        url = given.url or str(Path(folder) / "fleet.sqlite")
        with FleetIndex(url, create=True) as index:
            filled = fill(index, given.incidents)
            backend = "postgresql" if index.is_postgresql else "sqlite"
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        print(f"{backend}: {filled['incidents']:,} incidents, {filled['incidents_per_s']:,.0f} per second")
        answers = ask(url, given.reps)
    worst = max(answer["median_s"] for answer in answers.values())
    result = {
        "backend": backend,
        "filled": filled,
        "bytes": size,
        "answers": answers,
        "worst_median_s": worst,
    }
    common.write(f"fleet-{backend}", result)
    return int(worst > TARGET_S)


if __name__ == "__main__":
    sys.exit(main())
