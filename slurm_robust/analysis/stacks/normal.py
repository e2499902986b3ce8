"""Stacks in a form that is equal where the same code waits at the same place, on any node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from slurm_robust.analysis.stacks.activity import Activity, Meaning, Role, is_native, meaning
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


class Call(Record):
    """One call: normalised, what it says, and whether a process or thread of Python begins with it."""

    text: str
    meaning: Meaning
    is_native: bool
    is_beginning: bool


class Doing(Record):
    """What one thread does. ``form`` are its normalised calls, one a line, innermost first.

    It begins with the call that shows what the thread does: below it are locks, sockets and clocks, where the
    moment of sampling decides what is seen. ``is_pythons``: the thread was begun by Python, not by a library.
    """

    activity: Activity
    form: str
    is_idle: bool = False
    is_pythons: bool = True

    @property
    def call(self) -> str:
        """The innermost call that means something."""
        return self.form.partition("\n")[0]


class Reader:
    """Reads the stacks of one sample round. Ranks in the same place share the work of reading them."""

    def __init__(self) -> None:
        self._known: dict[tuple[Frame, ...], Doing] = {}

    def read(self, frames: tuple[Frame, ...]) -> Doing:
        """What a thread with these calls, innermost first, does."""
        known = self._known.get(frames)
        if known is None:
            known = self._known[frames] = doing(frames)
        return known


def doing(frames: tuple[Frame, ...]) -> Doing:
    """The innermost call that means something decides, unless all of it serves data or a checkpoint."""
    own = []
    for frame in frames:
        call = read_call(frame)
        if call.is_beginning:
            break
        own.append(call)
    activity, begin = _innermost(own)
    meaningful = own[begin:]
    if activity in _OVERRIDDEN:
        purposes = (call.meaning for call in meaningful if call.meaning in _PURPOSES)
        activity = next((p for p in purposes if isinstance(p, Activity)), activity)
    python = [call.text for call in meaningful if not call.is_native]
    return Doing(
        activity=activity,
        form="\n".join(python or [call.text for call in meaningful]),
        is_idle=begin == len(own),
        is_pythons=bool(python) and len(own) < len(frames),
    )


def _innermost(calls: Sequence[Call]) -> tuple[Activity, int]:
    """The activity, and the index of the call that says so: behind the last one for an idle thread."""
    waits = False
    for index, call in enumerate(calls):
        if call.meaning is Role.WAIT:
            waits = True
        elif call.meaning is Activity.COMPUTE and waits:
            return Activity.HELPER, index
        elif isinstance(call.meaning, Activity):
            return call.meaning, index
    return Activity.HELPER, len(calls)


@lru_cache(maxsize=1 << 14)
def read_call(frame: Frame) -> Call:
    """One call by itself."""
    # Tools name the same function Condition.wait or wait; C++ has its own separator.
    name = frame.function if "::" in frame.function else frame.function.rpartition(".")[2]
    return Call(
        text=_normal(name, frame.file, frame.line),
        meaning=meaning(name, frame.file),
        is_native=is_native(frame.file),
        is_beginning=name in _BEGINNINGS,
    )


def _normal(function: str, file: str, line: int) -> str:
    """``all_reduce torch/distributed/distributed_c10d.py``, ``train train.py:90``.

    Lines count in the user's own code only, where they distinguish one wait from another; in a library's loop
    they depend on the moment. Native calls have the library's name without the folder.
    """
    name = _ADDRESS.sub("", function)
    if "torchinductor_" in file:
        return f"{name} <inductor>"
    if file.startswith("<"):
        return f"{name} {_NUMBER.sub('', file)}"
    if is_native(file):
        return f"{name} {file.rpartition('/')[2].partition('.so')[0]}"
    library = _INSTALLED.sub("", file)
    if library != file:
        return f"{name} {library}"
    return f"{name} {file.rpartition('/')[2]}:{line}" if file else name
