"""A program for the kernel that drops what comes to a listening socket from some addresses.

Classic BPF, as ``man 7 socket`` (SO_ATTACH_FILTER) and linux/filter.h describe it; needs no privilege.
Connections that are there already go on: each has the filter that the listening socket had when it came.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import socket
import struct
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

MAX_ADDRESSES = 400
"""Addresses of one program, which may have 4,096 instructions."""

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_BYTE_AT, _WORD_AT, _SHIFT_RIGHT, _IF_EQUAL, _GO_TO, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x05, 0x06
_ALL, _NOTHING = 0xFFFFFFFF, 0
# Of the header of IP, wherever that begins.
_HEADER = 0xFFF00000
_SOURCE_V4, _SOURCE_V6 = _HEADER + 12, _HEADER + 8


def address(text: str) -> Address:
    """Parse ``text`` as an address; as one of IPv4 even if a socket of both kinds shows one of IPv6.

    Raises ``ValueError``.
    """
    found = ipaddress.ip_address(text.partition("%")[0])
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def drop(listener: socket.socket, sources: Iterable[Address]) -> None:
    """Have the kernel drop what comes to ``listener`` from ``sources``, the first 400. Raises ``OSError``.

    Fewer if the kernel has no memory for that many (net.core.optmem_max).
    """
    chosen = list(sources)[:MAX_ADDRESSES]
    if not chosen:
        try:
            listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        except FileNotFoundError:
            pass  # there was none
        return
    while True:
        try:
            code = program(chosen)
            memory = ctypes.create_string_buffer(code, len(code))
            described = struct.pack("HL", len(code) // 8, ctypes.addressof(memory))
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
            return
        except OSError as error:
            if error.errno != errno.ENOMEM or len(chosen) == 1:
                raise
            chosen = chosen[: len(chosen) // 2]


def program(sources: Iterable[Address]) -> bytes:
    """Return instructions of 8 bytes that pass what does not come from ``sources``."""
    v4: list[tuple[int, int, int, int]] = [(_WORD_AT, 0, 0, _SOURCE_V4)]
    v6: list[tuple[int, int, int, int]] = []
    for source in sources:
        groups = struct.unpack(f"!{len(source.packed) // 4}I", source.packed)
        if source.version == 4:
            v4 += [(_IF_EQUAL, 0, 1, groups[0]), (_RETURN, 0, 0, _NOTHING)]
            continue
        for number, group in enumerate(groups):
            # Past what is left of this source.
            v6 += [(_WORD_AT, 0, 0, _SOURCE_V6 + 4 * number), (_IF_EQUAL, 0, 7 - 2 * number, group)]
        v6.append((_RETURN, 0, 0, _NOTHING))
    passes = (_RETURN, 0, 0, _ALL)
    version = [(_BYTE_AT, 0, 0, _HEADER), (_SHIFT_RIGHT, 0, 0, 4), (_IF_EQUAL, 0, 1, 4)]
    steps = [*version, (_GO_TO, 0, 0, len(v6) + 1), *v6, passes, *v4, passes]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
