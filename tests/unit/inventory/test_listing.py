"""What people see of a job's checkpoints, with real copies in memory, on disk and on storage."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from msgspec import structs
from rich.console import Console

from slurm_robust.checkpoint.disk import DiskTier
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import Buffer, open_image
from slurm_robust.checkpoint.local import LocalCopies, seal_key
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.checkpoint.tree import flatten, specs_of
from slurm_robust.cli.main import main
from slurm_robust.inventory.listing import CheckpointListing, CheckpointRow, StoredCheckpoint, render
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Tier
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.live_status import LiveTier, encode
from slurm_robust.wire.keys import create_keys, load_client
from tests.builders import specs
from tests.builders.checkpoints import ref
from tests.builders.events import allocation_taken, run_started
from tests.builders.live_statuses import live_status


def state(rank: int, step: int) -> Snapshot:
    return Snapshot(
        own={"model": {"buffer": torch.full((4,), 100.0 * rank + step)}},
        shared={"model": {"weight": torch.arange(6.0) + step}},
        rng={"python": (3, rank)},
    )


class Job:
    """A job of two nodes with one rank each, seen from the first one."""

    def __init__(self, folder: Path) -> None:
        self.run_id = f"9-test-{os.getpid()}"
        self.directory = JobDirectory(folder / "jobs" / "9")
        self.directory.path.mkdir(parents=True)
        self.store = CheckpointStore(self.directory.checkpoints)
        self.memory = MemoryFolder.create(self.run_id)
        create_keys(self.directory.keys)
        key = seal_key(load_client(self.directory.keys).client.secret)
        self.local = LocalCopies(folder / "disk", self.run_id, key)
        spec = specs.job_spec(
            run_id=self.run_id, job_id=9, copies=specs.copy_spec(places={Tier.LOCAL: str(folder / "disk")})
        )
        self.directory.spec.write_bytes(msgspec.json.encode(spec))
        self.write(
            run_started(run_id=self.run_id, job_id=9, slots=2),
            allocation_taken(("n1", "n2")),
            self.launched(1),
        )

    def launched(self, generation: int, restore: CheckpointId | None = None, **tiers: int) -> ev.AnyEvent:
        return ev.GenerationLaunched(
            t=2.0, generation=generation, slots=("n1", "n2"), master="n1:1", restore=restore, tiers=tiers
        )

    def write(self, *events: ev.AnyEvent) -> None:
        with self.directory.journal.open("ab") as file:
            file.writelines(ev.encode_event(event) + b"\n" for event in events)

    def to_storage(self, where: CheckpointId, *ranks: int) -> None:
        for rank in ranks:
            tier = DiskTier(self.store, run_id=self.run_id, rank=rank, world_size=2, layout="dp2")
            tier.save(where, state(rank, where.step))

    def to_memory(self, where: CheckpointId, rank: int, path: Path) -> Path:
        snapshot = state(max(rank, 0), where.step)
        own = {"own": snapshot.own, "rng": snapshot.rng, "has_shared": True}
        tree, tensors = flatten({"shared": snapshot.shared} if rank == SHARED else own)
        header = PartHeader(
            run_id=self.run_id,
            layout="dp2",
            generation=where.generation,
            step=where.step,
            rank=rank,
            world_size=2,
        )
        buffer = Buffer(path)
        views = buffer.begin(header, specs_of(tensors), tree)
        for view, tensor in zip(views, tensors, strict=True):
            view[:] = bytes(tensor.view(torch.uint8).tolist())
            view.release()
        buffer.commit()
        buffer.close()
        return path

    def to_disk(self, path: Path) -> Path:
        with closing(open_image(path)) as image:
            return self.local.publish(image, keep=2)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    made = Job(tmp_path)
    yield made
    shutil.rmtree(made.memory.path)


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(["checkpoint", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def flip(path: Path, content: torch.Tensor) -> None:
    changed = bytearray(path.read_bytes())
    changed[changed.index(content.numpy().tobytes()) + 1] ^= 1
    path.write_bytes(changed)


def filled(job: Job) -> None:
    """Step 10 on storage; 20 in memory, half of it on storage too; of 30 only rank 0 in memory."""
    job.to_storage(ref(1, 10), 0, 1)
    for number, step in enumerate((20, 30)):
        job.to_memory(ref(1, step), 0, job.memory.own(0, number))
        job.to_memory(ref(1, step), SHARED, job.memory.own(SHARED, number))
    job.to_memory(ref(1, 20), 1, job.memory.peer(1, 0))
    job.to_storage(ref(1, 20), 1)


def test_a_table_of_all_tiers(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    filled(job)
    job.to_disk(job.memory.own(0, 0))
    code, text = call(capsys, "ls", job.directory.path)
    assert code == 0
    rows = {step: row for row in re.split(r"\n(?= +\d+ +1  )", text)[1:] for step in [row.split()[0]]}
    assert list(rows) == ["30", "20", "10"]
    assert "memory: rank 0 and shared" in rows["30"]
    assert "1 of 2 parts" in rows["20"]
    assert "would be restored" in rows["20"]
    assert "peer: rank 1" in rows["20"]
    assert "complete, 2 parts" in rows["10"]
    assert "latest" in rows["10"]
    assert "Node n1 alone, with storage, could restore step 20 from memory (1 part), peer (1)" in text


def test_a_node_without_a_copy_says_what_the_nodes_of_the_job_have(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "All nodes together" not in call(capsys, "ls", job.directory.path)[1]
    tiers = (LiveTier(tier=Tier.MEMORY, step=24, generation=1),)
    status = live_status(t=time.time(), run_id=job.run_id, tiers=tiers, final=False)
    job.directory.live_status.write_bytes(encode(status))
    code, text = call(capsys, "ls", job.directory.path)
    said = " ".join(text.split())
    assert code == 0
    assert "of node n1" in said
    assert "All nodes together can restore step 24: they have step 24 in memory (the controller, " in said


def test_a_node_that_has_one_part_says_so_and_what_all_nodes_have_together(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint that is spread over the memory of the nodes protects the training."""
    job.to_memory(ref(1, 30), 0, job.memory.own(0, 0))
    job.to_memory(ref(1, 30), SHARED, job.memory.own(SHARED, 0))
    _, text = call(capsys, "ls", job.directory.path)
    assert "Node n1 alone cannot restore: it has 1 of 2 parts of step 30." in text
    assert "What the other nodes have is not known here" in text
    tiers = (
        LiveTier(tier=Tier.MEMORY, step=30, generation=1),
        LiveTier(tier=Tier.PEER, step=28, generation=1),
    )
    status = live_status(t=time.time(), run_id=job.run_id, tiers=tiers, final=False)
    job.directory.live_status.write_bytes(encode(status))
    _, text = call(capsys, "ls", job.directory.path)
    said = " ".join(text.split())
    assert "Node n1 alone cannot restore: it has 1 of 2 parts of step 30." in said
    assert (
        "All nodes together can restore step 30: they have step 30 in memory, step 28 in the memory of other "
        "nodes (the controller, " in said
    )
    assert "would be restored" in said
    job.write(ev.CheckpointBanned(t=4.0, checkpoint=ref(1, 30), reason="NaN"))
    assert "can restore step 28" in call(capsys, "ls", job.directory.path)[1]
    job.directory.live_status.write_bytes(encode(structs.replace(status, final=True)))
    assert "All nodes together" not in call(capsys, "ls", job.directory.path)[1], "their memory is gone"


