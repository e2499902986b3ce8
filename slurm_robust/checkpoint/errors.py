"""What can be wrong with a checkpoint or with its use.

::

    CheckpointError
    ├── UnusableCopy           this copy cannot be restored; another one may do
    │   ├── MissingCheckpoint  the checkpoint, or a part of it, is not there
    │   ├── CorruptPart        a part is truncated, damaged or no part at all
    │   ├── ForeignPart        a part belongs to another run, checkpoint or rank than its name says
    │   └── UnreadableCopy     reading it failed (also an OSError)
    ├── WorldSizeMismatch      it was written by another number of ranks
    ├── CannotReshard          it was taken by another number of ranks, and cannot be resharded for these
    ├── CannotReseed           parts of it are lost, and held more than random generators
    ├── EntryMismatch          it holds other entries, or an entry does not take its state
    └── WrongUse               the training script uses the library wrongly (also a ValueError)
        └── UnsupportedState   an entry's state_dict holds what cannot be stored as plain data
"""

from __future__ import annotations

from slurm_robust.model.errors import SrobustError

ANEW = (
    "to begin anew, submit a new job (of a training: with --fresh), or outside of srobust run name another "
    "checkpoint folder"
)
"""What to do if a checkpoint and the script do not fit together, and the script is right."""


class CheckpointError(SrobustError):
    """Root of this package's errors. Messages say what to do."""


class UnusableCopy(CheckpointError):
    """This copy of a checkpoint cannot be restored; another one may do."""


class MissingCheckpoint(UnusableCopy):
    """The checkpoint, or this rank's part of it, is not there."""


class CorruptPart(UnusableCopy):
    """A part is truncated, damaged, or no part at all."""


class ForeignPart(UnusableCopy):
    """A part belongs to another run, checkpoint or rank than its place says."""


class UnreadableCopy(UnusableCopy, OSError):
    """A disk or a file system refused to be read."""


class WorldSizeMismatch(CheckpointError):
    """The checkpoint was written by another number of ranks."""


class CannotReshard(CheckpointError):
    """The checkpoint was taken by another number of ranks, and cannot be resharded for these."""


class CannotReseed(CheckpointError):
    """The parts of ranks that are lost held more than random generators, so they cannot be made anew."""


class EntryMismatch(CheckpointError):
    """The checkpoint holds other entries than the script names, or one refuses its state."""


class NotWritten(CheckpointError):
    """A part could not be written. The checkpoints before it are untouched."""


class WrongUse(CheckpointError, ValueError):
    """The training script uses the library wrongly."""


class UnsupportedState(WrongUse):
    """An entry's ``state_dict`` holds something that cannot be stored as plain data."""
