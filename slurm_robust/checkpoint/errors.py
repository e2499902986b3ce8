"""What can be wrong with a checkpoint or with its use.

::

    CheckpointError
    ├── MissingCheckpoint      the checkpoint, or a part of it, is not there
    ├── CorruptPart            a part is truncated, damaged or no part at all
    ├── ForeignPart            a part belongs to another run, checkpoint or rank than its name says
    ├── WorldSizeMismatch      it was written by another number of ranks
    ├── EntryMismatch          it holds other entries, or an entry does not take its state
    └── WrongUse               the training script uses the library wrongly (also a ValueError)
        └── UnsupportedState   an entry's state_dict holds what cannot be stored as plain data
"""

from __future__ import annotations

from slurm_robust.model.errors import SrobustError


class CheckpointError(SrobustError):
    """Root of this package's errors. Messages say what to do."""


class MissingCheckpoint(CheckpointError):
    """The checkpoint, or this rank's part of it, is not there."""


class CorruptPart(CheckpointError):
    """A part is truncated, damaged, or no part at all."""


class ForeignPart(CheckpointError):
    """A part belongs to another run, checkpoint or rank than its place says."""


class WorldSizeMismatch(CheckpointError):
    """The checkpoint was written by another number of ranks."""


class EntryMismatch(CheckpointError):
    """The checkpoint holds other entries than the script names, or one refuses its state."""


class NotWritten(CheckpointError):
    """A part could not be written. The checkpoints before it are untouched."""


class WrongUse(CheckpointError, ValueError):
    """The training script uses the library wrongly."""


class UnsupportedState(WrongUse):
    """An entry's ``state_dict`` holds something that cannot be stored as plain data."""
