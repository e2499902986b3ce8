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

from slurm_robust.diagnostics.judge import judge, quiet_nodes, second_looks
from slurm_robust.diagnostics.part import Answer
from slurm_robust.diagnostics.places import Launched, Place
from slurm_robust.diagnostics.plan import Plan, Round, plan
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.util.text import count

# Outside of what the kernel hands out by itself, so that a port is rarely in use.
_PORTS = range(20_000, 32_000)
_LOOK_EVERY_S = 0.05
# With less a node may be silent only because its part has still to start.
_LEAST_S = 15.0
_READY_SHARE = 0.4
_LEAVE_S = 5.0
_MOST_WORDS = 300


class Diagnoser(Protocol):
    """Tests nodes that hold no training at the moment."""

    def diagnose(self, nodes: Sequence[str], *, bitwise: bool, storage: str, budget_s: float) -> Diagnosis:
        """Test ``nodes`` (in the order of Slurm) and say who is to blame. Blocks, for ``budget_s`` at most.

        ``bitwise``: also compare a step of the reference model bit by bit. ``storage``: a folder to be tested
        too, "" for none. Raises nothing: what cannot be tested is in ``left_out``.
        """
        ...

    def stop(self) -> None:
        """From any thread, for good: have :meth:`diagnose` end its steps and return with what is known."""
        ...


