"""Which CPUs and which memory lie beside the GPU of each local rank, by sysfs.

Eight ranks that float over two sockets fill their snapshot buffers wherever a thread happens to run, and
copies to the far socket are slower (10 to 30 % reported).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping

from slurm_robust.model.record import Record
from slurm_robust.nodes import pci
from slurm_robust.nodes.host import Host


class Binding(Record):
    """A rank runs on ``cpus``, all where empty, and has its memory from ``node`` first, any where -1."""

    cpus: tuple[int, ...] = ()
    node: int = -1


NOWHERE = Binding()


def bindings(
    count: int, environ: Mapping[str, str], allowed: Collection[int], host: Host | None = None
) -> tuple[Binding, ...]:
    """For each of ``count`` local ranks the CPUs of its GPU's NUMA node that are among ``allowed``.

    Rank i has the i-th GPU, as under torchrun. :data:`NOWHERE` where that says nothing: another number of
    GPUs than ranks, GPUs whose node is not known (a virtual machine), none of whose CPUs are the job's; and
    for all ranks where some would get less than half of their share of the job's CPUs.
    """
    host = host or Host()
    gpus = _gpus(host)
    order = _order(environ.get("CUDA_VISIBLE_DEVICES"), len(gpus))
    if len(order) != count:
        return (NOWHERE,) * count
    found = tuple(_beside(host, gpus[index], frozenset(allowed)) for index in order)
    ranks = Counter(binding.node for binding in found)
    is_fair = all(2 * len(b.cpus) / ranks[b.node] >= len(allowed) / count for b in found if b.cpus)
    return found if is_fair else (NOWHERE,) * count


def bindings_here(count: int) -> tuple[Binding, ...]:
    """:func:`bindings` for this machine and the CPUs that this process may use."""
    return bindings(count, os.environ, os.sched_getaffinity(0))


def _gpus(host: Host) -> list[str]:
    """Their addresses in the order of CUDA and HIP, which for equal GPUs is that of the bus."""
    return [
        device.address
        for device in pci.devices(host)
        if device.kind[:2] in (pci.DISPLAY, pci.ACCELERATOR) and device.vendor in (pci.NVIDIA, pci.AMD)
    ]


def _order(visible: str | None, count: int) -> tuple[int, ...]:
    """The GPUs that a process sees, first to last; none where names do not say which these are."""
    if visible is None:
        return tuple(range(count))
    names = [name.strip() for name in visible.split(",")]
    order = tuple(int(name) for name in names if name.isdecimal() and int(name) < count)
    # Inside a cgroup numbers begin at 0 again, so a part of the GPUs may be any of them.
    return order if len(order) == len(names) == len(set(order)) == count else ()


def _beside(host: Host, address: str, allowed: frozenset[int]) -> Binding:
    folder = f"{pci.DEVICES}/{address}"
    node = host.number(f"{folder}/numa_node")
    cpus = _cpus(host.read_or(f"{folder}/local_cpulist")) & allowed
    # With all CPUs on that node the kernel takes its memory anyway.
    if node is None or node < 0 or not cpus or cpus == allowed:
        return NOWHERE
    return Binding(cpus=tuple(sorted(cpus)), node=node)


def _cpus(text: str) -> frozenset[int]:
    """``0-3,8`` as the kernel writes it."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        if not low.isdecimal() or not (high or low).isdecimal():
            return frozenset()
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)
