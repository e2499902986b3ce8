"""What the storage writer (:mod:`slurm_robust.checkpoint.flush`) does: it puts images on shared storage.

Images are mapped and locked, so their buffers are not refilled meanwhile, and what is in them is not copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import msgspec
import torch

from slurm_robust.checkpoint.errors import CannotReseed, CheckpointError, MissingCheckpoint
from slurm_robust.checkpoint.flush_order import FlushAnswer, FlushOrder
from slurm_robust.checkpoint.generators import new_generators
from slurm_robust.checkpoint.header import PartHeader, check_header
from slurm_robust.checkpoint.image import Image, open_image
from slurm_robust.checkpoint.rank_tiers import rank_tiers
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.tree import keys_of, tensor_in, unflatten
from slurm_robust.model.copies import SHARED
from slurm_robust.model.record import UNREADABLE


def serve(orders: Iterable[bytes], answers: IO[bytes]) -> None:
    """Carry out each order and answer it, on one thread."""
    torch.set_num_threads(1)
    for line in orders:
        try:
            order = msgspec.json.decode(line, type=FlushOrder)
        except UNREADABLE as error:
            answer = FlushAnswer(ok=False, error=f"not an order: {error}")
        else:
            try:
                flush(order)
                answer = FlushAnswer(ok=True)
            except (CheckpointError, OSError) as error:
                answer = FlushAnswer(ok=False, error=str(error))
        answers.write(msgspec.json.encode(answer) + b"\n")


def flush(order: FlushOrder) -> None:
    """Publish one part for each rank of the order. Raises :class:`CheckpointError` or ``OSError``.

    After an error no part is left half written; the parts before it stay.
    """
    images: dict[int, Image] = {}
    try:
        for rank, path in order.images.items():  # all together: none is refilled while another is written
            if rank != SHARED or 0 in order.images:  # the shared part is written with rank 0's
                images[rank] = _opened(Path(path), order.anew.get(rank, rank), order)
        shared = images.get(SHARED)
        for rank in sorted(images.keys() - {SHARED}):
            image = images[rank]
            tiers = rank_tiers(
                order.places,
                job_dir=order.job_dir,
                run_id=order.run_id,
                rank=rank,
                world_size=order.world_size,
                layout=image.header.layout,
                release=image.header.release,
            )
            snapshot = snapshot_of(image, shared if rank == 0 else None, rank)
            if rank in order.anew:
                snapshot = reseeded(snapshot, image.header, rank)
            for tier in tiers.values():
                tier.save(order.checkpoint, snapshot)
            image.close()
    finally:
        for image in images.values():
            image.close()


def snapshot_of(own: Image, shared: Image | None, rank: int | None = None) -> Snapshot:
    """Return the state of a rank from its verified images. Its tensors are in them.

    If ``shared`` is None it has no shared state; rank 0's must have it if there is any. ``rank``: the rank
    that takes it, None for the image's own. Raises :class:`CorruptPart` or :class:`MissingCheckpoint`.
    """
    tree = _tree_of(own)
    common: dict[str, Any] = {}
    bound = found if type(found := tree.get("bound")) is list else tree["own"]
    if shared is not None:
        common = _tree_of(shared)["shared"]
    elif (own.header.rank if rank is None else rank) == 0 and tree["has_shared"]:
        raise MissingCheckpoint(
            f"the image of the shared part of step {own.header.step} is missing, which rank 0 has to write"
        )
    return Snapshot(own=tree["own"], shared=common, rng=tree["rng"], bound=frozenset(map(str, bound)))


def reseeded(of_another: Snapshot, header: PartHeader, rank: int) -> Snapshot:
    """Make the state of ``rank``, whose part is lost, from that of another rank, of which ``header`` is.

    It has generators of its own. Raises :class:`CannotReseed`.
    """
    if of_another.bound:
        raise CannotReseed(
            f"the parts of ranks that are lost held more than random generators: {_named(of_another.bound)}, "
            "which may differ from rank to rank; derive it from the step, or set new_rank_takes_first = True "
            "on the entry if any rank may go on with another one's"
        )
    devices = len(of_another.rng.get("cuda", ()))
    rng = new_generators(of_another.rng, header.step, rank, header.layout, devices=devices)
    return replace(of_another, rng=rng)


def _named(entries: Collection[str]) -> str:
    names = ", ".join(map(repr, sorted(entries)))
    return f"entry {names}" if len(entries) == 1 else f"entries {names}"


def _tree_of(image: Image) -> Any:
    image.verify()
    tensors = [tensor_in(data, spec) for data, spec in zip(image.data(), image.tensors, strict=True)]
    return unflatten(image.tree, tensors, keys_of(image.header.rank))


def _opened(path: Path, rank: int, order: FlushOrder) -> Image:
    image = open_image(path)
    expected = PartHeader.of(
        order.checkpoint,
        rank,
        run_id=order.run_id,
        layout=order.layout or "",
        world_size=order.world_size,
    )
    try:
        check_header(image.header, expected, path, any_layout=order.layout is None)
    except CheckpointError:
        image.close()
        raise
    return image
