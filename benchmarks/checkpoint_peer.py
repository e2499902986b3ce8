"""MB per second from one node's memory into another's: the agents' channel beside a bare sendfile loop."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass

from rich.console import Console

from benchmarks import common
from benchmarks.checkpoint_ends import BARE, OURS
from benchmarks.checkpoint_figures import Aim, rates
from benchmarks.checkpoint_report import Part, table
from benchmarks.samples import interleaved
from benchmarks.scratch import SHARED_MEMORY, scratch
from slurm_robust.sandbox.errors import RequirementMissing

AIM = 0.7
LIMIT_S = 120.0
_MODULE = "benchmarks.checkpoint_ends"


@dataclass(frozen=True)
class Pair:
    """Two nodes, ``n1`` that sends and ``n2``, each with its folder in shared memory.

    ``start(node, words)`` runs Python on one of them; ``address`` is that of ``n2``.
    """

    start: Callable[[str, Sequence[str]], subprocess.Popen[str]]
    address: str
    folders: tuple[str, str]


def measure(mb: int, reps: int, console: Console, *, sandboxed: bool) -> Part:
    """Both ways in turn over the same link, between the same two nodes."""
    nbytes = mb * 10**6
    samples: dict[str, list[float]] = {}
    with ExitStack() as stack:
        try:
            pair = stack.enter_context(_sandboxed() if sandboxed else _loopback())
        except RequirementMissing as error:
            return Part(notes=[f"peer: left out, use --no-sandbox: {error}"])
        ports = {way: stack.enter_context(_receiver(pair, way, nbytes)) for way in (OURS, BARE)}
        for rep, way in interleaved((OURS, BARE), reps):
            seconds = _send(pair, way, nbytes, ports[way])
            samples.setdefault(way, []).append(seconds)
            console.print(f"{rep + 1} {mb} MB, {way}: {mb / seconds:.0f} MB/s")
    found = {way: rates(nbytes, seconds) for way, seconds in samples.items()}
    where = "two nodes of a sandbox" if sandboxed else "loopback"
    ratio = found[OURS].median / found[BARE].median
    rows = [(way, rate.text(0), f"{rate.median / found[BARE].median:.2f}") for way, rate in found.items()]
    title = f"Copy of {mb} MB to a peer, {where}: median (range), n={reps}"
    summary = {way: asdict(rate) for way, rate in found.items()}
    return Part(
        facts={"where": where, "seconds": samples, "summary, MB/s": summary},
        tables=[table(title, ("", "MB/s", "/ bare"), rows)],
        aims=[Aim(f"copy of {mb} MB to a peer", ratio, AIM, "x bare", at_least=True)],
    )


@contextmanager
def _sandboxed() -> Iterator[Pair]:
    """Each node with a network of its own, as two machines on one switch."""
    with common.boot("peer", nodes=2) as sandbox:

        def start(node: str, words: Sequence[str]) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", _MODULE, *words]
            return sandbox.popen(command, node=node, user="root", env={"PYTHONPATH": str(common.ROOT)})

        shm = str(SHARED_MEMORY)  # each node has one of its own
        yield Pair(start, sandbox.config.address("n2"), (shm, shm))


@contextmanager
def _loopback() -> Iterator[Pair]:
    """One machine, without root."""

    def start(node: str, words: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", _MODULE, *words],
            cwd=common.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    with scratch("peer") as one, scratch("peer") as two:
        yield Pair(start, "127.0.0.1", (str(one), str(two)))


@contextmanager
def _receiver(pair: Pair, way: str, nbytes: int) -> Iterator[int]:
    """A receiver that runs; its port."""
    process = pair.start("n2", ["receive", way, str(nbytes), pair.folders[1], pair.address])
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        if not line:
            raise common.BenchmarkFailed(f"the receiver ({way}) did not start:\n{process.stderr.read()}")
        yield int(line)
    finally:
        common.end_group(process)


def _send(pair: Pair, way: str, nbytes: int, port: int) -> float:
    process = pair.start("n1", ["send", way, str(nbytes), pair.folders[0], pair.address, str(port)])
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        common.end_group(process)
        raise
    if process.returncode != 0:
        raise common.BenchmarkFailed(f"the sender ({way}) failed:\n{err[-2000:]}")
    return float(out)
