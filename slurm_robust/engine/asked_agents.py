"""One question to agents: whom it went to, who has answered, and who is asked again.

Late, lost and repeated answers are the same for every question. One that is late is taken all the same, until
the question is forgotten. One that is lost is asked for again, if the question says so. One that comes again,
or fits no question of this controller, is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from slurm_robust.engine.clock import Now
from slurm_robust.wire.messages import AgentAnswer, AgentQuestion

A = TypeVar("A", bound=AgentAnswer)

KEEP_S = 60.0
"""A question is forgotten so long after its bound: stacks of ten thousand ranks are hundreds of megabytes."""


@dataclass
class AskedAgents(Generic[A]):
    """A question, and what has been answered."""

    questions: Mapping[str, AgentQuestion[A]]
    """By node, and each with the same number."""
    since: float
    """Monotonic time at which it was asked."""
    then: Callable[[A, Now], None] | None = None
    """Hears each answer."""
    answers: dict[str, A] = field(default_factory=dict)
    """By node."""

    def __post_init__(self) -> None:
        asked = tuple(self.questions.values())
        self.limit_s = max((question.limit_s for question in asked), default=0.0)
        """Its bound."""
        self._again_s = asked[0].again_s if asked else None
        self._sent = self.since

    @property
    def nodes(self) -> tuple[str, ...]:
        """Which were asked; none when the question is forgotten."""
        return tuple(self.questions)

    def missing(self) -> list[str]:
        """Return the nodes that have not answered."""
        return [node for node in self.questions if node not in self.answers]

    def is_over(self, now: Now) -> bool:
        """Return whether all have answered or have had their time."""
        return len(self.answers) == len(self.questions) or now.mono - self.since >= self.limit_s

    def forgive(self, seconds: float) -> None:
        """Do not count the last ``seconds`` against answers: nothing was heard meanwhile."""
        self.since += seconds
        self._sent += seconds

    def is_old(self, now: Now) -> bool:
        """Return whether to forget it."""
        return now.mono - self.since > self.limit_s + KEEP_S

    def due(self, now: Now) -> dict[str, AgentQuestion[A]]:
        """Return what to ask again now, by node."""
        if self._again_s is None or now.mono - self._sent < self._again_s or self.is_over(now):
            return {}
        self._sent = now.mono
        return {node: self.questions[node] for node in self.missing()}

    def hear(self, answer: AgentAnswer, now: Now) -> None:
        """Take in an answer with the number of this question."""
        question = self.questions.get(answer.node)
        if question is None or answer.node in self.answers or not isinstance(answer, question.answer):
            return
        self.answers[answer.node] = answer  # type: ignore[assignment]  # as the question declares
        if self.then is not None:
            self.then(answer, now)  # type: ignore[arg-type]

    def forget(self) -> None:
        """Free what was answered; whatever comes now is dropped."""
        self.questions, self.answers = {}, {}
