"""The state of the global random number generators: taken, put back, and made anew."""

from __future__ import annotations

import hashlib
import random
import struct
import sys
from typing import Any

import torch

from slurm_robust.checkpoint.errors import EntryMismatch


def capture_rng() -> dict[str, Any]:
    """Return all global generators as plain data. NumPy and CUDA only if this process uses them.

    Generators that the script makes for itself (``torch.Generator``, ``numpy.random.Generator``) are
    its own state and belong into an entry.
    """
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, key, position, has_gauss, gauss = numpy.random.get_state()
        state["numpy"] = (str(name), key.tolist(), int(position), int(has_gauss), float(gauss))
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if initialized:
        # All visible devices: a rank may use several, and reading a state makes no context there.
        state["cuda"] = list(torch.cuda.get_rng_state_all())
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Put the generators back to ``state``. Raises :class:`EntryMismatch` if CUDA devices are missing."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"].clone())
    if "numpy" in state:
        np = _numpy()
        name, key, position, has_gauss, gauss = state["numpy"]
        np.random.set_state((name, np.asarray(key, dtype=np.uint32), position, has_gauss, gauss))
    cuda = state.get("cuda", [])
    if cuda:
        visible = torch.cuda.device_count()
        if visible < len(cuda):
            raise EntryMismatch(
                f"the checkpoint was taken with {len(cuda)} visible GPUs, this process sees {visible}: "
                "give every rank as many GPUs as before (CUDA_VISIBLE_DEVICES, --gpus-per-node)"
            )
        for device, one in enumerate(cuda):
            torch.cuda.set_rng_state(one.clone(), device)


def _numpy() -> Any:
    """Return NumPy: only what used it before needs it."""
    import numpy

    return numpy


def new_generators(
    first: dict[str, Any], step: int, rank: int, layout: str, *, devices: int
) -> dict[str, Any]:
    """Return the state of generators that no rank has used yet, always the same for the same arguments.

    ``first``: those of another rank at ``step``; ``layout``: identity of the parallel layout; ``devices``:
    how many CUDA devices there are. No CUDA is needed for it.
    """
    digest = hashlib.sha256(f"{step} {rank} {layout} {first['python']}".encode())
    digest.update(first["torch"].numpy().tobytes())
    seed = int.from_bytes(digest.digest()[:4], "little")
    state: dict[str, Any] = {
        "python": random.Random(seed).getstate(),
        "torch": torch.Generator().manual_seed(seed).get_state(),
    }
    if "numpy" in first or "numpy" in sys.modules:
        name, key, position, has_gauss, gauss = _numpy().random.RandomState(seed).get_state()
        state["numpy"] = (str(name), list(map(int, key)), int(position), int(has_gauss), float(gauss))
    if first.get("cuda"):
        # Seed and offset, as torch's CUDA generator gives them: one that was seeded has used nothing.
        seeded = torch.frombuffer(bytearray(struct.pack("<QQ", seed, 0)), dtype=torch.uint8)
        state["cuda"] = [seeded.clone() for _ in range(devices)]
    return state
