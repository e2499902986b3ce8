"""Which runs count towards a return, and a file that survives crashes, damage and two hooks at once."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from slurm_robust.hooks.record import (
    DrainCause,
    DrainFile,
    OwnDrain,
    Pending,
    after_run,
    causes_of,
    has_passed,
)
from slurm_robust.model.findings import Finding, Outcome
from slurm_robust.nodes.verdict import Report

PASS, FAIL, UNKNOWN = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN
GPU3 = DrainCause(check="gpu.xid", subject="gpu3")
HUNG = DrainCause(check="gpu.xid")


def found(outcome: Outcome, subject: str = "", check: str = "gpu.xid") -> Finding:
    return Finding(check=check, outcome=outcome, subject=subject)


@pytest.mark.parametrize(
    ("cause", "findings", "passed"),
    [
        (GPU3, [], None),
        (GPU3, [found(PASS, "gpu3", check="gpu.ecc")], None),
        (GPU3, [found(PASS, "gpu3")], True),
        (GPU3, [found(PASS, "gpu3"), found(FAIL, "gpu1")], True),
        (GPU3, [found(PASS, "gpu0"), found(PASS, "gpu1")], False),  # gpu3 has vanished
        (GPU3, [found(PASS)], True),
        (GPU3, [found(UNKNOWN)], False),
        (GPU3, [found(UNKNOWN, "gpu3")], False),
        (GPU3, [found(PASS, "gpu3"), found(FAIL, "gpu3")], False),
        (HUNG, [found(PASS, "gpu0"), found(PASS, "gpu1")], True),
        (HUNG, [found(PASS, "gpu0"), found(UNKNOWN, "gpu1")], False),
    ],
)
def test_whether_a_cause_has_passed(cause: DrainCause, findings: list[Finding], passed: bool | None) -> None:
    assert has_passed(cause, findings) is passed


@pytest.mark.parametrize(
    ("fit", "findings", "passes"),
    [
        (True, [found(PASS, "gpu3")], 3),
        (True, [], 2),  # this run did not look: neither for nor against
        (True, [found(UNKNOWN, "gpu3")], 0),
        (False, [found(PASS, "gpu3")], 0),
    ],
)
def test_failing_and_passing_runs_in_a_row_are_counted(
    fit: bool, findings: list[Finding], passes: int
) -> None:
    record = OwnDrain(reason="srobust: x", causes=(GPU3,), passes=2)
    assert (
        after_run(record, Report(findings=tuple(findings), causes=() if fit else (found(FAIL),))).passes
        == passes
    )


def test_without_a_drain_nothing_is_counted() -> None:
    record = OwnDrain(drains=(1.0,))
    assert after_run(record, Report(findings=(found(PASS),))) is record


def test_all_causes_must_have_been_looked_at() -> None:
    record = OwnDrain(reason="srobust: x", causes=(GPU3, DrainCause(check="gpu.ecc", subject="gpu1")))
    assert after_run(record, Report(findings=(found(PASS, "gpu3"),))).passes == 0
    both = (found(PASS, "gpu3"), found(PASS, "gpu1", check="gpu.ecc"))
    assert after_run(record, Report(findings=both)).passes == 1


def test_unknown_results_are_no_causes() -> None:
    causes = (found(UNKNOWN, "gpu0"), found(FAIL, "gpu3"), found(FAIL, "gpu3"))
    assert causes_of(Report(causes=causes)) == (GPU3,)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = DrainFile(tmp_path / "state")
    assert not file.exists()
    assert file.load() == OwnDrain()
    pending = Pending(reason="srobust: x", causes=(found(FAIL),))
    record = OwnDrain(reason="srobust: y", since=5.0, causes=(GPU3,), drains=(5.0,), pending=pending)
    with file.locked(1.0) as held:
        assert held
        file.save(record)
    assert file.load() == record


def test_a_file_of_an_earlier_release_still_says_what_is_pending(tmp_path: Path) -> None:
    file = DrainFile(tmp_path)
    cause = msgspec.json.encode(found(FAIL)).decode()
    file.path.write_text(
        '{"reason":"","pending":{"fit":false,"reason":"srobust: x","suggestion":"reboot",'
        f'"causes":[{cause}],"warnings":[],"unknown":[]}},"pending_boot":"b"}}'
    )
    assert file.load().pending == Pending(reason="srobust: x", causes=(found(FAIL),))


@pytest.mark.parametrize("content", [b"", b"{", b'{"passes":"many"}', b"\xff\xfe", b"[1]"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, content: bytes) -> None:
    file = DrainFile(tmp_path)
    file.path.write_bytes(content)
    assert file.load() == OwnDrain()
    assert not file.exists()
    assert (tmp_path / "drain.damaged").read_bytes() == content


def test_a_crash_while_writing_leaves_the_old_record(tmp_path: Path) -> None:
    file = DrainFile(tmp_path)
    file.save(OwnDrain(reason="srobust: old"))
    (tmp_path / "drain.json.new").write_bytes(msgspec.json.encode(OwnDrain(reason="srobust: new"))[:9])
    assert file.load().reason == "srobust: old"
    file.save(OwnDrain(reason="srobust: new"))
    assert file.load().reason == "srobust: new"


@pytest.mark.parametrize("name", ["loop", "x" * 300])
def test_a_folder_that_cannot_be_reached_holds_nothing_to_remember(tmp_path: Path, name: str) -> None:
    """It raises nothing, of which a hook of a fit node would end."""
    (tmp_path / "loop").symlink_to("loop")
    assert not DrainFile(tmp_path / name).exists()


def test_two_hooks_take_turns_and_neither_waits_for_ever(tmp_path: Path) -> None:
    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with DrainFile(tmp_path).locked(1.0):
            held.set()
            release.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(60)
    with DrainFile(tmp_path).locked(0.0) as mine:
        assert not mine
    release.set()
    with DrainFile(tmp_path).locked(10.0) as mine:
        assert mine
    other.join()


def test_without_a_place_for_a_lock_one_goes_on(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a folder")
    with DrainFile(tmp_path / "state").locked(0.0) as held:
        assert held