def test_eighty_columns_are_enough() -> None:
    stored = StoredCheckpoint(parts=100, of=128, complete=False, nbytes=1_234_567_000_000, age_s=1000.0)
    here = {"peer": tuple(range(8, 16)), "memory": (SHARED, *range(8)), "local": tuple(range(8))}
    note = "restored for generation 12 from memory (120 parts), peer (8)"
    row = CheckpointRow(token="x", step=1234490, generation=12, stored=stored, here=here, notes=(note,))
    listing = CheckpointListing(
        job_id=9,
        node="n1",
        storage="/s",
        memory="/m",
        local="/l",
        rows=(row,),
        restored="x",
        how="",
        latest="",
    )
    screen = io.StringIO()
    Console(width=80, file=screen, force_terminal=True, color_system=None).print(render(listing))
    text = screen.getvalue()
    assert "1234490   12  100 of 128 parts " in text
    assert " 1234567.0 MB, 17 min old " in text
    assert {"memory:", "0-7", "and", "shared", "peer:", "8-15", "local:", *note.split()} <= set(text.split())


def test_the_same_as_json_with_what_the_journal_knows(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    filled(job)
    sealed = ref(1, 10)
    job.write(
        ev.GenerationEnded(t=3.0, generation=1, reason="x", sealed_step=10, pending=True),
        ev.GenerationSealed(t=3.0, generation=1, sealed_step=10),
        job.launched(2, sealed, memory=2),
        ev.CheckpointBanned(t=4.0, checkpoint=ref(1, 8), reason="NaN"),
    )
    code, text = call(capsys, "ls", job.directory.path, "--json")
    found: dict[str, Any] = json.loads(text)
    assert code == 0
    assert found["node"] == "n1"
    assert found["restored"] == found["latest"] == str(sealed)  # 20 and 30 lie behind the seal
    rows = {row["step"]: row for row in found["rows"]}
    assert list(rows) == [30, 20, 10, 8]
    assert rows[30]["here"] == {"memory": [-1, 0]}
    assert rows[20]["here"] == {"memory": [-1, 0], "peer": [1]}
    assert rows[20]["stored"]["complete"] is False
    assert rows[10]["notes"] == ["sealed", "restored for generation 2 from memory (2 parts)"]
    assert rows[8]["notes"] == ["passed over: NaN"]
    assert rows[8]["stored"] is None


def test_each_checkpoint_names_the_release_that_wrote_it(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the journal, and by the part on storage of a generation of an earlier job."""
    job.write(
        ev.GenerationLaunched(t=3.0, generation=2, slots=("n1", "n2"), master="n1:1", release="3f2a91c04b7d")
    )
    job.to_storage(ref(2, 12), 0, 1)
    for rank in range(2):
        tier = DiskTier(job.store, run_id=job.run_id, rank=rank, world_size=2, release="0000000000ff")
        tier.save(ref(7, 30), state(rank, 30))
    _, text = call(capsys, "ls", job.directory.path, "--json")
    assert {row["generation"]: row["release"] for row in json.loads(text)["rows"]} == {
        2: "3f2a91c04b7d",
        7: "0000000000ff",
    }
    _, text = call(capsys, "ls", job.directory.path)
    assert "release 3f2a91c04b7d" in " ".join(text.split())
    _, text = call(capsys, "export", job.directory.path, "12", "--to", tmp_path / "out")
    assert "generation 2, written by release 3f2a91c04b7d, complete" in text


def test_a_job_without_any(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = call(capsys, "ls", job.directory.path)
    assert code == 0
    assert "no checkpoint in " in " ".join(text.split())
    assert "in the memory or on the local disk of node n1" in " ".join(text.split())
    assert "journal" not in text
    code, text = call(capsys, "verify", job.directory.path)
    assert code == 0
    assert "0 files with 0.0 MB are whole" in text
    code, text = call(capsys, "export", job.directory.path, "latest", "--to", job.directory.path / "x")
    assert code == ExitCode.NO_INPUT
    assert "no checkpoint is complete within reach of node n1" in text
    assert "fix: " in text


def test_a_job_that_has_not_begun(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.directory.spec.unlink()
    code, text = call(capsys, "ls", job.directory.path)
    assert code == ExitCode.NO_INPUT
    assert "has not begun to run" in text


def test_whole_copies_are_counted(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    filled(job)
    job.to_disk(job.memory.own(0, 0))
    (job.memory.path / "plan-0.json").write_text("{}")
    Buffer(job.memory.own(0, 7)).close()  # not whole, and nobody says so
    code, text = call(capsys, "verify", job.directory.path)
    assert code == 0
    assert "9 files with" in text
    assert "are whole, 0 damaged" in text


def test_a_checkpoint_has_the_same_size_in_the_list_and_when_it_is_verified(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.to_storage(ref(1, 10), 0, 1)
    (job.store.folder(ref(1, 10)) / ".metadata").write_bytes(b"x" * 10**6)
    (row,) = json.loads(call(capsys, "ls", job.directory.path, "--json")[1])["rows"]
    verified = json.loads(call(capsys, "verify", job.directory.path, "--json")[1])
    assert row["stored"]["nbytes"] == verified["nbytes"] > 0


def test_every_damaged_file_is_named(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    filled(job)
    image = job.to_disk(job.memory.own(0, 1))
    flip(job.memory.own(SHARED, 0), torch.arange(6.0) + 20)
    flip(image, torch.full((4,), 30.0))
    flip(job.store.data_path(ref(1, 10), 1), torch.full((4,), 110.0))
    job.store.data_path(ref(1, 20), 1).unlink()
    code, text = call(capsys, "verify", job.directory.path)
    assert code == 1
    lines = [line for line in text.splitlines() if line.startswith("damaged: ")]
    assert [Path(line.split()[1]).name for line in lines] == [
        "__1_0.distcp",
        "__1_0.distcp",
        "shared.0",
        "step-00000030.img",
    ]
    code, text = call(capsys, "verify", job.directory.path, "--json")
    assert code == 1
    assert len(json.loads(text)["damaged"]) == 4


def loaded(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": {"buffer": torch.zeros(4), "weight": torch.zeros(6)},
        "rank-00001": {"model": {"buffer": torch.zeros(4)}},
    }
    dcp.load(found, checkpoint_id=str(folder))
    return found


def check_export(folder: Path, step: int) -> None:
    found = loaded(folder)
    assert torch.equal(found["model"]["weight"], torch.arange(6.0) + step)
    assert torch.equal(found["model"]["buffer"], torch.full((4,), float(step)))
    assert torch.equal(found["rank-00001"]["model"]["buffer"], torch.full((4,), 100.0 + step))


@pytest.mark.parametrize(("step", "means"), [("latest", 20), ("20", 20), ("gen-0001/step-00000010", 10)])
def test_an_export_is_what_dcp_loads(
    step: str, means: int, job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From memory and a peer's copy, and from storage."""
    filled(job)
    code, text = call(capsys, "export", job.directory.path, step, "--to", tmp_path / "out")
    assert code == 0
    assert f"step {means} of generation 1, complete" in text
    check_export(tmp_path / "out", means)


def test_a_damaged_copy_is_passed_over(job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 0 from the disk instead of from memory, rank 1 from storage instead of the peer's copy."""
    filled(job)
    job.to_disk(job.memory.own(0, 0))
    flip(job.memory.own(0, 0), torch.full((4,), 20.0))
    flip(job.memory.peer(1, 0), torch.full((4,), 120.0))
    code, text = call(capsys, "export", job.directory.path, 20, "--to", tmp_path / "out")
    assert code == 0
    assert text.count("damaged: ") == 2
    check_export(tmp_path / "out", 20)


def test_parts_of_other_nodes_are_added_there(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(job)
    out = tmp_path / "out"
    code, text = call(capsys, "export", job.directory.path, 30, "--to", out)
    assert code == ExitCode.NO_INPUT
    assert "rank 1 missing, which ran on n2" in text
    command = f"srobust checkpoint export {job.directory.path} gen-0001/step-00000030 --to {out}"
    assert f"srun --jobid=9 --overlap -w n2 {command}" in text
    assert not (out / ".metadata").exists()
    job.to_memory(ref(1, 30), 1, job.memory.own(1, 0))  # as if this were node n2
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    code, text = call(capsys, "export", job.directory.path, 30, "--to", out, "--json")
    assert code == 0
    assert json.loads(text)["written"] == [1]
    check_export(out, 30)


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ("checkpoint", "holds a checkpoint already"),
        ("other", "holds parts of another checkpoint"),
        ("notes", "is not empty"),
        ("file", "is not a folder"),
    ],
)
def test_nothing_is_overwritten(
    there: str, message: str, job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(job)
    out = tmp_path / "out"
    if there == "checkpoint":
        shutil.copytree(job.store.folder(ref(1, 10)), out)
    elif there == "other":
        shutil.copytree(job.store.folder(ref(1, 20)), out)
    elif there == "notes":
        out.mkdir()
        (out / "notes.txt").touch()
    else:
        out.touch()
    before = sorted(out.iterdir()) if out.is_dir() else []
    code, text = call(capsys, "export", job.directory.path, 10, "--to", out)
    assert code == ExitCode.USAGE
    assert message in text
    assert "nothing was written" in text
    assert (sorted(out.iterdir()) if out.is_dir() else []) == before


def test_what_cannot_be_written_is_reported(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(job)
    (tmp_path / "file").touch()
    code, text = call(capsys, "export", job.directory.path, 10, "--to", tmp_path / "file" / "out")
    assert code != 0
    assert "internal error" not in text
    code, text = call(capsys, "export", job.directory.path, 77, "--to", tmp_path / "out")
    assert code == ExitCode.NO_INPUT
    assert "there is no part of step 77 within reach of node n1" in text
