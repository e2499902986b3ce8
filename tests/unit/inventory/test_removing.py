"""``srobust checkpoint rm`` and ``prune``: what goes is what was asked for, and nothing that a job needs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from slurm_robust.checkpoint.disk import DiskTier
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.cli.main import main
from slurm_robust.inventory import removing
from slurm_robust.inventory.removing import shelf_of
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.policy.removal import prunable
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.builders.checkpoints import ref
from tests.builders.specs import copy_spec, job_spec
from tests.unit.checkpoint.test_store import publish, publish_all
from tests.unit.report.test_together import job
from tests.unit.report.trainings import make_training, write
from tests.users import as_another_user

FOUR = [ref(1, 10), ref(1, 49), ref(2, 60), ref(2, 79)]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    """Of a training of two jobs that were cancelled, on a machine without Slurm."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "srobust-jobs"
    training = make_training(root, "gpt", 7, 9)
    write(root / "7", job(7, 20, 1, range(50)))
    write(root / "9", job(9, 400, 2, range(50, 80)))
    store = CheckpointStore(training.checkpoints)
    publish_all(store, *FOUR)
    store.point_latest()
    return store


def run(*words: str) -> int:
    return main(["checkpoint", *words])


def test_old_ones_go_and_it_is_told_what_that_freed(
    store: CheckpointStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("rm", "gpt", "10", "--yes") == 0
    said = capsys.readouterr().out
    assert "removed step 10 of training gpt" in said
    assert "left: 3 complete checkpoints" in said
    assert store.complete() == FOUR[:0:-1]
    assert run("rm", "gpt", str(ref(1, 49)), "--yes", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["removed"], found["nbytes"], found["dry_run"]) == ([str(ref(1, 49))], 16, False)
    assert found["left"] == [str(ref(2, 79)), str(ref(2, 60))]


def test_what_a_later_job_needs_stays_unless_forced(
    store: CheckpointStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("rm", "gpt", "10", "79", "--yes") == ExitCode.REFUSED
    said = capsys.readouterr().err
    assert "nothing was removed" in said
    assert "step 79: a later job would go on from it" in said
    assert "--force" in said
    assert len(store.complete()) == 4
    assert run("rm", "gpt", "79", "--force", "--yes") == 0
    assert "note: step 79: a later job would go on from it" in capsys.readouterr().out
    assert store.complete()[0] == ref(2, 60)
    assert store.latest() == ref(2, 60)


def test_prune_keeps_the_newest_and_says_what_it_would_remove(
    store: CheckpointStore, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(store, ref(1, 30), 0, 2)
    assert run("prune", "gpt", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "would remove steps 49, 30 and 10 of training gpt, 1 of them incomplete" in said
    assert "would leave: 2 complete checkpoints" in said
    assert len(store.complete()) == 4
    assert run("prune", "gpt", "--keep", "1", "--yes") == 0
    assert store.complete() == [ref(2, 79)]
    capsys.readouterr()
    assert run("prune", "gpt", "--keep", "1") == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_the_last_one_of_a_training_that_ended_well_stays(store: CheckpointStore) -> None:
    journal = store.path.parent.parent / "9" / "journal.jsonl"
    *events, ended = job(9, 400, 2, range(50, 80))
    assert isinstance(ended, ev.RunEnded)
    events.append(replace(ended, code=0, reason="every rank ended with code 0"))
    write(journal.parent, events)
    assert run("rm", "gpt", "10", "49", "60", "--yes") == 0
    assert run("rm", "gpt", "79", "--yes") == ExitCode.REFUSED
    assert run("prune", "gpt", "--keep", "1", "--yes") == 0
    assert store.complete() == [ref(2, 79)]
    assert run("rm", "gpt", "79", "--yes", "--force") == 0
    assert store.complete() == []


def test_a_job_of_a_training_stands_for_it(store: CheckpointStore) -> None:
    for name in ("7", "9", "gpt", str(store.path.parent)):
        shelf = shelf_of(name, None, FakeSlurm())
        assert shelf.whose == "training gpt"
        assert shelf.store.path.resolve() == store.path
        assert shelf.stock.sealed == {1: 49, 2: 79}


def test_a_job_without_a_training_has_its_own(
    store: CheckpointStore, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = store.path.parent.parent / "8"
    write(
        folder,
        [replace(e, training="") if isinstance(e, ev.RunStarted) else e for e in job(8, 20, 1, range(50))],
    )
    own = CheckpointStore(folder / "checkpoints")
    publish_all(own, ref(1, 10), ref(1, 20), ref(1, 49))
    assert run("prune", "8", "--keep", "1", "--yes") == 0
    assert own.complete() == [ref(1, 49)]
    assert "of job 8" in capsys.readouterr().out
    assert len(store.complete()) == 4


def test_a_step_of_several_generations_is_all_of_them(store: CheckpointStore) -> None:
    publish_all(store, ref(2, 10))
    assert run("rm", "gpt", "10", "--yes") == 0
    assert {one.step for one in store.complete()} == {49, 60, 79}


# -- who needs them ----------------------------------------------------------------------------------


def submit(slurm: FakeSlurm, *, held: bool) -> int:
    return slurm.submit(SubmitRequest(command=("train.sh",), hold=held))


@pytest.mark.parametrize("held", [True, False])
def test_a_job_that_has_not_begun_needs_what_it_will_find(store: CheckpointStore, held: bool) -> None:
    slurm = FakeSlurm()
    number = submit(slurm, held=held)
    make_training(store.path.parent.parent, "big", 7, number)
    stock = shelf_of("big", None, slurm).stock
    assert (stock.waiting, stock.holder) == (str(number), "")


def test_a_running_job_needs_what_it_began_with(store: CheckpointStore) -> None:
    slurm = FakeSlurm()
    number = submit(slurm, held=False)
    root = store.path.parent.parent
    make_training(root, "big", 7, number)
    events = job(number, 400, 2, range(50, 80))[:-2]
    write(
        root / str(number),
        [replace(e, submitted=None) if isinstance(e, ev.AllocationTaken) else e for e in events],
    )
    stock = shelf_of("big", None, slurm).stock
    assert (stock.holder, stock.waiting, stock.generation) == (str(number), "", 2)
    assert stock.restored == ref(1, 49)
    assert 2 not in stock.sealed  # it may still grow
    slurm.cancel(number)
    stock = shelf_of("big", None, slurm).stock
    assert (stock.holder, stock.waiting) == ("", "")


def test_a_running_job_whose_journal_cannot_be_read_loses_nothing(store: CheckpointStore) -> None:
    slurm = FakeSlurm()
    number = submit(slurm, held=False)
    root = store.path.parent.parent
    training = make_training(root, "big", 7, number)
    half = ref(3, 90)
    publish(CheckpointStore(training.checkpoints), half, 0, 2)
    (root / str(number)).mkdir()
    (root / str(number) / "journal.jsonl").write_text("{}\n{}\n")
    for away, waiting in ((False, str(number)), (True, str(number)), (False, "")):
        slurm.cluster.unreachable = away
        stock = shelf_of("big", None, slurm).stock
        assert stock.waiting == waiting
        assert (half in prunable(stock, 1)) is not bool(waiting)
        if away:
            slurm.cluster.unreachable = False
            slurm.cancel(number)


def test_a_silent_slurm_lets_nobody_think_that_a_job_has_ended(store: CheckpointStore) -> None:
    slurm = FakeSlurm()
    slurm.cluster.unreachable = True
    root = store.path.parent.parent
    write(root / "9", job(9, 400, 2, range(50, 80))[:-2])
    assert shelf_of("gpt", None, slurm).stock.holder == "9"


def test_a_generation_that_counts_nothing_protects_nothing(store: CheckpointStore, tmp_path: Path) -> None:
    state = shelf_of("gpt", None, FakeSlurm())
    events = [
        replace(e, sealed_step=-1, good_step=-1) if isinstance(e, ev.GenerationEnded) else e
        for e in job(9, 400, 2, range(50, 80))
    ]
    write(store.path.parent.parent / "9", events)
    again = shelf_of("gpt", None, FakeSlurm())
    assert state.stock.usable[0] == ref(2, 79)
    assert again.stock.sealed[2] == -1
    assert run("prune", "gpt", "--keep", "1", "--yes") == 0
    assert ref(1, 49) not in store.complete() or ref(1, 10) not in store.complete()


def test_the_step_to_which_an_update_would_be_rolled_back_stays(
    store: CheckpointStore, capsys: pytest.CaptureFixture[str]
) -> None:
    update = ev.UpdateApplied(
        t=400.0, update=1, release="b" * 12, before="a" * 12, step=49, checkpoint=ref(1, 49)
    )
    first, *events = job(9, 400, 2, range(50, 80))
    write(store.path.parent.parent / "9", [first, update, *events])
    assert run("rm", "gpt", "49", "--yes") == ExitCode.REFUSED
    assert "release bbbbbbbbbbbb would be rolled back to it" in capsys.readouterr().err
    assert run("prune", "gpt", "--keep", "1", "--yes") == 0
    assert ref(1, 49) in store.complete()


# -- what is wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["rm", "gpt", "11", "--yes"], ExitCode.NO_INPUT, "no step 11"),
        (["rm", "gpt", "10", "11", "--yes"], ExitCode.NO_INPUT, "steps 79, 60, 49 and 10"),
        (["rm", "gpt", "-1", "--yes"], ExitCode.USAGE, "-1"),
        (["rm", "gpt", "ten", "--yes"], ExitCode.USAGE, "'ten' is no step"),
        (["rm", "gpt", "--yes"], ExitCode.USAGE, "STEP"),
        (["rm", "gtp", "10", "--yes"], ExitCode.NO_INPUT, "has the trainings gpt"),
        (["prune", "gpt", "--keep", "0"], ExitCode.USAGE, "from 1"),
        (["prune", "gpt", "--keep", "-1"], ExitCode.USAGE, "--keep"),
        (["rm", "gpt", "10"], ExitCode.USAGE, "add --yes"),
        (["prune", "gpt"], ExitCode.USAGE, "add --yes"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_removed(
    store: CheckpointStore,
    words: list[str],
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run(*words) == code
    assert text in capsys.readouterr().err
    assert len(store.complete()) == 4


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "left"), [("y\n", 3), ("yes\n", 3), ("n\n", 4), ("", 4), ("no way\n", 4)])
def test_on_a_terminal_it_asks(
    store: CheckpointStore,
    answer: str,
    left: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert run("rm", "gpt", "10") == (0 if left == 3 else 1)
    asked = capsys.readouterr().err
    assert "remove step 10 of training gpt (" in asked
    assert asked.endswith("? [y/N] " if left == 3 else "? [y/N] nothing was removed\n"), "no is no error"
    assert len(store.complete()) == left


def test_what_changes_while_the_question_stands_there_is_not_removed(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def yes_but_late(*_: object) -> bool:
        publish_all(store, ref(1, 45))
        return True

    monkeypatch.setattr(removing, "_may", yes_but_late)
    assert run("prune", "gpt") == ExitCode.USAGE
    assert "have changed since" in capsys.readouterr().err
    assert len(store.complete()) == 5


def test_a_training_without_storage(store: CheckpointStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.path.rename(store.path.with_name("elsewhere"))
    assert run("rm", "gpt", "10", "--yes") == ExitCode.NO_INPUT
    assert "complete there: none" in capsys.readouterr().err
    assert run("prune", "gpt", "--yes") == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_storage_of_somebody_else(store: CheckpointStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.path.chmod(0)
    try:
        with as_another_user():
            assert run("prune", "gpt", "--yes") == ExitCode.NO_INPUT
    finally:
        store.path.chmod(0o700)
    assert capsys.readouterr().err
    assert len(store.complete()) == 4


def test_in_a_folder_of_several_trainings_only_the_own_ones_are_seen(
    store: CheckpointStore, tmp_path: Path
) -> None:
    where = CheckpointStore(tmp_path / "scratch")
    for number, run_id in enumerate(("7-a", "x-a", "9-a", "y-a"), 1):
        tier = DiskTier(where, run_id=run_id, rank=0, world_size=1)
        tier.save(ref(number, 10 * number), Snapshot(own={}, shared={}, rng={}))
    publish(where, ref(7, 70), 0, 2)
    spec = job_spec(run_id="9-a", job_id=9, checkpoint_dir=str(where.path))
    folder = store.path.parent.parent / "9"
    (folder / "job.json").write_bytes(msgspec.json.encode(spec))
    events = job(9, 400, 2, range(50, 80))
    write(folder, [replace(e, runs=("7-a",)) if isinstance(e, ev.Continued) else e for e in events])
    assert set(shelf_of("gpt", None, FakeSlurm()).stock.complete) == {ref(1, 10), ref(3, 30)}
    assert run("rm", "gpt", "20", "--yes", "--force") == ExitCode.NO_INPUT
    assert run("prune", "gpt", "--keep", "1", "--yes") == 0
    assert ref(1, 10) not in where.complete()
    assert {ref(2, 20), ref(4, 40)} <= set(where.complete())
    assert len(where.parts(ref(7, 70))) == 1


def test_the_configuration_says_how_many_stay(store: CheckpointStore, tmp_path: Path) -> None:
    folder = store.path.parent.parent / "9"
    (folder / "plan.json").write_text(json.dumps({"config": {"checkpoint": {"keep_every": 11}, "x": 1}}))
    spec = job_spec(run_id="9-a", job_id=9, checkpoint_dir=str(store.path), copies=copy_spec(keep=3))
    (folder / "job.json").write_bytes(msgspec.json.encode(spec))
    stock = shelf_of("gpt", None, FakeSlurm()).stock
    assert (stock.keep, stock.keep_every) == (3, 11)
