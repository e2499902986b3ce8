"""The storage writer publishes exactly what lies in the images, or nothing, whatever happens to it."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from slurm_robust.checkpoint.disk import DiskTier
from slurm_robust.checkpoint.errors import CannotReseed, MissingCheckpoint
from slurm_robust.checkpoint.flush_order import FlushOrder
from slurm_robust.checkpoint.generators import capture_rng, restore_rng
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import Buffer
from slurm_robust.checkpoint.part import verify_part
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.storage_writer import flush
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.checkpoint.tree import flatten, specs_of
from slurm_robust.model.copies import SHARED, CheckpointId, Tier
from tests.builders.checkpoints import named
from tests.forked_python import ForkedPython
from tests.waiting import wait_for

REF = CheckpointId(generation=3, step=120)


def own(rank: int, size: int = 8) -> dict[str, Any]:
    return {
        "own": {"model": {"buffer": torch.full((size,), float(rank))}},
        "rng": {"torch": torch.arange(16, dtype=torch.uint8) + rank},
        "has_shared": True,
    }


SHARED_TREE = {"shared": {"model": {"weight": torch.arange(50).reshape(5, 10).t()}}}


def make_image(path: Path, rank: int, tree: Any, *, world_size: int = 2, step: int = 120) -> Path:
    """An image as a worker leaves it."""
    packed, tensors = flatten(tree)
    buffer = Buffer(path)
    header = PartHeader(run_id="run", layout="dp2", generation=3, step=step, rank=rank, world_size=world_size)
    views = buffer.begin(header, specs_of(tensors), packed)
    for view, tensor in zip(views, tensors, strict=True):
        view[:] = bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())
        view.release()
    buffer.commit()
    buffer.close()
    return path


@pytest.fixture
def images(tmp_path: Path) -> dict[int, Path]:
    folder = tmp_path / "copies"
    folder.mkdir()
    found = {rank: make_image(folder / f"own-{rank:05d}.0", rank, own(rank)) for rank in range(2)}
    found[SHARED] = make_image(folder / "shared.0", SHARED, SHARED_TREE)
    return found


class Writer:
    """The real process; orders and answers as an agent sees them. ``fresh``: an interpreter of its own."""

    def __init__(
        self, folder: Path, *, fresh: bool = False, begin: Callable[[], object] | None = None
    ) -> None:
        self.folder = folder
        words = ("-m", "slurm_robust.checkpoint.flush")
        stdin, orders = os.pipe()
        answers, stdout = os.pipe()
        self._process: subprocess.Popen[bytes] | ForkedPython
        if fresh:
            self._process = subprocess.Popen([sys.executable, *words], stdin=stdin, stdout=stdout)
        else:
            self._process = ForkedPython(*words, stdin=stdin, stdout=stdout, stderr=2, begin=begin)
        os.close(stdin)
        os.close(stdout)
        self._orders, self._answers = os.fdopen(orders, "wb"), os.fdopen(answers, "rb")
        self.pid = self._process.pid

    def send(self, images: dict[int, Path], *, step: int = 120, **changes: Any) -> None:
        order = {
            "images": {str(rank): str(path) for rank, path in images.items()},
            "checkpoint": {"generation": 3, "step": step},
            "world_size": 2,
            "places": {"storage": str(self.folder)},
            "job_dir": str(self.folder.parent / "job"),
            "run_id": "run",
            "layout": "dp2",
            **changes,
        }
        self.send_line(json.dumps(order))

    def send_line(self, line: str) -> None:
        self._orders.write(line.encode() + b"\n")
        self._orders.flush()

    def answer(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._answers.readline())
        return found

    def end(self) -> int:
        """Close its input and wait."""
        self._orders.close()
        code = self._process.wait(timeout=60)
        self._answers.close()
        return code

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.end()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Writer]]:
    made: list[Writer] = []

    def make(**options: Any) -> Writer:
        made.append(Writer(tmp_path / "storage", **options))
        return made[-1]

    yield make
    for writer in made:
        writer.kill()


def loaded(folder: Path, rank: int) -> Snapshot:
    tier = DiskTier(CheckpointStore(folder), run_id="run", rank=rank, world_size=2, layout="dp2")
    return tier.load(REF, named("model"))


def test_orders_need_no_torch() -> None:
    """The agent, which writes them, has none."""
    code = "import sys, slurm_robust.checkpoint.flush; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_what_lies_in_memory_gets_to_storage(
    start: Callable[..., Writer], images: dict[int, Path], tmp_path: Path
) -> None:
    """Two nodes with a rank each: both have the shared part, and the one with rank 0 writes it."""
    nodes = [start(fresh=True), start()]
    store = CheckpointStore(tmp_path / "storage")
    nodes[1].send({1: images[1], SHARED: images[SHARED]})
    assert nodes[1].answer() == {"ok": True, "error": ""}
    assert store.complete() == []
    nodes[0].send({0: images[0], SHARED: images[SHARED]})
    assert nodes[0].answer() == {"ok": True, "error": ""}
    assert store.complete(2) == [REF]
    assert store.latest() == REF
    for rank in range(2):
        found = loaded(tmp_path / "storage", rank)
        assert torch.equal(found.own["model"]["buffer"], own(rank)["own"]["model"]["buffer"])
        assert torch.equal(found.rng["torch"], own(rank)["rng"]["torch"])
        weight = found.shared["model"]["weight"]
        assert torch.equal(weight, SHARED_TREE["shared"]["model"]["weight"])
        assert weight.stride() == (1, 10)
    assert os.getpriority(os.PRIO_PROCESS, nodes[0].pid) >= 10
    assert [node.end() for node in nodes] == [0, 0]


@pytest.mark.slow
def test_orders_that_cannot_be_carried_out_are_answered(
    start: Callable[..., Writer], images: dict[int, Path], tmp_path: Path
) -> None:
    writer = start()
    both = {0: images[0], 1: images[1], SHARED: images[SHARED]}

    def answer_to(images: dict[int, Path], **changes: Any) -> str:
        writer.send(images, **changes)
        answer = writer.answer()
        assert not answer["ok"]
        return str(answer["error"])

    writer.send_line("{")
    assert writer.answer()["error"].startswith("not an order: ")
    assert "step 120" in answer_to(both, step=121)
    assert "of run run" in answer_to(both, run_id="other")
    assert "layout dp2" in answer_to(both, layout="tp2")
    assert "is not there" in answer_to({**both, 1: tmp_path / "none"})
    assert "rank 1 of 2" in answer_to({0: images[1]})
    assert "shared part of step 120 is missing" in answer_to({0: images[0]})
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in answer_to(both, places={"storage": str(tmp_path / "file")})
    content = bytearray(images[1].read_bytes())
    content[content.index(torch.full((8,), 1.0).numpy().tobytes()) + 1] ^= 1
    images[1].write_bytes(content)
    assert "chunks fail their checksum" in answer_to(both)
    assert CheckpointStore(tmp_path / "storage").complete() == []
    make_image(images[1], 1, own(1))
    writer.send(both, layout=None)
    assert writer.answer()["ok"]
    assert writer.end() == 0


def order_for(images: dict[int, Path], folder: Path, **changes: Any) -> FlushOrder:
    order = FlushOrder(
        images={rank: str(path) for rank, path in images.items()},
        checkpoint=REF,
        world_size=2,
        places={Tier.STORAGE: str(folder / "storage")},
        job_dir=str(folder / "job"),
        run_id="run",
        layout="dp2",
    )
    return structs.replace(order, **changes)


def of_rank(path: Path, rank: int, *bound: str) -> Path:
    """The image of a rank's part with real generators, as a worker leaves it."""
    torch.manual_seed(rank)
    return make_image(path, rank, own(rank) | {"rng": capture_rng(), "bound": list(bound)})


