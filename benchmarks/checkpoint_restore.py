"""Seconds until a saved state is back in the live objects, and until it lies on storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.console import Console

from benchmarks.checkpoint_figures import Aim, rates
from benchmarks.checkpoint_report import Part, table
from benchmarks.checkpoint_runs import Result, folders, run, touch_memory
from benchmarks.checkpoint_stores import MEMORY, ON_DISK, OURS
from benchmarks.samples import Summary, interleaved

RESTORE_AIM = 2.0
_TIMES = ("restore", "first_update", "update")


def from_memory(mb: int, reps: int, console: Console) -> Part:
    """From /dev/shm: ours verified; a fresh optimizer as after a restart, and one that has state."""
    runs: dict[tuple[str, bool], list[Result]] = {}
    limits: list[Result] = []
    cases = [(store, stateful) for store in MEMORY for stateful in (False, True)]
    for rep, (store, stateful) in interleaved(cases, reps):
        with folders() as place:
            if (store, stateful) == cases[0]:
                limits.append(run("limits", mb=mb, shm=str(place.shm)))
        with folders() as place:
            kept = run("keep", store=store, mb=mb, folder=str(place.shm))
            touch_memory(2 * kept["bytes"])
            result = _restore(store, mb, str(place.shm), kept, stateful=stateful)
        runs.setdefault((store, stateful), []).append(result)
        console.print(
            f"{rep + 1} {mb} MB, {_name(store, stateful)}: restored in {result['restore'] * 1e3:.0f} ms"
        )
    return _memory_part(mb, reps, runs, limits)


def _memory_part(
    mb: int, reps: int, runs: Mapping[tuple[str, bool], Sequence[Result]], limits: Sequence[Result]
) -> Part:
    bare = {name: Summary.of([limit[name] for limit in limits]) for name in ("back", "fresh")}
    found: dict[str, dict[str, Summary]] = {}
    rows: list[Sequence[str]] = []
    aims = []
    for stateful in (True, False):
        limit = bare["back" if stateful else "fresh"]
        rows.append((_name("memcpy", stateful), _ms(limit), "1.00", "", ""))
        for (store, its), results in runs.items():
            if its is not stateful:
                continue
            times = found[_name(store, its)] = {n: Summary.of([r[n] for r in results]) for n in _TIMES}
            ratio = times["restore"].median / limit.median
            rest = [_ms(times[n]) for n in _TIMES[1:]]
            rows.append((_name(store, its), _ms(times["restore"]), f"{ratio:.2f}", *rest))
            if store == OURS:
                aims.append(Aim(f"restore of {mb} MB, {_name(store, its)}", ratio, RESTORE_AIM, "x memcpy"))
    samples = {_name(*case): results for case, results in runs.items()}
    found["memcpy"] = bare
    summary = {name: {t: asdict(s) for t, s in row.items()} for name, row in found.items()}
    title = f"ms to restore {limits[0]['bytes'] / 1e6:.0f} MB from /dev/shm: median (range), n={reps}"
    columns = ("", "restore", "/ memcpy", "first update after", "a later update")
    return Part(
        facts={"samples": samples, "limits": limits, "summary": summary},
        tables=[table(title, columns, rows)],
        aims=aims,
    )


def storage(mb: int, reps: int, console: Console) -> Part:
    """Write until synced, then read without the page cache into live objects."""
    part = Part()
    kept: dict[str, list[Result]] = {}
    read: dict[str, list[Result]] = {}
    for rep, store in interleaved(ON_DISK, reps):
        with folders() as place:
            kept.setdefault(store, []).append(run("keep", store=store, mb=mb, folder=str(place.disk)))
            found = _restore(store, mb, str(place.disk), kept[store][-1], stateful=True, cold=True)
        read.setdefault(store, []).append(found)
        times = f"written in {kept[store][-1]['write']:.2f} s, read in {found['restore']:.2f} s"
        console.print(f"{rep + 1} {mb} MB, {store}: {times}")
    rows = []
    for store in kept:
        nbytes = kept[store][0]["bytes"]
        write = rates(nbytes, [r["write"] for r in kept[store]])
        # The first update too: it reads what was only mapped.
        back = rates(nbytes, [r["restore"] + r["first_update"] - r["update"] for r in read[store]])
        rows.append((store, write.text(0), back.text(0)))
        part.facts[store] = {"write": kept[store], "read": read[store]}
        part.facts[f"{store}, MB/s"] = {"write": asdict(write), "read": asdict(back)}
    title = f"Storage, {mb} MB, MB/s until synced and from a cold cache: median (range), n={reps}"
    part.tables.append(table(title, ("", "write", "read"), rows))
    return part


def _restore(store: str, mb: int, folder: str, kept: Result, *, stateful: bool, cold: bool = False) -> Result:
    return run(
        "restore",
        store=store,
        mb=mb,
        folder=folder,
        token=kept.get("token", ""),
        digest=kept["digest"],
        stateful=stateful,
        cold=cold,
    )


def _name(store: str, stateful: bool) -> str:
    return f"{store}, {'optimizer has state' if stateful else 'fresh optimizer'}"


def _ms(summary: Summary) -> str:
    scaled = Summary(summary.n, *(1e3 * v for v in (summary.median, summary.low, summary.high)))
    return scaled.text(0)
