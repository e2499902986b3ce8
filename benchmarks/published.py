"""What is published of large jobs against what the simulator makes of them: ByteRobust, Meta, Llama 3.

Each row has the published figure, the simulated one, and whether a parameter was fitted to it. ``--page``
writes the tables into docs/simulator-published.md.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean, median

from msgspec import structs

from benchmarks import common
from slurm_robust.config.job import CompanionConfig, StandbyConfig
from slurm_robust.model.record import Record
from slurm_robust.policy.spares import PAPER_RATE, at_once
from slurm_robust.simulator.faults import DAY_S, faults_of
from slurm_robust.simulator.figures import Estimate, LifeFigures, Means, Resolution, estimate, resolutions
from slurm_robust.simulator.life import PolicyLife
from slurm_robust.simulator.runs import play
from slurm_robust.simulator.shipped import located
from slurm_robust.simulator.spec import FaultSource, Owner, Spec, read

PAGE = common.ROOT / "docs" / "simulator-published.md"
BEGIN, END = "<!-- written by python -m benchmarks.published --page -->", "<!-- end of the written part -->"

FITTED, PREDICTED, GIVEN = "fitted", "predicted", "given"


class Row(Record):
    """One figure."""

    what: str
    published: float
    simulated: float
    how: str
    """``fitted``: a parameter was chosen for it; ``predicted``: none was; ``given``: the spec says it."""
    unit: str = ""
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def off(self) -> float:
        """By how much of the published figure the simulated one differs."""
        return self.simulated / self.published - 1


def shipped(name: str) -> Spec:
    """Return the shipped spec of that name."""
    return read(located(Path(name)))


def lives(spec: Spec, seeds: int, processes: int) -> list[LifeFigures]:
    """Play ``spec`` from the first ``seeds`` seeds, and return the figures in their order."""
    return sorted((life for _, life in play((spec,), seeds, processes)), key=lambda life: life.seed)


def resolved(spec: Spec, seeds: int) -> list[Resolution]:
    """Return how the incidents and updates ended in the lives of the first ``seeds`` seeds."""
    played = (PolicyLife(spec, seed).play() for seed in range(seeds))
    return [one for life in played for one in resolutions(event for j in life.journals for event in j)]


# -- ByteRobust ------------------------------------------------------------------------------------------

SCALES = {128: (46, 454, 2), 256: (51, 545, 2), 512: (54, 635, 3), 1024: (65, 768, 4)}
"""Machines of 16 GPUs: seconds of a hot update and of a requeue (table 7), standbys (table 5)."""

RACK = 32
"""Machines that a switch takes with it."""

WAS = {"requeue": 10.87, "reschedule": 5.36}
ORACLE = 1.0519
"""The paper's ours by that of unlimited standbys."""

TABLE_4 = {
    "byterobust-dense": {"explicit": 128, "hot update": 20, "analyzer": 15, "rollback": 12},
    "byterobust-moe": {"explicit": 71, "hot update": 31, "analyzer": 9, "rollback": 14},
}
TABLE_6 = {
    "worker exit": ("CUDA error", 93),
    "network alert": ("InfiniBand error", 60),
    "hang": ("HDFS error (hangs, all causes)", 58),
    "node lost": ("OS kernel panic", 109),
    "node fault": ("GPU memory error, GPU unavailable", 10),
    "update": ("code or data adjustment", 57),
}
"""By symptom: the paper's name, and its mean seconds from localisation to the restart."""


def recovery(machines: int, policy: str = "ours", lost: int = 1) -> Spec:
    """Return the spec of recoveries on ``machines`` of 16 GPUs each, ``lost`` of which fail at a time."""
    spec, spares = shipped("byterobust-recovery"), SCALES[machines][2]
    spares = {"ours": spares, "oracle": RACK}.get(policy, 0)
    (source,) = spec.faults
    job = structs.replace(spec.job, nodes=machines, spares=spares)
    spec = structs.replace(spec, job=job, faults=(structs.replace(source, nodes=lost),), owner=Owner())
    if policy != "requeue":
        return spec
    alone = structs.replace(
        spec.policy, companions=CompanionConfig(), standby=StandbyConfig(replenish="none")
    )
    return structs.replace(spec, policy=alone)


