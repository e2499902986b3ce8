"""A copy to a peer over 1, 2, 4 and 8 connections, side by side, on links that hold each to a share.

Two network namespaces are joined by a veth pair. One agent's sender and another one's server, as they are in
agents, copy a snapshot until the peer has verified it. Links: ``plain``, one way of the whole rate, which one
connection may fill; ``shared``, four ways of a quarter each, as a bond of four or paths of equal cost have:
each connection goes one of them, by its port, and two may go the same; ``unlimited``, the veth pair alone,
which shows what this machine can do. The kernel's netem delays packets. Without netem a process passes frames
on later (:mod:`benchmarks.slow_wire`); it needs a slower link, on which a connection needs the same window if
rate times round trip stays the same. Needs root.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from benchmarks import common
from benchmarks.checkpoint_ends import GENERATION, RUN
from benchmarks.samples import Summary, interleaved
from benchmarks.scratch import cleanly, scratch
from slurm_robust.agent.copies.notes import Notes
from slurm_robust.agent.copies.sender import PeerSender, RateLimit, SenderLaunch
from slurm_robust.agent.copies.server import CopyServer, PeerBuffers
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import Buffer, TensorSpec
from slurm_robust.checkpoint.memory import FoundImage, MemoryFolder
from slurm_robust.checkpoint.tiers import NodeTiers
from slurm_robust.model.copies import Peer
from slurm_robust.wire.copychannel import derive_key

STREAMS = (1, 2, 4, 8)
LINKS = ("plain", "shared", "unlimited")
WAYS = 4
# As many as a peer has buffers, so that none is made in the copy that is timed.
WARM = 2
LIMIT_S = 120.0
_KEY = derive_key("benchmark")
_ADDRESSES = ("10.99.0.1", "10.99.0.2")
_LOOK_S = 0.001


def main() -> int:
    """Measure all links; ``send`` and ``receive`` are the two ends, each a process of its own."""
    if sys.argv[1:2] == ["receive"]:
        return receive(Path(sys.argv[2]))
    if sys.argv[1:2] == ["send"]:
        return send(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    parser = common.parser(__doc__, reps=7)
    parser.add_argument("--gbits", type=float, default=10.0, help="rate of the link, 10^9 bits per second")
    parser.add_argument("--round-trip-ms", type=float, default=1.0)
    parser.add_argument("--mb", type=int, default=250, help="of the snapshot, 10^6 bytes")
    options = parser.parse_args()
    has_netem = _kernel_has("netem")
    results: dict[str, dict[str, object]] = {}
    table = common.table(
        f"Copy of {options.mb} MB to a peer, {options.gbits:g} Gb/s, round trip "
        f"{options.round_trip_ms:g} ms, Gb/s: median (range), n={options.reps}",
        "link",
        *(f"{streams} stream{'s' * (streams > 1)}" for streams in STREAMS),
    )
    for link in LINKS:
        with joined(link, options.gbits, options.round_trip_ms / 1e3, has_netem=has_netem) as nets:
            seconds = measure(nets, options.mb, options.reps)
        gbits = {n: Summary.of([options.mb * 8e-3 / s for s in found]) for n, found in seconds.items()}
        table.add_row(link, *(gbits[streams].text() for streams in STREAMS))
        results[link] = {"seconds": seconds, "Gb/s": {n: asdict(found) for n, found in gbits.items()}}
    common.console().print(table)
    delay_by = "nothing" if not options.round_trip_ms else "netem" if has_netem else "slow_wire"
    facts = {"machine": common.machine(), "delay by": delay_by, "links": results}
    print(common.write("peer_streams", facts | {"options": vars(options)}))
    return 0


def measure(nets: tuple[Net, Net], mb: int, reps: int) -> dict[int, list[float]]:
    """Seconds of each copy, by the number of connections."""
    with ExitStack() as stack:
        folders = [str(stack.enter_context(scratch("streams"))) for _ in nets]
        receiver = stack.enter_context(_end(nets[1], "receive", folders[1]))
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        sender = stack.enter_context(_end(nets[0], "send", folders[0], port, str(mb * 10**6), str(reps)))
        out, _ = sender.communicate(timeout=LIMIT_S * reps)
        if sender.returncode:
            raise common.BenchmarkFailed(f"the sender ended with {sender.returncode}")
    found: dict[int, list[float]] = {}
    for line in out.splitlines():
        streams, seconds = line.split()
        found.setdefault(int(streams), []).append(float(seconds))
    return found


# -- the two ends --------------------------------------------------------------------------------------


def receive(folder: Path) -> int:
    """An agent's server, until it is ended."""
    memory = MemoryFolder.create(RUN, folder)
    with socket.create_server((_ADDRESSES[1], 0)) as listener:
        buffers = PeerBuffers(memory)
        server = CopyServer(
            listener, _KEY, run_id=RUN, parts=NodeTiers(memory), buffers=buffers, notes=Notes()
        )
        server.launch = GENERATION
        print(listener.getsockname()[1], flush=True)
        threading.Event().wait()
    return 0


