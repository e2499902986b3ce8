"""The loop's questions to Slurm: of nodes, of the run, of what holds for the whole cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from slurm_robust.controller.agent_steps import AgentSteps
from slurm_robust.controller.asking import Asking
from slurm_robust.controller.background import Errands
from slurm_robust.controller.requeue import without_term
from slurm_robust.controller.turns import ClockWatch
from slurm_robust.engine import effects as fx
from slurm_robust.model.exits import Witness
from slurm_robust.policy.leaving import Sentence
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.clock import clock_offset
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.slurm.values import parse_number
from slurm_robust.util.hostlist import fold


class Questions(Errands):
    """Asks Slurm in the background; an answer that does not come decides nothing."""

    def __init__(self, errands: Errands, slurm: SlurmClient, steps: AgentSteps, clock: ClockWatch) -> None:
        super().__init__(errands.background, errands.core, errands.now, errands.do)
        self._slurm, self._steps, self._clock = slurm, steps, clock

    def acts(self) -> dict[type, Callable[..., None]]:
        """What carries out each effect."""
        return {
            fx.AskAboutNodes: self._ask_about_nodes,
            fx.AskAboutRun: self._ask_about_run,
            fx.AskForDrains: self._ask_for_drains,
        }

    def begin(self) -> None:
        """Ask what is asked once."""
        self.run("learn switches", self._learn_switches, lambda text: None)
        self.run("learn KillWait", self._learn_kill_wait, lambda text: None)
        self.run("compare clocks", self._compare_clocks, lambda text: None)

    def _learn_switches(self) -> Callable[[], None]:
        """In the background: which nodes hang on the same leaf switch, for the choice of peers."""
        try:
            switches = self._slurm.topology()
        except SlurmError as error:
            text = f"Slurm does not show the switches, so peers are chosen without them: {error}"
            return lambda: self.core.note(text, "", self.now())
        # Higher switches list the nodes below them too.
        leaves = {node: switch.name for switch in switches if not switch.level for node in switch.nodes}
        return lambda: self.core.on_switches(leaves)

    def _learn_kill_wait(self) -> Callable[[], None]:
        """In the background: how long Slurm waits between SIGTERM and SIGKILL."""
        try:
            seconds = parse_number(self._slurm.config().get("KillWait", ""))
        except (SlurmError, CommandTimeout):
            seconds = None  # Slurm's default is assumed
        return (lambda: None) if seconds is None else partial(self.core.on_kill_wait, float(seconds))

    def _compare_clocks(self) -> Callable[[], None]:
        """In the background: by how much this node's clock is ahead of slurmctld's."""
        try:
            ahead_s = clock_offset(self._slurm)
        except (SlurmError, CommandTimeout):
            ahead_s = None  # the ledger goes by this node's clock
        if ahead_s is None:
            return lambda: None

        def compared() -> None:
            self._clock.compared(ahead_s)
            self.core.on_clock(ahead_s, self.now())

        return compared

    def _ask_about_nodes(self, effect: fx.AskAboutNodes) -> None:
        def work() -> Callable[[], None]:
            try:
                found = self._steps.witnesses(effect.nodes)
            except (SlurmError, CommandTimeout, OSError) as error:
                return partial(answered, None, f"Slurm does not say how {fold(effect.nodes)} are: {error}")
            return partial(answered, found, "")

        def answered(found: tuple[Witness, ...] | None, error: str) -> None:
            if error:
                self.core.note(error, "", self.now())
            self.do(self.core.on_nodes(found, self.now()))

        self.run("ask about nodes", work, partial(answered, None))

    def _ask_about_run(self, effect: fx.AskAboutRun) -> None:
        def answered(said: Sentence | None) -> None:
            self.do(self.core.on_sentence(said, self.now()))

        state = self.core.state
        asking = Asking(self._slurm, state.job_id, state.restart_count, self._steps.why_ended)

        def work() -> Callable[[], None]:
            with without_term():
                for said in asking.sentences(time.time() - self._clock.ahead_s):
                    self.background.post(partial(answered, said))
            return lambda: None

        self.run("ask about the run", work, lambda text: answered(None))

    def _ask_for_drains(self, effect: fx.AskForDrains) -> None:
        def work() -> Callable[[], None]:
            try:
                found = self._steps.drains(effect.nodes)
            except (SlurmError, CommandTimeout, OSError):
                return lambda: None  # it is asked again
            return lambda: self.do(self.core.on_drains(found, self.now()))

        self.run("ask for drains", work, lambda text: None)
