"""The controller's hands: sockets, signals, files and Slurm around the pure core."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from slurm_robust.checkpoint.tiers import SharedTiers
from slurm_robust.config.job import JobConfig
from slurm_robust.controller.agent_steps import AgentSteps
from slurm_robust.controller.answers import (
    allocation_answers,
    kernel_answers,
    slurm_answers,
    storage_answers,
    tester_answers,
)
from slurm_robust.controller.background import Background, Errands
from slurm_robust.controller.borrower import Borrower
from slurm_robust.controller.journal import Journal
from slurm_robust.controller.live_status_file import LiveStatusFile
from slurm_robust.controller.requeue import Requeuer
from slurm_robust.controller.shrink import Shrinker
from slurm_robust.controller.supervisor import AT_ONCE, Signals
from slurm_robust.controller.tester import Tester
from slurm_robust.controller.turns import ClockWatch, StorageHold, Turns
from slurm_robust.engine import effects as fx
from slurm_robust.engine.core import Core
from slurm_robust.engine.questions import NoAnswer, StartAgents
from slurm_robust.engine.units.updates import to_asker
from slurm_robust.jobdir.place import FolderGone, check_in_place
from slurm_robust.ledger.summary import summary_of
from slurm_robust.model.drill import DrillFault
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.job import JobDirectory
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.clock import clock_offset
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.util.output import say
from slurm_robust.wire import messages as msg
from slurm_robust.wire.beacons import BeaconReceiver
from slurm_robust.wire.epochs import newest_epoch
from slurm_robust.wire.protocol import PROTOCOL
from slurm_robust.wire.sockets import ControllerSocket

STALL_S = 1.0  # a turn of the loop takes milliseconds, so this long it was us who did not listen
SLOW_TICK_S = 1.0  # for what touches shared storage or processes


ANSWERED_S = 0.3
"""An answer has left within this time."""


class Loop:
    """Feeds the core with what happens and does what it asks for, until it asks to end."""

    def __init__(
        self,
        core: Core,
        *,
        config: JobConfig,
        directory: JobDirectory,
        journal: Journal,
        socket: ControllerSocket,
        beacons: BeaconReceiver | None,
        steps: AgentSteps,
        requeuer: Requeuer,
        store: SharedTiers,
        slurm: SlurmClient,
        shrinker: Shrinker,
        tester: Tester,
        borrower: Borrower | None = None,
        live_status: LiveStatusFile | None = None,
    ) -> None:
        """``borrower``: None if no companions are configured. ``live_status``: None for none."""
        self._core = core
        self._directory = directory
        self._journal = journal
        self._socket = socket
        self._beacons = beacons
        self._steps = steps
        self._tester = tester
        self._live_status = live_status
        self._background = Background()
        self._hold = StorageHold()
        self._clock = ClockWatch()
        self._now = self._hold.now
        self._held: deque[tuple[int, Sequence[fx.Effect]]] = deque()
        """What was decided, with how many events must be written before it is done."""
        self._identities: dict[str, bytes] = {}
        self._code: int | None = None
        self._slow_at = 0.0
        self._slow_busy = False
        self._gone_noted = False
        self._starts = self._starting = (
            0  # how often agents were started, and how many of these are under way
        )
        self._trouble = ""  # of the journal, as it was reported
        self._idle_said = False  # that no rank runs during this trouble
        self._restored = 0  # how many events of the journal were reported
        self._dies_after: tuple[int, float] | None = None  # events that are written, and when: of a drill
        self._folder_gone = False  # as it was reported
        self._errands = Errands(self._background, core, self._now, self._do)
        self._acts: dict[type[fx.Effect], Callable[[Any], None]] = {
            fx.Send: self._send,
            fx.Ask: self._ask,
            fx.Say: self._say,
            fx.Exit: self._exit,
            fx.HandOver: self._hand_over,
        }
        self._slurm = slurm
        self._answers = {
            **kernel_answers(),
            **slurm_answers(slurm, steps, self._clock, core.state),
            **allocation_answers(requeuer, shrinker, borrower),
            **tester_answers(tester),
            **storage_answers(config.checkpoint, directory, journal, store, core.state.own_node),
        }

    def run(self) -> int:
        """Run until the core ends; returns the exit code of the job."""
        self._journal.wake = partial(self._background.post, lambda: None)
        with Signals() as signals:
            beacons = (self._beacons.fileno(),) if self._beacons is not None else ()
            turns = Turns((self._socket.socket, self._background.fileno(), *beacons), signals.fileno())
            self._errands.run("compare clocks", self._compare_clocks, lambda text: None)
            self._do(self._core.on_tick(self._now()))
            turned, behind = time.monotonic(), False
            while self._code is None:
                turns.wait()
                stalled, turned = time.monotonic() - turned, time.monotonic()
                if (stalled > STALL_S or behind) and not self._hold.holds:
                    self._core.on_stall(stalled, self._now())
                for number in signals.taken():
                    if number == AT_ONCE:
                        self._do(self._core.on_second_order(self._now()))
                    elif number == signal.SIGUSR1:
                        self._do(
                            self._core.on_end_approaching("the end of this run is near (USR1)", self._now())
                        )
                    else:
                        name = signal.Signals(number).name
                        self._do(
                            self._core.on_leave(
                                f"ordered to end by {name}", self._now(), ExitCode(128 + number)
                            )
                        )
                # Messages first: what an agent sent before its srun reports its end was not heard after that.
                behind = not self._take_messages(turned + STALL_S)
                self._background.drain()
                if self._beacons is not None and not behind:
                    self._core.on_beacons(self._beacons.ages())
                self._follow_journal()
                self._slow_tick()
                with turns.tick():
                    effects = self._core.on_tick(self._now())
                self._do(effects)
                if self._live_status is not None:
                    self._live_status.step(self._core, self._now(), turns.longest_s)
        self._tester.stop()
        if self._live_status is not None:
            self._live_status.close(
                self._core, self._now(), ours=self._code not in (ExitCode.OTHER_CONTROLLER, fx.HANDED_OVER)
            )
        return self._code

    def _compare_clocks(self) -> Callable[[], None]:
        """Measure in the background how far this node's clock is ahead of slurmctld's."""
        try:
            ahead_s = clock_offset(self._slurm)
        except (SlurmError, CommandTimeout):
            ahead_s = None  # the ledger goes by this node's clock
        if ahead_s is None:
            return lambda: None

        def compared() -> None:
            self._clock.compared(ahead_s)
            self._core.on_clock(ahead_s, self._now())

        return compared

    def report(self, text: str) -> None:
        """Say and write down what something beside the loop has met. From any thread."""
        say(text)
        self._background.post(partial(self._errands.note, text))

    # -- inputs ------------------------------------------------------------------------------------

    def _take_messages(self, until: float) -> bool:
        """Take in what has come; False if there is more than could be read until then."""
        while self._code is None and (received := self._socket.recv()) is not None:
            self._on_message(*received)
            if time.monotonic() > until:
                return False
        return True

    def _on_message(self, identity: bytes, message: msg.ToController | msg.Foreign) -> None:
        now = self._now()
        match message:
            case msg.Heartbeat():
                self._identities[message.node] = self._identities[message.agent] = identity
                self._core.on_heartbeat(message, now)
            case msg.Pulse():
                self._core.on_pulse(message, now)
            case msg.AgentAnswer():
                self._core.on_agent_answer(message, now)
            case msg.Ping():
                host, pid = os.uname().nodename, os.getpid()
                pong = msg.Pong(epoch=self._core.state.epoch, host=host, pid=pid, blocked=self._blocked)
                self._socket.send(identity, pong)
            case msg.Foreign():
                self._socket.send(identity, msg.Refused(refused=message.kind, protocol=PROTOCOL))
                self._core.on_foreign(message, now)
            case msg.Drill():
                reply, effects = self._core.on_drill(message, now)
                self._socket.send(identity, reply)
                self._do(effects)
                if reply.drill and message.fault == DrillFault.KILL_CONTROLLER.value:
                    self._dies_after = len(self._journal.events), time.monotonic() + ANSWERED_S
            case msg.UpdateJob() if self._blocked and not self._core.updates.has(message):
                fix = f"free space under {self._directory.path}, then give the command again"
                self._socket.send(identity, msg.UpdateReply(ok=False, text=self._blocked, fix=fix))
            case msg.ShowStacks() if self._blocked:
                self._socket.send(identity, msg.StacksShown(error=self._blocked))
            case msg.UpdateJob():
                self._identities[to_asker(message.token)] = identity
                self._do(self._core.on_update_request(message, now))
            case msg.ShowStacks():
                shown, effects = self._core.on_stacks_request(message, now)
                self._socket.send(identity, shown)
                self._do(effects)

    def _slow_tick(self) -> None:
        """Look each second, in the background, for refusals of agents, the step's end and a higher epoch."""
        if self._slow_busy or time.monotonic() - self._slow_at < SLOW_TICK_S:
            return
        self._slow_at, self._slow_busy = time.monotonic(), True
        if self._clock.step():
            self._core.on_clock(self._clock.ahead_s, self._now())
        self._errands.run("check the agents' steps", self._check_steps, self._check_failed)

    def _die_if_drilled(self) -> None:
        """Die as by the drill of the owner, once the journal has it and the owner has the answer."""
        if self._dies_after is None:
            return
        events, at = self._dies_after
        if self._journal.written >= events and time.monotonic() >= at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _follow_journal(self) -> None:
        """Decide nothing while storage has not taken what was decided before, and report why."""
        core = self._core
        self._die_if_drilled()
        behind = self._journal.written < len(self._journal.events)
        urgent = core.leaving is not None or core.ending is not None
        held_s = self._hold.follow(behind=behind, urgent=urgent)
        core.hold(self._hold.holds)
        trouble = self._journal.trouble
        if trouble and not self._trouble:
            self._trouble, self._idle_said = trouble, False
            waits = (
                "the controller decides nothing, and keeps news in memory"
                if self._hold.holds
                else "it is in memory only"
            )
            goes_on = " (training goes on)" if core.has_live_ranks else ""
            say(f"{self._journal.path} cannot be written: {trouble}; until it can, {waits}{goes_on}")
        elif self._trouble and not behind:
            self._trouble = ""
            say(f"{self._journal.path} is written again, with all that was kept in memory")
        if self._blocked and not self._idle_said and not core.has_live_ranks:
            self._idle_said = True
            say(
                "no rank runs; nothing trains until storage takes the journal again: free space under "
                f"{self._directory.path}"
            )
        if lost := self._journal.restored - self._restored:
            self._restored += lost
            text = f"storage lost {lost} events of the journal that it had taken; they are written again"
            say(text)
            self._core.note(text, "", self._now())
        if held_s:
            core.on_hold_over(held_s, self._now())
        self._release()

    @property
    def _blocked(self) -> str:
        """Why nothing that is asked for can be done now: storage refuses the journal; "" if it does not."""
        refuses = self._trouble and self._hold.holds
        return f"storage does not take the journal: {self._trouble}" if refuses else ""

    def _check_steps(self) -> Callable[[], None]:
        starts, is_settled = self._starts, not self._starting
        news = self._steps.news()
        gone = self._steps.ended()
        try:
            newest = newest_epoch(self._directory.epochs)
        except OSError:
            newest = None  # storage does not answer now; asked again in a second
        folder_gone = self._is_folder_gone()

        def report() -> None:
            self._slow_busy = False
            self._report_folder(folder_gone)
            for refusal in news.refusals:
                self._core.on_refusal(refusal.node, refusal.text, refusal.job_code)
            for end in news.ends:
                self._core.on_step_end(end, self._now())
            # No srun may be there yet of a start that was under way when this look began.
            if gone and is_settled and starts == self._starts and not self._gone_noted:
                self._gone_noted = True
                self._do(self._core.on_agents_gone(self._now()))
            if newest is not None and newest.epoch > self._core.state.epoch and self._code is None:
                say(f"controller {newest.epoch} on {newest.host} has taken over; this one ends")
                self._code = int(ExitCode.OTHER_CONTROLLER)

        return report

    def _is_folder_gone(self) -> bool:
        try:
            check_in_place(self._directory.path, self._core.state.run_id)
        except FolderGone:
            return True
        except OSError:
            return self._folder_gone  # storage does not answer now
        return False

    def _report_folder(self, is_gone: bool) -> None:
        if is_gone == self._folder_gone:
            return
        self._folder_gone, path = is_gone, self._directory.path
        text = f"the job's folder is back: {path}"
        if is_gone:
            text = (
                f"the job's folder {path} was moved or removed, or another one is in its place: put it "
                "back; training goes on, but until then no checkpoint gets there, recovery may fail, and "
                "srobust status, logs and drill do not find the job"
            )
        self._core.note(text, "", self._now())
        say(text)

    def _check_failed(self, text: str) -> None:
        """Fail if the check is broken: this controller might miss a takeover; the next one does not."""
        raise RuntimeError(text)

    # -- effects -----------------------------------------------------------------------------------

    def _do(self, effects: list[fx.Effect]) -> None:
        """Write everything first: nothing is done about what the journal does not hold."""
        if written := [effect.event for effect in effects if isinstance(effect, fx.Write)]:
            self._journal.append(*written)
        acts = [effect for effect in effects if not isinstance(effect, fx.Write)]
        self._held.append((len(self._journal.events), acts))
        self._release()
        if self._held:
            self._held[-1] = (
                self._held[-1][0],
                [effect for effect in acts if not self._sign_of_life(effect)],
            )

    def _release(self) -> None:
        """Do what was decided, in that order, once the journal holds it (or cannot be waited for)."""
        written = math.inf if self._hold.gave_up else self._journal.written
        while self._held and self._held[0][0] <= written:
            for effect in self._held.popleft()[1]:
                self._acts[type(effect)](effect)

    def _sign_of_life(self, effect: fx.Effect) -> bool:
        """Answer a heartbeat whatever storage does; its content is not written, and so not confirmed."""
        if not (isinstance(effect, fx.Send) and isinstance(effect.message, msg.Ack)):
            return False
        self._send(fx.Send(node=effect.node, message=structs.replace(effect.message, seq=0)))
        return True

    def _say(self, effect: fx.Say) -> None:
        # Several runs of one job (--name) write into one log.
        name = self._directory.path.name.partition(".")[2]
        text = (f"[{name}] " if name else "") + effect.text
        if not effect.ettr:
            say(text)
            return
        events, now = list(self._journal.events), time.time() - self._clock.ahead_s

        def work() -> Callable[[], None]:
            # Of a job of months it takes seconds.
            return partial(say, f"{text}; ETTR {summary_of(events, now).ettr:.1%}")

        self._errands.run("ETTR", work, lambda error: say(text))

    def _send(self, effect: fx.Send) -> None:
        identity = self._identities.get(effect.node)
        if identity is not None:
            self._socket.send(identity, effect.message)

    def _ask(self, effect: fx.Ask) -> None:
        """Have the question answered in the background; whatever becomes of that is an answer."""
        question = effect.question
        answering = self._answers[type(question)]
        if isinstance(question, StartAgents):
            self._gone_noted = False
            self._starts += 1
            self._starting += 1

        def heard(answer: object, *, is_last: bool = True) -> None:
            if is_last and isinstance(question, StartAgents):
                self._starting -= 1
            self._do(self._core.on_answer(effect.number, answer, self._now(), is_last=is_last))

        def tell(answer: object) -> None:
            self._background.post(partial(heard, answer, is_last=False))

        def work() -> Callable[[], None]:
            try:
                return partial(heard, answering(question, tell))
            except (SrobustError, CommandTimeout, OSError) as error:
                return partial(heard, NoAnswer(reason=str(error), fix=getattr(error, "fix", "")))

        self._errands.run(question.what, work, lambda text: heard(NoAnswer(reason=text, is_error=True)))

    def _exit(self, effect: fx.Exit) -> None:
        self._code = effect.code

    def _hand_over(self, effect: fx.HandOver) -> None:
        self._code = fx.HANDED_OVER
