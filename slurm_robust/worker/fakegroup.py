"""One rank of a world that does not exist: every process group is PyTorch's fake one.

The fake group (``torch.testing._internal.distributed.fake_pg``) completes each collective immediately, with
what this rank alone has. So a script runs as under torchrun, and computes nothing that means anything.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any

_MODULE = "torch.testing._internal.distributed.fake_pg"


class NoFakeGroup(Exception):
    """This release of torch has no fake process group."""


def pretend_world() -> None:
    """Have ``torch.distributed`` meet no other rank in this process from now on. Imports torch.

    Raises :class:`NoFakeGroup`.
    """
    try:
        importlib.import_module(_MODULE)
        import torch
    except ImportError as error:
        raise NoFakeGroup(f"this release of torch has no fake process group ({error})") from error
    c10d: Any = torch.distributed.distributed_c10d
    helper = getattr(c10d, "_new_process_group_helper", None)
    if helper is None:
        raise NoFakeGroup("this release of torch makes process groups in another way")
    signature = inspect.signature(helper)

    def make_fake(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["backend"] = c10d.Backend("fake")
        for name in ("backend_options", "pg_options", "device_id"):
            if name in bound.arguments:
                bound.arguments[name] = None
        return helper(*bound.args, **bound.kwargs)

    def meet_nobody(
        url: str, rank: int = -1, world_size: int = -1, **_: object
    ) -> Iterator[tuple[object, int, int]]:
        own = rank if rank >= 0 else int(os.environ["RANK"])
        store: Any = torch.distributed.HashStore()  # type: ignore[attr-defined]
        yield store, own, world_size if world_size >= 0 else int(os.environ["WORLD_SIZE"])

    c10d._new_process_group_helper = make_fake
    c10d.rendezvous = meet_nobody
    c10d._store_based_barrier = lambda *args, **kwargs: None

    # DDP takes each bucket as it is: it asks what came of a collective, and a fake one does not say.
    def done(tensor: torch.Tensor) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(tensor)
        return future

    ddp: Any = torch.nn.parallel.DistributedDataParallel
    init, register = ddp.__init__, ddp.register_comm_hook

    def init_fake(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        # A lambda, since DDP checks annotations, and takes them for types.
        register(self, None, lambda state, bucket: done(bucket.buffer()))

    ddp.__init__ = init_fake
    ddp.register_comm_hook = ddp._register_builtin_comm_hook = lambda *args, **kwargs: None
    # No rank sends, so only the sender has something: the others would unpickle whatever memory held.
    _replace(c10d.broadcast_object_list, lambda object_list, *args, **kwargs: None)


def _replace(old: Any, new: Any) -> None:
    """Replace it in all modules of torch that have a name for ``old``."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch":
            for attribute, value in list(getattr(module, "__dict__", {}).items()):
                if value is old:
                    setattr(module, attribute, new)
