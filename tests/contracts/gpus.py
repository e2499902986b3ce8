"""The contract of Gpus as tests: the lagging fake and CUDA must both pass it.

Derive a class from :class:`GpusContract` in a pytest module and give it a fixture ``world``.
"""

from __future__ import annotations

import mmap
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import pytest
import torch

from slurm_robust.checkpoint.gpus import GpuEvent, Gpus

_ELEMENTS = 100_000
_PAGES = 200  # of memory, more than the elements take


class GpusWorld(Protocol):
    """A device and work for it."""

    gpus: Gpus
    device: torch.device

    def tensor(self, value: float, elements: int) -> torch.Tensor:
        """A tensor of float32 on the device."""
        ...

    def add(self, tensor: torch.Tensor, number: float) -> None:
        """Enqueue ``tensor += number`` in the training's stream."""
        ...

    def busy(self) -> AbstractContextManager[object]:
        """While it lasts, for a second at least, the training's stream gets to nothing new."""
        ...

    def capture(self) -> AbstractContextManager[object]:
        """While it lasts work goes into a graph."""
        ...


class GpusContract:
    """What snapshots rely on."""

    def test_tensors_of_the_gpu_are_told_from_those_of_the_host(self, world: GpusWorld) -> None:
        """Views of them too."""
        tensor = world.tensor(1.0, 10)
        assert world.gpus.has(tensor)
        assert world.gpus.has(tensor[3:5].detach())
        assert not world.gpus.has(torch.ones(10))

    def test_the_host_waits_for_nothing_but_an_event(self, world: GpusWorld) -> None:
        """Memory that copies go to is registered."""
        memory, target = _memory()
        assert world.gpus.register(target.data_ptr(), len(memory), world.device) == 0
        source = world.tensor(3.0, _ELEMENTS)
        with world.busy():
            event = _copy(world, target, source)
            assert not event.query()
        event.wait()
        assert event.query()
        assert _is(target, 3.0)
        world.gpus.unregister(target.data_ptr())

    def test_a_copy_holds_what_the_training_had_computed(self, world: GpusWorld) -> None:
        """And nothing of what is computed after the copy, although that is enqueued before it is made."""
        memory, target = _memory()
        assert world.gpus.register(target.data_ptr(), len(memory), world.device) == 0
        source = world.tensor(0.0, _ELEMENTS)
        for number in range(5):
            with world.busy():
                world.add(source, 1.0)
                event = _copy(world, target, source)
                world.gpus.training(world.device).follow(event)
                world.add(source, 100.0)
            event.wait()
            assert _is(target, number * 101.0 + 1.0)
        world.gpus.unregister(target.data_ptr())

    def test_an_event_is_waited_for_in_any_thread(self, world: GpusWorld) -> None:
        """Also in one that has used no device yet."""
        memory, target = _memory()
        source = world.tensor(2.0, _ELEMENTS)
        refusals: list[int] = []
        done: list[bool] = []

        def work() -> None:
            refusals.append(world.gpus.register(target.data_ptr(), len(memory), world.device))
            event = _copy(world, target, source)
            event.wait()
            done.append(_is(target, 2.0))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60.0)
        assert (refusals, done) == ([0], [True])
        world.gpus.unregister(target.data_ptr())

    def test_memory_that_is_not_registered_is_copied_to_all_the_same(self, world: GpusWorld) -> None:
        """The host waits for it."""
        _, target = _memory()
        _copy(world, target, world.tensor(4.0, _ELEMENTS)).wait()
        assert _is(target, 4.0)

    def test_memory_is_registered_once(self, world: GpusWorld) -> None:
        """A refusal has a number and changes nothing; what was unregistered can be registered again."""
        memory, target = _memory()
        at = target.data_ptr(), len(memory)
        assert world.gpus.register(*at, world.device) == 0
        assert world.gpus.register(*at, world.device) > 0
        _copy(world, target, world.tensor(5.0, _ELEMENTS)).wait()
        assert _is(target, 5.0)
        world.gpus.unregister(at[0])
        assert world.gpus.register(*at, world.device) == 0
        world.gpus.unregister(at[0])

    def test_neighbours_are_registered_each_for_itself(self, world: GpusWorld) -> None:
        """A copy into each of them is one of its own."""
        memory, target = _memory()
        begin, half = target.data_ptr(), len(memory) // 2
        assert world.gpus.register(begin, half, world.device) == 0
        assert world.gpus.register(begin + half, len(memory) - half, world.device) == 0
        source = world.tensor(6.0, _ELEMENTS)
        cut = half // 4
        _copy(world, target[:cut], source[:cut]).wait()
        _copy(world, target[cut:_ELEMENTS], source[cut:]).wait()
        assert _is(target, 6.0)
        world.gpus.unregister(begin + half)
        world.gpus.unregister(begin)

    def test_a_number_is_fetched_without_waiting(self, world: GpusWorld) -> None:
        """Into registered memory of its own."""
        value = world.tensor(7.0, 1)
        with world.busy():
            host = world.gpus.scalar(torch.float32)
            stream = world.gpus.training(world.device)
            stream.copy([(host, value.reshape(()))])
            event = stream.record()
            assert not event.query()
        event.wait()
        assert float(host) == 7.0

    def test_a_capture_is_seen(self, world: GpusWorld) -> None:
        """While it lasts."""
        tensor = world.tensor(0.0, 10)
        assert not world.gpus.is_capturing()
        with world.capture():
            assert world.gpus.is_capturing()
            world.add(tensor, 1.0)
        assert not world.gpus.is_capturing()

    @pytest.mark.parametrize("asked", ["register", "query", "wait"])
    @pytest.mark.parametrize("relaxed", [True, False])
    def test_a_relaxed_thread_leaves_a_capture_whole(
        self, world: GpusWorld, asked: str, relaxed: bool
    ) -> None:
        """Another one breaks it, whatever it asks."""
        memory, target = _memory()
        tensor = world.tensor(0.0, 10)
        event = world.gpus.training(world.device).record()
        event.wait()
        errors: list[object] = []

        def beside() -> None:
            if relaxed:
                world.gpus.relax()
            try:
                if asked != "register":
                    getattr(event, asked)()
                elif error := world.gpus.register(target.data_ptr(), len(memory), world.device):
                    errors.append(error)
                else:
                    world.gpus.unregister(target.data_ptr())
            except RuntimeError as error:
                errors.append(error)

        with nullcontext() if relaxed else pytest.raises(RuntimeError, match="captur"), world.capture():
            world.add(tensor, 1.0)
            thread = threading.Thread(target=beside)
            thread.start()
            thread.join(60.0)
            world.add(tensor, 1.0)
        assert bool(errors) is not relaxed


def _memory() -> tuple[mmap.mmap, torch.Tensor]:
    memory = mmap.mmap(-1, _PAGES * mmap.PAGESIZE)
    return memory, torch.frombuffer(memory, dtype=torch.float32)


def _copy(world: GpusWorld, target: torch.Tensor, source: torch.Tensor) -> GpuEvent:
    stream = world.gpus.stream(world.device)
    stream.follow(world.gpus.training(world.device).record())
    stream.copy([(target[: source.numel()], source)])
    return stream.record()


def _is(target: torch.Tensor, value: float) -> bool:
    return bool((target[:_ELEMENTS] == value).all())
