"""Work in threads beside the loop, of which the core hears in the loop's own thread."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeAlias

from slurm_robust.engine import effects as fx
from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.util.output import say
from slurm_robust.util.threads import Executor

Work: TypeAlias = Callable[[], Callable[[], None]]


class Background(Executor[Callable[[], None]]):
    """Threads beside the loop. What comes back are functions, called in the loop's own thread."""

    def __init__(self) -> None:
        super().__init__("background", grows=True)

    def drain(self) -> None:
        """Call what has come back. From the loop's thread only."""
        for then in self.results():
            then()


class Errands:
    """What the loop has done in the background, and the ways in which the core hears what came of it."""

    def __init__(
        self,
        background: Background,
        core: Core,
        now: Callable[[], Now],
        do: Callable[[list[fx.Effect]], None],
    ) -> None:
        """``do`` carries out what the core answers."""
        self.background, self.core = background, core
        self.now, self.do = now, do

    def run(self, what: str, work: Work, otherwise: Callable[[str], None]) -> None:
        """Do ``work`` in a thread; if it raises anything, say that and call ``otherwise`` with it."""

        def failed(error: BaseException) -> Callable[[], None]:
            text = f"{what}: {type(error).__name__}: {error}"
            # In the thread, since the lines of the source are read for it, from storage that may hang.
            trace = "".join(traceback.format_exception(error))

            def tell() -> None:
                say(f"internal error in a background task: {text}\n{trace}")
                otherwise(text)

            return tell

        self.background.submit(work, failed)

    def note(self, text: str) -> None:
        """Write a fact down."""
        self.core.note(text, "", self.now())