def scheduling_s(machines: int, policy: str, lost: int) -> float:
    """Return the seconds from the detection until training goes on, where ``lost`` machines are evicted."""
    return median(
        one.seconds for one in resolved(recovery(machines, policy, lost), 1) if one.means is Means.EVICTED
    )


def was(machines: int, policy: str) -> float:
    """Return the weighted average scheduling time (paper, section 8.5)."""
    most = SCALES[machines][2]
    weights = [
        math.comb(machines, k) * PAPER_RATE**k * (1 - PAPER_RATE) ** (machines - k)
        for k in range(1, most + 1)
    ]
    usual = sum(w * scheduling_s(machines, policy, k) for k, w in enumerate(weights, 1)) / sum(weights)
    return 0.99 * usual + 0.01 * scheduling_s(machines, policy, RACK)


def standbys() -> Iterator[Row]:
    """Yield table 5."""
    for machines, (*_, spares) in SCALES.items():
        yield Row(f"standbys for {machines} machines", spares, at_once(machines, PAPER_RATE, 0.99), FITTED)


def updates(seeds: int = 1) -> Iterator[Row]:
    """Yield table 7."""
    for machines, (hot_s, requeue_s, _) in SCALES.items():
        calm = structs.replace(recovery(machines), faults=())
        hot = structs.replace(calm, owner=Owner(updates="1 / day"))
        cold = structs.replace(calm, owner=Owner(manual_restarts="1 / day", resubmit="0 s"))
        for what, spec, published in (("hot update", hot, hot_s), ("requeue", cold, requeue_s)):
            took = fmean(one.seconds for one in resolved(spec, seeds))
            yield Row(f"{what}, {machines} machines", published, took, FITTED, unit="s")


def scheduling(scales: Sequence[int] = tuple(SCALES)) -> Iterator[Row]:
    """Yield the ratios of section 8.5, as the mean of those of the scales."""
    found = {policy: [was(m, policy) for m in scales] for policy in ("ours", "oracle", *WAS)}
    for policy, published in WAS.items():
        ratio = fmean(a / b for a, b in zip(found[policy], found["ours"], strict=True))
        how = FITTED if policy == "reschedule" else PREDICTED
        yield Row(f"WAS of a {policy} by ours", published, ratio, how, unit="×")
    ratio = fmean(a / b for a, b in zip(found["ours"], found["oracle"], strict=True))
    yield Row("WAS of ours by unlimited standbys", ORACLE, ratio, PREDICTED, unit="×")


def mechanisms(name: str, seeds: int) -> Iterator[Row]:
    """Yield table 4: who resolved how many."""
    spec, counts = shipped(name), Counter[str]()
    for one in resolved(spec, seeds):
        counts[_mechanism(one)] += 1
    counts["hot update"] -= counts["rollback"]  # the paper's are those that stayed
    for what, published in TABLE_4[name].items():
        yield Row(f"{what}, {spec.name}", published, counts[what] / seeds, GIVEN)


def _mechanism(one: Resolution) -> str:
    """Return the paper's word for what ended an incident."""
    by_analyzer = one.symptom in ("hang", "slow") and one.means in (Means.MOVED, Means.BY_STACKS)
    return {Means.UPDATED: "hot update", Means.ROLLED_BACK: "rollback", Means.SUBMITTED: "by hand"}.get(
        one.means, "analyzer" if by_analyzer else "explicit"
    )


def costs(seeds: int) -> Iterator[Row]:
    """Yield table 6: seconds from the detection until training goes on, by symptom."""
    took = defaultdict[str, list[float]](list)
    for one in resolved(shipped("byterobust-dense"), seeds):
        took[one.symptom].append(one.seconds)
    for symptom, (what, published) in TABLE_6.items():
        worst = f"at most {max(took[symptom]):.0f} s"
        yield Row(what, published, fmean(took[symptom]), PREDICTED, unit="s", note=worst)


def ettr(name: str, published: float, seeds: int, processes: int) -> tuple[Row, dict[str, Estimate]]:
    """Return a job's ETTR, and hours of each class."""
    spec = shipped(name)
    played = lives(spec, seeds, processes)
    found = estimate([one.ettr for one in played])
    classes = {key: estimate([one.classes.get(key, 0.0) for one in played]) for key in played[0].classes}
    row = Row(
        f"ETTR, {spec.name}",
        published,
        100 * found.mean,
        PREDICTED,
        unit="%",
        low=100 * found.low,
        high=100 * found.high,
    )
    return row, classes


