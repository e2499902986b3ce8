"""The checkpoint benchmark: what its samples say, and that what it measures really happens."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import checkpoint_child, checkpoint_peer, common
from benchmarks.checkpoint_ends import BARE, OURS
from benchmarks.checkpoint_figures import Aim, Blocking, DrainLock, rates, summaries
from benchmarks.checkpoint_runs import folders, run
from benchmarks.checkpoint_state import LAYER_BYTES, BareCopy, Training, batch_for
from benchmarks.samples import Summary
from tests.forked_python import run_python

MB = 10**6


def turn(*steps: tuple[float, float, float]) -> DrainLock:
    return [{"step": step, "save": save, "update": update} for step, save, update in steps]


@pytest.fixture
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_blocking_is_what_a_step_gets_longer_by() -> None:
    with_it = [turn((1.5, 0.3, 0.2), (1.9, 0.6, 0.3), (1.9, 0.6, 0.3))] * 2
    without = [turn((1.0, 0.0, 0.1), (1.0, 0.0, 0.1), (7.0, 0.0, 0.1))] * 2
    found = Blocking.of(with_it, without)
    assert found.plain == 1.0
    assert found.alone == pytest.approx(0.5)
    assert found.every == pytest.approx(0.9)  # waits for the checkpoint before, too
    assert found.called == pytest.approx(0.8)  # 0.1 was taken from forward and backward


def test_a_step_that_follows_no_other_does_not_count_for_every_step() -> None:
    found = Blocking.of([turn((9.0, 8.0, 0.0), (2.0, 1.0, 0.0))], [turn((1.0, 0.0, 0.0))])
    assert found.every == pytest.approx(1.0)
    assert found.alone == pytest.approx(8.0)


@pytest.mark.parametrize("turns", [([], [turn((1.0, 0.0, 0.0))]), ([turn((1.0, 0.0, 0.0))] * 2, [])])
def test_too_few_steps_are_refused(turns: tuple[list[DrainLock], list[DrainLock]]) -> None:
    with pytest.raises(ValueError, match="two or more steps"):
        Blocking.of(*turns)


def test_summaries_are_over_processes() -> None:
    runs = [Blocking(every=e, alone=0.0, called=0.0, plain=1.0) for e in (3.0, 1.0, 2.0)]
    assert summaries(runs)["every"] == Summary(n=3, median=2.0, low=1.0, high=3.0)


def test_aims_have_a_right_side() -> None:
    assert Aim("restore", 1.9, 2.0, "x memcpy").met
    assert not Aim("restore", 2.1, 2.0, "x memcpy").met
    peer = Aim("copy", 0.69, 0.7, "x bare", at_least=True)
    assert not peer.met
    assert peer.text() == "copy: 0.69 x bare (aim ≥ 0.7): MISSED"


def test_rates_are_in_megabytes() -> None:
    assert rates(500 * MB, [0.5, 0.25, 1.0]) == Summary(n=3, median=1000.0, low=500.0, high=2000.0)


@pytest.mark.slow
def test_a_training_has_the_size_that_was_asked_for() -> None:
    training = Training(50)
    training.forward_backward(2)
    training.update()
    assert training.nbytes() == pytest.approx(50 * MB, abs=LAYER_BYTES)
    sizes = sorted(t.nbytes for t in training.tensors())
    assert sizes[-1] == 4 * 2**20
    assert sizes[0] == 4  # AdamW's count of its steps


def test_digest_tells_states_apart() -> None:
    same, other = [Training(13, seed=s).digest() for s in (0, 0)], Training(13, seed=1).digest()
    assert same[0] == same[1] != other


def test_bare_copy_holds_what_it_copied(shm: Path) -> None:
    training = Training(13)
    before = training.digest()
    copy = BareCopy(shm, training.tensors())
    for tensor in training.tensors():
        tensor.zero_()
    assert training.digest() != before
    copy.back(live=0)
    assert training.digest() != before
    copy.back()
    assert training.digest() == before


@pytest.mark.parametrize(("seconds", "batch"), [(1.5, 500), (0.6, 50), (0.1, 1), (100.5, 50_000)])
def test_the_batch_makes_forward_and_backward_as_long_as_was_asked_for(seconds: float, batch: int) -> None:
    assert batch_for(lambda samples: 0.5 + samples / 500, seconds) == batch


@pytest.mark.slow
def test_both_ways_to_a_peer_work_over_loopback() -> None:
    part = checkpoint_peer.measure(8, 1, Console(quiet=True), sandboxed=False)
    seconds = part.facts["seconds"]
    assert isinstance(seconds, dict)
    assert {way: len(found) for way, found in seconds.items()} == {OURS: 1, BARE: 1}
    assert part.aims[0].measured > 0


@pytest.mark.slow
@pytest.mark.parametrize("store", ["torch.load, mmap", "dcp.load"])
@pytest.mark.parametrize("stateful", [False, True])
def test_stores_give_back_what_they_took(store: str, stateful: bool, tmp_path: Path) -> None:
    kept = checkpoint_child.keep(store, 13, str(tmp_path))

    def restore(digest: str) -> dict[str, float]:
        return checkpoint_child.restore(
            store, 13, str(tmp_path), token="", digest=digest, stateful=stateful, cold=True
        )

    # It compares the states after an update itself.
    assert restore(kept["digest"])["restore"] > 0
    with pytest.raises(SystemExit, match="bit for bit"):
        restore("another")


def child(order: str, **details: object) -> dict[str, Any]:
    """As by ``checkpoint_runs.run``, but in a fork."""
    words = ("-m", "benchmarks.checkpoint_child", json.dumps({"order": order, **details}))
    done = run_python(*words, cwd=common.ROOT)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.slow
def test_what_we_keep_and_flush_comes_back_too() -> None:
    # Each in processes of their own: they are told by the environment what to restore.
    for store, cold in (("slurm_robust", False), ("slurm_robust, flush", True)):
        with folders() as place:
            folder = str(place.disk if cold else place.shm)
            kept = child("keep", store=store, mb=13, folder=folder)
            order = {"mb": 13, "folder": folder, "token": kept["token"], "digest": kept["digest"]}
            assert child("restore", store=store, stateful=False, cold=cold, **order)["restore"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("contender", "measure"), [("slurm_robust", run), ("dcp.async_save, best", child)], ids=["ours", "dcp"]
)
def test_contenders_are_measured_in_turns(contender: str, measure: Callable[..., dict[str, Any]]) -> None:
    with folders() as place:
        order = {"mb": 13, "batch": 2, "turns": 2, "steps": 3, "at_once": True}
        order |= {"disk": str(place.disk), "shm": str(place.shm)}
        found = measure("blocking", contender=contender, **order)
    assert [len(turn) for turn in found["with"] + found["without"]] == [3] * 4
    assert Blocking.of(found["with"], found["without"]).plain > 0
