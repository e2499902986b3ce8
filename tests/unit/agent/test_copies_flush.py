"""A flush: from the memory of all ranks of a node to its disk and to storage."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from slurm_robust.agent.copies.flush import StorageWriter, choose
from slurm_robust.checkpoint.budget import MemoryPlan, write_plan
from slurm_robust.checkpoint.flush_order import FlushOrder
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import Buffer, BufferInUse
from slurm_robust.checkpoint.memory import FoundImage
from slurm_robust.model.copies import SHARED, Tier
from slurm_robust.wire.messages import Phase, Progress, Save
from tests.builders.checkpoints import ref
from tests.unit.agent.copy_nodes import MIB, RUN, MakeNode, fill
from tests.unit.agent.local_job import pause
from tests.waiting import wait_for

# A storage writer that tells what it was told, and waits for a file before it answers.
WRITER = """
import json, os, sys, threading, time
folder = sys.argv[1]
for line in sys.stdin:
    order = json.loads(line)
    with open(os.path.join(folder, "orders"), "a") as log:
        log.write(line)
    mode = open(os.path.join(folder, "mode")).read()
    if mode == "die":
        os._exit(7)
    while mode == "wait" and not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)
    ok = mode != "fail"
    answer = {"ok": ok}
    print(json.dumps({**answer, "error": "" if ok else "full"}), flush=True)
"""


def image(rank: int, step: int) -> FoundImage:
    header = PartHeader(run_id=RUN, layout="", generation=1, step=step, rank=rank, world_size=4)
    return FoundImage(path=Path(f"{rank}-{step}"), kind="own", header=header, nbytes=1)


def test_a_step_is_taken_when_all_have_it_and_given_up_when_one_passed_it() -> None:
    assert choose([image(0, 5)], (0, 1), 5) is None
    assert choose([image(0, 5), image(1, 4)], (0, 1), 5) is None
    assert choose([image(0, 5), image(1, 6)], (0, 1), 5) == []
    chosen = choose([image(0, 5), image(0, 6), image(1, 5)], (0, 1), 5)
    assert chosen is not None
    assert [i.path.name for i in chosen] == ["0-5", "1-5"]
    assert choose([image(0, 5), image(SHARED, 4)], (0,), 5) is None
    chosen = choose([image(0, 5), image(SHARED, 5)], (0,), 5)
    assert chosen is not None
    assert [i.path.name for i in chosen] == ["0-5", "-1-5"]


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a storage writer that stands in for the real one, which needs torch."""
    folder = tmp_path / "writer"
    folder.mkdir()
    (folder / "mode").write_text("ok")
    command = (sys.executable, "-c", WRITER, str(folder))
    real = StorageWriter.__init__
    monkeypatch.setattr(StorageWriter, "__init__", lambda self: real(self, command))
    return folder


def test_a_step_goes_to_disk_and_storage_and_is_held_meanwhile(
    make: MakeNode, writer: Path, tmp_path: Path
) -> None:
    (writer / "mode").write_text("wait")
    node = make("a", places={Tier.LOCAL: str(tmp_path / "disk")}, keep=2)
    node.launch(3, (0, 1))
    node.service.ask_flush(7)
    fill(node.folder.own(0, 0), 0, 7, 3, MIB)
    fill(node.folder.own(SHARED, 0), SHARED, 7, 3, MIB)
    pause(0.2)
    assert not (writer / "orders").exists()
    fill(node.folder.own(1, 0), 1, 7, 3, MIB)
    wait_for(lambda: (writer / "orders").exists() and (writer / "orders").read_text())
    node.service.ask_flush(7)  # repeated until its effect is told
    with pytest.raises(BufferInUse):
        Buffer(node.folder.own(0, 0)).receive(MIB)
    wait_for(lambda: len([c for c in node.service.inventory() if c.tier is Tier.LOCAL]) == 3)
    assert node.service.news().flushed == -1
    (writer / "go").touch()
    wait_for(lambda: node.service.news().flushed == 7)
    assert node.service.flush_over == 7
    wait_for(lambda: _is_free(node.folder.own(0, 0)))
    (order,) = (writer / "orders").read_text().splitlines()
    told = msgspec.json.decode(order, type=FlushOrder)
    assert told.images == {
        0: str(node.folder.own(0, 0)),
        1: str(node.folder.own(1, 0)),
        SHARED: str(node.folder.own(SHARED, 0)),
    }
    assert (told.checkpoint, told.world_size, told.layout) == (ref(3, 7), 4, "w4")
    assert (told.run_id, told.places) == (RUN, {Tier.STORAGE: str(tmp_path / "job" / "checkpoints")})
    assert node.service.notes() == []


