"""One fault on all nodes at once: how many are drained or refused, and what slurmctld is asked meanwhile.

The real drainer of each node, with its real files, runs in virtual time against the shipped in-memory Slurm,
behind a slurmctld that takes one request after the other (``slurm_robust.testing.fake_slurmctld``): one that
is well, 50 times slower, silent for five minutes, or restarted in the middle.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.samples import Summary
from benchmarks.scratch import SHARED_MEMORY, cleanly, scratch
from slurm_robust.config.node import Drain, NodeConfig, Paths
from slurm_robust.hooks import drainer
from slurm_robust.hooks.hook import Hook, is_refused
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.verdict import Report
from slurm_robust.testing.clock import FakeClock, VirtualTime
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurmctld import FakeSlurmctld, HookSlurm, Rpc

NODES = 10_000
MINUTES = 12
FAULT_S = 360.0
"""For so long the fault stands on all nodes."""

SLURM_S = 5.0
BUDGET_S = {Hook.PROLOG: 8.6, Hook.EPILOG: 80.0, Hook.PERIODIC: 26.0}
CONTEXT = {
    Hook.PROLOG: CheckContext.PROLOG,
    Hook.EPILOG: CheckContext.EPILOG,
    Hook.PERIODIC: CheckContext.PERIODIC,
}
PERIOD_S = 60.0
JOBS_S = (30.0, 210.0)
"""When a job of all nodes starts: all prologs in one second."""

JOB_ENDS_S = 150.0
REBOOT_S, REBOOTED = 250.0, 10
"""Every so manieth node boots then."""

CHECK, SUBJECT = "mounts.answer", "/home"


class Daemon(str, Enum):
    """What becomes of slurmctld."""

    OK = "ok"
    SLOW = "slow"
    SILENT = "silent"
    RESTARTING = "restarting"


class CountingCluster(FakeCluster):
    """Knows how many of its nodes are drained, and how many were at most."""

    drained: frozenset[str] = frozenset()
    most = 0

    def set_node(self, name: str, **changes: object) -> None:
        """Count."""
        super().set_node(name, **changes)
        others = self.drained - {name}
        self.drained = others | {name} if self.nodes[name].is_drained else others
        self.most = max(self.most, len(self.drained))


class Events(Counter[str]):
    """Counts what nodes tell."""

    def write(self, event: str, **facts: object) -> None:
        """See Log."""
        self[event] += 1


class Fleet:
    """Nodes whose hooks all run in the same second, those of ``well`` without the fault."""

    def __init__(self, nodes: int, daemon: Daemon, folder: Path, *, well: int = 0, seed: int = 1) -> None:
        self.clock = FakeClock()
        self.begun = self.clock.now
        self.cluster = CountingCluster([f"n{i:05d}" for i in range(nodes)], clock=self.clock)
        self.time = VirtualTime(self.clock)
        self.daemon = FakeSlurmctld(self.cluster, self.time)
        self.events = Events()
        self.refused: set[str] = set()
        self.names = list(self.cluster.nodes)
        self.well = frozenset(self.names[:well])
        self._boots: Counter[str] = Counter()
        self._folder, self._chance = folder, random.Random(seed)
        begun = self.begun
        if daemon is Daemon.SLOW:
            self.daemon.slow = 50.0
        elif daemon is Daemon.SILENT:
            self.daemon.stands_s = lambda now: begun + 300.0 - now if 2.0 <= now - begun < 300.0 else 0.0
        elif daemon is Daemon.RESTARTING:
            self.daemon.is_down = lambda now: 2.0 <= now - begun < 32.0

    def run(self, minutes: float) -> None:
        """Run all hooks of ``minutes`` minutes."""
        for hook, at_s in self._plan(60.0 * minutes):
            for name in self.names:
                self.time.at(self.begun + at_s, partial(self._hook, name, hook))
        for name in self.names[::REBOOTED]:
            self.time.at(self.begun + REBOOT_S, partial(self._boot, name))
        self.time.run()

    def _plan(self, ends_s: float) -> list[tuple[Hook, float]]:
        periods = [(Hook.PERIODIC, PERIOD_S * i) for i in range(int(ends_s / PERIOD_S))]
        jobs = [(Hook.PROLOG, at_s) for at_s in JOBS_S]
        return [*periods, *jobs, (Hook.EPILOG, JOB_ENDS_S)]

    def _boot(self, name: str) -> None:
        self._boots[name] += 1
        self._hook(name, Hook.PERIODIC)

    def _hook(self, name: str, hook: Hook) -> None:
        now = self.clock.now
        is_bad = name not in self.well and now - self.begun < FAULT_S
        finding = Finding(check=CHECK, subject=SUBJECT, outcome=Outcome.PASS)
        causes: tuple[Finding, ...] = ()
        if is_bad:
            finding = Finding(
                check=CHECK,
                subject=SUBJECT,
                outcome=Outcome.FAIL,
                text="does not answer",
                blame=Party.STORAGE,
                suggestion=Suggestion.RESET,
            )
            causes = (finding,)
        reason = "srobust: /home does not answer" if causes else ""
        report = Report(
            node=name,
            at=now,
            boot_id=f"boot-{self._boots[name]}",
            context=CONTEXT[hook],
            findings=(finding,),
            reason=reason,
            causes=causes,
        )
        budget_s = BUDGET_S[hook]
        done = drainer.after(
            report,
            config=NodeConfig(drain=Drain(mode="act"), paths=Paths(state=str(self._folder / name))),
            now=now,
            log=self.events,
            whole=hook is Hook.PERIODIC,
            slurm=HookSlurm(self.daemon, name, SLURM_S, now + budget_s),
            budget_s=budget_s,
            clock=self.clock.monotonic,
            pause=self.time.sleep,
            chance=self._chance.random,
        )
        if hook is Hook.PROLOG and is_refused(report, done):
            self.refused.add(name)
            if not self.cluster.nodes[name].is_drained:
                states = self.cluster.nodes[name].states | {"DRAIN"}
                self.cluster.set_node(name, states=states, reason="Prolog error")


def measure(nodes: int, daemon: Daemon, minutes: float, seed: int = 1) -> dict[str, Any]:
    """One storm, as it is written to the file."""
    with scratch("storm", memory()) as folder:
        fleet = Fleet(nodes, daemon, folder, seed=seed)
        fleet.run(minutes)
    seconds: Counter[int] = Counter()
    kinds: dict[str, Counter[int]] = {kind.value: Counter() for kind in Rpc}
    for (second, kind), count in fleet.daemon.asked.items():
        seconds[second] += count
        kinds[kind.value][second] += count
    lasted_s = fleet.clock.now - fleet.begun
    return {
        "nodes": nodes,
        "slurmctld": daemon.value,
        "cap": fleet_cap(nodes),
        "drained_most": fleet.cluster.most,
        "drained_after": len(fleet.cluster.drained),
        "refused": len(fleet.refused),
        "rpcs": seconds.total(),
        "rpcs_per_s_most": max(seconds.values(), default=0),
        "rpcs_per_s_mean": seconds.total() / lasted_s,
        "by_kind": {
            kind: {
                "all": counts.total(),
                "per_s_most": max(counts.values(), default=0),
                "per_s_mean": counts.total() / lasted_s,
            }
            for kind, counts in kinds.items()
        },
        "events": dict(fleet.events),
        "lasted_s": lasted_s,
    }


def fleet_cap(nodes: int) -> int:
    """How many nodes may be drained within the hour."""
    return min(max(1, int(Drain().max_share * nodes)), Drain().max_per_hour)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write build/bench/drain_storm.json; 1 when a cap did not hold."""
    options = common.parser(__doc__, 1)
    options.add_argument("--nodes", type=int, default=NODES, help=f"(default: {NODES})")
    options.add_argument("--minutes", type=float, default=MINUTES, help=f"(default: {MINUTES})")
    words = [daemon.value for daemon in Daemon]
    options.add_argument("--slurmctld", nargs="+", choices=words, default=words, help="(default: all)")
    chosen = options.parse_args(argv)
    machine = common.machine()
    runs: list[dict[str, Any]] = []
    for daemon in map(Daemon, chosen.slurmctld):
        for seed in range(chosen.reps):
            runs.append(measure(chosen.nodes, daemon, chosen.minutes, seed))
            path = common.write("drain_storm", {"machine": machine, "runs": runs})
    show(runs)
    print(f"written to {path}", file=sys.stderr)
    return int(any(max(run["drained_most"], run["refused"]) > run["cap"] for run in runs))


