"""The state of the random number generators of a process: Python, NumPy, torch, CUDA."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from slurm_robust.checkpoint.errors import EntryMismatch


def capture_rng() -> dict[str, Any]:
    """All global generators as plain data. NumPy and CUDA only if this process uses them.

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
        import numpy as np

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