def test_why_a_step_did_not_get_onto_storage_is_told(make: MakeNode, writer: Path) -> None:
    (writer / "mode").write_text("fail")
    node = make("a")
    node.launch(3, (0,))
    assert node.service.news().unflushed == ""
    node.service.ask_flush(7)
    fill(node.folder.own(0, 0), 0, 7, 3, MIB)
    wait_for(lambda: node.service.news().unflushed)
    assert node.service.news().unflushed.startswith("step 7: ")
    node.launch(4, (0,))
    assert node.service.news().unflushed == ""


def test_copies_of_own_ranks_and_peers_are_saved_when_no_worker_lives(make: MakeNode, writer: Path) -> None:
    node = make("a")
    node.launch(3, (0,))
    fill(node.folder.own(0, 0), 0, 7, 2, MIB)
    fill(node.folder.peer(1, 0), 1, 7, 2, MIB)
    node.service.follow(Phase.ENDED, 3)
    order = Save(epoch=1, checkpoint=ref(2, 7), ranks=(0, 1), world_size=2, layout="w2")
    for _ in range(2):  # orders are repeated until their effect is told
        node.service.save(order)
    wait_for(lambda: node.service.news().saved == order.checkpoint)
    (line,) = (writer / "orders").read_text().splitlines()
    told = msgspec.json.decode(line, type=FlushOrder)
    assert told.images == {0: str(node.folder.own(0, 0)), 1: str(node.folder.peer(1, 0))}
    assert (told.checkpoint, told.world_size, told.layout) == (order.checkpoint, 2, "w2")
    assert node.service.news().saved_ranks == (0, 1)
    missing = structs.replace(order, checkpoint=ref(2, 8))
    node.service.save(missing)
    assert any("gen-0002/step-00000008 cannot be put on storage" in text for text in node.service.notes())
    assert node.service.news().saved is None


def test_a_checkpoint_of_before_is_saved_while_the_next_generation_runs_and_flushes_its_own(
    make: MakeNode, writer: Path
) -> None:
    (writer / "mode").write_text("wait")
    node = make("a")
    fill(node.folder.own(0, 0), 0, 7, 2, MIB)
    node.launch(3, (0,))
    order = Save(epoch=1, checkpoint=ref(2, 7), ranks=(0,), world_size=1, layout="w1")
    node.service.save(order, later=True)
    with pytest.raises(BufferInUse):
        Buffer(node.folder.own(0, 0)).receive(MIB)  # a worker fills another one
    assert not (writer / "orders").exists()
    node.service.write_saves()  # the workers have made their first step
    node.service.ask_flush(9)
    fill(node.folder.own(0, 1), 0, 9, 3, MIB)
    (writer / "go").touch()
    wait_for(lambda: node.service.news().flushed == 9)
    news = node.service.news()
    assert (news.saved, news.saved_ranks, news.unsaved, news.unflushed) == (ref(2, 7), (0,), "", "")
    assert node.service.flush_over == 9
    wait_for(lambda: _is_free(node.folder.own(0, 0)))


def test_a_part_that_is_lost_is_written_from_another_ranks(make: MakeNode, writer: Path) -> None:
    """The agent holds the images of both parts and tells the writer which file is which part."""
    node = make("a")
    node.launch(3, (0,))
    fill(node.folder.own(0, 0), 0, 7, 2, MIB)
    fill(node.folder.own(SHARED, 0), SHARED, 7, 2, MIB)
    node.service.follow(Phase.ENDED, 3)
    checkpoint = ref(2, 7)
    node.service.save(
        Save(epoch=1, checkpoint=checkpoint, ranks=(0, 1), world_size=2, layout="w2", anew={1: 0})
    )
    wait_for(lambda: node.service.news().saved == checkpoint)
    (line,) = (writer / "orders").read_text().splitlines()
    told = msgspec.json.decode(line, type=FlushOrder)
    mine = str(node.folder.own(0, 0))
    assert told.images == {0: mine, 1: mine, SHARED: str(node.folder.own(SHARED, 0))}
    assert told.anew == {1: 0}
    assert node.service.news().saved_ranks == (0, 1)


def test_an_order_for_more_ranks_of_the_same_checkpoint_is_answered_anew(
    make: MakeNode, writer: Path
) -> None:
    """Another node could not write them."""
    node = make("a")
    node.launch(3, (0,))
    fill(node.folder.own(0, 0), 0, 7, 2, MIB)
    fill(node.folder.peer(1, 0), 1, 7, 2, MIB)
    node.service.follow(Phase.ENDED, 3)
    checkpoint = ref(2, 7)
    first = Save(epoch=1, checkpoint=checkpoint, ranks=(0,), world_size=2, layout="w2")
    node.service.save(first)
    wait_for(lambda: node.service.news().saved == checkpoint)
    assert node.service.news().saved_ranks == (0,)
    (writer / "mode").write_text("fail")
    both = structs.replace(first, ranks=(0, 1))
    node.service.save(both)
    wait_for(lambda: node.service.news().unsaved)
    assert node.service.news().saved is None
    assert node.service.news().unsaved.startswith("gen-0002/step-00000007: ")
    (writer / "mode").write_text("ok")
    node.service.save(structs.replace(both, begun=60.0))  # ordered anew
    wait_for(lambda: node.service.news().saved_ranks == (0, 1))
    assert (node.service.news().unsaved, node.service.news().save_begun) == ("", 60.0)


