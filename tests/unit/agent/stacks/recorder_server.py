"""PyTorch's server of a worker, as the releases answer there: which recorders are there, and what they show.

Read in ``Handlers.cpp``, ``FlightRecorder.cpp`` and ``FlightRecorderHook.cpp``; that of 2.13 was tried.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Entry = dict[str, object]
Groups = Mapping[str, tuple[str, Sequence[int]]]
"""Process groups by name: description and ranks."""
Answer = tuple[int, bytes] | None
"""A status and a text; None never comes."""

_HOOKED = ("nccl2", "nccl-lazy")


def entry(
    number: int,
    state: str,
    *,
    group: str = "0",
    description: str = "",
    name: str = "nccl:all_reduce",
    p2p: bool = False,
    retired: bool = False,
) -> Entry:
    return {
        "process_group": [group, description],
        "profiling_name": name,
        "state": state,
        "is_p2p": p2p,
        "collective_seq_id": 0 if p2p else number,
        "p2p_seq_id": number if p2p else 0,
        "retired": retired,
    }


def dump(entries: Sequence[Entry], groups: Groups | None = None) -> bytes:
    """What a recorder writes; without entries it leaves the key out."""
    config = {
        name: {"name": name, "desc": text, "ranks": str(list(ranks))}
        for name, (text, ranks) in (groups or {}).items()
    }
    entry_key = {"entries": entries} if entries else {}
    return json.dumps({"version": "2.10", "pg_config": config, "pg_status": {}, **entry_key}).encode()


@dataclass(frozen=True)
class Recorders:
    """What the backends of a process have recorded, by name; all have the same groups."""

    entries: Mapping[str, Sequence[Entry]]
    groups: Groups

    def answer(self, release: tuple[int, int], path: str) -> Answer:
        """Answer a request for ``path`` as this release of torch does."""
        handler, _, query = path.removeprefix("/handler/").partition("?")
        if handler == "dump_nccl_trace_json" and release >= (2, 5):
            return 200, self._dump("nccl")
        if handler != "fr_trace_json" or release < (2, 13):
            return 404, b"Handler not found"
        asked = query.removeprefix("backend=") or "gloo"
        return 200, self._dump(asked if release >= (2, 15) else "gloo")

    def _dump(self, backend: str) -> bytes:
        found = self.entries.get(backend)
        if found is None:
            return dump(())
        if backend == "gloo":
            return dump(found, {"": ("", ())})
        shown = [e for e in found if e["state"] != "completed"] if backend in _HOOKED else found
        return dump(shown, self.groups)


@contextmanager
def served(address: Path, answer: Callable[[str], Answer]) -> Iterator[None]:
    """Answer each request at this socket."""
    waiting: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                found = answer(client.recv(4096).decode().split()[1])
                if found is None:
                    waiting.append(client)
                    continue
                with client:
                    client.sendall(
                        b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\n\r\n" % found[0] + found[1]
                    )

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)
    for client in waiting:
        client.close()


@contextmanager
def serving(
    address: Path, release: tuple[int, int], recorders: Recorders, *, hangs: Collection[str] = ()
) -> Iterator[None]:
    """Answer as a worker of this release does; ``hangs``: handlers with these words in their names do not."""

    def answer(path: str) -> Answer:
        handler = path.partition("?")[0]
        return None if any(f"dump_{word}_" in handler for word in hangs) else recorders.answer(release, path)

    with served(address, answer):
        yield
