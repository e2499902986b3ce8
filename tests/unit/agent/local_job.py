"""A job of this machine: real agents as processes, and a controller that the test speaks for."""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import structs

from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.nodefolders import SHARED_MEMORY
from slurm_robust.wire.epochs import take_epoch
from slurm_robust.wire.keys import create_keys, load_server
from slurm_robust.wire.messages import Ack, FromController, Heartbeat, Pulse, StacksTaken, Stop
from slurm_robust.wire.protocol import PROTOCOL
from slurm_robust.wire.sockets import ControllerSocket
from tests.builders import specs
from tests.builders.specs import job_spec
from tests.forked_python import ForkedPython
from tests.users import run_as
from tests.waiting import HANG_S

Agent: TypeAlias = "subprocess.Popen[bytes] | ForkedPython"


class ScriptedController:
    """Answers heartbeats, remembers all of them, and sends what the test says."""

    def __init__(self, job: JobDirectory, run_id: str) -> None:
        self.socket = ControllerSocket(load_server(job.keys))
        record = take_epoch(
            job.epochs,
            host="127.0.0.1",
            addresses=("127.0.0.1",),
            port=self.socket.port,
            pid=os.getpid(),
            run_id=run_id,
        )
        self.epoch = record.epoch
        self.identities: dict[str, bytes] = {}
        self.heartbeats: list[tuple[float, Heartbeat]] = []
        self.stacks: list[StacksTaken] = []
        self.silent = False
        self.answering = True
        self.protocol = PROTOCOL

    def pump(self) -> None:
        """Take in what has come, waiting up to 20 ms for the first."""
        self.socket.socket.poll(20)
        while (received := self.socket.recv()) is not None:
            identity, message = received
            if isinstance(message, StacksTaken):
                self.stacks.append(message)
                continue
            if isinstance(message, Pulse):
                message = self.meant(message)
            assert isinstance(message, Heartbeat)
            self.identities[message.node] = identity
            self.heartbeats.append((time.monotonic(), message))
            if self.answering:
                self.socket.send(identity, Ack(epoch=self.epoch, seq=message.seq, protocol=self.protocol))

    def meant(self, pulse: Pulse) -> Heartbeat:
        """The heartbeat of which the agent says that it still holds."""
        heartbeat = self.newest(pulse.node)
        assert heartbeat is not None
        return structs.replace(heartbeat, seq=pulse.seq)

    def newest(self, node: str) -> Heartbeat | None:
        """The newest heartbeat of ``node``."""
        return next((b for _, b in reversed(self.heartbeats) if b.node == node), None)

    def wait_for(
        self, node: str, condition: Callable[[Heartbeat], bool], timeout: float = HANG_S
    ) -> Heartbeat:
        """The first newest heartbeat of ``node`` that meets ``condition``."""
        deadline = time.monotonic() + timeout
        while True:
            self.pump()
            heartbeat = self.newest(node)
            if heartbeat is not None and condition(heartbeat):
                return heartbeat
            if time.monotonic() > deadline:
                raise AssertionError(f"{node} never told it within {timeout} s; last heartbeat: {heartbeat}")

    def send(self, node: str, message: FromController) -> None:
        """Send to the agent of ``node``, which has spoken before."""
        assert self.socket.send(self.identities[node], message)

    def launch(
        self,
        node: str,
        generation: int,
        ranks: tuple[int, ...],
        world: int = 0,
        slot: int = 0,
        slots: int = 1,
        master: str = "",
        release: str = "",
    ) -> None:
        """Order workers; ``master`` is the node of slot 0, by default the same."""
        at = self.newest(master or node)
        assert at is not None
        self.send(
            node,
            specs.launch(
                epoch=self.epoch,
                generation=generation,
                ranks=ranks,
                world_size=world or len(ranks),
                slot=slot,
                slots=slots,
                master_addr=at.address,
                master_port=at.rendezvous_port,
                restart_count=generation - 1,
                release=release,
            ),
        )

    def stop(self, node: str, generation: int, grace_s: float = 5.0) -> None:
        """Order the end of the workers."""
        self.send(node, Stop(epoch=self.epoch, generation=generation, grace_s=grace_s))

    def close(self) -> None:
        """Vanish."""
        self.socket.close()


