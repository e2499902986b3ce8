"""Whether this process has started the GPU's driver, which no fork of it could use then.

torch's own flag does not tell: ``torch.cuda.is_available()`` and libraries that look for a device while they
are imported call ``cuInit`` and leave it false.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

_CUDA = "libcuda.so.1"
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
# Opened by cuInit and by HIP's runtime; NVML, which a fork survives, opens other files of the driver.
_DEVICES = ("/dev/nvidia-uvm", "/dev/kfd")

ASK_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With it ``torch.cuda.is_available()`` asks NVML instead of starting the driver (PyTorch, notes on CUDA)."""


def has_started() -> bool:
    """Whether something in this process has called ``cuInit``, or uses a GPU otherwise."""
    try:
        # Only if somebody has loaded it: nobody has called what is not there.
        cuda = ctypes.CDLL(_CUDA, mode=os.RTLD_NOLOAD)
    except OSError:
        return _uses_device()
    count = ctypes.c_int()
    return cuda.cuDeviceGetCount(ctypes.byref(count)) != _NOT_INITIALIZED or _uses_device()


@contextmanager
def asking_nvml(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Have torch ask NVML for GPUs meanwhile; what the user has set stays."""
    if ASK_NVML in environ:
        yield
        return
    environ[ASK_NVML] = "1"
    try:
        yield
    finally:
        environ.pop(ASK_NVML, None)


def _uses_device() -> bool:
    folder = "/proc/self/fd"
    for entry in os.listdir(folder):
        try:
            if os.readlink(f"{folder}/{entry}") in _DEVICES:
                return True
        except OSError:
            continue  # the folder's own descriptor, closed by now
    return False
