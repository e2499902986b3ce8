"""What each rank does: its main thread, and those for which this one waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from slurm_robust.analysis.stacks.activity import Activity, is_native
from slurm_robust.analysis.stacks.normal import Doing, Reader
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import ProcessKind, ProcessStacks, RankStacks, ThreadStack

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


class RankView(Record):
    """One rank. ``form`` is equal for ranks that wait at the same place of the same code.

    ``helper`` says which process the rank waits for and what that one does, "" when there is none.
    ``sleeps``: at this moment it used no processor; that is shown, and not compared.
    """

    activity: Activity
    form: str = ""
    helper: str = ""
    sleeps: bool = False

    @property
    def key(self) -> str:
        """What is compared: ranks with the same key do the same."""
        return "\n".join(filter(None, (self.activity.value, self.form, self.helper)))

    def describe(self) -> str:
        """``waits for data: _try_get_data ...; its data loader ...``."""
        call = self.form.partition("\n")[0]
        is_asleep = self.sleeps and self.activity is Activity.COMPUTE
        return (
            ("sleeps" if is_asleep else self.activity.value)
            + (f" in {call}" if call else "")
            + (f"; {self.helper}" if self.helper else "")
        )


def fingerprint(stack: RankStacks) -> str:
    """What a rank does, as text that is equal for ranks which wait at the same place of the same code.

    It has no addresses, thread ids, folders of the machine or lines of library code, and no threads or
    processes but the main one and those for which it waits.
    """
    return view(stack, Reader()).key


def views(
    stacks: Iterable[RankStacks], layout: ParallelLayout, missing: Collection[int] = ()
) -> dict[int, RankView]:
    """All ranks of the world; those that are ``missing`` or not in ``stacks`` are silent."""
    reader = Reader()
    world, absent = layout.world_size, frozenset(missing)
    taken = {s.rank: view(s, reader) for s in stacks if s.rank < world and s.rank not in absent}
    silent = RankView(activity=Activity.SILENT)
    return {rank: taken.get(rank, silent) for rank in range(world)}


def without_libraries(stack: RankStacks) -> RankStacks:
    """Its Python calls only."""

    def python(thread: ThreadStack) -> ThreadStack:
        return structs.replace(thread, frames=tuple(f for f in thread.frames if not is_native(f.file)))

    processes = tuple(structs.replace(p, threads=tuple(map(python, p.threads))) for p in stack.processes)
    return structs.replace(stack, processes=processes)


def view(stack: RankStacks, reader: Reader) -> RankView:
    """What this rank does."""
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


def _main(threads: Sequence[ThreadStack], reader: Reader) -> Doing | None:
    """What the main thread does, or the threads that it waits for."""
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
    return Doing(activity=chosen.activity, form=f"{chosen.form}\n{doing.form}")


def _with_helper(doing: Doing, helpers: Sequence[ProcessStacks], reader: Reader) -> RankView:
    """A helper that is halted has halted its rank; one that is busy is named, since the rank waits for it."""
    halted: Mapping[str, Activity] = {**_HALTED, "D": Activity.KERNEL}
    for state, activity in halted.items():
        if any(p.state == state for p in helpers):
            kind = next(_HELPERS[p.kind] for p in helpers if p.state == state)
            return RankView(activity=activity, form=doing.form, helper=f"it is the rank's {kind}")
    busy = min(_busy(helpers, reader), default="")
    return RankView(activity=doing.activity, form=doing.form, helper=busy)


def _busy(helpers: Iterable[ProcessStacks], reader: Reader) -> Iterator[str]:
    """What each helper that does not itself wait for work does."""
    for process in helpers:
        main = next((t for t in process.threads if t.is_main), None)
        doing = reader.read(main.frames) if main else None
        if doing is None or doing.is_idle:
            continue
        if not doing.call.startswith("_worker_loop "):  # where a loader waits for orders
            yield f"its {_HELPERS[process.kind]} is in {doing.call}"
