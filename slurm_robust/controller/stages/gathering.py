"""Waiting until the node of every slot has an agent that can start workers at once."""

from __future__ import annotations

from slurm_robust.controller.core import Core
from slurm_robust.controller.effects import Now, StartAgents
from slurm_robust.controller.restoring import memory_suffices, seal_pending
from slurm_robust.controller.stages.watch import RECONNECT_S
from slurm_robust.controller.transitions import (
    ToDeciding,
    ToEnding,
    ToGathering,
    ToLaunching,
    ToStopping,
    Transition,
)
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.model.incident import GenerationFailed, Symptom
from slurm_robust.wire.messages import Phase


class Gathering:
    """Starts agents where none is expected, then waits for the slots' zygotes.

    Agents of an earlier controller may still be there and come by themselves (``expected``); then
    only those that do not are started anew.
    """

    def __init__(self, begin: ToGathering) -> None:
        self._start = begin.start
        self._expected = begin.expected
        self._since = 0.0
        self._missing_since: float | None = None

    def enter(self, core: Core, now: Now) -> None:
        """Start the agents, unless they are there or may come by themselves."""
        self._since = now.mono
        if (core.state.sealed or core.state.unsealed) and core.listing.generation != core.state.generation:
            core.listing.ask(core, now)
        if self._start and not self._expected:
            self._start_agents(core, now, (*core.state.slots, *core.state.spares))

    def step(self, core: Core, now: Now) -> Transition | None:
        """Launch when all slots are ready; fail when one cannot become so in time."""
        if core.leaving or core.ending:
            return ToStopping(reason=core.leaving or core.ending or "")
        slots = core.state.slots
        if core.refused and (refusal := self._refusal(core)) is not None:
            return refusal
        if all((b := core.fleet.beat(n)) is not None and b.ready and not b.fatal for n in slots):
            if self._can_choose(core, now):
                return ToLaunching()
            return None
        waited = now.mono - self._since
        if self._expected and self._start and waited > RECONNECT_S:
            self._expected = False
            nodes = (*slots, *core.state.spares)
            self._start_agents(core, now, tuple(n for n in nodes if core.fleet.beat(n) is None))
        return self._check_deadlines(core, now)

    def _can_choose(self, core: Core, now: Now) -> bool:
        """Whether all that the choice of a checkpoint depends on has been told."""
        state, timings = core.state, core.config.timings
        if not (state.sealed or state.unsealed):
            return True
        # Workers of a generation without a seal would go on replacing the copies that it is sealed with.
        beats = [core.fleet.beat(node) for node in state.slots]
        busy = any(b is not None and b.phase not in (Phase.IDLE, Phase.ENDED) for b in beats)
        stopping_s = timings.stop_grace_s + timings.kill_wait_s
        if state.unsealed and busy and now.mono - self._since < stopping_s:
            return False
        if core.listing.answered:
            return True
        if not core.listing.overdue(now):
            return False
        seal_pending(core, now)
        return memory_suffices(core, now)

    def _start_agents(self, core: Core, now: Now, nodes: tuple[str, ...]) -> None:
        self._missing_since = now.mono
        if nodes:
            core.agents_gone = False
            core.emit(StartAgents(nodes=nodes))

    def _refusal(self, core: Core) -> Transition | None:
        """Too many nodes do not see the job directory: that is no fault of single nodes."""
        if core.state.generation or len(core.refused) <= len(core.state.spares):
            return None
        node, text = next(iter(core.refused.items()))
        nodes = ",".join(sorted(core.refused))
        return ToEnding(
            code=ExitCode.JOB_DIR, reason=f"agents cannot start on {nodes}; {node} says: {text}", final=False
        )

    def _patience(self, core: Core) -> float:
        """At the start importing torch may keep a node busy, and nothing is lost by waiting for it."""
        timings = core.config.timings
        return timings.agent_start_s if self._start else timings.node_dead_s

    def _check_deadlines(self, core: Core, now: Now) -> Transition | None:
        timings = core.config.timings
        begun = self._missing_since if self._missing_since is not None else self._since
        lost, unable = [], {}
        for node in core.state.slots:
            beat = core.fleet.beat(node)
            if node in core.refused:
                unable[node] = core.refused[node]
            elif beat is None:
                if now.mono - begun > timings.agent_start_s:
                    lost.append(node)
            elif core.fleet.silence(node, now.mono, begun) > self._patience(core):
                lost.append(node)
            elif beat.fatal:
                unable[node] = beat.fatal
            elif not beat.ready and now.mono - begun > timings.agent_start_s + timings.launch_s:
                unable[node] = f"its zygote is not ready after {now.mono - begun:.0f} s"
        undecided = [n for n in core.state.slots if n not in lost and n not in unable]
        waiting = any((b := core.fleet.beat(n)) is None or not (b.ready or b.fatal) for n in undecided)
        if not (lost or unable) or (waiting and not lost):
            return None
        alive = tuple(n for n in core.state.slots if n not in lost)
        words = [f"the agent of {n} gives no sign of life" for n in lost] + [
            f"{n}: {text}" for n, text in unable.items()
        ]
        core.open_incident(Symptom.LAUNCH_FAILED, "; ".join(words), now.mono - begun, now)
        failed = GenerationFailed(
            generation=core.state.generation, lost=tuple(lost), unable=unable, alive=alive
        )
        return ToDeciding(failed=failed)
