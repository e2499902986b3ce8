"""The classes of time, and what other systems call them.

* *Google*: the names of ml-goodput-measurement 0.2 (``BadputType``).
* *Meta*: the parts of effective training time (pytorch.org, "effective training time", 2026): time to start,
  time to recover, failures, idleness.
* *Paper*: the ByteRobust paper (arXiv 2509.16293), section 2 and figure 3: productive time, and detection,
  localisation and failover as the parts of unproductive time; its table 6 counts the last two of them.
"""

from __future__ import annotations

from enum import Enum

from slurm_robust.model.record import Record


class TimeClass(str, Enum):
    """What a job does with a moment of its life."""

    QUEUED = "queued"
    """It waits for nodes."""

    REQUEUE_DELAY = "requeue delay"
    """Between two runs: the last one winds up, or Slurm does not start the job yet."""

    BETWEEN = "between jobs"
    """Between two chapters of a training: one job of it has ended, and the next is not submitted yet."""

    STARTING = "starting"
    """From Slurm's start, or the order to launch, to the first step, but for the restore."""

    RESTORING = "restoring"
    """``restore()``."""

    PRODUCTIVE = "productive"
    """Steps that are done for the first time, at the job's own baseline."""

    RECOMPUTING = "recomputing"
    """Steps that are done again, and the part of a step that a fault cut off. When a release is rolled back,
    the release before does its steps again, as after a generation that ended in NaN: that time is lost, and
    the incident of the rollback costs it. So each step counts once, as productive when it was first done.
    """

    DETECTING = "detecting"
    """From a fault until it was seen."""

    DECIDING = "deciding"
    """From there until it was decided what to do: stack samples, the end of the workers, the policy."""

    TESTING = "testing"
    """Diagnostics, quick tests and replays, while training is stopped."""

    RECOVERING = "recovering"
    """From the decision until the order to launch: standbys, companions, agents."""

    CHECKPOINT = "checkpoint-blocked"
    """Training waits for a checkpoint, or has ended and the newest one is written to storage."""

    SLOW = "slow"
    """What steps that are done for the first time take beyond the job's own baseline."""

    UPDATING = "updating"
    """From the moment at which ranks are held for an update of the code to the first step of the new release,
    with its start phases and its restore; also a phase ``update`` that the script announces. An update that a
    recovery takes along costs nothing of its own: that time is the incident's.
    """

    EVALUATING = "evaluating"
    """A phase ``evaluation`` that the script, or its framework, announces."""

    OTHER_PHASE = "other phase"
    """Any other phase that the script announces."""

    SUSPENDED = "suspended"
    """Slurm had suspended the job, or what its controller runs on hung: the controller stood still, and no
    step came of it. No node, network or code is blamed for it, and no incident costs it.
    """

    IDLE = "idle"
    """Nothing of the above: nodes are held, and nothing is known to happen."""


EFFECTIVE = frozenset({TimeClass.PRODUCTIVE, TimeClass.SLOW})
"""The effective training time of the ETTR: steps that count, at whatever speed. How fast they are is another
matter (the paper's MFU), which :attr:`TimeClass.SLOW` shows."""


class Part(str, Enum):
    """The parts of a job's time that a reader sees first; each class of time belongs to one of them."""

    TRAINING = "training"
    """Steps that are done for the first time, at the job's own baseline."""

    SLOW = "slow steps"
    """What such steps take beyond the baseline."""

    PHASES = "evaluation and other phases"
    """What the script announces between its steps."""

    CHECKPOINTS = "checkpoints"
    """Training waits for a checkpoint."""

    UPDATES = "updates"
    """Training stands still for a change of its code."""

    LOST_STEPS = "lost steps"
    """Steps that are done again, and what a fault cut off."""

    RECOVERY = "recovery"
    """From a fault to the order to launch again."""

    RESTART = "startup"
    """From the start by Slurm, or the order to launch, to the first step."""

    QUEUE = "queue"
    """The job holds no nodes and waits for some."""

    IDLE = "suspended or idle"
    """Nodes are held, and nothing of the above happens."""


PARTS: dict[TimeClass, Part] = {
    TimeClass.PRODUCTIVE: Part.TRAINING,
    TimeClass.SLOW: Part.SLOW,
    TimeClass.EVALUATING: Part.PHASES,
    TimeClass.OTHER_PHASE: Part.PHASES,
    TimeClass.CHECKPOINT: Part.CHECKPOINTS,
    TimeClass.UPDATING: Part.UPDATES,
    TimeClass.RECOMPUTING: Part.LOST_STEPS,
    TimeClass.DETECTING: Part.RECOVERY,
    TimeClass.DECIDING: Part.RECOVERY,
    TimeClass.TESTING: Part.RECOVERY,
    TimeClass.RECOVERING: Part.RECOVERY,
    TimeClass.STARTING: Part.RESTART,
    TimeClass.RESTORING: Part.RESTART,
    TimeClass.QUEUED: Part.QUEUE,
    TimeClass.REQUEUE_DELAY: Part.QUEUE,
    TimeClass.BETWEEN: Part.QUEUE,
    TimeClass.SUSPENDED: Part.IDLE,
    TimeClass.IDLE: Part.IDLE,
}


class OtherNames(Record):
    """One class in the words of others; "" if they have no name for it."""

    google: str
    meta: str
    paper: str


NAMES: dict[TimeClass, OtherNames] = {
    TimeClass.QUEUED: OtherNames(google="", meta="idleness", paper=""),
    TimeClass.REQUEUE_DELAY: OtherNames(
        google="INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", meta="time to recover", paper="failover"
    ),
    TimeClass.BETWEEN: OtherNames(google="", meta="idleness", paper=""),
    TimeClass.STARTING: OtherNames(google="PROGRAM_STARTUP", meta="time to start", paper="failover"),
    TimeClass.RESTORING: OtherNames(
        google="UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME", meta="time to start", paper="failover"
    ),
    TimeClass.PRODUCTIVE: OtherNames(google="goodput", meta="effective training time", paper="productive"),
    TimeClass.RECOMPUTING: OtherNames(
        google="WASTED_PROGRESS_FROM_DISRUPTION", meta="failures", paper="failover (recomputation)"
    ),
    TimeClass.DETECTING: OtherNames(
        google="INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", meta="time to recover", paper="detection"
    ),
    TimeClass.DECIDING: OtherNames(
        google="INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", meta="time to recover", paper="localisation"
    ),
    TimeClass.TESTING: OtherNames(
        google="INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", meta="time to recover", paper="localisation"
    ),
    TimeClass.RECOVERING: OtherNames(
        google="INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", meta="time to recover", paper="failover"
    ),
    TimeClass.CHECKPOINT: OtherNames(
        google="UNPRODUCTIVE_CHECKPOINT_SAVE_TIME", meta="failures", paper="unproductive"
    ),
    TimeClass.SLOW: OtherNames(google="OTHER", meta="", paper="unproductive (MFU decline)"),
    TimeClass.UPDATING: OtherNames(
        google="CUSTOM_BADPUT_EVENTS", meta="time to start", paper="failover (hot update)"
    ),
    TimeClass.EVALUATING: OtherNames(google="CUSTOM_BADPUT_EVENTS", meta="", paper="productive"),
    TimeClass.OTHER_PHASE: OtherNames(google="CUSTOM_BADPUT_EVENTS", meta="", paper="unproductive"),
    TimeClass.SUSPENDED: OtherNames(google="OTHER", meta="idleness", paper="unproductive"),
    TimeClass.IDLE: OtherNames(google="OTHER", meta="idleness", paper="unproductive"),
}
