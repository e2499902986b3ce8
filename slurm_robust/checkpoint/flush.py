"""``python -m slurm_robust.checkpoint.flush``: writes snapshots from a node's memory to shared storage.

A process of its own beside an agent, because it needs torch and because storage may hang: nobody waits for
it. It reads one :class:`FlushOrder` per line of its standard input, as JSON, answers each with a
:class:`FlushAnswer` in one line on its standard output, and ends when its input does. Images are mapped and
locked, so their buffers are not refilled meanwhile, and what is in them is not copied.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import msgspec

from slurm_robust.checkpoint.errors import CannotReseed, CheckpointError, MissingCheckpoint
from slurm_robust.checkpoint.header import PartHeader, check_header
from slurm_robust.checkpoint.image import Image, open_image
from slurm_robust.checkpoint.tiers import rank_tiers
from slurm_robust.model.copies import SHARED, CheckpointId, Tier
from slurm_robust.model.record import UNREADABLE, Record

if TYPE_CHECKING:
    from slurm_robust.checkpoint.state import Snapshot

# Training on the same cores goes first.
NICENESS = 10


class FlushOrder(Record):
    """Put these images on storage. They have to be of this run, checkpoint and layout."""

    images: dict[int, str]  # paths by rank, :data:`SHARED` for the shared part
    checkpoint: CheckpointId
    world_size: int
    places: dict[Tier, str]  # those of the run's shared tiers, all of which get them
    job_dir: str  # the job's folder, which is not made here
    run_id: str
    layout: str | None = None  # None: any
    anew: dict[int, int] = {}  # ranks whose parts are lost: of which rank the image is that each is made from


class FlushAnswer(Record):
    """The result of an order."""

    ok: bool  # all parts are published
    error: str = ""  # else what went wrong


def main() -> int:
    """Carry out orders until the input ends."""
    os.nice(NICENESS)
    # The answers keep this channel for themselves, whatever a library prints.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    import torch

    torch.set_num_threads(1)
    try:
        serve(sys.stdin.buffer, answers)
    except BrokenPipeError:
        pass  # the agent that gave the orders is gone
    return 0


def serve_on(descriptor: int) -> NoReturn:
    """Be a writer in a fork of a process that has imported torch; ``descriptor``: of a stream socket.

    The first line of its answers is its process id.
    """
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.nice(NICENESS)
        with suppress(BrokenPipeError, ConnectionResetError):  # the agent is gone
            answers = os.fdopen(os.dup(descriptor), "wb", buffering=0)
            answers.write(b"%d\n" % os.getpid())
            import torch

            torch.set_num_threads(1)
            serve(os.fdopen(descriptor, "rb"), answers)
        code = 0
    finally:  # no other code of the zygote may run in its fork
        if code:
            traceback.print_exc()
        os._exit(code)


def serve(orders: Iterable[bytes], answers: IO[bytes]) -> None:
    """Carry out each order and answer it."""
    for line in orders:
        try:
            order = msgspec.json.decode(line, type=FlushOrder)
        except UNREADABLE as error:
            answer = FlushAnswer(ok=False, error=f"not an order: {error}")
        else:
            answer = _carried_out(order)
        answers.write(msgspec.json.encode(answer) + b"\n")


def _carried_out(order: FlushOrder) -> FlushAnswer:
    try:
        flush(order)
    except (CheckpointError, OSError) as error:
        return FlushAnswer(ok=False, error=str(error))
    return FlushAnswer(ok=True)


def flush(order: FlushOrder) -> None:
    """Publish one part for each rank of the order. Raises :class:`CheckpointError` or ``OSError``.

    After an error no part is left half written; the parts before it stay.
    """
    images: dict[int, Image] = {}
    try:
        for rank, path in order.images.items():  # all at once: none is refilled while another is written
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
    """The state of a rank from its verified images. Its tensors are in them.

    Without ``shared`` it has no shared state, which rank 0's must have if there is any. ``rank``: for which
    it is, None for the image's own. Raises :class:`CorruptPart` or :class:`MissingCheckpoint`.
    """
    from slurm_robust.checkpoint.state import Snapshot

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
    """The state of ``rank``, whose part is lost, from that of another rank, of which ``header`` is.

    It has generators of its own. Raises :class:`CannotReseed`.
    """
    from slurm_robust.checkpoint.generators import new_generators

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
    from slurm_robust.checkpoint.tree import keys_of, tensor_in, unflatten

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


if __name__ == "__main__":
    sys.exit(main())