@pytest.mark.parametrize("lost", [0, 1])
def test_a_part_that_is_lost_is_made_from_another_ranks_with_new_generators(
    images: dict[int, Path], tmp_path: Path, lost: int
) -> None:
    kept = 1 - lost
    given = of_rank(images[kept], kept)
    order = order_for({0: given, 1: given, SHARED: images[SHARED]}, tmp_path, anew={lost: kept})
    flush(order)
    assert CheckpointStore(tmp_path / "storage").complete(2) == [REF]
    there, made = loaded(tmp_path / "storage", kept), loaded(tmp_path / "storage", lost)
    torch.manual_seed(kept)
    assert torch.equal(there.rng["torch"], torch.get_rng_state()), "who has its own part goes on with it"
    assert set(made.rng) == set(there.rng)
    assert not torch.equal(made.rng["torch"], there.rng["torch"])
    for snapshot in (there, made):
        assert torch.equal(snapshot.own["model"]["buffer"], torch.full((8,), float(kept)))
        assert torch.equal(snapshot.shared["model"]["weight"], SHARED_TREE["shared"]["model"]["weight"])
    flush(structs.replace(order, places={Tier.STORAGE: str(tmp_path / "again")}))
    again = loaded(tmp_path / "again", lost)
    assert torch.equal(again.rng["torch"], made.rng["torch"]), "always the same new ones"
    restore_rng(made.rng)