def _is_free(path: Path) -> bool:
    buffer = Buffer(path)
    try:
        buffer.receive(MIB).release()
    except BufferInUse:
        return False
    finally:
        buffer.discard()
        buffer.close()
    return True


@pytest.mark.parametrize(("mode", "words"), [("fail", "full"), ("die", "it died")])
def test_a_failure_is_noted_and_given_up_and_the_next_step_is_tried(
    make: MakeNode, writer: Path, mode: str, words: str
) -> None:
    (writer / "mode").write_text(mode)
    node = make("a")
    node.launch(3, (0,))
    node.service.ask_flush(7)
    node.snapshot(0, 7, generation=3)
    wait_for(lambda: node.service.flush_over == 7)
    assert node.service.news().flushed == -1
    (note,) = node.service.notes()
    assert "step 7 could not be put on storage" in note
    assert words in note
    (writer / "mode").write_text("ok")
    node.service.ask_flush(9)
    node.snapshot(0, 9, generation=3)
    wait_for(lambda: node.service.news().flushed == 9)


def test_a_step_that_was_skipped_is_given_up(make: MakeNode, writer: Path) -> None:
    node = make("a")
    node.launch(3, (0,))
    node.service.ask_flush(7)
    node.snapshot(0, 8, generation=3)
    wait_for(lambda: node.service.flush_over == 7)
    assert "step 7 for storage was not taken" in node.service.notes()[0]
    assert not (writer / "orders").exists()


def test_another_generation_knows_nothing_of_the_flush(make: MakeNode, writer: Path) -> None:
    node = make("a")
    node.launch(3, (0,))
    node.service.ask_flush(7)
    node.service.follow(Phase.ENDED, 3)
    node.snapshot(0, 7, generation=3)
    node.launch(4, (0,))
    node.snapshot(0, 7, generation=4)
    pause(0.2)
    assert (node.service.news().flushed, node.service.flush_over) == (-1, -1)
    assert not (writer / "orders").exists()


def test_a_writer_that_hangs_is_killed_in_the_end(tmp_path: Path) -> None:
    hanging = StorageWriter((sys.executable, "-c", "import threading; threading.Event().wait()"))
    order = FlushOrder(
        images={}, checkpoint=ref(1, 1), world_size=1, places={}, job_dir="/", run_id=RUN, layout=""
    )
    assert "the storage hangs" in hanging.write(order, timeout_s=0.5)
    assert hanging._process is None


# -- without room in memory ----------------------------------------------------------------------------


def test_a_node_without_room_says_so_and_has_a_step_when_its_rank_has_written_it(make: MakeNode) -> None:
    node = make("a")
    node.launch(1, (0,))
    node.service.ask_flush(7, (0,))
    seen = node.service.news(keepless=frozenset({0}))
    assert seen.flushed == -1
    assert " free of " in seen.unkept
    wrote = Progress(rank=0, step=7, reported=True, age_s=0.0, checkpoint=7)
    assert node.service.news((wrote,), frozenset({0})).flushed == 7
    assert node.service.flush_over == 7


def test_an_agent_writes_the_ranks_that_have_room_and_waits_for_those_that_write_themselves(
    make: MakeNode, writer: Path
) -> None:
    node = make("a")
    node.launch(1, (0, 1))
    node.service.ask_flush(7, (1,))
    node.snapshot(0, 7)
    wait_for(lambda: (writer / "orders").exists())
    order = msgspec.json.decode((writer / "orders").read_bytes().splitlines()[0], type=FlushOrder)
    assert list(order.images) == [0]
    none = Progress(rank=1, step=7, reported=True, age_s=0.0)
    wrote = structs.replace(none, checkpoint=7)
    assert node.service.news((none,), frozenset({1})).flushed == -1
    wait_for(lambda: node.service.news((wrote,), frozenset({1})).flushed == 7)


def test_a_node_without_room_for_copies_of_others_says_so_if_there_are_others(make: MakeNode) -> None:
    node = make("a")
    node.launch(1, (0,))
    few = MemoryPlan(own_buffers=2, peer_buffers=0, reason="why", short="1 MB free")
    write_plan(node.folder.path, 0, few)
    assert node.service.news().unkept_peers == "1 MB free"
    assert node.service.news(keepless=frozenset({0})).unkept_peers == "", "the graver thing is said"
    write_plan(node.folder.path, 0, structs.replace(few, peer_buffers=1))
    assert node.service.news().unkept_peers == ""
