"""The NUMA nodes of this machine: which of its memory is the host's, and where memory is taken from.

On coherent platforms (GH200, GB200) NVIDIA's driver in NUMA mode gives the kernel the memory of each GPU as a
node without CPUs. ``MemTotal``, ``MemAvailable`` and a tmpfs' half of all memory count it then, and what is
not bound may get it. So the host's memory is here that of the nodes with CPUs.

That leaves out an x86 machine's CXL memory, too: a container cannot reliably distinguish such a node from a
GPU's, it is slower than the copies that go there, and the kernel moves cold pages there, which makes room in
the rest.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import NamedTuple

from slurm_robust.util.proc import PROC, read_counters

NODES = Path("/sys/devices/system/node")

# set_mempolicy(2), mbind(2): from this node first, from others when that has no room; from these only.
_MPOL_PREFERRED, _MPOL_BIND = 1, 2
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MBIND = {"x86_64": 237, "aarch64": 235}
_MASK_WORDS = 16

_PROT_NONE, _MAP_SHARED = 0, 1
_MAP_FAILED = ctypes.c_void_p(-1).value


class HostMemory(NamedTuple):
    """Memory in bytes, without that of nodes that have no CPUs."""

    total: int
    available: int
    elsewhere: int
    """Memory of the nodes that have no CPUs."""


def parse_list(text: str) -> frozenset[int]:
    """Parse a list as the kernel writes it, such as ``0-3,8``; nothing if it is none."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        if not low.isdecimal() or not (high or low).isdecimal():
            return frozenset()
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def without_cpus(nodes: Path | None = None) -> frozenset[int]:
    """Return the nodes that have memory and no CPUs; none if the kernel does not say, or no other has any."""
    nodes = nodes or NODES
    memory, cpus = _listed(nodes / "has_memory"), _listed(nodes / "has_cpu")
    return memory - cpus if memory & cpus else frozenset()


def read_memory(proc: Path = PROC, nodes: Path | None = None) -> HostMemory | None:
    """Return the host's memory; None if the kernel does not say."""
    nodes = nodes or NODES
    whole = read_counters(proc / "meminfo")
    if "MemTotal" not in whole or "MemAvailable" not in whole:
        return None
    total = free = 0
    for node in without_cpus(nodes):
        its = read_counters(nodes / f"node{node}" / "meminfo", skip=2)
        total += its.get("MemTotal", 0)
        # Nearly as the kernel computes MemAvailable, which it does not say for a node.
        free += sum(
            its.get(name, 0) for name in ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
        )
    return HostMemory(
        total=max(0, whole["MemTotal"] - total),
        available=max(0, whole["MemAvailable"] - free),
        elsewhere=total,
    )


def reserve(file: int, size: int) -> None:
    """Reserve ``size`` bytes of a file in shared memory, of the host's memory. Raises ``OSError``.

    The kernel keeps to that when it takes these pages from swap later. Where all memory is the host's,
    nothing is bound.
    """
    if without_cpus():
        error = _bind(file, size, _listed(NODES / "has_cpu"))
        if error:
            _warn(os.strerror(error))
    # Reserved now: writing to a sparse file on a full /dev/shm would kill us by SIGBUS.
    os.posix_fallocate(file, 0, size)


def prefer(node: int) -> None:
    """Take this thread's memory from ``node`` first. What the kernel refuses is left."""
    number, mask = _SET_MEMPOLICY.get(platform.machine()), _mask([node])
    if number is not None and mask is not None:
        ctypes.CDLL(None).syscall(number, _MPOL_PREFERRED, mask, _MASK_BITS)


# The kernel reads one bit less than the call says.
_MASK_BITS = ctypes.c_ulong(64 * _MASK_WORDS + 1)


def _bind(file: int, size: int, nodes: Collection[int]) -> int:
    """Have the kernel take these bytes of a file in shared memory from ``nodes`` only; the errno, or 0.

    The policy belongs to the file, so it outlives the mapping and holds for all who write there.
    """
    number, mask = _MBIND.get(platform.machine()), _mask(nodes)
    if number is None or mask is None:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(
        None, ctypes.c_size_t(size), _PROT_NONE, _MAP_SHARED, ctypes.c_int(file), ctypes.c_long(0)
    )
    if address == _MAP_FAILED:
        return ctypes.get_errno()
    at, length = ctypes.c_void_p(address), ctypes.c_ulong(size)
    refused = libc.syscall(ctypes.c_long(number), at, length, _MPOL_BIND, mask, _MASK_BITS, 0)
    error = ctypes.get_errno() if refused else 0
    libc.munmap(at, length)
    return error


def _mask(nodes: Collection[int]) -> ctypes.Array[ctypes.c_uint64] | None:
    """Return the bits of ``nodes`` for a call; None if some have no bit there."""
    mask = (ctypes.c_uint64 * _MASK_WORDS)()
    for node in nodes:
        word, bit = divmod(node, 64)
        if not 0 <= word < _MASK_WORDS:
            return None
        mask[word] |= 1 << bit
    return mask


def _listed(path: Path) -> frozenset[int]:
    try:
        return parse_list(path.read_text())
    except OSError:
        return frozenset()


@cache
def _warn(why: str) -> None:
    import logging  # 4 ms, and hooks need this module

    logging.getLogger(__name__).warning(
        "the kernel does not let snapshots be bound to the host's memory (mbind: %s), so they may take "
        "memory of GPUs: give the container CAP_SYS_NICE, or have the driver loaded with "
        "NVreg_CoherentGPUMemoryMode=driver",
        why,
    )