class LocalJob:
    """A job directory and the agents started on it; all processes end with :meth:`close`."""

    def __init__(self, folder: Path, script: str, *, kind: CommandKind = CommandKind.SCRIPT, **spec: object):
        self.folder = folder
        self.job = JobDirectory(folder / "job")
        self.job.path.mkdir(mode=0o700)
        self.script = folder / "train.py"
        self.script.write_text(script)
        fields: dict[str, object] = {
            "run_id": f"test-{os.getpid()}-{os.urandom(3).hex()}",
            "job_id": 1,
            "kind": kind,
            "command": (str(self.script),),
            "cwd": str(folder),
            "nproc_per_node": 2,
            "heartbeat_s": 0.2,
            "kill_wait_s": 1.0,
            **spec,
        }
        self.spec = job_spec(**fields)
        self.job.spec.write_bytes(msgspec.json.encode(self.spec))
        create_keys(self.job.keys)
        self.controllers: list[ScriptedController] = []
        self.agents: dict[str, Agent] = {}

    def controller(self) -> ScriptedController:
        """Another controller takes the job."""
        controller = ScriptedController(self.job, self.spec.run_id)
        self.controllers.append(controller)
        return controller

    def start_agent(
        self, node: str, *, fresh: bool = False, open_files: int | None = None, **environ: str
    ) -> Agent:
        """Start an agent that believes to be on ``node``, with a soft limit of open files if one is given.

        ``fresh``: its zygote is an interpreter of its own, and not a fork, where workers need PyTorch too.
        """
        words = ("-m", "slurm_robust.agent", "--job-dir", str(self.job.path))
        env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        env |= {"SLURMD_NODENAME": node, **environ}
        begin = None if open_files is None else partial(limit_open_files, open_files)
        agent: Agent
        with (self.folder / f"agent-{node}.log").open("w") as log:
            end = log.fileno()
            if fresh or self.spec.kind is CommandKind.EXEC:
                command = [sys.executable, *words]
                agent = subprocess.Popen(
                    command, env=env, stdout=end, stderr=end, cwd=self.folder, preexec_fn=begin
                )
            else:
                agent = ForkedPython(*words, env=env, stdout=end, stderr=end, cwd=self.folder, begin=begin)
        self.agents[node] = agent
        return agent

    def output(self, generation: int, rank: int, stream: str = "out") -> str:
        """What a worker has printed."""
        return self.job.worker_log(generation, rank, stream).read_text()

    def close(self) -> None:
        """End everything, and remove what killed agents leave to the next ones of their run."""
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.send_signal(signal.SIGCONT)
                agent.kill()
            agent.wait()
        for controller in self.controllers:
            controller.close()
        for folder in SHARED_MEMORY.glob(f"srobust-{os.getuid()}-{self.spec.run_id}-*"):
            shutil.rmtree(folder, ignore_errors=True)


def limit_open_files(soft: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@contextmanager
def rival(port: int, uid: int) -> Iterator[None]:
    """A process of that user listens on ``port``, which nobody listens on yet. For root."""
    (begun, begin), (over, end) = os.pipe(), os.pipe()

    def take() -> None:
        os.close(end)
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            os.write(begin, b"x")
            os.read(over, 1)

    process = threading.Thread(target=run_as, args=(uid, take))
    process.start()
    try:
        assert select.select([begun], [], [], 10)[0], "it does not listen"
        yield
    finally:
        os.close(end)
        process.join(60)
        for pipe in (begun, begin, over):
            os.close(pipe)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pause(seconds: float) -> None:
    """For proofs that something does not happen within ``seconds``."""
    threading.Event().wait(seconds)


MakeJob = Callable[..., LocalJob]