def test_a_part_that_held_more_than_generators_is_not_made(images: dict[int, Path], tmp_path: Path) -> None:
    def refused(*bound: str, old: bool = False) -> str:
        given = make_image(images[0], 0, own(0)) if old else of_rank(images[0], 0, *bound)
        with pytest.raises(CannotReseed) as error:
            flush(order_for({1: given}, tmp_path, anew={1: 0}))
        return str(error.value)

    assert "held more than random generators: entry 'loader', which may differ" in refused("loader")
    assert "entries 'loader', 'model'" in refused("model", "loader")
    assert "entry 'model'" in refused(old=True), "of an older slurm_robust, which did not say it"
    assert CheckpointStore(tmp_path / "storage").complete() == []


def test_rank_0s_part_is_not_made_without_the_shared_one(images: dict[int, Path], tmp_path: Path) -> None:
    with pytest.raises(MissingCheckpoint, match="shared part of step 120 is missing"):
        flush(order_for({0: of_rank(images[1], 1)}, tmp_path, anew={0: 1}))


@pytest.mark.slow
def test_a_full_storage_is_answered_and_leaves_nothing(
    start: Callable[..., Writer], images: dict[int, Path], tmp_path: Path
) -> None:
    writer = start(begin=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000)))
    big = make_image(tmp_path / "copies" / "big", 1, own(1, 50_000))
    writer.send({1: big})
    answer = writer.answer()
    assert not answer["ok"]
    assert "File too large" in answer["error"]
    assert list((tmp_path / "storage" / str(REF)).iterdir()) == []
    writer.send({1: images[1]})
    assert writer.answer()["ok"]


@pytest.mark.slow
def test_a_jobs_folder_that_was_moved_is_not_made_again(
    start: Callable[..., Writer], images: dict[int, Path], tmp_path: Path
) -> None:
    writer = start(begin=partial(os.umask, 0o022))
    job, away = tmp_path / "job", tmp_path / "away"
    job.mkdir(mode=0o700)
    (job / "job.json").write_text('{"run_id": "run"}')
    places = {"storage": str(job / "checkpoints")}
    job.rename(away)
    writer.send(images, places=places)
    assert f"the job's folder {job} was moved or removed: put it back" in writer.answer()["error"]
    assert not job.exists()
    job.mkdir()  # somebody else's
    writer.send(images, places=places)
    assert "was moved or removed" in writer.answer()["error"]
    assert list(job.iterdir()) == []
    job.rmdir()
    away.rename(job)
    writer.send(images, places=places)
    assert writer.answer()["ok"]
    assert CheckpointStore(job / "checkpoints").complete(2) == [REF]
    made = [path for path in (job / "checkpoints", *(job / "checkpoints").rglob("*")) if path.is_dir()]
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}


def flush_for_ever(order: FlushOrder, base: Path) -> int:
    """A child process that flushes the same snapshot into one folder after the other until it is killed."""
    child = os.fork()
    if child == 0:
        for number in itertools.count():
            flush(structs.replace(order, places={Tier.STORAGE: str(base / str(number))}))
    return child


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_no_half_part(images: dict[int, Path], tmp_path: Path) -> None:
    """At random moments of writing many checkpoints; what counts afterwards is whole."""
    order = FlushOrder(
        images={rank: str(path) for rank, path in images.items()},
        checkpoint=REF,
        world_size=2,
        places={},
        job_dir=str(tmp_path / "job"),
        run_id="run",
    )
    chance = random.Random(7)
    whole = torn = attempt = 0
    latest_s = 0.2
    deadline = time.monotonic() + 120
    while whole <= 40 or torn <= 5:
        assert time.monotonic() < deadline, f"{whole} whole and {torn} torn in {attempt} attempts"
        attempt += 1
        base = tmp_path / "many" / str(attempt)
        child = flush_for_ever(order, base)
        threading.Timer(chance.uniform(0.0, latest_s), os.kill, [child, signal.SIGKILL]).start()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        for store in map(CheckpointStore, base.glob("*")):
            for part in store.parts(REF):
                verify_part(part)
            complete = store.complete()
            assert store.latest() in (None, *complete)
            for rank in range(2 if complete else 0):
                found = loaded(store.path, rank)
                assert torch.equal(found.own["model"]["buffer"], torch.full((8,), float(rank)))
            whole += bool(complete)
            torn += not complete and store.folder(REF).exists()
        if whole <= attempt:
            latest_s *= 1.2  # a busy machine takes longer to write one


@pytest.mark.slow
def test_storage_that_hangs_holds_up_nobody_but_the_writer(
    start: Callable[..., Writer], images: dict[int, Path], tmp_path: Path
) -> None:
    """Here a file is a pipe into which nobody writes."""
    writer = start()
    folder = tmp_path / "storage" / str(REF)
    folder.mkdir(parents=True)
    os.mkfifo(tmp_path / "storage" / "latest")
    writer.send(images)
    wait_for(lambda: len(CheckpointStore(tmp_path / "storage").parts(REF)) == 2)
    assert CheckpointStore(tmp_path / "storage").complete() == [REF]
