"""How often the stacks of all ranks are sampled for a hang or a slowdown, and what follows. Pure.

A hang is sampled until two samples in a row agree, or the ranks that the others wait for turn out to compute.
A slowdown never stands still, so its samples vote.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.analysis.progress.bounds import span
from slurm_robust.analysis.stacks import localise, vote
from slurm_robust.analysis.stacks.moving import SampleRound, awaited, is_busy, is_idle, is_moving
from slurm_robust.model.incident import Fault, Symptom
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.stacks import Localisation, RankStacks
from slurm_robust.model.state import JobState
from slurm_robust.policy.ladder import worth_tests
from slurm_robust.policy.rules import Rules
from slurm_robust.policy.stacks import moved_with_ranks, place
from slurm_robust.util.text import named_ranks

# A rank that only takes long moves on within seconds; evicting its node would be for nothing.
HANG_SAMPLES = 4
HANG_EVERY_S = 2.0

# Of so few ranks in question the next sample also shows the calls in libraries: without them a wait for the
# GPU inside a call in C looks like a computation. It stops each for some tenths of a second.
MOST_NATIVE = 8

# A rank that computes while the others wait may evaluate: it is sampled so often, until detect.phase_s.
PATIENCE_EVERY_S = 10.0

# ByteRobust, 6.2: a slowdown is judged by five samples ten seconds apart.
SLOW_SAMPLES = 5
SLOW_EVERY_S = 10.0


class Sampling:
    """The samples taken for one fault. Times are monotonic seconds."""

    def __init__(self, fault: Fault, since: float, phase_s: float) -> None:
        """``since``: when the fault began; ``phase_s``: how long ranks may compute while others wait."""
        self._fault = fault
        self._since = since
        self._phase_s = phase_s
        self._is_hang = fault.symptom is Symptom.HANG
        self._found: list[Localisation] = []
        self._samples: list[SampleRound] = []
        self._in_question: set[int] = set()
        self._patience = ""

    @property
    def native(self) -> tuple[int, ...]:
        """Ranks whose next sample is also to show the calls in libraries."""
        return tuple(sorted(self._in_question))

    @property
    def patience(self) -> str:
        """What is being waited for; "" while nothing but a hang would explain the samples."""
        return self._patience

    def add(
        self,
        stacks: Sequence[RankStacks],
        silent: Sequence[int],
        layout: ParallelLayout,
        *,
        begun: float,
        now: float,
    ) -> Localisation | float:
        """A sample that began at ``begun`` is complete: where the fault lies, or when to take the next.

        ``silent``: ranks of which no stacks came.
        """
        found = localise(stacks, layout, silent, moving=not self._is_hang)
        self._found.append(found)
        if not self._is_hang:
            is_last = len(self._found) >= SLOW_SAMPLES
            return vote(self._found, layout) if is_last else begun + SLOW_EVERY_S
        sample = SampleRound(at=begun, stacks={stack.rank: stack for stack in stacks})
        self._samples = [*self._samples, sample][-HANG_SAMPLES:]
        computing = awaited(sample, layout)
        ranks = found.ranks or computing
        if len(self._in_question | set(ranks)) <= MOST_NATIVE:
            self._in_question.update(ranks)
        # A rank that waits makes no progress, even if it uses a processor: waits for a GPU spin.
        is_own = set(ranks) <= set(computing)
        if not found.halted and is_own and (later := self._may_go_on(ranks, now)) is not None:
            return later
        if len(self._found) > 1 and self._found[-2].ranks == found.ranks:
            return found
        if len(self._found) < HANG_SAMPLES:
            return now + HANG_EVERY_S
        reason = f"{HANG_SAMPLES} samples of the stacks named different ranks, the last: {found.reason}"
        return Localisation(reason=reason, healthy=found.healthy)

    def _may_go_on(self, ranks: Sequence[int], now: float) -> float | None:
        """When to sample again those for whom the others wait, while they get on with something."""
        samples = self._samples
        if len(samples) < 2 or not is_busy(samples, ranks) or now - self._since > self._phase_s:
            return None
        if not is_moving(samples, ranks):
            # The same place twice may be chance, as long as there were few samples.
            return now + HANG_EVERY_S if len(samples) < HANG_SAMPLES else None
        if not self._patience:
            self._patience = (
                f"{self._fault.detail}; {named_ranks(ranks)} computes on, maybe in an evaluation that is "
                f"not announced: waiting up to {span(self._phase_s)} (detect.phase_s). "
                "'with slurm_robust.phase(\"evaluation\"):' in the script announces it"
            )
        return now + PATIENCE_EVERY_S

    def is_confirmed(self, found: Localisation) -> bool:
        """Whether it was a hang without doubt: those that were found did nothing at all."""
        if not self._is_hang or not found.ranks:
            return False
        return found.halted or is_idle(self._samples, found.ranks)


def reason_to_go_on(fault: Fault, found: Localisation, rules: Rules, state: JobState) -> str:
    """Why training that hangs, or is slow, as ``found`` is not stopped; "" if it is to be stopped.

    What is only slow may still train: without a culprit nothing is gained by stopping it, unless it is to be
    tested for. A slowdown that has moved with the rank to another node is the code's own pace.
    """
    is_slow = fault.symptom is Symptom.SLOW
    if is_slow and found.ranks and (moved := moved_with_ranks(place(Symptom.SLOW, found, state), state)):
        where = ",".join(moved.nodes)
        return f"{fault.detail}; {found.reason}; it was the same on {where}: it is the code, and goes on"
    if found.ranks or not (is_slow or fault.low_confidence):
        return ""
    if is_slow and worth_tests(fault.times, rules, state):
        return ""
    again = f" (sampled {fault.times} times)" if fault.times > 1 else ""
    return f"{fault.detail}; {found.reason}{again}"
