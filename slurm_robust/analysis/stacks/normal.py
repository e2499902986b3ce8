"""Stacks in a form that is equal where the same code waits at the same place, on any node."""

from __future__ import annotations

import re
from functools import lru_cache

from slurm_robust.analysis.stacks.activity import Activity, Role, is_native, meaning
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Frame

# What stands behind these in a path is the same wherever Python and the packages are installed.
_INSTALLED = re.compile(r"^.*?(?:(?:site|dist)-packages|lib/python3[.\d]*)/(?!.*(?:site|dist)-packages/)")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+|\+\d+$")
_NUMBER = re.compile(r"\d+")
# A process begins here; what forked it is not its own doing.
_BEGINNINGS = ("_bootstrap", "_bootstrap_inner")
_PURPOSES = (Activity.DATA, Activity.CHECKPOINT)
_OVERRIDDEN = (Activity.COMPUTE, Activity.IO, Activity.HELPER)


class Doing(Record):
    """What one thread does. ``form`` are its normalised calls, one a line, innermost first.

    It begins with the call that tells what the thread does: below it are locks, sockets and clocks, where the
    moment of looking decides what is seen. ``is_pythons``: the thread was begun by Python, not by a library.
    """

    activity: Activity
    form: str
    is_idle: bool = False
    is_pythons: bool = True

    @property
    def call(self) -> str:
        """The innermost call that tells something."""
        return self.form.partition("\n")[0]


class Reader:
    """Reads stacks of one look at a training. Ranks in the same place share the work of reading them."""

    def __init__(self) -> None:
        self._known: dict[tuple[Frame, ...], Doing] = {}

    def read(self, frames: tuple[Frame, ...]) -> Doing:
        """What a thread with these calls, innermost first, does."""
        known = self._known.get(frames)
        if known is None:
            known = self._known[frames] = doing(frames)
        return known


def doing(frames: tuple[Frame, ...]) -> Doing:
    """The innermost call that tells decides, unless all of it serves data or a checkpoint."""
    own = _own(frames)
    activity, begin = _innermost(own)
    meanings = (meaning(_last(f.function), f.file) for f in own[begin:])
    if activity in _OVERRIDDEN:
        activity = next((m for m in meanings if m in _PURPOSES), activity)
    python = [frame for frame in own[begin:] if not is_native(frame.file)]
    return Doing(
        activity=activity,
        form="\n".join([normal(f.function, f.file, f.line) for f in python or own[begin:]]),
        is_idle=begin == len(own),
        is_pythons=bool(python) and len(own) < len(frames),
    )


def _innermost(frames: tuple[Frame, ...]) -> tuple[Activity, int]:
    """The activity, and the index of the call that says so: behind the last one for an idle thread."""
    waits = False
    for index, frame in enumerate(frames):
        found = meaning(_last(frame.function), frame.file)
        if found is Role.WAIT:
            waits = True
        elif found is Activity.COMPUTE and waits:
            return Activity.HELPER, index
        elif isinstance(found, Activity):
            return found, index
    return Activity.HELPER, len(frames)


def _own(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    for index, frame in enumerate(frames):
        if _last(frame.function) in _BEGINNINGS:
            return frames[:index]
    return frames


def _last(function: str) -> str:
    """``Condition.wait`` and ``wait``, as tools name the same function, to ``wait``."""
    return function if "::" in function else function.rpartition(".")[2]


@lru_cache(maxsize=8192)
def normal(function: str, file: str, line: int) -> str:
    """One call: ``all_reduce torch/distributed/distributed_c10d.py``, ``train train.py:90``.

    Lines count in the user's own code only, where they tell one wait from another; in a library's loop they
    depend on the moment. Native calls have the library's name without the folder.
    """
    name = _ADDRESS.sub("", _last(function))
    if file.startswith("<") or "torchinductor_" in file:
        return f"{name} {_NUMBER.sub('', file) if file.startswith('<') else '<inductor>'}"
    if is_native(file):
        return f"{name} {file.rpartition('/')[2].partition('.so')[0]}"
    library = _INSTALLED.sub("", file)
    if library != file:
        return f"{name} {library}"
    return f"{name} {file.rpartition('/')[2]}:{line}" if file else name
