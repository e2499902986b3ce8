"""Parts that are fetched for a restore, and the folder that outlives an agent."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.agent.copies.service import NO_COPIES
from slurm_robust.checkpoint.budget import MemoryPlan, write_plan
from slurm_robust.checkpoint.image import open_image, read_header
from slurm_robust.checkpoint.local import LocalCopies
from slurm_robust.model.copies import SHARED, CheckpointId, RestoreSource, Tier
from slurm_robust.wire.copychannel import CopyAnswer, CopyChannel, CopyVerdict, Get, Put, derive_key
from slurm_robust.wire.messages import Phase, Save
from tests.builders.checkpoints import ref
from tests.unit.agent.copy_nodes import MIB, RUN, MakeNode, Node, check, connect, fill, keys_in
from tests.unit.agent.local_job import pause
from tests.waiting import wait_for


def test_parts_are_fetched_for_a_restore_or_the_reason_is_there(make: MakeNode) -> None:
    a, b = make("a"), make("b")
    fill(a.folder.own(0, 0), 0, 5, 1, MIB)
    fill(a.folder.own(SHARED, 0), SHARED, 5, 1, MIB)
    fill(a.folder.peer(3, 1), 3, 5, 1, MIB)
    restore = ref(1, 5)
    sources = (
        a.source(0, tier=Tier.MEMORY),
        a.source(SHARED, tier=Tier.MEMORY),
        a.source(3, tier=Tier.PEER),
        a.source(4, tier=Tier.PEER),
    )
    b.launch(2, (0, 3, 4), restore=restore, sources=sources)
    for rank in (0, SHARED, 3):
        wait_for(lambda rank=rank: b.folder.fetched(rank).exists() and read_header(b.folder.fetched(rank)))
        check(b.folder.fetched(rank), rank, 5)
    wait_for(b.folder.fetch_error(4).exists)
    assert "the part of rank 4 of gen-0001/step-00000005 could not be" in b.folder.fetch_error(4).read_text()
    assert b.service.inventory() == ()
    b.launch(3, (0,))
    assert list(b.folder.path.glob("fetched*")) == []


def test_a_part_on_a_nodes_disk_is_served_too(make: MakeNode, shm: Path, tmp_path: Path) -> None:
    a, b = make("a", places={Tier.LOCAL: str(tmp_path / "disk")}), make("b")
    image = open_image(fill(shm / "image", 0, 5, 1, MIB))
    local = LocalCopies(tmp_path / "disk", RUN, a.folder.seal_key.read_bytes())
    local.publish(image, 1)
    image.close()
    b.launch(2, (0,), restore=ref(1, 5), sources=(a.source(0, tier=Tier.LOCAL),))
    wait_for(lambda: b.folder.fetched(0).exists() and read_header(b.folder.fetched(0)))
    check(b.folder.fetched(0), 0, 5)
    a.launch(2, (1,))  # a launch reads the disk anew
    wait_for(lambda: [c.tier for c in a.service.inventory()] == [Tier.LOCAL])


@pytest.mark.slow
def test_a_source_that_died_is_told_within_seconds(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make("a"), make("b")
    a.close()
    b.launch(2, (0,), restore=ref(1, 5), sources=(a.source(0, tier=Tier.MEMORY),))
    wait_for(b.folder.fetch_error(0).exists)
    assert "refused" in b.folder.fetch_error(0).read_text()


@pytest.mark.slow
def test_a_damaged_source_is_removed(make: MakeNode) -> None:
    a, b = make("a"), make("b")
    path = fill(a.folder.own(0, 0), 0, 5, 1, MIB)
    with path.open("r+b") as file:
        file.seek(MIB // 2)
        file.write(b"\xff\x00\xff")
    b.launch(2, (0,), restore=ref(1, 5), sources=(a.source(0, tier=Tier.MEMORY),))
    wait_for(b.folder.fetch_error(0).exists)
    # The node that has it checks it, and does without it from now on.
    assert "there is no copy of rank 0" in b.folder.fetch_error(0).read_text()
    assert "a damaged copy was removed" in a.service.notes()[0]
    assert a.service.inventory() == ()
    assert b.folder.find(0, ref(1, 5)) is None


@pytest.mark.slow
def test_no_memory_for_a_fetched_part_is_the_reason(make: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make("a"), make("b")
    fill(a.folder.own(0, 0), 0, 5, 1, MIB)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    b.launch(2, (0,), restore=ref(1, 5), sources=(a.source(0, tier=Tier.MEMORY),))
    wait_for(b.folder.fetch_error(0).exists)
    assert "No space left" in b.folder.fetch_error(0).read_text()


def test_memory_is_reserved_before_the_first_byte_is_sent(
    make: MakeNode, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes half a second per GiB; whoever sends meanwhile would believe the way to be cut after 5 s."""
    b, happened = make("b"), list[str]()
    image = fill(b.base / "image", 0, 5, 1, MIB)
    reserve, slowly = os.posix_fallocate, threading.Event()

    def reserved(*arguments: int) -> None:
        slowly.wait(60)
        happened.append("reserved")
        reserve(*arguments)

    monkeypatch.setattr(os, "posix_fallocate", reserved)

    def serve(listener: socket.socket) -> None:
        channel = CopyChannel.accept(listener.accept()[0], derive_key(keys_in(job).client.secret))
        request = channel.request()
        assert isinstance(request, Get)
        assert (request.rank, request.checkpoint) == (0, ref(1, 5))
        channel.send(CopyAnswer(verdict=CopyVerdict.GO, total=image.stat().st_size))
        wait_for(b.folder.fetch_size(0).exists)
        slowly.set()
        happened.append(channel.answer().verdict.value)
        with image.open("rb") as file:
            channel.send_file(file.fileno(), image.stat().st_size, None)
        happened.append(channel.answer().verdict.value)
        channel.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        source = RestoreSource(rank=0, tier=Tier.MEMORY, address="127.0.0.1", port=listener.getsockname()[1])
        b.launch(2, (0,), restore=ref(1, 5), sources=(source,))
        thread.join(60)
    assert happened == ["reserved", "go", "go"]
    check(b.folder.fetched(0), 0, 5)
    assert int(b.folder.fetch_size(0).read_text()) == image.stat().st_size


