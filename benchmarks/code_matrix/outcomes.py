"""What a job's journal says that has followed, and what of that is wrong. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.code_matrix.cases import NONE, Case, expected
from benchmarks.fault_matrix.outcomes import kind
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Evict


@dataclass(frozen=True)
class Outcome:
    """How one training went. ``code``: its exit code, None where it had not ended when it was broken off.

    ``attempts``: generations. ``evicted``: nodes that the job gave up, or would have in observe mode.
    ``actions``: kinds of all that was decided, in order. ``planted``: how often the fault came. ``took_s``:
    from the first launch until the end, or until it was broken off; ``after_s``: the same from the first
    fault on, None without any. ``words``: the last decision's reason. ``weights``: hash of the final ones.
    ``commit``: what was run.
    """

    case: Case
    job: int
    commit: str
    code: int | None = None
    slurm: str = ""
    attempts: int = 0
    evicted: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    planted: int = 0
    took_s: float = 0.0
    after_s: float | None = None
    words: str = ""
    weights: str = ""

    @property
    def ending(self) -> str:
        """In a few words."""
        if self.code is None:
            return self.slurm.lower() or "gone"
        return "ended well" if self.code == 0 else f"code {self.code}"


def read(
    case: Case, job: int, commit: str, events: Sequence[ev.AnyEvent], *, now: float, faults: Sequence[float]
) -> Outcome:
    """From a journal. ``faults``: when the fault came; ``now``: when it was read; ``time.time()`` both."""
    launched = [e for e in events if isinstance(e, ev.GenerationLaunched)]
    ended = next((e for e in reversed(events) if isinstance(e, ev.RunEnded)), None)
    decisions = [e for e in events if isinstance(e, ev.Decided)]
    gone = [a.node for e in decisions for a in e.actions if isinstance(a, Evict)]
    gone += [e.node for e in events if isinstance(e, ev.NodeEvicted)]
    gone += [node for e in events if isinstance(e, ev.RequeueStarted) for node in e.exclude]
    until = ended.t if ended else now
    return Outcome(
        case,
        job,
        commit,
        code=ended.code if ended else None,
        attempts=len({e.generation for e in launched}),
        evicted=tuple(dict.fromkeys(gone)),
        actions=tuple(kind(action) for e in decisions for action in e.actions),
        planted=len(faults),
        took_s=until - launched[0].t if launched else 0.0,
        after_s=until - faults[0] if faults else None,
        words=decisions[-1].reason if decisions else "",
    )


def lost_s(found: Outcome, undisturbed: Outcome) -> float | None:
    """Seconds lost: to the undisturbed training where it ended well, else all since the first fault."""
    return found.took_s - undisturbed.took_s if found.code == 0 else found.after_s


def complaints(found: Outcome, undisturbed: Outcome) -> tuple[str, ...]:
    """What is wrong with an outcome, in words; nothing where all is right."""
    right = expected(found.case)
    wrong = []
    if found.case.fault != NONE and not found.planted:
        wrong.append("the fault never came")
    if found.evicted:
        wrong.append(f"evicted {', '.join(found.evicted)}")
    if found.attempts > right.attempts:
        wrong.append(f"{found.attempts} attempts instead of {right.attempts}")
    if found.code not in right.codes:
        wrong.append(f"{found.ending} instead of {' or '.join(map(_code, right.codes))}")
    elif right.weights and found.weights != undisturbed.weights:
        wrong.append("other weights than without the fault")
    elif right.evidence and not re.search(right.evidence, found.words, re.IGNORECASE | re.DOTALL):
        wrong.append(f"no evidence in {found.words!r}")
    return tuple(wrong)


def _code(code: int | None) -> str:
    return "no end" if code is None else str(code)
