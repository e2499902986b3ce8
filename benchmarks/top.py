"""What ``srobust top`` and the moment behind it cost with many nodes.

``python -m benchmarks.top``: the real app in a terminal of 80 columns and 24 lines, over a job's folder whose
moment changes every two seconds: CPU of its process until the screen is there, and per second afterwards,
with and without colors. Also the controller's side: what a moment takes, and how large it is.
"""

from __future__ import annotations

import fcntl
import os
import pty
import random
import select
import statistics
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
from msgspec import structs
from rich.table import Table

from benchmarks import common
from slurm_robust.config.job import JobConfig
from slurm_robust.controller.live_status import LiveStatusMaker, Storage, picture
from slurm_robust.engine import transitions as to
from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.stages.table import build
from slurm_robust.model import events as ev
from slurm_robust.model.copies import Copy, Tier
from slurm_robust.model.events import TRAIN
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.live_status import LiveStatus, encode
from slurm_robust.model.state import JobState
from slurm_robust.model.world import World
from slurm_robust.util.files import write_atomically
from slurm_robust.wire.messages import Heartbeat, Phase, Progress

RANKS = 8
KEPT, PEER_KEPT = 3, 2
EVERY_S, SETTLE_S = 2.0, 10.0
RUN = "4711-bench"


def heartbeat(node: str, first: int, step: int, world: int) -> Heartbeat:
    """Of an agent whose ranks train."""
    ranks = range(first, first + RANKS)
    own = (
        Copy(rank=r, generation=1, step=step - k, tier=Tier.MEMORY, nbytes=10**10)
        for r in ranks
        for k in range(KEPT)
    )
    others = (
        Copy(rank=(r + RANKS) % world, generation=1, step=step - k, tier=Tier.PEER, nbytes=10**10)
        for r in ranks
        for k in range(PEER_KEPT)
    )
    progress = tuple(
        Progress(rank=r, step=step, reported=True, age_s=random.uniform(0.1, 0.9), loss=2.0 + 1 / step)
        for r in ranks
    )
    return Heartbeat(
        node=node, agent=f"{node}-1", seq=step, epoch=1, phase=Phase.RUNNING, generation=1,
        progress=progress, copies=(*own, *others),
    )  # fmt: skip


def core_of(nodes: int) -> Core:
    """A controller's core whose generation runs."""
    slots = tuple(f"gpu{number:04d}" for number in range(nodes))
    world = World(slots=slots, generation=1, running=True, nproc_per_node=RANKS)
    state = JobState(run_id=RUN, job_id=4711, epoch=1, worlds={TRAIN: world})
    now = Now(mono=0.0, wall=time.time())
    return Core(JobConfig(), state, build, to.ToRunning(agents={node: f"{node}-1" for node in slots}), now)


def controller_side(nodes: int, reps: int) -> tuple[dict[str, object], LiveStatus]:
    """Milliseconds of CPU for one moment: of the loop, and of the thread beside it; and its size."""
    core, moments = core_of(nodes), LiveStatusMaker()
    pictures, makes, encodes = [], [], []
    for step in range(100, 100 + reps):
        for slot, node in enumerate(core.world.slots):
            core.fleet.hear(heartbeat(node, slot * RANKS, step, nodes * RANKS), float(step))
        begun = time.thread_time()
        seen = picture(core, Now(mono=step + 0.5, wall=time.time()), (), Storage())
        taken = time.thread_time()
        moment = moments.make(seen)
        made = time.thread_time()
        data = encode(moment)
        pictures.append(1e3 * (taken - begun))
        makes.append(1e3 * (made - taken))
        encodes.append(1e3 * (time.thread_time() - made))
    facts: dict[str, object] = {
        "picture_ms": statistics.median(pictures),
        "make_ms": statistics.median(makes),
        "encode_ms": statistics.median(encodes),
        "bytes": len(data),
    }
    return facts, moment


def write_journal(directory: JobDirectory, nodes: int) -> None:
    """A job that runs."""
    slots, now = tuple(f"gpu{number:04d}" for number in range(nodes)), time.time()
    begin: tuple[ev.AnyEvent, ...] = (
        ev.RunStarted(
            t=now, run_id=RUN, job_id=4711, kind="script", command=("train.py",), cwd="/", slots=nodes,
            spares=0, nproc_per_node=RANKS, version="0",
        ),
        ev.ControllerStarted(t=now, epoch=1, host=slots[0], pid=1, port=1),
        ev.AllocationTaken(t=now, restart_count=0, nodes=slots, slots=slots, spares=()),
    )  # fmt: skip
    directory.journal.write_bytes(b"".join(ev.encode_event(event) + b"\n" for event in begin))


