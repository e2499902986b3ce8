"""Who is connected to a local socket, as the kernel tells (sock_diag(7)): no process is read for it."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator

from slurm_robust.model.record import Record

# linux/netlink.h, linux/sock_diag.h, linux/unix_diag.h
_SOCK_DIAG, _BY_FAMILY, _REQUEST_DUMP = 4, 20, 0x301
_ERROR, _DONE = 2, 3
_FILE, _PEER, _PENDING, _UID = 1, 2, 3, 7
_SHOW = 0x02 | 0x04 | 0x08 | 0x40  # file, peer, pending connections, uid (since Linux 5.3)
_HEADER = struct.Struct("=IHHII")
_SOCKET = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct("=I")
_INODE_AND_DEVICE = struct.Struct("=II")
_MINOR_BITS = 20
_ANSWER_S = 1.0


class Connections(Record):
    """The connections of one listening socket, each by the inode of its other end, with its owner.

    The owner is None for an end in another network namespace, or if the kernel does not tell.
    """

    accepted: dict[int, int | None] = {}
    """Connections that its daemon has taken."""

    pending: dict[int, int | None] = {}
    """Connections that it has not taken yet."""


def connections(path: str) -> Connections:
    """Return those of the socket that is bound to the file at ``path``, by whatever name.

    Raises ``OSError`` if the kernel does not tell, or names no socket there.
    """
    found = os.stat(path)
    device = os.major(found.st_dev) << _MINOR_BITS | os.minor(found.st_dev)
    wanted = _INODE_AND_DEVICE.pack(found.st_ino & 2**32 - 1, device)
    is_bound = False
    accepted: set[int] = set()
    pending: set[int] = set()
    owners: dict[int, int] = {}
    for inode, attributes in _sockets():
        if _UID in attributes:
            owners[inode] = _NUMBER.unpack(attributes[_UID])[0]
        if attributes.get(_FILE) != wanted:
            continue
        is_bound = True
        if _PEER in attributes and inode:
            accepted.add(_NUMBER.unpack(attributes[_PEER])[0])
        pending.update(inode for (inode,) in _NUMBER.iter_unpack(attributes.get(_PENDING, b"")))
    if not is_bound:
        raise OSError(errno.ENOTCONN, "the kernel names no socket that is bound to it", path)
    # An end that was closed has no inode any more.
    return Connections(
        accepted={inode: owners.get(inode) for inode in accepted if inode},
        pending={inode: owners.get(inode) for inode in pending if inode},
    )


def _sockets() -> Iterator[tuple[int, dict[int, bytes]]]:
    """Yield inode and attributes of each local socket in this network namespace."""
    # Takes milliseconds to import, and is needed only if something is wrong.
    import socket

    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_ANSWER_S)
        wanted = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 2**32 - 1, 0, _SHOW, 0, 0)
        kernel.send(_HEADER.pack(_HEADER.size + len(wanted), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + wanted)
        while True:
            data = kernel.recv(2**16)
            while data:
                length, kind, *_ = _HEADER.unpack_from(data)
                message = data[_HEADER.size : length]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", message)[0]
                    raise OSError(code, os.strerror(code))
                inode = _SOCKET.unpack_from(message)[4]
                yield inode, dict(_attributes(message[_SOCKET.size :]))
                data = data[_aligned(length) :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[max(_aligned(length), _ATTRIBUTE.size) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3
