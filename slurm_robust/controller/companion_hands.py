"""The loop's hands on companions: jobs that lend nodes are submitted, ended and swept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from slurm_robust.controller.background import Errands
from slurm_robust.controller.borrower import Borrower
from slurm_robust.engine import effects as fx
from slurm_robust.model.companion import CompanionPool
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.process import CommandTimeout


class CompanionHands(Errands):
    """Carries out what concerns companions; ``borrower``: None if none are configured."""

    def __init__(self, errands: Errands, borrower: Borrower | None) -> None:
        super().__init__(errands.background, errands.core, errands.now, errands.do)
        self._borrower = borrower

    def acts(self) -> dict[type, Callable[..., None]]:
        """Return what carries out each effect."""
        return {
            fx.BorrowNodes: self._borrow_nodes,
            fx.EndCompanions: self._end_companions,
            fx.SweepCompanions: self._sweep_companions,
        }

    def _borrow_nodes(self, effect: fx.BorrowNodes) -> None:
        def submitted(job_id: int, source: CompanionPool) -> None:
            self.background.post(lambda: self.core.on_companion(effect.number, job_id, source, self.now()))

        def answered(found: fx.BorrowAnswer) -> None:
            self.do(self.core.on_lent(effect.number, found, self.now()))

        def work() -> Callable[[], None]:
            assert self._borrower is not None  # there are sources
            found = self._borrower.borrow(
                effect.sources, effect.missing, effect.exclude, submitted, some=effect.some
            )
            self.background.post(partial(answered, found))
            if strays := self._borrower.settle():
                jobs = ", ".join(map(str, strays))
                return partial(self.note, f"cancelled companions whose submission had no answer: {jobs}")
            return lambda: None

        def failed(text: str) -> None:
            answered(fx.BorrowAnswer(refusals=((effect.sources[0], text),)))

        self.run("borrow nodes", work, failed)

    def _end_companions(self, effect: fx.EndCompanions) -> None:
        def work() -> Callable[[], None]:
            self._end(effect.jobs)
            return lambda: None

        self.run("end companions", work, lambda text: None)

    def _end(self, companions: tuple[int, ...]) -> None:
        """End them in the background."""

        def report(text: str) -> None:
            self.background.post(partial(self.note, text))

        for text in self._borrower.end(companions, report) if self._borrower is not None else ():
            report(text)

    def _sweep_companions(self, effect: fx.SweepCompanions) -> None:
        def work() -> Callable[[], None]:
            try:
                ended = self._borrower.sweep(effect.known) if self._borrower is not None else ()
            except (SlurmError, CommandTimeout) as error:
                return partial(self.note, f"Slurm does not show whether older companions are left: {error}")
            if not ended:
                return lambda: None
            return partial(self.note, f"cancelled older companions: {', '.join(map(str, ended))}")

        self.run("sweep companions", work, lambda text: None)
