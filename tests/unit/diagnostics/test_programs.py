"""Every program on this machine, and that it sees what it is there for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from slurm_robust.diagnostics.devices import counted_in_child, each_core, one_thread
from slurm_robust.diagnostics.part import Died, Measurement, NotHere, TestPart, Wrong, in_children
from slurm_robust.diagnostics.programs import all_to_all, gemm, memory, reference, storage
from slurm_robust.model.findings import Outcome

CPU = torch.device("cpu")
PART = TestPart(node="n1", group=("n1",))


class _Flip(TorchDispatchMode):
    """Flips the lowest bit of one value of the products from ``after`` on."""

    def __init__(self, after: int, place: int) -> None:
        super().__init__()
        self._left = after
        self._place = place

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.mm:
            self._left -= 1
            if self._left < 0:
                bits = torch.int32 if result.element_size() == 4 else torch.int16
                result.detach().view(bits).view(-1)[self._place] ^= 1
        return result


@contextmanager
def flipped(*, after: int = 0, place: int = 0) -> Iterator[None]:
    with one_thread(), _Flip(after, place):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tiles", [1, 3])
def test_products_of_whole_numbers_are_exact(dtype: torch.dtype, tiles: int) -> None:
    assert gemm.exact_product(CPU, dtype, tiles) == ""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_wrong_bit_anywhere_is_seen(dtype: torch.dtype) -> None:
    with flipped(place=0):
        assert "wrong" in gemm.exact_product(CPU, dtype, 1)
    with flipped(place=-1):
        assert gemm.exact_product(CPU, dtype, 2).startswith("1 of 262144 values")
    with flipped(place=0):  # in the block with which the others are compared
        assert "unlike" in gemm.exact_product(CPU, dtype, 2)


def test_a_product_that_changes_is_seen() -> None:
    with one_thread():
        assert gemm.repeated_product(CPU, torch.float32, 64, time.monotonic()) == ""
    with flipped(after=1, place=5):
        wrong = gemm.repeated_product(CPU, torch.float32, 64, time.monotonic())
    assert wrong == "1 of 4096 values of a float32 product changed at repetition 1"


def test_gemm_on_this_machine() -> None:
    found = gemm.run(PART)
    assert (found.outcome, found.text) == (Outcome.PASS, "")
    assert found.value == f"{len(os.sched_getaffinity(0))} cores"


@pytest.mark.skipif(torch.version.cuda is not None, reason="for a PyTorch without CUDA")
def test_gpus_that_this_pytorch_cannot_use() -> None:
    with_gpus = TestPart(node="n1", group=("n1",), gpus=8)
    assert "without support of GPUs" in gemm.run(with_gpus).value
    with pytest.raises(NotHere):
        reference.run(with_gpus)


def test_counting_gpus_leaves_nothing_in_the_process_that_forks_the_tests() -> None:
    started: list[str] = []

    def count() -> int:
        started.append("driver")
        return 8

    assert counted_in_child(count, 10.0) == 8
    assert started == []
    with pytest.raises(Wrong, match="cannot be counted: no driver"):
        counted_in_child(lambda: fail("no driver"), 10.0)
    with pytest.raises(Died, match="ended without an answer"):
        counted_in_child(lambda: os._exit(1), 10.0)
    with pytest.raises(Died, match="no answer in time"):
        counted_in_child(signal.pause, 0.1)  # type: ignore[arg-type]


def fail(reason: str) -> int:
    raise RuntimeError(reason)


def test_children_answer_whatever_becomes_of_them() -> None:
    def die() -> Measurement:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    bodies = {
        "gpu0": lambda: Measurement(digest="a"),
        "gpu1": lambda: 1 / 0,  # type: ignore[return-value]
        "gpu2": die,
    }
    found = in_children(bodies, 60.0) | in_children({"gpu3": signal.pause}, 0.4)  # type: ignore[arg-type,dict-item]
    assert [(one.outcome, one.measured) for one in found.values()] == [
        (Outcome.PASS, True),
        (Outcome.FAIL, True),
        (Outcome.FAIL, False),
        (Outcome.UNKNOWN, False),
    ]
    assert found["gpu0"].digest == "a"
    assert found["gpu1"].text.startswith("gpu1: ZeroDivisionError")
    assert found["gpu2"].text == "gpu2: ended without an answer"
    assert found["gpu3"].text.startswith("gpu3: no result within 0 s (load ")


def test_memory_that_keeps_what_is_written() -> None:
    assert gemm.walk(CPU, 3, 4096) == ""
    found = memory.walk(4, 1 << 17, time.monotonic() + 60.0)
    assert (found.outcome, found.value) == (Outcome.PASS, "4 MiB")
    # Out of time: the first chunk in any case.
    assert memory.walk(4, 1 << 17, 0.0).value == "1 MiB"
    assert 0 < memory.available() < 1 << 50


def test_memory_that_loses_or_misplaces_bits_is_found() -> None:
    chunk = np.empty(4096, dtype=np.uint64)
    memory.fill(chunk, 3, 0x5555555555555555)
    assert memory.unlike(chunk, 3, 0x5555555555555555) == 0
    chunk[7] ^= np.uint64(1 << 40)
    assert memory.unlike(chunk, 3, 0x5555555555555555) == 1
    # What was meant for another chunk is wrong as well: a line of the address is broken.
    assert memory.unlike(chunk, 2, 0x5555555555555555) == 4096


@pytest.mark.slow
def test_a_step_of_the_reference_model_is_the_same_again_and_not_with_a_flipped_bit() -> None:
    with one_thread():
        first, again = reference.step_digest(CPU), reference.step_digest(CPU)
    assert first == again
    with flipped(after=8, place=3):
        assert reference.step_digest(CPU) != first


def test_processors_of_a_node_must_agree() -> None:
    assert reference.agreed({"gpu0": "a", "gpu1": "a"}, "h200").digest == "a"
    odd = reference.agreed({"gpu0": "a", "gpu1": "b", "gpu2": "a"}, "h200")
    assert (odd.outcome, odd.text) == (Outcome.FAIL, "gpu1 found another result than 2 others of the node")
    torn = reference.agreed({"gpu0": "a", "gpu1": "b"}, "h200")
    assert (torn.outcome, torn.text) == (Outcome.FAIL, "2 processors of the node found 2 results")


def test_binding_to_cores_is_undone() -> None:
    before = os.sched_getaffinity(0)
    bound = [os.sched_getaffinity(0) for _ in each_core(time.monotonic() + 60.0)]
    assert sorted(map(list, bound)) == [[core] for core in sorted(before)]
    assert os.sched_getaffinity(0) == before
    assert len([*each_core(0.0)]) == 1


def test_storage_is_written_read_and_left_clean(tmp_path: Path) -> None:
    found = storage.run(TestPart(node="n1", group=("n1",), storage=str(tmp_path)))
    assert (found.outcome, found.text) == (Outcome.PASS, "")
    assert "MB/s" in found.value
    assert list(tmp_path.iterdir()) == []


def test_storage_that_fails(tmp_path: Path) -> None:
    found = storage.run(TestPart(node="n1", group=("n1",), storage=str(tmp_path / "gone")))
    assert found.outcome is Outcome.FAIL
    assert "No such file or directory" in found.text
    with pytest.raises(NotHere):
        storage.run(PART)


def test_storage_that_gives_back_something_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    block = bytes(1 << 20)
    path.write_bytes(b"".join(storage.marked(block, number) for number in range(16)))
    assert storage.unlike_blocks(path, block) == 0
    with path.open("r+b") as file:
        file.seek(5 << 20)
        file.write(b"\xff")
        file.truncate(15 << 20)
    assert storage.unlike_blocks(path, block) == 2


@pytest.fixture
def busy_core() -> Iterator[None]:
    """This process and its children have one core, on which others compute."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)]
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("busy_core")
def test_a_busy_node_says_nothing_of_its_links() -> None:
    # One of its short exchanges may by chance have met nobody, and counts; so not in each of three runs.
    runs = (all_to_all.run(PART) for _ in range(3))
    found = next(one for one in runs if not one.measured)
    assert (found.outcome, found.rate) == (Outcome.UNKNOWN, 0.0)
    assert "busy with other work" in found.text