def show(runs: Sequence[dict[str, Any]]) -> None:
    """One column for each slurmctld; medians and ranges over repetitions."""
    table = common.table(f"One fault on {runs[0]['nodes']} nodes at once", "")
    columns = list(dict.fromkeys(run["slurmctld"] for run in runs))
    for name in columns:
        table.add_column(f"slurmctld {name}", justify="right")
    for words, path, digits in _rows(runs[0]["cap"]):
        samples = {name: [_at(run, path) for run in runs if run["slurmctld"] == name] for name in columns}
        texts = [
            Summary.of(found).text(digits) if len(found) > 1 else f"{found[0]:,.{digits}f}"
            for found in samples.values()
        ]
        table.add_row(words, *texts)
    common.console().print(table)


def _rows(cap: int) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Words, where the figure is in a run, and its digits."""
    yield f"drained at most (the caps allow {cap})", ("drained_most",), 0
    yield "drained at the end", ("drained_after",), 0
    yield "nodes whose prolog refused", ("refused",), 0
    yield "RPCs per s, peak", ("rpcs_per_s_most",), 0
    yield "RPCs per s, mean", ("rpcs_per_s_mean",), 1
    for kind in Rpc:
        yield f"{kind.value}, all", ("by_kind", kind.value, "all"), 0
        yield f"{kind.value}, per s, peak", ("by_kind", kind.value, "per_s_most"), 0


def _at(run: dict[str, Any], path: Sequence[str]) -> float:
    found: Any = run
    for key in path:
        found = found[key]
    return float(found)


def memory() -> Path:
    """A folder that is not on a disk, which 10,000 nodes would share."""
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())


if __name__ == "__main__":
    sys.exit(cleanly(main))
