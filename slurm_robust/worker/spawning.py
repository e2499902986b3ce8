"""The messages between an agent and its zygote, over a local SOCK_SEQPACKET pair.

One packet is one message, MessagePack, tagged by ``kind``. The end of the channel is a message too:
a zygote whose agent is gone kills its workers and ends.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from slurm_robust.model.exits import WorkerError
from slurm_robust.model.job import CommandKind
from slurm_robust.model.record import Record, decoded
from slurm_robust.worker.copied import CopiedCode

# A Spawn of 16 ranks has about 40 KiB; the limit is the socket's send buffer.
MAX_PACKET_BYTES = 1024 * 1024


class WorkerSpec(Record):
    """One worker to start. Paths are absolute."""

    rank: int
    env: dict[str, str]  # added to what the zygote inherited
    out: str  # opened for appending by the worker itself, and so is ``err``
    err: str
    error: str  # file for a :class:`WorkerError` as JSON
    record: str  # its step record, which exists already
    cpus: tuple[int, ...] = ()  # it runs on these, or on all if empty
    memory_node: int = -1  # the NUMA node whose memory it takes first, -1 for any
    modules: str = ""  # file for the names of modules that it has imported, "" for none
    outside: str = ""  # file for the code that it reads outside of its release, "" for none


class RankProgram(Record):
    """What the ranks of a release run."""

    command_kind: CommandKind
    command: tuple[str, ...]  # as the user gave it
    code: CopiedCode | None = None
    env: dict[str, str] = {}  # of the release


# -- agent to zygote ------------------------------------------------------------------------------


class Prepare(Record, tag_field="kind", tag="prepare"):
    """The first message: import what the workers will need. Answered by Ready or Fatal."""

    command_kind: CommandKind
    command: tuple[str, ...]
    cwd: str
    nproc_per_node: int
    preload: tuple[str, ...] = ()
    learned: tuple[str, ...] = ()  # what workers of this job were seen to import; see Fatal
    needed: tuple[str, ...] = ()  # what a release that is tried has to import
    code: CopiedCode | None = None  # from which workers will import the user's own modules
    env: dict[str, str] = {}  # for the imports


class Spawn(Record, tag_field="kind", tag="spawn"):
    """Start workers; answered by Spawned or SpawnFailed for each."""

    generation: int
    command_kind: CommandKind
    command: tuple[str, ...]
    cwd: str
    workers: tuple[WorkerSpec, ...]
    code: CopiedCode | None = None  # from which they run
    env: dict[str, str] = {}  # that of the release; it is in those of the workers, too


class Serve(Record, tag_field="kind", tag="serve"):
    """Fork a storage writer (:mod:`slurm_robust.checkpoint.flush`), which talks on the socket that is passed.

    It ends with its end of the socket, and outlives the zygote.
    """


class Sweep(Record, tag_field="kind", tag="sweep"):
    """Kill what the process groups of ended workers left behind, and forget those workers.

    Until then an ended worker stays a zombie, so its process id, which is also the id of its group,
    cannot become another program's.
    """


# -- zygote to agent ------------------------------------------------------------------------------


class Ready(Record, tag_field="kind", tag="ready"):
    """Everything is imported; forks are quick from now on."""

    import_s: float  # since the agent started the zygote
    notes: tuple[str, ...] = ()  # facts for the journal
    is_bound: bool = False  # it has imported modules of the user's own: good for the same release only
    modules: tuple[str, ...] = ()  # all that it has imported


class Fatal(Record, tag_field="kind", tag="fatal"):
    """No worker can ever be started by a zygote that was prepared so; the zygote ends."""

    reason: str  # with the fix
    module: str = ""  # of ``learned`` or ``needed``, if it is to blame: not to be imported before a fork
    traceback: str = ""  # set if ``module`` is needed, and cannot be imported at all


class Spawned(Record, tag_field="kind", tag="spawned"):
    """The worker lives."""

    generation: int
    rank: int
    pid: int  # also its process group


class SpawnFailed(Record, tag_field="kind", tag="spawn_failed"):
    """The kernel refused a new process, or what belongs to it."""

    generation: int
    rank: int
    reason: str
    full: str = ""  # the node's own file system that had no room left for it, "" if that is not why


class Exited(Record, tag_field="kind", tag="exited"):
    """A worker ended. One of ``code`` and ``signal`` is set."""

    generation: int
    rank: int
    pid: int
    ended: float  # monotonic seconds
    code: int | None = None
    signal: int | None = None
    error: WorkerError | None = None  # what the worker left about itself
    oom: str = ""  # as in ``WorkerExit``, and so are these; the agent fills them in
    taken: str = ""
    full: str = ""


ToZygote: TypeAlias = Prepare | Spawn | Serve | Sweep
FromZygote: TypeAlias = Ready | Fatal | Spawned | SpawnFailed | Exited

_to_zygote: msgspec.msgpack.Decoder[ToZygote] = msgspec.msgpack.Decoder(ToZygote)
_from_zygote: msgspec.msgpack.Decoder[FromZygote] = msgspec.msgpack.Decoder(FromZygote)


def encode(message: ToZygote | FromZygote) -> bytes:
    """Return one message as one packet."""
    return msgspec.msgpack.encode(message)


def decode_to_zygote(packet: bytes) -> ToZygote:
    """Raises ``msgspec.DecodeError``, which only another version of this package can cause."""
    return decoded(_to_zygote, packet, msgspec.DecodeError)


def decode_from_zygote(packet: bytes) -> FromZygote:
    """Raises ``msgspec.DecodeError``, which only another version of this package can cause."""
    return decoded(_from_zygote, packet, msgspec.DecodeError)
