"""What the parts of a simulated job share: time, chance, network, storage, and the addresses of
controllers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from slurm_robust.config.job import JobConfig
from slurm_robust.engine import questions as qs
from slurm_robust.model.job import CommandKind
from slurm_robust.model.record import Record
from slurm_robust.model.release import Release
from slurm_robust.testing.clock import FakeClock
from slurm_robust.testing.sim.network import Network
from slurm_robust.testing.sim.timeline import Timeline
from slurm_robust.testing.sim.training import FakeStorage
from slurm_robust.wire.epochs import EpochRecord
from slurm_robust.wire.messages import Ack, FromController, UpdateReply

Mailbox = Callable[[str, bytes], None]
"""Takes a message, and the id of the agent that has sent it."""


class Tell(Protocol):
    """The way of an answer back to the controller that asked."""

    def __call__(self, answer: object, *, is_last: bool = True) -> None:
        """Have the controller hear ``answer`` in its next turn; more may follow one that is not the last."""


Reply = Callable[[Any, Tell], None]
"""Takes a question and answers it, now, later, several times or never."""


def never(asked: qs.Question[Any], tell: Tell) -> None:
    """Leave a question without an answer."""


def always(*answers: object) -> Reply:
    """Return a reply that gives these answers to each question; the last one ends it."""

    def reply(asked: qs.Question[Any], tell: Tell) -> None:
        for number, answer in enumerate(answers, start=1):
            tell(answer, is_last=number == len(answers))

    return reply


class SimulatedPace(Record):
    """How long things take in a simulated job, in seconds; two numbers are the bounds of a draw."""

    step_s: float = 5.0
    agent_s: tuple[float, float] = (0.8, 2.0)
    """Seconds from srun until an agent speaks."""
    srun_aborts_s: float = math.inf
    """Seconds until an srun with a dead node ends on all of its nodes (Slurm 22.05); inf: it goes on."""
    zygote_s: tuple[float, float] = (1.0, 4.0)
    """Seconds from the start of a zygote until it can fork workers, and for it to load more modules."""
    restore_s: tuple[float, float] = (1.0, 4.0)
    term_s: tuple[float, float] = (0.05, 1.5)
    """Seconds from SIGTERM until a worker ends."""
    copy_s: tuple[float, float] = (0.05, 0.5)
    """Seconds from a step until a peer has a node's snapshots."""
    write_s: tuple[float, float] = (0.2, 2.0)
    """Seconds for a node to put its parts of a checkpoint on storage."""
    slurm_s: tuple[float, float] = (0.02, 0.4)
    """Seconds for an answer of Slurm or of storage."""
    test_s: tuple[float, float] = (5.0, 15.0)
    """Seconds for a test of nodes."""
    lend_s: float = 2.0
    """Seconds until companions lend their nodes; those that have none by then are cancelled."""
    peers_notice_s: tuple[float, float] | None = None
    """Seconds from the end of a rank until the others, which lost it, end too; None: they wait for it."""
    turn_s: float = 0.25
    """Seconds between two turns of a controller's loop without news."""
    rest_s: float = 0.02
    """Seconds from news to its next turn; longer ones take in more news together, and are cheaper."""
    slurm_gives_up_s: float = 300.0
    """Seconds from the death of a node until Slurm calls it DOWN (SlurmdTimeout)."""
    kill_wait_s: float = 30.0
    """Seconds from Slurm's SIGTERM to its SIGKILL (KillWait)."""


class SimulatedRelease(Record):
    """A release of the simulated script, by what is wrong with it."""

    imports: dict[str, str] = {}
    """Nodes on which its imports fail, and why."""
    rehearsal: str = ""
    """Why rehearsals of it fail; they pass without."""
    confined: bool = False
    """Rehearsals of it fail at what is forbidden to them only."""
    fails_at: int = -1
    """The first step after which one of its ranks raises an exception; -1: none does."""
    hangs_at: int = -1
    """The first step after which one of its ranks stands still."""
    spoils_at: int = -1
    """The step from which its numbers are not finite."""
    factor: float = 1.0
    """How many times as long as others its steps take."""
    fits: bool = True
    """Its model fits checkpoints of other releases."""
    stepless: bool = False
    """It makes no steps that can be counted; rehearsals of it do not end before their time."""
    image: str = ""
    """The container image that it brings."""
    has_config: bool = False
    """It brings a configuration."""


def release_of(name: str, release: SimulatedRelease) -> Release:
    """Return what the job directory says of a simulated release."""
    return Release(
        name=name,
        kind=CommandKind.SCRIPT,
        command=("train.py",),
        image=release.image,
        has_config=release.has_config,
    )


class Environment:
    """One simulation, without its nodes and its controllers."""

    def __init__(self, config: JobConfig, pace: SimulatedPace, seed: int, clock: FakeClock) -> None:
        self.config, self.pace = config, pace
        self.chance = Random(seed)
        self.timeline = Timeline(clock)
        self.network = Network(self.timeline, self.chance)
        self.storage = FakeStorage()
        self.epochs: list[EpochRecord] = []
        """Controllers that took the job, as the job directory names them."""
        self.replies: dict[type[qs.Question[Any]], Reply] = {}
        """What a test answers to questions of a kind, in place of the pretended world."""
        self.sent: list[tuple[str, FromController]] = []
        """What controllers have sent to the agent of a node, without acknowledgements."""
        self.releases: dict[str, SimulatedRelease] = {}
        """What is in the job's ``releases/``, by name."""
        self.ran: dict[int, str] = {}
        """The release that each generation runs."""
        self.answers: dict[str, UpdateReply] = {}
        """What controllers have answered to requests for updates, by their tokens."""
        self.mailboxes: dict[int, tuple[str, Mailbox]] = {}
        """By the epoch of a controller that lives its node, and what takes its messages."""
        self._pids = 1000

    @property
    def now(self) -> float:
        """Seconds since the simulation began."""
        return self.timeline.now

    def after(self, bounds: tuple[float, float], act: Callable[[], None]) -> None:
        """Plan ``act`` after a time that is drawn between ``bounds``."""
        self.timeline.after(self.chance.uniform(*bounds), act)

    def next_pid(self) -> int:
        """Return a number that no other process has."""
        self._pids += 1
        return self._pids

    def note_sent(self, node: str, message: FromController) -> None:
        """Keep what a controller sends, for the test to see."""
        if not isinstance(message, Ack):
            self.sent.append((node, message))

    def post(self, node: str, agent: str, epoch: int, data: bytes) -> None:
        """Send ``data`` from an agent to the controller ``epoch``; lost if that one is gone."""
        if (found := self.mailboxes.get(epoch)) is None:
            return

        def arrive(data: bytes) -> None:
            if self.mailboxes.get(epoch) is found:
                found[1](agent, data)

        self.network.send(node, found[0], data, arrive)
