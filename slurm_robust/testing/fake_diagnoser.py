"""A diagnoser whose nodes fail what a test says: the real plan and judgement, and no process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from slurm_robust.diagnostics.part import PartAnswer
from slurm_robust.diagnostics.places import Launched
from slurm_robust.diagnostics.runner import PlaceDiagnoser
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis, TestResult


class FakeDiagnoser(PlaceDiagnoser):
    """A :class:`~slurm_robust.diagnostics.runner.Diagnoser`, held to the same contract as the real one.

    ``ailing``: a node and the test that it fails; one that fails ``reference`` computes another digest, one
    that fails ``all_gather`` does so with every neighbour. ``silent`` nodes never answer. ``asked`` has the
    arguments of every call.
    """

    def __init__(
        self, ailing: Mapping[str, str] | None = None, *, silent: Sequence[str] = (), gpus: int = 0
    ) -> None:
        super().__init__(_FakePlace(dict(ailing or {}), frozenset(silent), gpus))
        self.asked: list[tuple[tuple[str, ...], bool, str, float]] = []

    def diagnose(self, nodes: Sequence[str], *, bitwise: bool, storage: str, budget_s: float) -> Diagnosis:
        """See the protocol."""
        self.asked.append((tuple(nodes), bitwise, storage, budget_s))
        return super().diagnose(nodes, bitwise=bitwise, storage=storage, budget_s=budget_s)


class _FakePlace:
    def __init__(self, ailing: dict[str, str], silent: frozenset[str], gpus: int) -> None:
        self._ailing = ailing
        self._silent = silent
        self._gpus = gpus

    def gpus(self, node: str) -> int:
        return self._gpus

    def addresses(self, nodes: Sequence[str]) -> Mapping[str, str]:
        return dict.fromkeys(nodes, "192.0.2.1")

    def launch(self, nodes: Sequence[str], command: tuple[str, ...], folder: Path) -> Launched:
        programs = command[command.index("slurm_robust.diagnostics") + 1].split(",")
        groups: list[tuple[str, ...]] = [(node,) for node in nodes]
        if "--groups" in command:
            given = command[command.index("--groups") + 1].split()
            groups = [tuple(group.partition("=")[2].split(",")) for group in given]
        return _Ended([self._line(p, n, group) for group in groups for n in group for p in programs])

    def _line(self, test: str, node: str, group: tuple[str, ...]) -> str:
        if node in self._silent:
            return ""
        bad = any(self._ailing.get(one) == test or one in self._silent for one in group)
        result = TestResult(
            test=test,
            node=node,
            peers=group,
            outcome=Outcome.FAIL if bad and test != "reference" else Outcome.PASS,
            text=f"{test} fails" if bad else "",
            digest=("bad" if bad else "good") if test == "reference" else "",
        )
        return msgspec.json.encode(PartAnswer(result=result)).decode()


class _Ended:
    """All lines together."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = [line for line in lines if line]

    def lines(self) -> Iterator[str]:
        lines, self._lines = self._lines, []
        yield from lines

    def ended(self) -> bool:
        return True

    def end(self) -> None:
        self._lines = []
