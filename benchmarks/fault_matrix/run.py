"""Plants the faults one after the other in as few trainings as possible, and reads what followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.common import BenchmarkFailed
from benchmarks.fault_matrix.cases import FEW, Case
from benchmarks.fault_matrix.confusion import marks
from benchmarks.fault_matrix.nodes import Nodes
from benchmarks.fault_matrix.outcomes import OBSERVE, Outcome, decided, read
from benchmarks.fault_matrix.training import NODES, RANKS_PER_NODE, SPARES, Training
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from slurm_robust.sandbox import Sandbox, SandboxConfig, SandboxError
from slurm_robust.sandbox.heal import heal

if TYPE_CHECKING:
    from collections.abc import Iterator

RECOVER_S = 120.0
CONFIG = SandboxConfig(
    nodes=NODES + SPARES,
    gpus_per_node=RANKS_PER_NODE,
    slurmd_timeout_s=20,
    cred_expire_s=5,
    accounting=False,
    tmp_mb=64,
)


@dataclass(frozen=True)
class Ending:
    """How a training ended. ``code``: of its own end, None when it was broken off; ``why`` then.

    ``steps`` are those with a hash of the weights, ``equal`` those with only the hash of a training without
    faults.
    """

    cases: tuple[str, ...]
    code: int | None
    steps: int = 0
    equal: int = 0
    why: str = ""


class Matrix:
    """Runs cases in one mode. ``outcomes`` and ``endings`` grow; ``say`` gets a line for each."""

    def __init__(self, sandbox: Sandbox, mode: str, seed: int, say: Callable[[str], None]) -> None:
        self.outcomes: list[Outcome] = []
        self.endings: list[Ending] = []
        self._sandbox, self._mode, self._seed, self._say = sandbox, mode, seed, say
        self._nodes = Nodes(sandbox)
        self._training: Training | None = None
        self._cases: list[str] = []
        self._hung: set[str] = set()
        self._hashes: list[dict[int, set[str]]] = []

    def run(self, cases: Iterable[Case]) -> None:
        """All of them; what a case does not survive is the end of its training and not of the matrix."""
        for case in cases:
            try:
                outcome = self.plant(case)
            except (BenchmarkFailed, SandboxError) as error:
                self._say(f"{case.name}: {error}")
                self._leave(str(error).splitlines()[0])
                continue
            if self._mode == OBSERVE and (case.expected.actions or not case.survives):
                self._leave()  # what nobody answers stays
            elif not marks(outcome).right:
                self.finish()  # what was not answered must not be there when the next fault is
        self.finish()

    def plant(self, case: Case) -> Outcome:
        """One of them, in the training that runs, or in a new one; that goes on.

        Raises :class:`BenchmarkFailed` and :class:`SandboxError`.
        """
        training = self._training_for(case)
        self._cases.append(case.name)
        outcome = self._plant(training, case)
        self.outcomes.append(outcome)
        self._say(in_short(outcome))
        return outcome

    def finish(self) -> None:
        """End the training that runs, in act mode by itself and compared with one without faults."""
        if self._training is None:
            return
        if self._mode == OBSERVE:
            self._leave()
            return
        try:
            code = self._training.end()
        except BenchmarkFailed as error:
            self._leave(str(error).splitlines()[0])
            return
        self._close(Ending(tuple(self._cases), code), self._training.hashes())

    def compare(self) -> None:
        """Fill in how many steps of each training have the weights of one without faults."""
        last = max((step for hashes in self._hashes for step in hashes), default=-1)
        if last < 0:
            return
        self._say(f"reference: {last + 1} steps without faults")
        reference = self._reference(last + 1)
        self.endings = [
            replace(e, steps=len(h), equal=sum(found == reference.get(step) for step, found in h.items()))
            for e, h in zip(self.endings, self._hashes, strict=True)
        ]

    # -- trainings ---------------------------------------------------------------------------------

    def _training_for(self, case: Case) -> Training:
        if self._training is not None and (case.fresh or not self._has_room(self._training)):
            self.finish()
        if self._training is None:
            heal(self._sandbox)
            self._nodes.prepare()
            # Nobody takes a slot in observe mode, but decisions shall be those of a job with standbys.
            spares = 1 if self._mode == OBSERVE else SPARES
            self._training = Training(self._sandbox, self._nodes, self._mode, spares=spares)
        return self._training

    def _has_room(self, training: Training) -> bool:
        state = training.state
        return state.ended is None and (self._mode == OBSERVE or len(state.spares) > 1)

    def _leave(self, why: str = "") -> None:
        if self._training is not None:
            self._training.cancel()
            self._close(Ending(tuple(self._cases), None, why=why), self._training.hashes())

    def _close(self, ending: Ending, hashes: dict[int, set[str]]) -> None:
        self.endings.append(ending)
        self._hashes.append(hashes if self._mode != OBSERVE else {})
        self._nodes.mend()
        self._training, self._cases, self._hung = None, [], set()

    def _reference(self, steps: int) -> dict[int, set[str]]:
        heal(self._sandbox)
        training = Training(self._sandbox, self._nodes, "act", spares=0, steps=steps)
        training.until(lambda: training.state.ended is not None, 300.0, "end of the reference")
        return training.hashes()

    # -- one fault ---------------------------------------------------------------------------------

    def _plant(self, training: Training, case: Case) -> Outcome:
        training.until_warm(case.after)
        state, journal = training.state, training.journal()
        host = next(e.host for e in reversed(journal) if isinstance(e, ev.ControllerStarted))
        placement = state.world.placement
        # A second hang there would not be the first any more, to which another answer is right.
        avoided = set(self._hung if Symptom.HANG in case.expected.symptoms else ())
        avoided |= {host} if case.takes_node else set()
        avoided |= {*state.world.slots} - {host} if case.takes_controller else set()
        ranks = {rank for node in avoided & {*state.world.slots} for rank in placement.ranks_of(node)}
        rank = case.rank(self._seed, placement.world_size, ranks)
        planted = Outcome(
            case.name, self._mode, rank, placement.node_of(rank), case.expected.in_mode(self._mode)
        )
        if Symptom.HANG in case.expected.symptoms:
            self._hung.add(planted.node)
        at = case.plant(training, rank)
        self._await(training, case, len(journal))
        events = training.journal()[len(journal) :]
        found = read(planted, events, at)
        went_on = self._goes_on(training, case, found)
        case.mend(training, rank)
        return replace(
            read(planted, training.journal()[len(journal) :], at),
            went_on=went_on,
            place_s=_placed(training, events),
        )

    def _await(self, training: Training, case: Case, begun: int) -> None:
        """Until the decision has been made; where nothing is expected, until it could have been."""
        seconds = case.patience_s if case.expected.symptoms else case.watch_s
        try:
            training.until(lambda: decided(training.journal()[begun:]), seconds, "decision")
        except BenchmarkFailed:
            pass  # which the outcome shows

    def _goes_on(self, training: Training, case: Case, found: Outcome) -> bool:
        """Whether training makes new steps, in act mode without a further incident."""
        if self._mode == OBSERVE and not case.survives:
            return False
        before, incidents = training.step(), training.state.incidents

        def onwards() -> bool:
            state = training.state
            well = self._mode == OBSERVE or (state.world.incident is None and state.world.running)
            again = state.ended is not None or state.incidents > incidents
            return again or (well and training.step() > before + FEW)

        try:
            training.until(onwards, RECOVER_S, "new step")
        except BenchmarkFailed:
            return False
        return training.state.ended is None and training.state.incidents == incidents


def _placed(training: Training, events: Sequence[ev.AnyEvent]) -> float | None:
    """Seconds from the detection of a hang until its stacks were concluded from."""
    opened = next((e for e in events if isinstance(e, ev.IncidentOpened)), None)
    if opened is None:
        return None
    found = list(training.folder.glob(f"incidents/*{opened.incident}/stacks.json"))
    return found[0].stat().st_mtime - opened.t if found else None


def in_short(found: Outcome) -> str:
    """One line for whoever looks on."""
    seen = found.symptom.value if found.symptom else "nothing"
    after = f" after {found.detect_s:.2f} s" if found.detect_s is not None else ""
    blamed = ",".join(found.blamed) or "nobody"
    where = f"rank {found.rank} on {found.node}"
    return f"{found.mode} {found.case} ({where}): {seen}{after}; {blamed}: {', '.join(found.actions)}"


@contextmanager
def cluster(name: str) -> Iterator[Sandbox]:
    """A sandbox for the matrix."""
    with Sandbox.up(CONFIG, name=name) as sandbox:
        yield sandbox
