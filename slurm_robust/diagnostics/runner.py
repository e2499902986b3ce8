"""Carries a plan out: a step for each round, within a time that is never exceeded."""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from slurm_robust.config.job import MIN_TEST_S
from slurm_robust.diagnostics.judge import judge, quiet_nodes, retry_rounds
from slurm_robust.diagnostics.part import PartAnswer
from slurm_robust.diagnostics.places import Launched, TestSite
from slurm_robust.diagnostics.plan import DiagnosticPlan, DiagnosticRound, plan
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.util.hostlist import fold

# Outside of what the kernel hands out by itself, so that a port is rarely in use.
_PORTS = range(20_000, 32_000)
_POLL_S = 0.05
_READY_SHARE = 0.4
_LEAVE_S = 5.0
_MAX_CHARS = 300


class Diagnoser(Protocol):
    """Tests nodes that hold no training at the moment."""

    def diagnose(self, nodes: Sequence[str], *, bitwise: bool, storage: str, budget_s: float) -> Diagnosis:
        """Test ``nodes`` (in Slurm's order) and say which are to blame. Blocks for ``budget_s`` at most.

        ``bitwise``: also compare a step of the reference model bit by bit. ``storage``: a folder to be tested
        too, "" for none. Raises nothing: what cannot be tested is in ``left_out``.
        """
        ...

    def stop(self) -> None:
        """Make :meth:`diagnose` end its steps and return with what is known; from any thread, for good."""
        ...


