"""The job's CURVE keys: only their holders may command and read the job's agents.

There is one key pair for controllers and one that all agents and clients of the job share. They lie
in the job directory's ``keys`` folder, so the rights of that folder are the rights over the job.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import zmq

from slurm_robust.model.errors import SrobustError
from slurm_robust.model.record import Record, decoded
from slurm_robust.util.files import publish_once
from slurm_robust.util.ours import make_own_folder, open_ours

_SERVER = "controller.json"
_CLIENT = "agent.json"
_MAX_BYTES = 4096


class KeysError(SrobustError):
    """The job's keys are missing, no good, or open to others: the message names the file."""


class KeyPair(Record):
    """A CURVE key pair in Z85 text, 40 characters each."""

    public: str
    secret: str


# Made while there is one thread; see Record.
_pairs = msgspec.json.Decoder(KeyPair)


class ServerKeys(Record):
    """What a controller needs: its own pair, and the only public key that it lets in."""

    server: KeyPair
    client_public: str


class ClientKeys(Record):
    """What an agent or client needs: its pair, and the public key that proves the controller."""

    client: KeyPair
    server_public: str


def create_keys(folder: Path) -> None:
    """Make the key files (0600) in ``folder`` (0700), unless they are there. Raises ``OSError``.

    Safe against another process that does the same at the same time: both end with the same keys.
    """
    make_own_folder(folder)
    for name in (_SERVER, _CLIENT):
        if not (folder / name).exists():
            public, secret = zmq.curve_keypair()
            pair = KeyPair(public=public.decode(), secret=secret.decode())
            publish_once(folder / name, msgspec.json.encode(pair))


def load_server(folder: Path) -> ServerKeys:
    """Load the controller's keys. Raises :class:`KeysError`."""
    return ServerKeys(server=_load(folder / _SERVER), client_public=_load(folder / _CLIENT).public)


def load_client(folder: Path) -> ClientKeys:
    """Load the keys of agents and clients. Raises :class:`KeysError`."""
    return ClientKeys(client=_load(folder / _CLIENT), server_public=_load(folder / _SERVER).public)


_ANEW = "start the job with a new job directory"


def _load(path: Path) -> KeyPair:
    try:
        # Root helps others, with the keys of their jobs.
        owner = path.parent.stat().st_uid if os.geteuid() == 0 else None
        with os.fdopen(open_ours(path, owner), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MAX_BYTES)
    except OSError as error:
        raise KeysError(
            f"cannot read the job's key {path}: {error.strerror}",
            fix="'srobust run' makes it: check that this node and user see the job directory",
        ) from error
    pair = decoded(
        _pairs,
        content,
        lambda why: KeysError(f"{path} is not a key file ({why})", fix=_ANEW),
    )
    if stat.S_IMODE(mode) & 0o077:
        raise KeysError(f"others may read {path}, so it protects nothing", fix=f"chmod 600 {path}")
    if len(pair.public) != 40 or len(pair.secret) != 40:
        raise KeysError(f"{path} is not a key file", fix=_ANEW)
    return pair
