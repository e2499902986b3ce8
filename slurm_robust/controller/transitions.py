"""What a stage returns to name the one that comes next. :mod:`.stages.table` builds it."""

from __future__ import annotations

from typing import TypeAlias

from slurm_robust.model.incident import Diagnose, GenerationFailed, Replay, Symptom
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Localisation


class Trouble(Record):
    """Something that ends productive training. ``detect_s``: how long it took to be seen.

    ``named``: nodes that the observation names by itself, with the reason. ``hint``: it may as well be none,
    so training is ended only if its stacks show a culprit. ``good_step``: checkpoints of this generation
    count up to there only, -1: none does, None: nothing speaks against the weights. ``times``: how often it
    was told while it went on.
    """

    symptom: Symptom
    detail: str
    detect_s: float
    named: dict[str, str] = {}
    hint: bool = False
    good_step: int | None = None
    times: int = 1


class Why(Record):
    """Why a generation is ended, and where its stacks place the fault."""

    trouble: Trouble
    localisation: Localisation | None = None


class ToGathering(Record):
    """Wait until every slot has a node that can start workers.

    ``start``: agents must be started (again); ``expected``: those of an earlier controller may come
    by themselves first.
    """

    start: bool = False
    expected: bool = False


class ToLaunching(Record):
    """Send the launch orders of the next generation."""


class ToRunning(Record):
    """All ranks live. ``agents``: node to the id of the agent that holds its ranks, as launched.

    ``launched``: monotonic time of the launch, None where it is not known or long ago.
    """

    agents: dict[str, str]
    launched: float | None = None


class ToReconnecting(Record):
    """Another controller launched the generation that runs; find its agents again."""


class ToLocalising(Record):
    """Training hangs, or is slow: see by the stacks of all ranks where. The workers go on meanwhile."""

    agents: dict[str, str]
    trouble: Trouble


class ToObserving(Record):
    """Observe mode: trouble came, and the training is left to its fate."""

    agents: dict[str, str]
    why: Why


class ToUnreachable(Record):
    """Many nodes fell silent at once, which convicts none of them: wait for them.

    ``failed``: how the generation ended, where it has ended; else it is left to train.
    """

    agents: dict[str, str] = {}
    why: Why | None = None
    failed: GenerationFailed | None = None


class ToCheckpointing(Record):
    """The end of the run is near: have a checkpoint taken first."""

    agents: dict[str, str]


class ToStopping(Record):
    """End all workers of the generation. ``why``: none where nothing is wrong with it.

    ``waited``: nodes that cannot be reached have been waited for.
    """

    reason: str
    why: Why | None = None
    waited: bool = False


class ToDeciding(Record):
    """Ask the policy about a failure."""

    failed: GenerationFailed


class ToTesting(Record):
    """Test the held nodes, by ``action``, before the policy is asked about ``failed`` again."""

    failed: GenerationFailed
    action: Diagnose | Replay


class ToRequeueing(Record):
    """Give the allocation back; the same job starts again without ``exclude``."""

    exclude: tuple[str, ...]
    reason: str
    failure: bool


class ToEnding(Record):
    """End agents and controller with ``code``. ``final``: the run is over for good."""

    code: int
    reason: str
    final: bool = True


class ToSaving(Record):
    """Put what only memory holds on storage, then leave the allocation by ``then``."""

    then: ToRequeueing | ToEnding


Transition: TypeAlias = (
    ToGathering
    | ToLaunching
    | ToRunning
    | ToLocalising
    | ToReconnecting
    | ToObserving
    | ToUnreachable
    | ToCheckpointing
    | ToStopping
    | ToDeciding
    | ToTesting
    | ToRequeueing
    | ToSaving
    | ToEnding
)