class PlaceDiagnoser:
    """The :class:`Diagnoser` over a :class:`~slurm_robust.diagnostics.places.TestSite`.

    ``tests``: only these, () for all. ``ports``: those at which groups may meet, for a firewall. ``report``
    gets a line for each thing that happens.
    """

    def __init__(
        self,
        place: TestSite,
        *,
        tests: Sequence[str] = (),
        ports: Sequence[int] | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._place = place
        self._tests = tuple(tests)
        self._ports = tuple(ports or _PORTS)
        self._report = report
        self._stopped = threading.Event()

    def stop(self) -> None:
        """See the protocol."""
        self._stopped.set()

    def diagnose(self, nodes: Sequence[str], *, bitwise: bool, storage: str, budget_s: float) -> Diagnosis:
        """See the protocol."""
        run = _DiagnosticRun(self._place, storage, time.monotonic() + budget_s, self._stopped, self._report)
        index = 0
        while True:
            # A node that is silent once takes no part in what comes.
            left = [node for node in nodes if node not in run.quiet]
            todo = self._plan(left, bitwise, storage)
            if index >= len(todo.rounds):
                break
            run.round(todo.rounds[index:], random.choice(self._ports))
            index += 1
        retries = retry_rounds(run.rounds, run.answers)
        for index in range(len(retries)):
            run.round(retries[index:], random.choice(self._ports))
        whole = self._plan(nodes, bitwise, storage)
        return judge(run.rounds, run.answers, {**whole.left_out, **run.left_out})

    def _plan(self, nodes: Sequence[str], bitwise: bool, storage: str) -> DiagnosticPlan:
        gpus = bool(nodes) and all(map(self._place.gpus, nodes))
        return plan(nodes, bitwise=bitwise, gpus=gpus, storage=storage, tests=self._tests)


class _DiagnosticRun:
    """The rounds of one diagnosis so far."""

    def __init__(
        self,
        place: TestSite,
        storage: str,
        end: float,
        stopped: threading.Event,
        report: Callable[[str], None],
    ) -> None:
        self._place = place
        self._storage = storage
        self._end = end
        self._stopped = stopped
        self._report = report
        self.rounds: list[DiagnosticRound] = []
        self.answers: list[PartAnswer] = []
        self.quiet: set[str] = set()
        self.left_out: dict[str, str] = {}

    def round(self, rounds: Sequence[DiagnosticRound], port: int) -> None:
        """Run the first of the ``rounds`` that are still to come, with its share of the time."""
        first = rounds[0]
        left_s = self._end - time.monotonic()
        share = first.needs_s / sum(r.needs_s for r in rounds)
        limit_s = min(first.most_s, left_s, max(MIN_TEST_S, left_s * share))
        if self._stopped.is_set() or limit_s < MIN_TEST_S:
            why = "it was stopped" if self._stopped.is_set() else "no time was left"
            self.left_out |= dict.fromkeys(first.programs, why)
            return
        self._report(f"{', '.join(first.programs)} on {fold(first.nodes)}, {limit_s:.0f} s at most")
        others: list[str] = []
        try:
            answers = self._play(first, limit_s, port, others)
        except (SlurmError, OSError) as error:
            self.left_out |= dict.fromkeys(first.programs, str(error))
        else:
            self._take(first, answers, " | ".join(others)[-_MAX_CHARS:])

    def _play(
        self, round_: DiagnosticRound, limit_s: float, port: int, others: list[str]
    ) -> list[PartAnswer]:
        """Return what the parts answer; what else they and srun print is appended to ``others``."""
        with tempfile.TemporaryDirectory(prefix="srobust-diagnose-", ignore_cleanup_errors=True) as folder:
            command = self._command(round_, limit_s, port)
            launched = self._place.launch(round_.nodes, command, Path(folder))
            try:
                return [*self._listen(round_, launched, time.monotonic() + limit_s, others)]
            finally:
                launched.end()

    def _take(self, round_: DiagnosticRound, answers: list[PartAnswer], output: str) -> None:
        quiet = quiet_nodes(round_, answers)
        if quiet and self._stopped.is_set():
            # A node that had no time to answer is not to blame.
            self.left_out |= dict.fromkeys(round_.programs, "it was stopped")
            return
        self.rounds.append(round_)
        self.answers += answers
        answered = {answer.result.test for answer in self.answers}
        if len(quiet) == len(round_.nodes) and answered.isdisjoint(round_.programs):
            self.left_out |= dict.fromkeys(round_.programs, output or "no node answered")
        else:
            self.quiet |= quiet.keys()
        for node, test in quiet.items():
            self._report(f"{node}: no answer in {test}")
        if quiet and output:
            self._report(f"parts and srun also printed: {output}")

    def _command(self, round_: DiagnosticRound, limit_s: float, port: int) -> tuple[str, ...]:
        command = [sys.executable, "-m", "slurm_robust.diagnostics", ",".join(round_.programs), "--json"]
        command += ["--budget", f"{limit_s - min(round_.ready_s, _READY_SHARE * limit_s):.1f}"]
        if any(len(group) > 1 for group in round_.groups):
            at = self._place.addresses([group[0] for group in round_.groups])
            command += ["--groups", " ".join(f"{at[group[0]]}={','.join(group)}" for group in round_.groups)]
            command += ["--port", str(port)]
            command += ["--nccl", str(min(map(self._place.gpus, round_.nodes)))]
        command += ["--storage", self._storage] if self._storage else []
        return tuple(command)

    def _listen(
        self, round_: DiagnosticRound, launched: Launched, deadline: float, others: list[str]
    ) -> Iterator[PartAnswer]:
        """Yield answers as they come, until nothing more can come or the time is over."""
        missing = len(round_.nodes) * len(round_.programs)
        while time.monotonic() < deadline and not self._stopped.wait(_POLL_S):
            ended = launched.ended()
            for line in launched.lines():
                try:
                    answer = msgspec.json.decode(line, type=PartAnswer)
                except (ValueError, RecursionError):
                    answer = None  # a message of srun, or of a library
                if answer is None:
                    others.append(line.strip())
                    continue
                missing -= 1
                if not missing:
                    # Parts that have said all end by themselves, which is cheaper than ending them.
                    deadline = min(deadline, time.monotonic() + _LEAVE_S)
                found = answer.result
                if found.outcome is not Outcome.PASS:
                    status = "left out" if answer.left_out else found.outcome.value
                    self._report(f"{found.node}: {found.test} {status}: {found.text}")
                yield answer
            if ended:
                return
