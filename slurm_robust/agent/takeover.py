"""When the controller's host dies, this agent and others find that out, and one starts the next controller.

All of it is done in a thread, since storage, Slurm and probes may take their time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from slurm_robust.home import page
from slurm_robust.jobdir.place import make_in_job
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.model.journal import JournalDamaged, fold, read
from slurm_robust.model.probes import Answers, ProbeTarget
from slurm_robust.model.record import UNREADABLE
from slurm_robust.policy import takeover as policy
from slurm_robust.policy.takeover import Vote
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.environment import allocation_from_environment
from slurm_robust.slurm.errors import NotInAllocation, SlurmError
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.slurm.select import make_client
from slurm_robust.util.files import names_in, publish_once, read_regular, write_atomically
from slurm_robust.util.threads import start_thread
from slurm_robust.wire.epochs import EpochRecord, newest_epoch
from slurm_robust.wire.probes import probe

GUARD_S = 2 * 3600.0
"""An agent that ends stays for the controller that it has started: if Slurm tracks processes by cgroups, the
end of a step's task ends all that it has started.
"""

LAST_S = 20.0
"""The same after TERM: Slurm kills what is left."""

_MAX_BYTES = 1 << 16
_votes = msgspec.json.Decoder(Vote)


def _is_candidate(node: str, environ: Mapping[str, str]) -> bool:
    try:
        return node in allocation_from_environment(environ).nodes[: policy.CANDIDATES]
    except NotInAllocation:
        return False  # started by hand or by a test


Probe = Callable[[Mapping[str, ProbeTarget], float], Answers]


class TakeoverWatch:
    """Votes, and starts a controller, while the controller that this agent knows is silent."""

    def __init__(
        self,
        spec: JobSpec,
        job: JobDirectory,
        node: str,
        *,
        probing: Probe = probe,
        make: Callable[[], SlurmClient] = lambda: make_client("cli"),
        clock: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] = os.environ,
        program: Sequence[str] = (sys.executable, "-m", "slurm_robust.controller.takeover"),
        lacking: Sequence[str] = (),
    ) -> None:
        """``environ``: of this process, for the controller; ``program``: that takes over.

        ``lacking``: Slurm's commands that are not here.
        """
        self._spec = spec
        self._job = job
        self._node = node
        self._probe = probing
        self._make = make
        self._clock = clock
        self._environ = dict(environ)
        self._program = tuple(program)
        self._is_candidate = bool(spec.takeover_s) and _is_candidate(node, environ)
        self.note = ""
        """What a controller that is started here cannot do; "" if it can do all."""
        if self._is_candidate and lacking:
            self.note = (
                f"this agent finds no {' and no '.join(lacking)}: a controller that takes over here starts "
                "no agent again, and neither requeues nor ends the job; mount Slurm's commands into the "
                f"container ({page('containers.md')})"
            )
        self._thread: threading.Thread | None = None
        self._next = 0.0
        self._agreed: tuple[int, float] | None = None  # since when there is a quorum, for which epoch
        self._voted: Path | None = None
        self._started, self._start_at = 0, 0.0
        self._newest_start = "", 0.0  # by any node, and when it was first seen here
        self._ask_at, self._was_down = 0.0, False
        self._child: subprocess.Popen[bytes] | None = None

    def tick(self, silence_s: float, controller: EpochRecord | None, place: ProbeTarget) -> None:
        """Vote and act when it is due; ``place``: the address for probes of this node's kernel. Does not
        block.
        """
        if not self._is_candidate or controller is None:
            return
        silent = silence_s >= self._spec.takeover_s
        if not silent and self._voted is None:
            return
        now = self._clock()
        if now < self._next or (self._thread is not None and self._thread.is_alive()):
            return
        self._next = now + policy.AGAIN_S
        work = partial(self._round, silence_s, controller, place) if silent else self._withdraw
        self._thread = start_thread("takeover", partial(self._safely, work))

    def guard(self, is_term: Callable[[], bool]) -> None:
        """Wait for the controller that was started here, as it has this agent's step to live in.

        ``is_term``: whether Slurm has ordered the agent to end.
        """
        if self._child is None:
            return
        until = time.monotonic() + (LAST_S if is_term() else GUARD_S)
        while time.monotonic() < until:
            try:
                self._child.wait(0.2)
            except subprocess.TimeoutExpired:
                pass
            else:
                return
            if is_term():
                until = min(until, time.monotonic() + LAST_S)

    # -- the thread --------------------------------------------------------------------------------

    def _safely(self, work: Callable[[], None]) -> None:
        with suppress(OSError, JournalDamaged, SlurmError, CommandTimeout):
            work()  # if storage or Slurm does not answer now, the next round asks again

    def _round(self, silent_s: float, controller: EpochRecord, place: ProbeTarget) -> None:
        silent_since = time.time() - silent_s
        newest = newest_epoch(self._job.epochs)
        host = controller.node or controller.host
        if newest is None or newest.epoch != controller.epoch or self._node == host:
            self._withdraw()  # another one has come, or this node's own supervisor sees to it
            return
        state = fold(read(self._job.journal))
        gone = {node for node in state.evicted if node not in state.world.slots}
        voters = policy.voters(state.world.slots, state.spares, state.aside, {host, *state.lenders, *gone})
        if self._node not in voters:
            return
        place_of_host = ProbeTarget(addresses=(*controller.addresses, controller.host), port=controller.port)
        answers = self._probe({host: place_of_host}, policy.PROBE_S)
        is_answering = host in answers.nodes
        is_down = is_answering and self._is_down(host)
        if host not in answers.asked or not policy.is_lost(silent_s, answers=is_answering, is_down=is_down):
            self._withdraw()
            return
        vote = Vote(
            node=self._node,
            epoch=controller.epoch,
            place=place,
            silent_s=silent_s,
            reason="no controller" if is_answering else "no answer of its kernel",
        )
        self._voted = self._path(vote.epoch, vote.node)
        make_in_job(self._job.path, self._spec.run_id, self._voted.parent)
        write_atomically(self._voted, msgspec.json.encode(vote), durable=False)
        agreeing = self._agreeing(controller.epoch, voters)
        slurm = ""
        if len(agreeing) < policy.quorum(len(voters)) and not (
            slurm := self._ask_slurm(host, agreeing, voters)
        ):
            self._agreed = None
            return
        now = self._clock()
        if self._agreed is None or self._agreed[0] != controller.epoch:
            self._agreed = controller.epoch, now
        if now - self._agreed[1] >= policy.patience_s(self._node, agreeing):
            why = policy.describe(host, silent_s, answers=is_answering, agreeing=agreeing, slurm=slurm)
            self._start(controller.epoch, host, why, silent_since)

    def _withdraw(self) -> None:
        self._agreed = None
        if self._voted is not None:
            self._voted.unlink(missing_ok=True)
            self._voted = None

    def _path(self, epoch: int, node: str) -> Path:
        return self._job.votes / f"{epoch:06d}-{node}.json"

    def _agreeing(self, epoch: int, voters: tuple[str, ...]) -> tuple[str, ...]:
        """Return this node and those whose vote is as new and whose kernel answers, as voters are ordered."""
        places: dict[str, ProbeTarget] = {}
        # By the clock of storage, as those of the others are.
        own = self._path(epoch, self._node).stat().st_mtime
        names = names_in(self._job.votes)
        for node in voters:
            path = self._path(epoch, node)
            if node == self._node or path.name not in names:
                continue
            try:
                vote = _votes.decode(read_regular(path, _MAX_BYTES))
                if own - path.stat().st_mtime < policy.FRESH_S:
                    places[node] = vote.place
            except (OSError, *UNREADABLE):
                continue  # withdrawn just now
        answering = self._probe(places, policy.PROBE_S).nodes if places else frozenset()
        return tuple(node for node in voters if node == self._node or node in answering)

    def _is_down(self, host: str) -> bool:
        """Return whether Slurm, asked now and then, has given up a host that answers."""
        now = self._clock()
        if now < self._ask_at:
            return self._was_down
        self._ask_at, self._was_down = now + policy.ASK_EVERY_S, False
        (node,) = self._make().nodes([host])
        self._was_down = node.is_down
        return self._was_down

    def _ask_slurm(self, host: str, agreeing: tuple[str, ...], voters: tuple[str, ...]) -> str:
        """Return Slurm's word on a host that it does not reach either, "" if the votes are too few."""
        node, *others = self._make().nodes([host, *voters])
        if node.responding and not node.is_down:
            return ""
        living = {o.name for o in others if o.responding and not o.is_down} | {*agreeing}
        if not policy.suffices(len(agreeing), len(living)):
            return ""
        return f"{host} is {'+'.join(sorted(node.states))}"

    def _has_turn(self, epoch: int) -> bool:
        """Return whether no other node begins to start a controller; then it is this one's turn.

        Nodes see each other's votes at different times, so that several may take themselves for the first.
        """
        starts = sorted(name for name in names_in(self._job.votes) if name.startswith(f"{epoch:06d}.start-"))
        newest, now = starts[-1] if starts else "", self._clock()
        if newest != self._newest_start[0]:
            self._newest_start = newest, now
        if newest and now - self._newest_start[1] < policy.TURN_S:
            return False
        own = f"{epoch:06d}.start-{len(starts):02d}"
        self._newest_start = own, now
        return publish_once(self._job.votes / own, self._node.encode())

    def _start(self, epoch: int, host: str, why: str, silent_since: float) -> None:
        is_running = self._child is not None and self._child.poll() is None
        if self._started >= policy.MAX_CONTROLLERS or is_running or self._clock() < self._start_at:
            return
        if not self._has_turn(epoch):
            return
        self._started, self._start_at = self._started + 1, self._clock() + policy.TURN_S
        self._agreed = None
        self._child = subprocess.Popen(
            (
                *self._program,
                f"--job-dir={self._job.path}",
                f"--run-id={self._spec.run_id}",
                f"--epoch={epoch}",
                f"--taken-from={host}",
                f"--why={why}",
                f"--silent-since={silent_since:.3f}",
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environ,
            start_new_session=True,
        )
