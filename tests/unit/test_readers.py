"""Whatever bytes a reader is given, it raises its own kind of error and no other, which its callers catch."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import torch
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_robust.agent.__main__ import CannotBegin, read_spec
from slurm_robust.agent.copies.service import read_plans
from slurm_robust.checkpoint import image as im
from slurm_robust.checkpoint.disk import DiskTier, read_part
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.part import PartItem, Sidecar, encode_sidecar, read_sidecar, verify_part
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.storage_writer import snapshot_of
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.checkpoint.tree import flatten, specs_of, unflatten
from slurm_robust.config.plan import load_plan
from slurm_robust.hooks.suspects import EndedJob, judge
from slurm_robust.kernel.kmsg import parse as parse_kernel_record
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import PreflightError
from slurm_robust.model.job import CommandKind, JobDirectory, JobSpec
from slurm_robust.model.jobsummary import SummaryRefused, decode_spooled, decode_summary, encode
from slurm_robust.model.journal import JournalDamaged, parse
from slurm_robust.slurm import text as slurm_text
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.wire import copychannel, messages
from slurm_robust.wire.epochs import EpochRecord, newest_epoch
from slurm_robust.wire.keys import KeyPair, KeysError, load_client
from slurm_robust.worker import spawning
from slurm_robust.worker.step_record import RecordError, StepRecord
from tests.builders import specs
from tests.builders.plans import plan
from tests.unit.fleet.samples import spooled, summary

Use = Callable[[bytes], object]


class Reader(NamedTuple):
    """What a reader takes, and how; and what it may raise."""

    good: bytes
    use: Use
    errors: tuple[type[Exception], ...]


def spoiled(good: bytes) -> st.SearchStrategy[bytes]:
    """Bytes that are nearly right, or a trap for those who parse, or anything."""
    flips = st.lists(
        st.tuples(st.integers(0, max(0, len(good) - 1)), st.integers(0, 255)), min_size=1, max_size=8
    )

    def flipped(changes: list[tuple[int, int]]) -> bytes:
        data = bytearray(good)
        for at, byte in changes:
            data[at] = byte
        return bytes(data)

    traps = [
        b"",
        b"\xff" * 40,
        b"[" * 5000,
        b"\x91" * 5000,
        b"\x81\xa1a" * 5000,
        b'{"a":' * 5000,
        b"\xd9\x02\xff\xfe",
    ]
    swapped = st.sampled_from(
        [good.replace(b"n1", b"\xff\xfe"), good.replace(b"1", "²".encode()), good[:-1], good * 2]
    )
    cut = st.integers(0, len(good)).map(lambda end: good[:end])
    return st.one_of(flips.map(flipped), swapped, cut, st.sampled_from(traps), st.binary(max_size=200))


def job_spec() -> JobSpec:
    return specs.job_spec(run_id="n1")


def in_file(path: Path, use: Callable[[], object]) -> Use:
    def read(data: bytes) -> object:
        path.write_bytes(data)
        return use()

    return read


def readers(folder: Path) -> dict[str, Reader]:
    """Those that need no torch and no large files."""
    folder.chmod(0o700)
    job = JobDirectory(folder)
    job.keys.mkdir(mode=0o700)
    job.epochs.mkdir()
    heartbeat = messages.Heartbeat(
        node="n1", agent="a", seq=1, epoch=1, phase=messages.Phase.RUNNING, notes=("x",)
    )
    put = copychannel.Put(
        run_id="n1", launch=1, restore=None, rank=0, checkpoint=CheckpointId(generation=1, step=1), total=5000
    )
    note = ev.encode_event(ev.Noted(t=1.0, text="x", node="n1")) + b"\n"
    pair = msgspec.json.encode(KeyPair(public="1" * 40, secret="2" * 40))
    epoch = EpochRecord(epoch=1, host="n1", addresses=("n1",), port=1, pid=1, run_id="n1")
    suspect = {"node": "n1", "job_id": 7, "t": 1e9, "reason": "r", "symptom": "", "evidence": ["a"]}
    whose = EndedJob(job_id=7, uid=1, gid=1, user="", work_dir="/")
    spawn = spawning.Spawn(generation=1, command_kind=CommandKind.EXEC, command=("n1",), cwd="/", workers=())
    node = (
        "NodeName=n1 Arch=x86_64 CPUTot=2 State=IDLE+DRAIN\n Partitions=p \n Reason=srobust: x [root@1]\n\n"
    )
    record = folder / "record"
    StepRecord.create(record, generation=1, rank=0).close()
    for name in ("controller.json", "agent.json"):
        (job.keys / name).write_bytes(pair)
        (job.keys / name).chmod(0o600)
    decode_error = (msgspec.DecodeError,)
    return {
        "message to a controller": Reader(
            messages.encode(heartbeat), messages.decode_to_controller, (messages.MalformedMessage,)
        ),
        "message of a controller": Reader(
            messages.encode(messages.Ack(epoch=1, seq=1)),
            messages.decode_from_controller,
            (messages.MalformedMessage,),
        ),
        "request for copies": Reader(
            msgspec.msgpack.encode(put), copychannel.request_in, (copychannel.ChannelError,)
        ),
        "answer about copies": Reader(
            msgspec.msgpack.encode(copychannel.CopyAnswer(verdict=copychannel.CopyVerdict.GO, reason="n1")),
            copychannel.answer_in,
            (copychannel.ChannelError,),
        ),
        "order to a zygote": Reader(spawning.encode(spawn), spawning.decode_to_zygote, decode_error),
        "word of a zygote": Reader(
            spawning.encode(spawning.Fatal(reason="n1")), spawning.decode_from_zygote, decode_error
        ),
        "journal": Reader(note * 3, parse, (JournalDamaged,)),
        "summary": Reader(encode(summary()), decode_summary, (SummaryRefused,)),
        "spooled summary": Reader(encode(spooled()), decode_spooled, (SummaryRefused,)),
        "suspect": Reader(msgspec.json.encode(suspect), lambda data: judge(data, whose, "n1", 1e9), ()),
        "kernel's record": Reader(b"6,1,2,-;EDAC MC0: 1 UE n1\n", parse_kernel_record, ()),
        "nodes of Slurm": Reader(
            node.encode(), lambda data: slurm_text.parse_nodes(data.decode("latin-1")), (SlurmError,)
        ),
        "step record": Reader(record.read_bytes(), in_file(record, lambda: look_at(record)), (RecordError,)),
        "description of the job": Reader(
            msgspec.json.encode(job_spec()), in_file(job.spec, lambda: read_spec(job)), (CannotBegin,)
        ),
        "plan of the controller": Reader(
            msgspec.json.encode(plan()),
            in_file(folder / "plan.json", lambda: load_plan(job)),
            (PreflightError,),
        ),
        "keys": Reader(pair, in_file(job.keys / "agent.json", lambda: load_client(job.keys)), (KeysError,)),
        "epoch": Reader(
            msgspec.json.encode(epoch),
            in_file(job.epochs / "000001.json", lambda: newest_epoch(job.epochs)),
            (),
        ),
        "plan of memory": Reader(
            b'{"own_buffers":1}', in_file(folder / "plan-00000.json", lambda: read_plans(folder)), ()
        ),
    }


NAMES = (
    "message to a controller",
    "message of a controller",
    "request for copies",
    "answer about copies",
    "order to a zygote",
    "word of a zygote",
    "journal",
    "summary",
    "spooled summary",
    "suspect",
    "kernel's record",
    "nodes of Slurm",
    "step record",
    "description of the job",
    "plan of the controller",
    "keys",
    "epoch",
    "plan of memory",
)


def look_at(path: Path) -> None:
    with closing(StepRecord.open(path)) as record:
        record.progress(time.monotonic())
        assert record.phase is not None
        assert record.stride is not None


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    return readers(tmp_path_factory.mktemp("job"))


def test_every_reader_of_files_is_named(known: dict[str, Reader]) -> None:
    assert tuple(known) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_good_file_is_read(known: dict[str, Reader], name: str) -> None:
    known[name].use(known[name].good)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_else_is_its_own_error(known: dict[str, Reader], name: str, data: st.DataObject) -> None:
    reader = known[name]
    given_bytes = data.draw(spoiled(reader.good))
    try:
        reader.use(given_bytes)
    except reader.errors:
        pass


@pytest.mark.parametrize("text", ["²", "0²", "٣"])
def test_digits_that_are_no_numbers_are_none_of_slurms(text: str) -> None:
    line = f"NodeName=n1 CPUTot={text} BootTime={text} State=IDLE\n\n"
    try:
        slurm_text.parse_nodes(line)
    except SlurmError:
        pass


# -- checkpoints, also with sums that are right, as whoever can write there makes them ---------------------


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "own-00000.0"
    state = {"own": {"model": {"weight": torch.arange(64.0)}}, "rng": {}, "has_shared": False}
    tree, tensors = flatten(state)
    buffer = im.Buffer(path)
    header = PartHeader(run_id="r", layout="l", generation=1, step=5, rank=0, world_size=2)
    views = buffer.begin(header, specs_of(tensors), tree)
    for view, tensor in zip(views, tensors, strict=True):
        view[:] = tensor.numpy().tobytes()
        view.release()
    buffer.commit()
    buffer.close()
    assert read_image(path).own["model"]["weight"].tolist() == list(range(64))
    return path


def read_image(path: Path) -> Snapshot:
    im.read_header(path)
    with closing(im.open_image(path)) as opened:
        return snapshot_of(opened, None)


NUMBERS = st.sampled_from([0, 1, 63, 64, 4095, 4096, 4097, 2**20, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1])
TREES: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([*"tdoc[({Sm", "i", "u", "j", "T", "D"])
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["own", "rng", "has_shared", "a"]), inner)
    ),
    max_leaves=8,
)
SHAPES = st.lists(st.integers(-2, 3) | NUMBERS, max_size=3).map(tuple)
SPECS = st.builds(
    lambda dtype, shape, nbytes: {"dtype": dtype, "shape": shape, "nbytes": nbytes},
    st.sampled_from(["float32", "int8", "bfloat16", "nn", "", "é"]),
    SHAPES,
    st.integers(-64, 300) | NUMBERS,
)


def forged(good: bytes, page: dict[int, int], header: bytes | None, meta: bytes | None) -> bytes:
    """An image with other numbers (by offset), header or meta block, and all sums right."""
    first = bytearray(good[: im.PAGE])
    old = good[im.PAGE : im.PAGE + struct.unpack_from("<Q", good, 16)[0]]
    block = old if meta is None else meta
    struct.pack_into("<Q", first, 16, len(block))
    if header is not None:
        struct.pack_into("<I", first, 12, len(header))
        first[64 : 64 + len(header)] = header
    for at, number in page.items():
        struct.pack_into(
            *(("<I", first, at, number % 2**32) if at in (8, 12, 40, 44) else ("<Q", first, at, number))
        )
    struct.pack_into("<Q", first, 48, xxhash.xxh3_64_intdigest(block))
    struct.pack_into("<Q", first, 56, 0)
    struct.pack_into("<Q", first, 56, xxhash.xxh3_64_intdigest(bytes(first[8:])))
    rest = (
        good[im.PAGE + len(old) :] if len(block) == len(old) else good[im.PAGE + max(len(old), len(block)) :]
    )
    return bytes(first[: im.PAGE]) + block + rest


@given(data=st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_forged_image_is_no_checkpoint(image: Path, data: st.DataObject) -> None:
    good = image.read_bytes()
    kind = data.draw(st.sampled_from(["flips", "numbers", "header", "meta", "tree"]))
    meta = header = None
    numbers: dict[int, int] = {}
    if kind == "flips":
        content = data.draw(spoiled(good[: im.PAGE + 400])) + good[im.PAGE + 400 :]
    else:
        if kind == "numbers":
            numbers = data.draw(
                st.dictionaries(st.sampled_from([8, 12, 16, 24, 32, 40, 44]), NUMBERS, min_size=1)
            )
        elif kind == "header":
            header = data.draw(spoiled(good[64:200]))[:4000]
        elif kind == "meta":
            meta = data.draw(spoiled(good[im.PAGE : im.PAGE + struct.unpack_from("<Q", good, 16)[0]]))
        else:
            tree = msgspec.msgpack.encode(data.draw(TREES))
            table = data.draw(st.lists(SPECS, max_size=3))
            size = data.draw(st.sampled_from([256, 512, 0]))
            numbers = {32: size}
            sums = b"".join(
                struct.pack("<Q", xxhash.xxh3_64_intdigest(good[-size:])) for _ in range(bool(size))
            )
            meta = msgspec.msgpack.encode({"tensors": table, "tree": tree, "sums": sums})
        content = forged(good, numbers, header, meta)
    path = image.with_name("forged")
    path.write_bytes(content)
    try:
        read_image(path)
    except (CheckpointError, OSError):
        pass


@given(TREES)
@settings(max_examples=100, deadline=None)
def test_a_forged_tree_is_a_corrupt_part(packed: object) -> None:
    try:
        unflatten(msgspec.msgpack.encode(packed), [torch.zeros(2, 3)])
    except CheckpointError:
        pass


@pytest.mark.parametrize(
    "tree", [b"\x92\xa1[" * 5000 + b"\xc0", b"\x92\xa1{" * 100 + b"\x90", b"\xc1", b"", b"\x92\xa1u\xa1x"]
)
def test_a_tree_that_is_none_is_a_corrupt_part(tree: bytes) -> None:
    with pytest.raises(CheckpointError):
        unflatten(tree, [])


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = CheckpointStore(tmp_path_factory.mktemp("store"))
    ref = CheckpointId(generation=2, step=7)
    state = Snapshot(own={"model": {"weight": torch.arange(5.0), "none": torch.empty(0)}}, shared={}, rng={})
    DiskTier(store, run_id="run", rank=0, world_size=1).save(ref, state)
    return store.parts(ref)[0]


def read_whole_part(path: Path) -> None:
    verify_part(path)
    read_part(path, read_sidecar(path))


ITEMS = st.builds(
    PartItem,
    path=st.lists(st.sampled_from(["a", 0, 2**40]), max_size=2).map(tuple),
    offset=NUMBERS | st.just(-1),
    length=NUMBERS | st.just(-1),
    sum=NUMBERS,
    dtype=st.sampled_from(["", "float32", "nn", "é"]),
    shape=SHAPES,
    strides=SHAPES,
    raw=NUMBERS | st.just(-1),
)


@given(data=st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_forged_sidecar_is_no_checkpoint(part: Path, data: st.DataObject) -> None:
    good = part.read_bytes()
    sidecar = read_sidecar(part)
    if data.draw(st.booleans()):
        content = data.draw(spoiled(good))
    else:
        items = list(sidecar.items)
        if data.draw(st.booleans()):
            items = [changed(item, data) for item in items]
        else:
            items += data.draw(st.lists(ITEMS, max_size=2))
        other: Sidecar = msgspec.structs.replace(
            sidecar,
            items=tuple(items),
            data=data.draw(st.sampled_from([sidecar.data, "", "..", "a\0b", "../x", "none"])),
            data_bytes=data.draw(st.sampled_from([sidecar.data_bytes, 0, 2**63])),
            own=data.draw(st.sampled_from([sidecar.own, b"", b"\xc0"]) | TREES.map(msgspec.msgpack.encode)),
            shared=data.draw(st.sampled_from([b"", b"\x01", b"\xff"])),
        )
        content = encode_sidecar(other)
    forged_part = part.with_name("rank-00009-of-00010.part")
    forged_part.write_bytes(content)
    try:
        read_whole_part(forged_part)
    except (CheckpointError, OSError):
        pass


def changed(item: PartItem, data: st.DataObject) -> PartItem:
    """One whose bytes and sum are right, and whose shape may not be."""
    return msgspec.structs.replace(
        item,
        dtype=data.draw(st.sampled_from([item.dtype, "float64", "int8", ""])),
        shape=data.draw(st.just(item.shape) | SHAPES),
        strides=data.draw(st.just(item.strides) | SHAPES),
        raw=data.draw(st.just(item.raw) | NUMBERS),
    )


@pytest.mark.parametrize("trap", [os.mkfifo, Path.mkdir])
def test_a_pipe_among_the_files_of_a_checkpoint_hangs_nobody(
    part: Path, tmp_path: Path, trap: Callable[[Path], None]
) -> None:
    sidecar = tmp_path / part.name
    trap(sidecar)
    with pytest.raises(OSError, match="not a plain file"):
        read_sidecar(sidecar)
    other = tmp_path / "beside" / part.name
    other.parent.mkdir()
    other.write_bytes(part.read_bytes())
    trap(other.with_name(read_sidecar(part).data))
    with pytest.raises(OSError, match="not a plain file"):
        read_whole_part(other)