class Terminal:
    """The app in a terminal of its own. What it writes is read, and counted."""

    def __init__(self, words: list[str], environ: Mapping[str, str]) -> None:
        self.written = 0
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(words[0], words, dict(environ))
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = psutil.Process(self.pid)

    def read_for(self, seconds: float) -> bytes:
        """What comes within this time."""
        end, found = time.monotonic() + seconds, b""
        while (left := end - time.monotonic()) > 0:
            if select.select([self.fd], [], [], left)[0]:
                try:
                    found += os.read(self.fd, 1 << 16)
                except OSError as error:
                    raise common.BenchmarkFailed(f"the app has ended: {found[-2000:]!r}") from error
        self.written += len(found)
        return found

    def cpu_s(self) -> float:
        """Of all its threads so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def quit(self) -> int:
        """Press q; the exit code."""
        os.write(self.fd, b"q")
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                os.read(self.fd, 1 << 16)
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def app_side(
    folder: Path, moment: LiveStatus, seconds: float, environ: Mapping[str, str]
) -> dict[str, object]:
    """CPU of the app while the moment changes every two seconds."""
    path = JobDirectory(folder).live_status
    number = 0

    def write() -> None:
        nonlocal number
        number += 1
        nodes = tuple(
            structs.replace(n, step=n.step + number, step_age_s=random.random(), heard_s=random.random())
            for n in moment.nodes
        )
        newest = structs.replace(moment, t=time.time(), number=number, nodes=nodes, step=moment.step + number)
        write_atomically(path, encode(newest), durable=False)

    write()
    terminal = Terminal([sys.executable, "-m", "slurm_robust.cli", "top", str(folder)], environ)
    begun, seen = time.monotonic(), b""
    while b"gpu0000" not in seen:
        seen += terminal.read_for(0.1)
        if time.monotonic() - begun > 60:
            raise common.BenchmarkFailed(f"no node is shown: {seen[-2000:]!r}")
    first_s = time.monotonic() - begun
    for _ in range(int(SETTLE_S / EVERY_S)):
        write()
        terminal.read_for(EVERY_S)
    start_cpu_s, written, begun = terminal.cpu_s(), terminal.written, time.monotonic()
    while time.monotonic() - begun < seconds:
        write()
        terminal.read_for(EVERY_S)
    took_s = time.monotonic() - begun
    facts: dict[str, object] = {
        "first_screen_s": first_s,
        "start_cpu_s": start_cpu_s,
        "cores": (terminal.cpu_s() - start_cpu_s) / took_s,
        "bytes_s": (terminal.written - written) / took_s,
        "memory_mb": terminal.process.memory_info().rss / 1e6,
    }
    facts["exit_code"] = terminal.quit()
    return facts


def main() -> int:
    """Measure, print, and write build/bench/top.json."""
    parser = common.parser(__doc__, reps=10)
    parser.add_argument("--nodes", type=int, default=1200)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run of the app (default: 60)")
    given = parser.parse_args()
    before = common.machine()
    controller, moment = controller_side(given.nodes, given.reps)
    plain = {**os.environ, "TERM": "xterm-256color"}
    plain.pop("NO_COLOR", None)
    found: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = JobDirectory(Path(name))
        write_journal(directory, given.nodes)
        for what, environ in (("colors", plain), ("NO_COLOR", {**plain, "NO_COLOR": "1"})):
            found[what] = app_side(directory.path, moment, given.seconds, environ)
    path = common.write(
        "top", {"machine": before, "nodes": given.nodes, "controller": controller, "app": found}
    )
    table = Table("", "share of a core", "first screen s", "start CPU s", "bytes/s", "memory MB")
    for what, facts in found.items():
        names = ("cores", "first_screen_s", "start_cpu_s", "bytes_s", "memory_mb")
        table.add_row(what, *(f"{facts[each]:.3g}" for each in names))
    common.console().print(table)
    common.console().print(f"{given.nodes} nodes; the controller: {controller}; {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