def test_two_new_snapshots_replace_what_was_fetched_and_what_other_ranks_left(make: MakeNode) -> None:
    a, b = make("a"), make("b")
    fill(a.folder.own(0, 0), 0, 5, 1, MIB)
    fill(b.folder.own(7, 0), 7, 5, 1, MIB)  # rank 7 trained here before
    fill(b.folder.peer(2, 0), 2, 5, 1, MIB)
    b.launch(2, (0,), restore=ref(1, 5), sources=(a.source(0, tier=Tier.MEMORY),))
    wait_for(b.folder.fetched(0).exists)
    b.snapshot(0, 6, generation=2)
    pause(0.2)
    assert b.folder.fetched(0).exists()
    b.snapshot(0, 7, generation=2)
    wait_for(lambda: not b.folder.fetched(0).exists() and not b.folder.own(7, 0).exists())
    assert b.peer_steps(2) == {(1, 5)}


def test_a_get_of_something_else_is_answered(make: MakeNode, job: Path) -> None:
    a = make("a")
    fill(a.folder.own(0, 0), 0, 5, 1, MIB, run_id="another")
    channel = connect(a, job)
    channel.send(Get(run_id=RUN, rank=0, checkpoint=ref(1, 5)))
    assert "there is no copy of rank 0" in channel.answer().reason
    channel.close()


# -- the folder -------------------------------------------------------------------------------------


def test_copies_outlive_an_agent_and_go_with_the_job(make: MakeNode, shm: Path, job: Path) -> None:
    a = make("a")
    a.snapshot(0, 3)
    a.close(remove=False)
    again = Node("a", shm, job, keys_in(job))
    assert [(c.rank, c.step, c.tier) for c in again.service.inventory()] == [(0, 3, Tier.MEMORY)]
    again.close(remove=True)
    assert not again.folder.path.exists()


def check_serves_nothing(node: Node) -> None:
    """Each question has an answer and no order does anything, at every moment of an agent's life."""
    service = node.service

    def asked() -> None:
        assert (service.port, service.inventory()) == (0, ())
        assert not os.path.isdir(service.memory)
        assert structs.replace(service.news(), unkept="") == NO_COPIES
        assert (service.answer, service.flush_over) == ((None, ""), -1)

    asked()
    service.fork_by(lambda: None)
    node.launch(1, (0,))
    service.follow(Phase.RUNNING, 1)
    service.set_stride(2)
    service.ask_flush(3)
    asked()
    service.save(Save(epoch=1, checkpoint=CheckpointId(1, 3), ranks=(0,), world_size=1, layout="w1"))
    asked()
    service.follow(Phase.ENDED, 1)
    asked()
    service.close(remove=True)
    asked()


def test_memory_off_means_nothing_is_made(make: MakeNode) -> None:
    a = make("a", memory=False)
    check_serves_nothing(a)
    assert not a.folder.path.exists()


def test_a_folder_that_cannot_be_made_is_noted(shm: Path, job: Path) -> None:
    (shm / "a").mkdir()
    (shm / "a" / f"srobust-{os.getuid()}-{RUN}-copies").write_text("in the way")
    a = Node("a", shm, job, keys_in(job))
    (note,) = a.service.notes()
    assert "no snapshots in this node's memory" in note
    assert "is not a folder: remove it" in a.service.news().unkept
    check_serves_nothing(a)


def test_peers_off_means_nothing_is_sent(make: MakeNode) -> None:
    a, b = make("a", peers=False), make("b")
    b.launch(1, (1,))
    a.launch(1, (0,), peers=(b.peer(0),))
    a.snapshot(0, 1)
    pause(0.2)
    assert b.peer_steps(0) == set()


@pytest.mark.slow
def test_many_generations_leave_no_thread_and_no_descriptor(make: MakeNode) -> None:
    a, b = make("a"), make("b")

    def run(generation: int) -> None:
        b.launch(generation, (1,))
        a.launch(generation, (0,), peers=(b.peer(0),))
        a.snapshot(0, generation, generation=generation)
        wait_for(lambda: (generation, generation) in b.peer_steps(0))

    def count() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    for generation in range(1, 7):
        run(generation)
    before = count()
    for generation in range(7, 20):
        run(generation)
    wait_for(lambda: all(now <= then for now, then in zip(count(), before, strict=True)))


def test_a_short_memory_is_noted_and_takes_fewer_copies(make: MakeNode, job: Path) -> None:
    a = make("a")
    a.launch(1, (0, 1))
    write_plan(a.folder.path, 0, MemoryPlan(own_buffers=5, peer_buffers=2))
    write_plan(a.folder.path, 1, MemoryPlan(own_buffers=2, peer_buffers=0, reason="not enough"))
    a.service.news()
    assert a.service.notes() == ["memory for snapshots: not enough"]
    channel = connect(a, job)
    channel.send(Put(run_id=RUN, launch=1, restore=None, rank=5, checkpoint=ref(1, 1), total=2 * MIB))
    assert "no room for copies of other nodes" in channel.answer().reason
    channel.close()
    a.launch(2, (0,))
    assert list(a.folder.path.glob("plan-*")) == []
