"""One node whose hooks run again and again, in a Slurm in memory."""

from __future__ import annotations

from pathlib import Path

from slurm_robust.config.node import Drain, NodeConfig, Paths
from slurm_robust.hooks.drainer import DrainResult, after
from slurm_robust.hooks.record import DrainFile
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.verdict import Report
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm


class Events:
    """A log that keeps its events."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, object]]] = []

    def write(self, event: str, **facts: object) -> None:
        self.written.append((event, facts))

    @property
    def names(self) -> list[str]:
        return [event for event, _ in self.written]


class Hooked:
    """One node whose hooks run again and again. Its clock is ``ahead_s`` ahead of slurmctld's."""

    def __init__(
        self, cluster: FakeCluster, state: Path, name: str = "n1", *, ahead_s: float = 0.0, **drain: object
    ) -> None:
        settings = {"mode": "act", **drain}
        self.config = NodeConfig(drain=Drain(**settings), paths=Paths(state=str(state / name)))  # type: ignore[arg-type]
        self.cluster, self.name, self.log = cluster, name, Events()
        self.ahead_s = ahead_s
        self.slurm = FakeSlurm(cluster, user="root", ahead_s=ahead_s)
        self.boot = "boot-1"

    @property
    def file(self) -> DrainFile:
        return DrainFile(Path(self.config.paths.state))

    @property
    def now(self) -> float:
        """What the clock of the node shows."""
        return self.cluster.clock.time() + self.ahead_s

    @property
    def reason(self) -> str:
        """The reason of a drain that stands."""
        node = self.cluster.seen(self.name)
        return node.reason if node.is_drained else ""

    def run(self, *findings: Finding, **more: object) -> DrainResult:
        """One run, whose waits are as long as they are on average."""
        causes = tuple(f for f in findings if f.outcome is Outcome.FAIL)
        reason = f"srobust: {causes[0].subject} {causes[0].text}" if causes else ""
        report = Report(
            node=self.name,
            at=self.now,
            boot_id=self.boot,
            context=CheckContext.PERIODIC,
            findings=findings,
            left_out=dict(more.pop("left_out", {})),  # type: ignore[call-overload]
            reason=reason,
            causes=causes,
        )
        return after(
            report,
            config=self.config,
            now=self.now,
            log=self.log,
            slurm=self.slurm,
            clock=self.cluster.clock.monotonic,
            pause=more.pop("pause", self.cluster.clock.sleep),  # type: ignore[arg-type]
            chance=more.pop("chance", lambda: 0.5),  # type: ignore[arg-type]
            **more,  # type: ignore[arg-type]
        )


def bad(subject: str = "gpu3", text: str = "XID 79") -> Finding:
    return Finding(
        check="gpu.xid", outcome=Outcome.FAIL, subject=subject, text=text, suggestion=Suggestion.REPLACE
    )


def good(subject: str = "gpu3") -> Finding:
    return Finding(check="gpu.xid", outcome=Outcome.PASS, subject=subject)
