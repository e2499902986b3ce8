"""What a site offers a training, as its Slurm says."""

from __future__ import annotations

from collections import Counter

from slurm_robust.model.record import Record
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmCommandError, SlurmError


class Partition(Record):
    """One partition, by those of its nodes that are in service."""

    name: str
    is_default: bool = False
    is_up: bool = True
    max_time_s: float | None = None
    """The longest time limit; None if there is none."""

    nodes: int = 0
    gpus: int = 0
    """GPUs of a node, as most nodes have them."""

    cpus: int = 0
    """CPUs of a node, likewise."""


class Offer(Record):
    """What Slurm told."""

    partitions: tuple[Partition, ...] = ()
    accounts: tuple[str, ...] = ()
    """Accounts that the user may name; empty if there is no accounting."""

    silence: str = ""
    """Why Slurm told nothing; "" if it did."""


def look(slurm: SlurmClient, user: str) -> Offer:
    """Ask Slurm, three times at most. Never raises; what gives no answer is asked nothing more."""
    try:
        terms, nodes = slurm.partitions(), slurm.nodes()
    except SlurmError as error:
        return Offer(silence=error.what if isinstance(error, SlurmCommandError) else str(error))
    found = []
    for one in terms:
        in_service = [node for node in nodes if one.name in node.partitions and node.usable]
        found.append(
            Partition(
                name=one.name,
                is_default=one.is_default,
                is_up=one.is_up,
                max_time_s=one.max_time_s,
                nodes=len(in_service),
                gpus=_usual([node.gpus() for node in in_service]),
                cpus=_usual([node.cpus for node in in_service]),
            )
        )
    try:
        accounts = tuple(sorted(name for name, users in slurm.accounts().items() if user in users))
    except SlurmError:
        accounts = ()
    return Offer(partitions=tuple(found), accounts=accounts)


def _usual(counts: list[int]) -> int:
    return Counter(counts).most_common(1)[0][0] if counts else 0
