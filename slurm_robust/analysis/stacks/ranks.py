"""What each rank does: its main thread, and those for which this one waits.

Stacks are read in a form that is equal if the same code waits at the same place, on any node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import structs

from slurm_robust.analysis.stacks.activity import Activity, Meaning, Role, is_native, meaning
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Frame, ProcessKind, ProcessStacks, RankStacks, ThreadStack

_HALTED = {
    "T": Activity.STOPPED,
    "t": Activity.STOPPED,
    "Z": Activity.GONE,
    "X": Activity.GONE,
    "x": Activity.GONE,
}
_HELPERS = {ProcessKind.LOADER: "data loader", ProcessKind.WRITER: "checkpoint writer"}
_SERVED_BY = {
    Activity.DATA: (ProcessKind.LOADER,),
    Activity.CHECKPOINT: (ProcessKind.WRITER,),
    Activity.HELPER: (ProcessKind.LOADER, ProcessKind.WRITER),
}


# What stands behind these in a path is the same wherever Python and the packages are installed.
_INSTALLED = re.compile(r"^.*?(?:(?:site|dist)-packages|lib/python3[.\d]*)/(?!.*(?:site|dist)-packages/)")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+|\+\d+$")
_NUMBER = re.compile(r"\d+")
# A process begins here; what forked it is not its own doing.
_BEGINNINGS = ("_bootstrap", "_bootstrap_inner")
_PURPOSES = (Activity.DATA, Activity.CHECKPOINT)
_OVERRIDDEN = (Activity.COMPUTE, Activity.IO, Activity.HELPER)


class Call(Record):
    """One call."""

    text: str
    """Normalised."""
    meaning: Meaning
    is_native: bool
    is_beginning: bool
    """A process or thread of Python begins with it."""


class _ThreadActivity(Record):
    """What one thread does."""

    activity: Activity
    form: str
    """Its normalised calls, one a line, innermost first. They begin with the call that shows what the thread
    does: below it are locks, sockets and clocks, at which the moment of sampling decides what is seen.
    """
    is_idle: bool = False
    is_pythons: bool = True
    """Python began the thread, not a library."""

    @property
    def call(self) -> str:
        """The innermost call that means something."""
        return self.form.partition("\n")[0]


class Reader:
    """Reads the stacks of one sample round. Ranks in the same place share the work of reading them."""

    def __init__(self) -> None:
        self._known: dict[tuple[Frame, ...], _ThreadActivity] = {}

    def read(self, frames: tuple[Frame, ...]) -> _ThreadActivity:
        """Return what a thread with these calls, innermost first, does."""
        known = self._known.get(frames)
        if known is None:
            known = self._known[frames] = doing(frames)
        return known


def doing(frames: tuple[Frame, ...]) -> _ThreadActivity:
    """Return what a thread does: the innermost call that means something decides, unless all of it serves
    data or a checkpoint.
    """
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
    return _ThreadActivity(
        activity=activity,
        form="\n".join(python or [call.text for call in meaningful]),
        is_idle=begin == len(own),
        is_pythons=bool(python) and len(own) < len(frames),
    )


def _innermost(calls: Sequence[Call]) -> tuple[Activity, int]:
    """Return the activity, and the index of the call that says so: behind the last one for an idle thread."""
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
    """Read one call by itself."""
    # Tools name the same function Condition.wait or wait; C++ has its own separator.
    name = frame.function if "::" in frame.function else frame.function.rpartition(".")[2]
    return Call(
        text=_normal(name, frame.file, frame.line),
        meaning=meaning(name, frame.file),
        is_native=is_native(frame.file),
        is_beginning=name in _BEGINNINGS,
    )


def _normal(function: str, file: str, line: int) -> str:
    """Return ``all_reduce torch/distributed/distributed_c10d.py``, ``train train.py:90``.

    Lines count only in the user's own code, in which they distinguish one wait from another; in a library's
    loop they depend on the moment. Native calls have the library's name without the folder.
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


class RankView(Record):
    """What one rank does."""

    activity: Activity
    form: str = ""
    """Equal for ranks that wait at the same place of the same code."""
    helper: str = ""
    """Which process the rank waits for and what that one does, "" when there is none."""
    sleeps: bool = False
    """At this moment it used no processor; that is shown, and not compared."""

    @property
    def key(self) -> str:
        """What is compared: ranks with the same key do the same."""
        return "\n".join(filter(None, (self.activity.value, self.form, self.helper)))

    def describe(self) -> str:
        """Return ``waits for data: _try_get_data ...; its data loader ...``."""
        call = self.form.partition("\n")[0]
        is_asleep = self.sleeps and self.activity is Activity.COMPUTE
        return (
            ("sleeps" if is_asleep else self.activity.value)
            + (f" in {call}" if call else "")
            + (f"; {self.helper}" if self.helper else "")
        )