# -- Meta ------------------------------------------------------------------------------------------------


class Point(Record):
    """One published ETTR: GPUs, failures by 1,000 node-days, minutes of what else it depends on."""

    what: str
    published: float
    gpus: int
    rate: float
    every_min: float
    start_min: float = 5.0
    write_min: float = 0.0
    requeue_min: float = 0.0

    @property
    def failures_per_min(self) -> float:
        """Of all nodes."""
        return self.gpus / 8 * self.rate / 1000 / 1440

    @property
    def formula(self) -> float:
        """The authors' closed form, which is linear in the failures."""
        often, lost = self.failures_per_min, self.start_min + self.every_min / 2
        stops = (1 + often * self.requeue_min) * (1 + self.write_min / self.every_min)
        return (1 - often * lost) / stops


def _best(gpus: int, rate: float, write_min: float) -> float:
    """Return the interval of Young and Daly."""
    return math.sqrt(2 * write_min / (gpus / 8 * rate / 1000 / 1440))


POINTS = (
    Point("16,000 GPUs, RSC-1, 60 min", 0.7, 16_000, 6.5, 60),
    Point("16,000 GPUs, RSC-1, 5 min", 0.93, 16_000, 6.5, 5),
    Point("8,000 GPUs, RSC-1, 30 min, queue 1 min", 0.9, 8_000, 6.5, 30, requeue_min=1),
    Point("100,000 GPUs, RSC-2, 2 min, start 2 min", 0.9, 100_000, 2.34, 2, start_min=2),
    Point("100,000 GPUs, RSC-1, 7 min", 0.5, 100_000, 6.5, 7),
    Point(
        "12,000 GPUs, 1 failure, write 5 min, best interval", 0.9, 12_000, 1, _best(12_000, 1, 5), write_min=5
    ),
    Point(
        "12,000 GPUs, RSC-1, write 10 s, best interval",
        0.9,
        12_000,
        6.5,
        _best(12_000, 6.5, 1 / 6),
        write_min=1 / 6,
    ),
    Point("100,000 GPUs, RSC-2, 21 min", 0.5, 100_000, 2.34, 21),
)
MTTF_H = {16_384: 1.8, 131_072: 0.23}
STEP_S = 5.0


