"""GPUs without a GPU: a thread is the device, which works behind the host's back."""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from slurm_robust.checkpoint.gpus import GpuEvent, Pairs, Stream
from slurm_robust.util.threads import start_thread

PAGE = 4096
_PARTS = 4  # in which a copy is made, so that other work comes between
_PATIENCE_S = 30.0


@dataclass(eq=False)
class _Event:
    gpus: LaggingGpus
    happened: threading.Event = field(default_factory=threading.Event)

    def query(self) -> bool:
        self.gpus.check_capture()
        return self.happened.is_set()

    def wait(self) -> None:
        self.gpus.calls["wait"] += 1
        self.gpus.check_capture()
        assert self.happened.wait(_PATIENCE_S), "the device never gets there"
        if self.gpus.failure:
            raise RuntimeError(self.gpus.failure)


@dataclass
class _Work:
    run: Callable[[], object] = lambda: None
    after: _Event | None = None


@dataclass(eq=False)
class _Stream:
    gpus: LaggingGpus
    queue: deque[_Work] = field(default_factory=deque)

    def copy(self, pairs: Pairs) -> None:
        for target, source in pairs:
            waits = not all(self.gpus.is_registered(t) for t in (target, source) if not self.gpus.has(t))
            for into, out_of in zip(_cut(target), _cut(source), strict=True):
                self.gpus.enqueue(self, _Work(partial(into.copy_, out_of)))
            if self.gpus.refuses_copies:
                raise RuntimeError("CUDA error: invalid argument")
            if waits:
                self.record().wait()

    def record(self) -> GpuEvent:
        event = _Event(self.gpus)
        self.gpus.enqueue(self, _Work(event.happened.set))
        return event

    def follow(self, event: GpuEvent) -> None:
        assert isinstance(event, _Event)
        if self.gpus.is_capturing() and self is self.gpus.training(torch.device("cpu")):
            raise RuntimeError("CUDA error: dependency created on uncaptured work in another stream")
        self.gpus.enqueue(self, _Work(after=event))


