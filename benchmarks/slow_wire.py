"""Between a node and its network: every packet is late, some are lost. Run as root on the node until killed.

``python slow_wire.py eth0 0.2 0.05``: 0.2 s late each way, 5 % lost each way. It stands in for the kernel's
netem, which not every kernel has: the interface is renamed, a TAP device takes its name and addresses, and
frames pass between the two. Standard library only, since it runs with any Python.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_CHECKSUM_AND_SEGMENTS = 0x01 | 0x02 | 0x04
_ALL_FRAMES, _SOL_PACKET, _PACKET_VNET_HDR, _OUTGOING = 0x0003, 263, 15, 4
_MAX_BYTES = 70_000


def ip(*arguments: str) -> str:
    """The output of ip(8). Raises ``CalledProcessError``."""
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def insert(name: str) -> tuple[int, socket.socket]:
    """Put a TAP device in the place of interface ``name``; the device, and a socket on the interface."""
    (link,) = json.loads(ip("-j", "addr", "show", "dev", name))
    addresses = [f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if a["family"] == "inet"]
    routes = [r for r in json.loads(ip("-j", "route", "show", "dev", name)) if r.get("protocol") != "kernel"]
    wire = f"{name}wire"
    ip("link", "set", name, "down")
    ip("addr", "flush", "dev", name)
    ip("link", "set", name, "name", wire, "address", "06" + link["address"][2:])
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH14x", name.encode(), flags))
    fcntl.ioctl(tap, _TUNSETOFFLOAD, _CHECKSUM_AND_SEGMENTS)
    ip("link", "set", name, "address", link["address"])
    for address in addresses:
        ip("addr", "add", address, "dev", name)
    ip("link", "set", wire, "up", "promisc", "on")
    ip("link", "set", name, "up")
    for route in routes:
        via = ("via", route["gateway"]) if "gateway" in route else ()
        ip("route", "replace", route["dst"], *via, "dev", name)
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_FRAMES))
    raw.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    raw.bind((wire, _ALL_FRAMES))
    raw.setblocking(False)
    return tap, raw


def run(tap: int, raw: socket.socket, delay_s: float, loss: float) -> None:
    """Pass frames on for ever."""
    queue: list[tuple[float, int, bool, bytes]] = []
    number = itertools.count()
    poll = select.poll()
    poll.register(tap, select.POLLIN)
    poll.register(raw, select.POLLIN)
    while True:
        wait_s = queue[0][0] - time.monotonic() if queue else 1.0
        poll.poll(max(0.0, 1000 * wait_s))
        for outward, frame in (*_from_tap(tap), *_from_wire(raw)):
            if random.random() >= loss:
                heapq.heappush(queue, (time.monotonic() + delay_s, next(number), outward, frame))
        while queue and queue[0][0] <= time.monotonic():
            _, _, outward, frame = heapq.heappop(queue)
            try:
                raw.send(frame) if outward else os.write(tap, frame)
            except OSError:
                pass  # no room: one more lost


def _from_tap(tap: int) -> list[tuple[bool, bytes]]:
    found: list[tuple[bool, bytes]] = []
    while True:
        try:
            found.append((True, os.read(tap, _MAX_BYTES)))
        except BlockingIOError:
            return found


def _from_wire(raw: socket.socket) -> list[tuple[bool, bytes]]:
    found: list[tuple[bool, bytes]] = []
    while True:
        try:
            frame, origin = raw.recvfrom(_MAX_BYTES)
        except BlockingIOError:
            return found
        if origin[2] != _OUTGOING:
            found.append((False, frame))


if __name__ == "__main__":
    run(*insert(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