def meta(point: Point, days: float = 30.0) -> Spec:
    """Return the spec of a point: Meta's job, restarted from storage and requeued after each failure."""
    spec = shipped("meta-16k")
    (source,) = spec.faults
    start_s = 60 * point.start_min - STEP_S
    checkpoint = structs.replace(
        spec.policy.checkpoint,
        every_s=60 * point.every_min,
        every_steps=max(1, round(60 * point.every_min / STEP_S)),
    )
    return structs.replace(
        spec,
        time=f"{days:g} days",
        job=structs.replace(spec.job, nodes=point.gpus // 8),
        cluster=structs.replace(spec.cluster, free=point.gpus // 40, requeue=f"{point.requeue_min:g} min"),
        phases=structs.replace(spec.phases, start=f"{start_s:g} s"),
        checkpoints=structs.replace(spec.checkpoints, write=f"{point.write_min:g} min"),
        faults=(structs.replace(source, rate=f"{point.rate:g} / 1000 node-days"),),
        policy=structs.replace(spec.policy, checkpoint=checkpoint),
    )


def meta_point(point: Point, seeds: int, days: float, processes: int) -> Row:
    """Return the ETTR of a point."""
    found = estimate([one.ettr for one in lives(meta(point, days), seeds, processes)])
    note = f"Meta's formula: {point.formula:.2f}"
    return Row(point.what, point.published, found.mean, PREDICTED, low=found.low, high=found.high, note=note)


def mttf(days: float = 100.0) -> Iterator[Row]:
    """Yield the times between failures of large jobs at the rate of RSC-1."""
    for gpus, published in MTTF_H.items():
        spec = Spec(
            faults=(FaultSource(kind=shipped("meta-16k").faults[0].kind, rate="6.5 / 1000 node-days"),)
        )
        number = 0
        for fault in faults_of(spec, gpus // 8, "mttf"):
            if fault.t > days * DAY_S:
                break
            number += 1
        yield Row(f"MTTF of {gpus:,} GPUs", published, 24 * days / number, PREDICTED, unit="h")


# -- Llama 3 ---------------------------------------------------------------------------------------------

LLAMA = {"interruptions": 419, "faulty GPU and its memory": 256, "host": 46, "network": 42, "software": 54}
_LLAMA_SYMPTOMS = {
    "node fault": "faulty GPU and its memory",
    "node lost": "host",
    "network alert": "network",
    "user exception": "software",
}


def llama(seeds: int, processes: int) -> Iterator[Row]:
    """Yield the interruptions by cause, and the effective time."""
    played = lives(shipped("llama3"), seeds, processes)
    hours = estimate([one.hours / one.incidents for one in played])
    yield Row("interruptions in 54 days", 419, fmean(one.incidents for one in played), GIVEN)
    for symptom, what in _LLAMA_SYMPTOMS.items():
        yield Row(what, LLAMA[what], fmean(one.symptoms.get(symptom, 0) for one in played), GIVEN)
    yield Row(
        "time between two interruptions",
        3.09,
        hours.mean,
        PREDICTED,
        unit="h",
        low=hours.low,
        high=hours.high,
    )
    found = estimate([100 * one.ettr for one in played])
    yield Row(
        "effective time under srobust",
        90,
        found.mean,
        PREDICTED,
        unit="%",
        low=found.low,
        high=found.high,
        note="published: more than 90 %, by automation and people",
    )


# -- the page --------------------------------------------------------------------------------------------


def lines(rows: Iterable[Row]) -> Iterator[str]:
    """Yield a table in Markdown."""
    yield "| figure | published | simulated | differs by | |"
    yield "| --- | --- | --- | --- | --- |"
    for row in rows:
        unit = f" {row.unit}" if row.unit else ""
        interval = (
            f" ({_text(row.low)} to {_text(row.high)})"
            if row.low is not None and row.high is not None
            else ""
        )
        remark = "; ".join(filter(None, (row.how, row.note)))
        off = f"{100 * row.off:+.1f} %"
        cells = (
            row.what,
            f"{_text(row.published)}{unit}",
            f"{_text(row.simulated)}{unit}{interval}",
            off,
            remark,
        )
        yield f"| {' | '.join(cells)} |"


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.4g}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write build/bench/published.json and, if asked, the page."""
    parser = common.parser(__doc__, 1)
    parser.add_argument("--lives", type=int, default=100, help="of each job (default: 100)")
    parser.add_argument("--processes", type=int, default=0, help="at a time (default: one on each processor)")
    parser.add_argument("--page", action="store_true", help="write the tables into the page, too")
    chosen = parser.parse_args(argv)
    seeds, processes = chosen.lives, chosen.processes
    few = max(2, seeds // 10)
    hours: dict[str, Estimate] = {}

    def of_9600_gpus() -> Iterator[Row]:
        for name in TABLE_4:
            row, classes = ettr(name, 97, seeds, processes)
            hours.update({f"{name}: {key}": one for key, one in classes.items()})
            yield row

    tables: dict[str, list[Row]] = {}
    for title, rows in {
        "ByteRobust: hot updates and requeues (table 7)": updates(),
        "ByteRobust: standbys and scheduling (table 5, section 8.5)": chain(standbys(), scheduling()),
        "ByteRobust: who resolved what (table 4)": (row for name in TABLE_4 for row in mechanisms(name, few)),
        "ByteRobust: seconds until training goes on (table 6)": costs(few),
        "ByteRobust: ETTR at 9,600 GPUs": of_9600_gpus(),
        "Meta: time between failures": mttf(),
        "Meta: ETTR": (
            meta_point(point, few, 20.0 if point.gpus < 50_000 else 1.0, processes) for point in POINTS
        ),
        "Llama 3": llama(few, processes),
    }.items():
        tables[title] = list(rows)
        print("\n".join((f"### {title}", "", *lines(tables[title]), "")), flush=True)
    text = "\n\n".join(f"### {title}\n\n" + "\n".join(lines(rows)) for title, rows in tables.items())
    facts = {
        "machine": common.machine(),
        "lives": seeds,
        "tables": {title: [structs.asdict(row) for row in rows] for title, rows in tables.items()},
        "hours": {key: one.mean for key, one in hours.items()},
    }
    print(common.write("published", facts))
    if chosen.page:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
