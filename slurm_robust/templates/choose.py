"""What goes into a batch script, by what a person said and what Slurm told, each with the reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record
from slurm_robust.slurm.values import parse_time_limit, time_limit_text
from slurm_robust.templates.offer import Offer, Partition
from slurm_robust.util.text import count, near

_TRAINING = 4
"""Nodes that train, if nobody says how many."""

_TIME_S = 7 * 86400.0
GIVEN = "as you said"
"""The reason of what a person said."""


class CannotChoose(SrobustError):
    """What was asked for does not fit together, or the site does not have it."""

    exit_code = ExitCode.USAGE


class Wish(Record):
    """What a person said; None: nothing."""

    nodes: int | None = None
    """Of the job: those that train and the standbys."""

    spares: int | None = None
    gpus_per_node: int | None = None
    partition: str | None = None
    account: str | None = None
    time: str | None = None


class Choice(Record):
    """One option."""

    name: str
    """As Slurm spells it, ``spares`` as ``srobust run`` does."""

    value: str
    """What it is; "" if the option stays a comment."""

    why: str
    is_sure: bool = True
    """Whether a person or Slurm said it; else the reader has to look at it."""


def choose(wish: Wish, offer: Offer, spares: int) -> tuple[Choice, ...]:
    """Return all options; ``spares``: what the template has. Raises :class:`CannotChoose`."""
    partition = _partition(wish, offer)
    return tuple(_choices(wish, offer, partition, spares if wish.spares is None else wish.spares))


def _choices(wish: Wish, offer: Offer, partition: Partition | None, spares: int) -> Iterator[Choice]:
    yield _nodes(wish, partition, spares)
    why = "one of them replaces a node that fails" if spares else "no node stands by"
    yield Choice(name="spares", value=str(spares), why=GIVEN if wish.spares is not None else why)
    yield _named(wish, offer, partition)
    yield _account(wish, offer)
    yield _time(wish, partition)
    yield _gpus(wish, partition)


def _partition(wish: Wish, offer: Offer) -> Partition | None:
    """Return that of the job; None if Slurm does not know it."""
    names = [one.name for one in offer.partitions]
    if wish.partition is not None:
        for one in offer.partitions:
            if one.name == wish.partition:
                return one
        if names and "," not in wish.partition:
            likely = near(wish.partition, names) or names
            raise CannotChoose(
                f"Slurm has no partition {wish.partition!r}", fix=f"--partition {' or '.join(likely)}"
            )
        return None
    up = [one for one in offer.partitions if one.is_up and one.nodes] or list(offer.partitions)
    default = next((one for one in up if one.is_default), None)
    if default is None or not default.gpus:
        # Sorted: the largest of those with GPUs.
        with_gpus = sorted((one for one in up if one.gpus), key=lambda one: -one.nodes)
        default = next(iter((*with_gpus, *([default] if default is not None else up))), None)
    return default


def _named(wish: Wish, offer: Offer, partition: Partition | None) -> Choice:
    if partition is None:
        if wish.partition is not None:
            return Choice(name="partition", value=wish.partition, why=GIVEN)
        return Choice(
            name="partition", value="", why="yours, or leave it to the site's default", is_sure=False
        )
    each = [
        count(number, name) for number, name in ((partition.cpus, "CPU"), (partition.gpus, "GPU")) if number
    ]
    has = f"{count(partition.nodes, 'node')} in service{', each with ' if each else ''}{' and '.join(each)}"
    others = [one for one in offer.partitions if one.is_default and one is not partition]
    if wish.partition is not None:
        why = GIVEN
    elif partition.is_default:
        why = "the site's default"
    elif partition.gpus and others:
        why = f"it has GPUs, the default ({others[0].name}) has none"
    else:
        why = "the only one" if len(offer.partitions) == 1 else "Slurm names no default"
    return Choice(name="partition", value=partition.name, why=f"{why}: {has}")


def _nodes(wish: Wish, partition: Partition | None, spares: int) -> Choice:
    if wish.nodes is None:
        nodes, why, is_sure = _TRAINING + spares, "an example", False
        if partition is not None and 0 < partition.nodes < nodes:
            nodes, why = max(partition.nodes, spares + 1), f"all of {partition.name}"
    else:
        nodes, why, is_sure = wish.nodes, GIVEN, True
    if nodes <= spares:
        raise CannotChoose(
            f"of {count(nodes, 'node')} {spares} would stand by, and none would train",
            fix=f"--nodes counts both: --nodes {spares + 1} or more, or fewer --spares",
        )
    trains = nodes - spares
    parts = f"{trains} train{'s' if trains == 1 else ''}"
    if spares:
        parts += f", {spares} stand{'s' if spares == 1 else ''} by"
    return Choice(name="nodes", value=str(nodes), why=f"{why}: {parts}", is_sure=is_sure)


def _account(wish: Wish, offer: Offer) -> Choice:
    if wish.account is not None:
        return Choice(name="account", value=wish.account, why=GIVEN)
    if len(offer.accounts) == 1:
        return Choice(name="account", value=offer.accounts[0], why="the only one that is yours")
    yours = f": {' or '.join(offer.accounts)}" if offer.accounts else ""
    return Choice(name="account", value="", why=f"yours, or leave it to your default{yours}", is_sure=False)


def _time(wish: Wish, partition: Partition | None) -> Choice:
    most = partition.max_time_s if partition is not None else None
    if wish.time is not None:
        try:
            seconds = parse_time_limit(wish.time)
        except ValueError as error:
            raise CannotChoose(str(error), fix="write it as sbatch takes it: --time 7-00:00:00") from None
        if partition is not None and most is not None and (seconds is None or seconds > most):
            raise CannotChoose(
                f"--time {wish.time} is more than the partition {partition.name} allows",
                fix=f"--time {time_limit_text(most)}: the job requeues itself then, and trains on",
            )
        return Choice(name="time", value=wish.time, why=GIVEN)
    if partition is None:
        return Choice(name="time", value="", why="yours: at its end the job requeues itself", is_sure=False)
    if most is not None and most <= _TIME_S:
        why = f"the longest that {partition.name} allows; the job requeues itself then"
        return Choice(name="time", value=time_limit_text(most), why=why)
    why = "an example; the job requeues itself then"
    return Choice(name="time", value=time_limit_text(_TIME_S), why=why, is_sure=False)


def _gpus(wish: Wish, partition: Partition | None) -> Choice:
    name = "gpus-per-node"
    if wish.gpus_per_node is not None:
        if partition is not None and wish.gpus_per_node > partition.gpus:
            raise CannotChoose(
                f"a node of {partition.name} has {count(partition.gpus, 'GPU')}, not {wish.gpus_per_node}",
                fix=f"--gpus-per-node {partition.gpus}, or another --partition",
            )
        return Choice(name=name, value=str(wish.gpus_per_node or ""), why=GIVEN)
    if partition is None:
        return Choice(name=name, value="", why="yours: where the nodes have GPUs", is_sure=False)
    if not partition.gpus:
        return Choice(name=name, value="", why=f"the nodes of {partition.name} have none")
    return Choice(name=name, value=str(partition.gpus), why=f"all that a node of {partition.name} has")