def send(folder: Path, port: int, nbytes: int, reps: int) -> int:
    """One sender for each number of connections, as each rank has one; a line for each copy."""
    path = folder / "image"
    buffer, steps, notes, pace = Buffer(path), iter(range(10**9)), Notes(), RateLimit(0.0)
    senders = {}
    for rank, streams in enumerate(STREAMS):
        peer = Peer(rank=rank, node="n2", address=_ADDRESSES[1], port=port)
        launch = SenderLaunch(RUN, GENERATION, None, streams)
        senders[streams] = rank, PeerSender(peer, launch, _KEY, pace, notes)
    for rep, streams in interleaved(STREAMS, WARM + reps):
        rank, sender = senders[streams]
        header = PartHeader(
            run_id=RUN, layout="", generation=GENERATION, step=next(steps), rank=rank, world_size=len(STREAMS)
        )
        buffer.begin(header, [TensorSpec(dtype="uint8", shape=(nbytes,), nbytes=nbytes)], b"")
        buffer.commit()
        image = FoundImage(path=path, kind="own", header=header, nbytes=path.stat().st_size)
        began = time.perf_counter()
        sender.offer(image)
        common.wait_for(
            lambda sender=sender, header=header: sender.confirmed == header.checkpoint,  # type: ignore[misc]
            LIMIT_S,
            f"the peer has no copy ({notes.take()})",
            _LOOK_S,
        )
        if rep >= WARM:
            print(streams, time.perf_counter() - began, flush=True)
    for _, sender in senders.values():
        sender.stop()
    buffer.close()
    return 0


@contextmanager
def _end(net: Net, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = net.inside(sys.executable, "-m", "benchmarks.peer_streams", *words)
    process = subprocess.Popen(
        command, cwd=common.ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        common.end_group(process)


# -- the link ------------------------------------------------------------------------------------------


class Net(NamedTuple):
    """A network namespace without a name, which goes with its last process."""

    pid: int

    def inside(self, *command: str) -> list[str]:
        """``command`` in it, killed when its parent ends."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "setpriv", "--pdeathsig", "KILL", *command]


@contextmanager
def network() -> Iterator[Net]:
    """A namespace until the end of the block, or of this process: its ``cat`` reads from here."""
    words = ["unshare", "--net", "sh", "-c", "echo; exec cat"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, start_new_session=True) as holder:
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise common.BenchmarkFailed("no network namespace can be made: this needs root")
        yield Net(holder.pid)


@contextmanager
def joined(link: str, gbits: float, round_trip_s: float, *, has_netem: bool) -> Iterator[tuple[Net, Net]]:
    """Two network namespaces with ``link`` between them; connections come from the first."""
    with network() as one, network() as other:
        ends = ("netns", str(one.pid), "type", "veth", "peer", "name", "net0", "netns", str(other.pid))
        _run("ip", "link", "add", "net0", *ends)
        for net, address in zip((one, other), _ADDRESSES, strict=True):
            _run(*net.inside("ip", "addr", "add", f"{address}/24", "dev", "net0"))
            _run(*net.inside("ip", "link", "set", "net0", "up"))
        with ExitStack() as stack:
            if link != "unlimited":
                if round_trip_s and not has_netem:
                    stack.enter_context(_slow_wire(one, round_trip_s / 2))
                for net, side in ((one, "sport"), (other, "dport")):
                    _limit(net, link, gbits, round_trip_s / 2 if has_netem else 0.0, side)
            yield one, other


def _limit(net: Net, link: str, gbits: float, delay_s: float, side: str) -> None:
    """Hold what leaves a namespace to the rate, as a whole or on each of the ways, by the port of a side."""

    def tc(words: str) -> None:
        _run(*net.inside("tc", *words.split()))

    tc("qdisc add dev net0 root handle 1: htb default 10")
    ways = WAYS if link == "shared" else 1
    rate = f"{1000 * gbits / ways:.0f}mbit"
    for way in range(ways):
        tc(f"class add dev net0 parent 1: classid 1:1{way} htb rate {rate} ceil {rate} burst 1mb cburst 1mb")
        if delay_s:
            tc(f"qdisc add dev net0 parent 1:1{way} netem delay {1e3 * delay_s:g}ms limit 100000")
        if ways > 1:
            place = f"match ip {side} {2 * way} 0x0006 flowid 1:1{way}"
            tc(f"filter add dev net0 parent 1: protocol ip u32 {place}")


@contextmanager
def _slow_wire(net: Net, delay_s: float) -> Iterator[None]:
    script = Path(__file__).with_name("slow_wire.py")
    command = net.inside(sys.executable, str(script), "net0", str(delay_s), "0")
    process = subprocess.Popen(command, start_new_session=True, text=True)
    try:
        inside = net.inside("ip", "link", "show", "net0wire")
        common.wait_for(
            lambda: subprocess.run(inside, capture_output=True).returncode == 0, 10.0, "the wire is not there"
        )
        time.sleep(0.5)  # its addresses follow
        yield
    finally:
        common.end_group(process)


def _kernel_has(discipline: str) -> bool:
    """Whether this kernel has the queueing discipline."""
    with network() as net:
        command = net.inside("tc", "qdisc", "add", "dev", "lo", "root", discipline, "delay", "1ms")
        return subprocess.run(command, capture_output=True).returncode == 0


def _run(*words: str) -> None:
    """Raises ``CalledProcessError``."""
    subprocess.run(words, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    is_end = sys.argv[1:2] in (["receive"], ["send"])  # which the other process ends
    sys.exit(main() if is_end else cleanly(main))