class LaggingGpus:
    """:class:`~slurm_robust.checkpoint.gpus.Gpus` of which a thread is the device.

    Tensors of this machine that were given to :meth:`adopt` stand for the GPU's. Work on them is enqueued by
    :meth:`launch` and done later, by the thread, in any order that the streams allow: ``seed`` chooses.
    Between :meth:`hold` and :meth:`release` the device does nothing. A copy is made in parts.

    ``refuses`` says which registrations (address, bytes) are refused.
    """

    def __init__(
        self, seed: int = 0, refuses: Callable[[int, int], bool] = lambda address, nbytes: False
    ) -> None:
        self.calls: Counter[str] = Counter()  # waits and registrations
        self.registrars: set[str] = set()  # threads that registered
        self.may_register = threading.Event()  # while it is not set, registrations take
        self.may_register.set()
        self.refuses_copies = False  # a copy raises when a part of it is under way already
        self.failure = ""  # what every wait for the device raises from now on
        self._refuses = refuses
        self._memory: dict[int, torch.Tensor] = {}
        self._registered: dict[int, int] = {}
        self._graph: list[_Work] | None = None
        self._broken = False  # the capture that is under way
        self._relaxed = threading.local()
        self._dice = random.Random(seed)
        self._changed = threading.Condition()
        self._held = self._closed = False
        self._training = _Stream(self)
        self._streams = [self._training]
        self._thread = start_thread("lagging-gpu", self._work)

    # -- what the host asks -----------------------------------------------------------------------

    def has(self, tensor: torch.Tensor) -> bool:
        """See the protocol."""
        return tensor.untyped_storage().data_ptr() in self._memory

    def stream(self, device: torch.device) -> Stream:
        """See the protocol."""
        self._streams.append(_Stream(self))
        return self._streams[-1]

    def training(self, device: torch.device) -> Stream:
        """See the protocol."""
        return self._training

    def is_capturing(self) -> bool:
        """See the protocol."""
        return self._graph is not None

    def scalar(self, dtype: torch.dtype) -> torch.Tensor:
        """See the protocol."""
        made = torch.empty((), dtype=dtype)
        self._registered[made.data_ptr()] = made.nbytes
        return made

    def register(self, address: int, nbytes: int, device: torch.device) -> int:
        """See the protocol."""
        try:
            self.check_capture()
        except RuntimeError:
            return 900  # cudaErrorStreamCaptureUnsupported
        self.calls["register"] += 1
        self.registrars.add(threading.current_thread().name)
        assert address % PAGE == 0
        assert self.may_register.wait(_PATIENCE_S)
        if any(at < address + nbytes and address < at + size for at, size in self._registered.items()):
            return 712  # cudaErrorHostMemoryAlreadyRegistered
        if self._refuses(address, nbytes):
            return 2  # cudaErrorMemoryAllocation
        self._registered[address] = nbytes
        return 0

    def relax(self) -> None:
        """See the protocol."""
        self._relaxed.yes = True

    def unregister(self, address: int) -> None:
        """See the protocol."""
        self.check_capture()
        self.calls["unregister"] += 1
        del self._registered[address]

    # -- what training does ---------------------------------------------------------------------

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor``, which from now on lies on the device."""
        self._memory[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def launch(self, kernel: Callable[[], object], *changed: torch.Tensor) -> None:
        """Enqueue what changes these tensors in place, in the stream of training or in the graph."""
        for tensor in changed:
            torch.autograd.graph.increment_version(tensor)
        work = _Work(kernel)
        if self._graph is not None:
            self._graph.append(work)
        else:
            self.enqueue(self._training, work)

    @contextmanager
    def capture(self) -> Iterator[Callable[[], None]]:
        """Put what is launched into a graph, instead of doing it; yield what replays it.

        Raises ``RuntimeError`` in the end if :meth:`check_capture` has refused something meanwhile.
        """
        graph: list[_Work] = []

        def replay() -> None:
            for work in graph:
                self.enqueue(self._training, work)

        self._graph, self._broken = graph, False
        try:
            yield replay
        finally:
            self._graph = None
        if self._broken:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def check_capture(self) -> None:
        """Refuse what a thread that is not relaxed asks while a graph is captured, which it breaks."""
        if self._graph is not None and not getattr(self._relaxed, "yes", False):
            self._broken = True
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def synchronize(self) -> None:
        """Wait until all is done that was enqueued."""
        for stream in list(self._streams):
            stream.record().wait()

    # -- the device -------------------------------------------------------------------------------

    def hold(self) -> None:
        """Hold the device: from now on nothing is done."""
        with self._changed:
            self._held = True

    def release(self) -> None:
        """Let the device go on."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread. What is enqueued is not done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def registered(self) -> dict[int, int]:
        """Return what is registered: bytes by address."""
        return dict(self._registered)

    def is_registered(self, tensor: torch.Tensor) -> bool:
        """Raises ``RuntimeError``, as copies do, for memory of which not all is in one registration."""
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        found = [(at, at + n) for at, n in self._registered.items() if at < end and begin < at + n]
        if any(not (at <= begin and end <= to) for at, to in found):
            raise RuntimeError("CUDA error: invalid argument")
        return bool(found)

    def enqueue(self, stream: _Stream, work: _Work) -> None:
        """Enqueue ``work``, for the streams of this module."""
        with self._changed:
            stream.queue.append(work)
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._ready())
                if self._closed:
                    return
                stream = self._dice.choice(self._ready())
                work = stream.queue[0]
            work.run()
            with self._changed:
                stream.queue.popleft()

    def _ready(self) -> list[_Stream]:
        if self._held:
            return []
        return [
            s
            for s in self._streams
            if s.queue and (s.queue[0].after is None or s.queue[0].after.happened.is_set())
        ]


def _cut(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tensor.detach().view(-1).tensor_split(_PARTS)