def fingerprint(stack: RankStacks) -> str:
    """Return what a rank does, as text that is equal for ranks which wait at the same place of the same code.

    It has no addresses, thread ids, folders of the machine or lines of library code, and no threads or
    processes but the main one and those for which it waits.
    """
    return view(stack, Reader()).key


def views(
    stacks: Iterable[RankStacks], layout: ParallelLayout, missing: Collection[int] = ()
) -> dict[int, RankView]:
    """Return all ranks of the world; those that are ``missing`` or not in ``stacks`` are silent."""
    reader = Reader()
    world, absent = layout.world_size, frozenset(missing)
    taken = {s.rank: view(s, reader) for s in stacks if s.rank < world and s.rank not in absent}
    silent = RankView(activity=Activity.SILENT)
    return {rank: taken.get(rank, silent) for rank in range(world)}


def without_libraries(stack: RankStacks) -> RankStacks:
    """Return its Python calls only."""

    def python(thread: ThreadStack) -> ThreadStack:
        return structs.replace(thread, frames=tuple(f for f in thread.frames if not is_native(f.file)))

    processes = tuple(structs.replace(p, threads=tuple(map(python, p.threads))) for p in stack.processes)
    return structs.replace(stack, processes=processes)


def shows_libraries(stack: RankStacks) -> bool:
    """Return whether calls in libraries are there: they may have been asked for and not been read in time."""
    threads = (t for p in stack.processes if p.kind is ProcessKind.WORKER for t in p.threads)
    return any(is_native(frame.file) for thread in threads for frame in thread.frames)


def view(stack: RankStacks, reader: Reader) -> RankView:
    """Return what this rank does."""
    worker = next((p for p in stack.processes if p.kind is ProcessKind.WORKER), None)
    if worker is None:
        return RankView(activity=Activity.SILENT)
    if worker.state in _HALTED:
        return RankView(activity=_HALTED[worker.state])
    if not worker.state and not worker.threads:
        return RankView(activity=Activity.GONE)  # the agent has searched for it, and there is no such process
    doing = _main(worker.threads, reader)
    # A wait for peers is what matters even if the moment of sampling met a system call.
    if worker.state == "D" and (doing is None or doing.activity is not Activity.PEERS):
        return RankView(activity=Activity.KERNEL, form=doing.form if doing else "")
    if doing is None:
        return RankView(activity=Activity.SILENT)
    helpers = [p for p in stack.processes if p.kind in _SERVED_BY.get(doing.activity, ())]
    return structs.replace(_with_helper(doing, helpers, reader), sleeps=worker.state == "S")


def _main(threads: Sequence[ThreadStack], reader: Reader) -> _ThreadActivity | None:
    """Return what the main thread does, or the threads that it waits for."""
    if not threads:
        return None
    main = next((t for t in threads if t.is_main or t.name == "MainThread"), threads[0])
    doing = reader.read(main.frames)
    if doing.activity not in (Activity.HELPER, Activity.DEVICE):
        return doing
    others = [reader.read(t.frames) for t in threads if t is not main]
    if doing.activity is Activity.DEVICE:
        # Backward runs in threads of autograd's own, which show up as soon as Python code runs in them.
        busy = [d for d in others if d.form and not d.is_idle and not d.is_pythons]
    else:
        busy = [d for d in others if d.activity is not Activity.HELPER]
    if not busy:
        return doing
    chosen = min(busy, key=lambda d: (d.activity.waits, d.form))
    return _ThreadActivity(activity=chosen.activity, form=f"{chosen.form}\n{doing.form}")


def _with_helper(doing: _ThreadActivity, helpers: Sequence[ProcessStacks], reader: Reader) -> RankView:
    """Return the view with its helper: a halted one halts its rank; a busy one is named."""
    halted: Mapping[str, Activity] = {**_HALTED, "D": Activity.KERNEL}
    for state, activity in halted.items():
        if any(p.state == state for p in helpers):
            kind = next(_HELPERS[p.kind] for p in helpers if p.state == state)
            return RankView(activity=activity, form=doing.form, helper=f"it is the rank's {kind}")
    busy = min(_busy(helpers, reader), default="")
    return RankView(activity=doing.activity, form=doing.form, helper=busy)


def _busy(helpers: Iterable[ProcessStacks], reader: Reader) -> Iterator[str]:
    """Yield what each helper does that does not itself wait for work."""
    for process in helpers:
        main = next((t for t in process.threads if t.is_main), None)
        doing = reader.read(main.frames) if main else None
        if doing is None or doing.is_idle:
            continue
        if not doing.call.startswith("_worker_loop "):  # the place at which a loader waits for orders
            yield f"its {_HELPERS[process.kind]} is in {doing.call}"
