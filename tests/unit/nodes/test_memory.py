"""What a node remembers: fresh facts, history, counts; and that losing any of it harms nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import HISTORY, AnySource, Source, View
from slurm_robust.nodes.memory import IN_A_ROW, Memory, ProcessMemory, Stored, joined, record_baseline
from tests.alone import alone


class Fans(Record):
    rpm: int


class Doors(Record):
    rpm: str


def look(host: Host, config: NodeConfig) -> Fans:
    return Fans(rpm=1)


FANS: AnySource = Source(name="fans", facts=Fans, gather=look, fresh_s=60.0, history_s=3600.0)
BRIEF: AnySource = Source(name="brief", facts=Fans, gather=look, fresh_s=60.0)
DOORS: AnySource = Source(name="fans", facts=Doors, gather=look, fresh_s=60.0, history_s=3600.0)


def keep(folder: Path, *ats: float, source: AnySource = FANS, boot: str = "b") -> None:
    for at in ats:
        memory = Memory(folder)
        memory.remember(source, View(at=at, boot_id=boot, facts=Fans(rpm=int(at))))
        assert memory.save()


@pytest.mark.parametrize(
    ("now", "boot", "found"),
    [
        (1000.0, "b", True),
        (1060.0, "b", True),
        (1060.1, "b", False),
        (999.9, "b", False),
        (1001.0, "c", False),
    ],
)
def test_facts_are_fresh_for_their_time_in_the_same_boot(
    tmp_path: Path, now: float, boot: str, found: bool
) -> None:
    keep(tmp_path, 1000.0)
    fresh = Memory(tmp_path).fresh(FANS, now, boot)
    assert (fresh is not None) is found
    assert fresh is None or fresh.facts == Fans(rpm=1000)


def test_nobody_else_can_hold_the_lock(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    keep(folder, 1000.0)
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "lock").chmod(0o644)  # of a release that opened it to all, in a folder that the site has opened
    keep(folder, 1001.0)
    assert (folder / "lock").stat().st_mode & 0o777 == 0o600


@alone
def test_history_is_in_order_and_bounded_in_time_and_number(tmp_path: Path) -> None:
    keep(tmp_path, 1.0, 100.0, 3700.0, boot="a")
    assert [sample.at for sample in Memory(tmp_path).before(FANS, 3701.0)] == [3700.0]
    keep(tmp_path, *(4000.0 + 60.0 * n for n in range(HISTORY + 3)))
    found = Memory(tmp_path).before(FANS, 8000.0)
    assert len(found) <= HISTORY
    assert [sample.at for sample in found] == sorted(sample.at for sample in found)
    keep(tmp_path, 10.0)  # the clock was put back
    assert [sample.at for sample in Memory(tmp_path).before(FANS, 11.0)] == [10.0]


@pytest.mark.parametrize("interval_s", [1.0, 5.0, 30.0, 57.0, 61.0, 600.0])
def test_history_reaches_back_as_far_as_it_should_at_any_interval(tmp_path: Path, interval_s: float) -> None:
    runs = int(4500.0 / interval_s) + 1
    kept: list[Stored] = []
    for number in range(runs):
        new = Stored(at=number * interval_s, boot_id="b", facts=b"")
        kept = joined(kept, new, 3600.0)
    times = [stored.at for stored in kept]
    newest = (runs - 1) * interval_s
    assert times[-IN_A_ROW:] == [newest - interval_s * n for n in reversed(range(min(IN_A_ROW, len(times))))]
    assert newest - times[0] > 3600.0 - max(interval_s, 2 * 3600.0 / (HISTORY - IN_A_ROW - 1))
    assert len(times) <= HISTORY


def test_a_source_without_history_keeps_only_the_newest(tmp_path: Path) -> None:
    keep(tmp_path, 1.0, 2.0, source=BRIEF)
    assert Memory(tmp_path).before(BRIEF, 3.0) == ()
    assert Memory(tmp_path).fresh(BRIEF, 3.0, "b") is not None


def test_hooks_side_by_side_do_not_overwrite_each_other(tmp_path: Path) -> None:
    first, second = Memory(tmp_path), Memory(tmp_path)
    first.remember(FANS, View(at=1.0, boot_id="b", facts=Fans(rpm=1)))
    second.remember(BRIEF, View(at=1.0, boot_id="b", facts=Fans(rpm=2)))
    assert first.save()
    assert second.save()
    assert Memory(tmp_path).fresh(FANS, 2.0, "b") is not None
    assert Memory(tmp_path).fresh(BRIEF, 2.0, "b") is not None


def test_runs_in_a_row_are_counted_for_each_subject(tmp_path: Path) -> None:
    changes: list[tuple[list[str], list[str]]] = []

    def run(
        *away: str,
        told: tuple[str, ...] = (),
        passed: tuple[str, ...] = (),
        ran: tuple[str, ...] = ("gpu.ecc",),
    ) -> list[int]:
        memory = Memory(tmp_path)
        memory.count(dict.fromkeys((*away, *told), True) | dict.fromkeys(passed, False), away, ran)
        counts = [memory.keeping_away(f"gpu.ecc gpu{n}") for n in range(2)]
        assert memory.save()
        again = Memory(tmp_path)
        changes.append(memory.changes())
        assert counts == [again.keeping_away(f"gpu.ecc gpu{n}") for n in range(2)]
        return counts

    assert run("gpu.ecc gpu0", "gpu.ecc gpu1") == [1, 1]
    assert run("gpu.ecc gpu0", "gpu.ecc gpu1") == [2, 2]
    assert run(ran=("disks.io",)) == [2, 2]
    assert run("gpu.ecc gpu1", passed=("gpu.ecc gpu0",)) == [0, 3]
    assert run(told=("gpu.ecc gpu1",)) == [0, 3]  # it fails still, but is no reason to keep jobs away now
    assert run("gpu.ecc gpu1") == [0, 4]
    assert run(passed=("gpu.ecc",)) == [0, 0]  # all well, said of the node: gpu1's failures are over
    both = ["gpu.ecc gpu0", "gpu.ecc gpu1"]
    nothing = ([], [])
    assert changes == [(both, []), nothing, nothing, ([], both[:1]), nothing, nothing, ([], both[1:])]


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x80", b"x" * 1000, b"\x81\xa6format\x09"])
def test_a_damaged_file_was_never_there(tmp_path: Path, damage: bytes) -> None:
    keep(tmp_path, 1.0)
    (tmp_path / "facts.msgpack").write_bytes(damage)
    (tmp_path / "baseline.json").write_bytes(damage)
    memory = Memory(tmp_path)
    assert memory.fresh(FANS, 2.0, "b") is None
    assert memory.baseline(FANS) is None
    keep(tmp_path, 3.0)
    assert Memory(tmp_path).fresh(FANS, 4.0, "b") is not None


def test_facts_of_another_version_were_never_there(tmp_path: Path) -> None:
    keep(tmp_path, 1.0)
    record_baseline(tmp_path, {"fans": Fans(rpm=7)})
    memory = Memory(tmp_path)
    assert memory.fresh(DOORS, 2.0, "b") is None
    assert memory.before(DOORS, 2.0) == ()
    assert memory.baseline(DOORS) is None


def test_a_baseline_is_a_readable_file(tmp_path: Path) -> None:
    assert Memory(tmp_path).baseline(FANS) is None
    record_baseline(tmp_path, {"fans": Fans(rpm=7)})
    assert Memory(tmp_path).baseline(FANS) == Fans(rpm=7)
    assert Memory(tmp_path).baseline(BRIEF) is None
    assert '"rpm": 7' in (tmp_path / "baseline.json").read_text()


def test_what_cannot_be_saved_is_lost_and_nothing_is_raised(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    memory = Memory(tmp_path / "state")
    memory.remember(FANS, View(at=1.0, boot_id="b", facts=Fans(rpm=1)))
    assert not memory.save()


def test_a_long_memory_is_cut_to_the_newest_facts(tmp_path: Path) -> None:
    class Long(Record):
        text: str

    source: AnySource = Source(name="long", facts=Long, gather=look, history_s=1e6)
    for at in range(1, 5):
        memory = Memory(tmp_path)
        memory.remember(source, View(at=float(at), boot_id="b", facts=Long(text="x" * 400_000)))
        assert memory.save()
    assert len(Memory(tmp_path).before(source, 10.0)) <= 2
    assert (tmp_path / "facts.msgpack").stat().st_size < 2**20
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_a_process_remembers_by_itself_and_writes_nothing(tmp_path: Path) -> None:
    keep(tmp_path, 900.0)
    record_baseline(tmp_path, {"fans": Fans(rpm=7)})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    memory = ProcessMemory(tmp_path)
    for at in (1000.0, 1010.0):
        memory.remember(FANS, View(at=at, boot_id="b", facts=Fans(rpm=int(at))))
        memory.count({"fans left": True}, ["fans left"], ["fans"])
        assert memory.save()
    assert [sample.at for sample in memory.before(FANS, 1020.0)] == [1000.0, 1010.0]
    assert memory.keeping_away("fans left") == 2
    assert memory.baseline(FANS) == Fans(rpm=7)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