class PlaceDiagnoser:
    """The :class:`Diagnoser` over a :class:`~slurm_robust.diagnostics.places.Place`.

    ``tests``: only these, () for all. ``ports``: where groups may meet, for a firewall. ``tell`` is told in
    words what happens.
    """

    def __init__(
        self,
        place: Place,
        *,
        tests: Sequence[str] = (),
        ports: Sequence[int] | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._place = place
        self._tests = tuple(tests)
        self._ports = tuple(ports or _PORTS)
        self._tell = tell
        self._stopped = threading.Event()

    def stop(self) -> None:
        """See the protocol."""
        self._stopped.set()

    def diagnose(self, nodes: Sequence[str], *, bitwise: bool, storage: str, budget_s: float) -> Diagnosis:
        """See the protocol."""
        run = _Run(self._place, storage, time.monotonic() + budget_s, self._stopped, self._tell)
        index = 0
        while True:
            # Who is silent once takes no part in what comes.
            left = [node for node in nodes if node not in run.quiet]
            todo = self._plan(left, bitwise, storage)
            if index >= len(todo.rounds):
                break
            run.round(todo.rounds[index:], random.choice(self._ports))
            index += 1
        looks = second_looks(run.rounds, run.answers)
        for index in range(len(looks)):
            run.round(looks[index:], random.choice(self._ports))
        whole = self._plan(nodes, bitwise, storage)
        return judge(run.rounds, run.answers, {**whole.left_out, **run.left_out})

    def _plan(self, nodes: Sequence[str], bitwise: bool, storage: str) -> Plan:
        gpus = bool(nodes) and all(map(self._place.gpus, nodes))
        return plan(nodes, bitwise=bitwise, gpus=gpus, storage=storage, tests=self._tests)


class _Run:
    """The rounds of one diagnosis so far."""

    def __init__(
        self,
        place: Place,
        storage: str,
        end: float,
        stopped: threading.Event,
        tell: Callable[[str], None],
    ) -> None:
        self._place = place
        self._storage = storage
        self._end = end
        self._stopped = stopped
        self._tell = tell
        self.rounds: list[Round] = []
        self.answers: list[Answer] = []
        self.quiet: set[str] = set()
        self.left_out: dict[str, str] = {}

    def round(self, rounds: Sequence[Round], port: int) -> None:
        """Run the first of the ``rounds`` that are still to come, with its share of the time."""
        first = rounds[0]
        left_s = self._end - time.monotonic()
        share = first.needs_s / sum(r.needs_s for r in rounds)
        limit_s = min(first.most_s, left_s, max(_LEAST_S, left_s * share))
        if self._stopped.is_set() or limit_s < _LEAST_S:
            why = "it was stopped" if self._stopped.is_set() else "no time was left"
            self.left_out |= dict.fromkeys(first.programs, why)
            return
        self._tell(
            f"{', '.join(first.programs)} on {count(len(first.nodes), 'node')}, {limit_s:.0f} s at most"
        )
        words: list[str] = []
        try:
            answers = self._play(first, limit_s, port, words)
        except (SlurmError, OSError) as error:
            self.left_out |= dict.fromkeys(first.programs, str(error))
        else:
            self._take(first, answers, " | ".join(words)[-_MOST_WORDS:])

    def _play(self, round_: Round, limit_s: float, port: int, words: list[str]) -> list[Answer]:
        """What the parts answer; what else they and srun say is appended to ``words``."""
        with tempfile.TemporaryDirectory(prefix="srobust-diagnose-", ignore_cleanup_errors=True) as folder:
            command = self._command(round_, limit_s, port)
            launched = self._place.launch(round_.nodes, command, Path(folder))
            try:
                return [*self._listen(round_, launched, time.monotonic() + limit_s, words)]
            finally:
                launched.end()

    def _take(self, round_: Round, answers: list[Answer], words: str) -> None:
        quiet = quiet_nodes(round_, answers)
        if quiet and self._stopped.is_set():
            # Who had no time to answer is not to blame.
            self.left_out |= dict.fromkeys(round_.programs, "it was stopped")
            return
        self.rounds.append(round_)
        self.answers += answers
        answered = {answer.result.test for answer in self.answers}
        if len(quiet) == len(round_.nodes) and answered.isdisjoint(round_.programs):
            self.left_out |= dict.fromkeys(round_.programs, words or "no node answered")
        else:
            self.quiet |= quiet.keys()
        for node, test in quiet.items():
            self._tell(f"{node}: no answer in {test}")
        if quiet and words:
            self._tell(f"besides, parts and srun said: {words}")

    def _command(self, round_: Round, limit_s: float, port: int) -> tuple[str, ...]:
        words = [sys.executable, "-m", "slurm_robust.diagnostics", ",".join(round_.programs), "--json"]
        words += ["--budget", f"{limit_s - min(round_.ready_s, _READY_SHARE * limit_s):.1f}"]
        if any(len(group) > 1 for group in round_.groups):
            at = self._place.addresses([group[0] for group in round_.groups])
            words += ["--groups", " ".join(f"{at[group[0]]}={','.join(group)}" for group in round_.groups)]
            words += ["--port", str(port)]
            words += ["--nccl", str(min(map(self._place.gpus, round_.nodes)))]
        words += ["--storage", self._storage] if self._storage else []
        return tuple(words)

    def _listen(
        self, round_: Round, launched: Launched, deadline: float, words: list[str]
    ) -> Iterator[Answer]:
        """Answers as they come, until nothing more can come or the time is over."""
        missing = len(round_.nodes) * len(round_.programs)
        while time.monotonic() < deadline and not self._stopped.wait(_LOOK_EVERY_S):
            ended = launched.ended()
            for line in launched.lines():
                answer = _decoded(line)
                if answer is None:
                    words.append(line.strip())
                    continue
                missing -= 1
                if not missing:
                    # Parts that have said all end by themselves, which is cheaper than ending them.
                    deadline = min(deadline, time.monotonic() + _LEAVE_S)
                self._tell_of(answer)
                yield answer
            if ended:
                return

    def _tell_of(self, answer: Answer) -> None:
        found = answer.result
        if found.outcome is not Outcome.PASS:
            word = "left out" if answer.left_out else found.outcome.value
            self._tell(f"{found.node}: {found.test} {word}: {found.text}")


def _decoded(line: str) -> Answer | None:
    try:
        return msgspec.json.decode(line, type=Answer)
    except (ValueError, RecursionError):
        return None  # srun's own words, or a library's
