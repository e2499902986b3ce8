"""Answers the controller's questions, in a thread beside the agent's loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from slurm_robust.util.threads import Executor, print_unless_os_error
from slurm_robust.wire.messages import AgentAnswer, AgentQuestion

A = TypeVar("A", bound=AgentAnswer)

_Key: TypeAlias = tuple[int, int]
"""Epoch and number of a question."""


class Answering(Generic[A]):
    """Finds answers one after the other. A question that comes again is not looked into again."""

    def __init__(self, name: str, *, keep: int = 1) -> None:
        """``keep``: how many of the newest questions are answered; older ones are dropped."""
        self._thread: Executor[tuple[_Key, A | None]] = Executor(name)
        self._keep = keep
        self._answers: dict[_Key, A | None] = {}

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`finished` has something."""
        return self._thread.fileno()

    def ask(self, question: AgentQuestion[A], look: Callable[[], A]) -> A | None:
        """Return the answer if it is there already; else ``look`` for it, once."""
        key = (question.epoch, question.number)
        if key in self._answers:
            return self._answers[key]
        self._answers[key] = None
        if len(self._answers) > self._keep:
            del self._answers[next(iter(self._answers))]

        def failed(error: BaseException) -> tuple[_Key, A | None]:
            print_unless_os_error(error)
            return key, None

        # One that was dropped meanwhile must not keep the next one waiting.
        self._thread.submit(lambda: (key, look()) if key in self._answers else None, failed)
        return None

    def finished(self) -> list[A]:
        """Return the answers since the last call. What could not be found may be asked for again."""
        found: list[A] = []
        for key, answer in self._thread.results():
            if key in self._answers and answer is not None:
                self._answers[key] = answer
                found.append(answer)
            elif answer is None:
                self._answers.pop(key, None)
        return found

    def close(self) -> None:
        """Let the thread end."""
        self._thread.close()
