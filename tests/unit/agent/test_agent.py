"""Real agents, zygotes and workers of this machine, without Slurm."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import msgspec
import pytest

from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.model.copies import SHARED, CheckpointId, RestoreSource, Tier
from slurm_robust.model.job import CommandKind
from slurm_robust.model.progress import UPDATE
from slurm_robust.version import __version__
from slurm_robust.wire.messages import Heartbeat, Inject, Pace, Phase, Refused, RequestCheckpoint, Shutdown
from slurm_robust.wire.protocol import PROTOCOL
from slurm_robust.wire.sockets import probe_ports
from tests.builders import specs
from tests.there import there
from tests.unit.agent.copy_nodes import MIB, fill
from tests.unit.agent.local_job import Agent, LocalJob, MakeJob, ScriptedController, is_alive, pause, rival
from tests.users import as_root
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


SLEEPER = """
import os, signal, time
print(os.getpid(), flush=True)
time.sleep(1000)
"""

STEPPER = """
import os, time
from slurm_robust.worker.step_record import StepRecord
record = StepRecord.open(os.environ["SROBUST_RECORD"])
for step in range(100000):
    time.sleep(0.01)
    record.report(step, loss=1.0 / (step + 1))
    if record.requested_checkpoint == step:
        record.set_checkpoint(step)
"""

DDP = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(os.environ.get("STEPS", "1000000"))):
    optimizer.zero_grad()
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
print("done", dist.get_world_size())
"""

HELD = """
import torch, torch.distributed as dist
import slurm_robust as sr
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
ckpt = sr.Checkpointer({"model": model, "optimizer": optimizer})
for step in range(ckpt.restore(), 1000000):
    optimizer.zero_grad()
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    print(step, flush=True)
    ckpt.step(step)
"""


def as_program(job_script: str) -> dict[str, object]:
    """Spec fields for a plain program: no torch to import, so these tests are quick."""
    return {"kind": CommandKind.EXEC, "command": (sys.executable, "-c", job_script)}


def all_stepped(heartbeat: Heartbeat, ranks: int = 2) -> bool:
    return len(heartbeat.progress) == ranks and all(p.step >= 0 for p in heartbeat.progress)


def steps_in(generation: int, heartbeat: Heartbeat) -> bool:
    return heartbeat.generation == generation and all_stepped(heartbeat)


def sleeping(make_job: MakeJob) -> tuple[LocalJob, ScriptedController, Agent]:
    """Return a job of sleepers, its controller and the agent of n1."""
    job = make_job("", **as_program(SLEEPER))
    return job, job.controller(), job.start_agent("n1")


def refusal(job: Path) -> dict[str, object]:
    """Return what an agent says that cannot begin in the folder ``job``."""
    command = [sys.executable, "-m", "slurm_robust.agent", "--job-dir", str(job)]
    environ = {**os.environ, "SLURMD_NODENAME": "n3"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    found: dict[str, object] = json.loads(done.stdout)
    return found


def up(job: LocalJob, controller: ScriptedController, generation: int = 1) -> list[int]:
    """Launch two sleepers on n1; their pids."""
    controller.wait_for("n1", lambda b: b.ready)
    controller.launch("n1", generation, (0, 1))
    controller.wait_for("n1", lambda b: b.phase is Phase.RUNNING and b.generation == generation)
    logs = [job.job.worker_log(generation, rank, "out") for rank in (0, 1)]
    wait_for(lambda: all(log.exists() and log.read_text() for log in logs))
    return [int(log.read_text()) for log in logs]


def runtime_folders(job: LocalJob) -> list[Path]:
    folders = Path("/dev/shm").glob(f"srobust-{os.getuid()}-{job.spec.run_id}*")
    return [folder for folder in folders if not folder.name.endswith("-copies")]


def copies_folder(job: LocalJob) -> Path:
    return Path(f"/dev/shm/srobust-{os.getuid()}-{job.spec.run_id}-copies")


def test_an_agent_without_news_sends_one_heartbeat_an_interval(make_job: MakeJob) -> None:
    """The answers to them wake it, and are no news."""
    job = make_job(SLEEPER)
    controller = job.controller()
    job.start_agent("n1")
    up(job, controller)
    first = controller.wait_for("n1", lambda _: True).seq
    begun, count = time.monotonic(), 10
    controller.wait_for("n1", lambda b: b.seq >= first + count)
    assert time.monotonic() - begun > count * job.spec.heartbeat_s / 2


def test_an_agent_names_a_controller_of_another_version_and_serves_it(make_job: MakeJob) -> None:
    job = make_job("", **as_program(SLEEPER))
    controller = job.controller()
    controller.protocol = 0
    job.start_agent("n1")
    older = (
        f"this agent speaks protocol {PROTOCOL}, its controller 0: it may not know all that this agent says"
    )
    controller.wait_for("n1", lambda b: older in b.notes)
    controller.protocol = 9
    dance = msgspec.msgpack.encode({"kind": "dance", "epoch": controller.epoch})
    begun = len(controller.heartbeats)
    wait_for(lambda: controller.pump() or len(controller.heartbeats) > begun + 1)
    controller.socket.socket.send_multipart([controller.identities["n1"], dance])
    controller.send("n1", Refused(refused="weather", protocol=9))
    unknown = (
        f"this agent speaks protocol {PROTOCOL}, its controller 9: message 'dance' is unknown and is ignored"
    )
    refused = f"this agent speaks protocol {PROTOCOL}, its controller 9: it refuses 'weather'"
    controller.wait_for(
        "n1", lambda _: {unknown, refused} <= {n for _, b in controller.heartbeats for n in b.notes}
    )
    up(job, controller)
    noted = [n for _, b in controller.heartbeats for n in b.notes if "protocol" in n]
    assert set(noted) == {older, unknown, refused}
    assert not controller.newest("n1").notes, "each is told once"


def test_workers_may_open_as_many_files_as_the_hard_limit_allows(make_job: MakeJob) -> None:
    """The store of rank 0 holds a connection to each rank, and shells hand on 1,024."""
    job = make_job("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))")
    controller = job.controller()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    job.start_agent("n1", open_files=512)
    controller.wait_for("n1", lambda b: b.ready)
    controller.launch("n1", 1, (0,))
    controller.wait_for("n1", lambda b: b.phase is Phase.ENDED)
    assert job.output(1, 0) == f"({min(hard, 2**20)}, {hard})\n"


def test_an_agent_outside_of_the_network_for_copies_says_so_and_ends(make_job: MakeJob) -> None:
    job = make_job(SLEEPER, copies=specs.copy_spec(network="203.0.113.0/24"))
    job.controller()
    assert job.start_agent("n1").wait(60) == 3
    told = json.loads((job.folder / "agent-n1.log").read_text())
    assert "is in checkpoint.peer_network 203.0.113.0/24; it has" in str(told["srobust_agent_error"])
    assert (told["node"], told["job_code"]) == ("n1", 78)
    assert "that every node of the job has" in told["fix"]


def test_a_killed_rank_of_ddp_is_seen_and_all_start_again(make_job: MakeJob) -> None:
    """Two nodes, four ranks; the second generation meets at the port that rank 0's agent held."""
    job = make_job(DDP)
    controller = job.controller()
    for node in ("n1", "n2"):
        job.start_agent(node)
    for node in ("n1", "n2"):
        controller.wait_for(node, lambda b: b.ready)
    for generation in (1, 2, 3):
        for slot, (node, ranks) in enumerate({"n1": (0, 1), "n2": (2, 3)}.items()):
            controller.launch(node, generation, ranks, 4, slot, 2, master="n1")
        for node in ("n1", "n2"):
            controller.wait_for(node, partial(steps_in, generation))
        controller.send("n2", Inject(epoch=controller.epoch, rank=2, signal=signal.SIGKILL))
        heartbeat = controller.wait_for("n2", lambda b: any(e.rank == 2 for e in b.exits))
        (exit,) = (e for e in heartbeat.exits if e.rank == 2)
        assert exit.signal == signal.SIGKILL
        for node in ("n1", "n2"):
            controller.stop(node, generation)
        for node in ("n1", "n2"):
            heartbeat = controller.wait_for(node, lambda b: b.phase is Phase.ENDED)
            assert len(heartbeat.exits) == 2
    # None where the other rank of n2 had ended by itself by then.
    assert heartbeat.timings.get("stop", 0.0) < 5
    assert heartbeat.timings["launch"] < 5
    phases = {"zygote", "launch", "worker", "imports", "process group", "first step"}
    assert phases <= heartbeat.timings.keys()
    assert all(0 <= seconds < 60 for seconds in heartbeat.timings.values())


def test_an_unmodified_ddp_script_ends_by_itself(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(DDP)
    controller = job.controller()
    job.start_agent("n1", fresh=True, STEPS="3")
    controller.wait_for("n1", lambda b: b.ready)
    controller.launch("n1", 1, (0, 1))
    heartbeat = controller.wait_for("n1", lambda b: b.phase is Phase.ENDED)
    assert [(e.code, e.signal) for e in heartbeat.exits] == [(0, None), (0, None)]
    assert [p.step for p in heartbeat.progress] == [2, 2]
    assert not any(p.reported for p in heartbeat.progress)
    assert job.output(1, 0) == "done 2\n"


def test_an_exception_of_a_script_comes_with_its_place(make_job: MakeJob) -> None:
    job = make_job('import sys\nprint("hello")\nsys.stderr.write("last words\\n")\nraise ValueError("no")\n')
    controller = job.controller()
    job.start_agent("n1")
    controller.wait_for("n1", lambda b: b.ready)
    controller.launch("n1", 1, (0, 1))
    heartbeat = controller.wait_for("n1", lambda b: len([e for e in b.exits if e.tail]) == 2)
    error = there(heartbeat.exits[0].error)
    assert (error.type, error.message, error.file, error.line) == ("ValueError", "no", "train.py", 4)
    assert heartbeat.exits[0].tail[0] == "last words"
    assert heartbeat.exits[0].tail[-1] == "ValueError: no"
    assert 0 <= there(heartbeat.exits[0].quiet_s) < 60


BINDS = """
import os, pathlib, socket, time
port = int(os.environ["MASTER_PORT"])
pathlib.Path("port").write_text(str(port))
while not pathlib.Path("rival").exists():
    time.sleep(0.02)
socket.create_server(("", port))
"""


@as_root
def test_a_program_whose_port_another_user_took_says_so_and_the_next_has_another(make_job: MakeJob) -> None:
    job = make_job("", **as_program(BINDS))
    controller = job.controller()
    job.start_agent("n1")
    port = controller.wait_for("n1", lambda b: b.ready).rendezvous_port
    controller.launch("n1", 1, (0,))
    wait_for((job.folder / "port").exists)
    with rival(port, 65534):
        (job.folder / "rival").touch()
        heartbeat = controller.wait_for("n1", lambda b: bool(b.exits))
    assert heartbeat.exits[0].code == 1
    assert f"(uid 65534) listens on port {port}" in heartbeat.exits[0].taken
    controller.launch("n1", 2, (0,))
    heartbeat = controller.wait_for("n1", lambda b: b.generation == 2 and bool(b.exits))
    assert (heartbeat.exits[0].code, heartbeat.exits[0].taken) == (0, "")


def test_a_preload_that_cannot_be_imported_is_fatal(make_job: MakeJob) -> None:
    job = make_job("", preload=("there_is_no_such_module",))
    controller = job.controller()
    job.start_agent("n1")
    heartbeat = controller.wait_for("n1", lambda b: bool(b.fatal))
    assert "'there_is_no_such_module' of 'preload' cannot be imported" in heartbeat.fatal
    assert "ModuleNotFoundError: No module named 'there_is_no_such_module'" in heartbeat.fatal
    assert "\n" not in heartbeat.fatal
    assert "sys.path" not in heartbeat.fatal
    assert not heartbeat.ready


def test_stop_kills_after_the_grace_and_does_not_wait_for_the_stopped(make_job: MakeJob) -> None:
    job = make_job("", **as_program(SLEEPER))
    controller = job.controller()
    job.start_agent("n1")
    pids = up(job, controller)
    controller.send("n1", Inject(epoch=controller.epoch, rank=0, signal=signal.SIGSTOP))
    wait_for(lambda: Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    controller.stop("n1", 1, grace_s=600.0)
    heartbeat = controller.wait_for("n1", lambda b: b.phase is Phase.ENDED)
    assert {e.rank: e.signal for e in heartbeat.exits} == {0: signal.SIGKILL, 1: signal.SIGTERM}


def test_training_goes_on_without_a_controller_and_the_next_one_is_found(make_job: MakeJob) -> None:
    job = make_job("", **as_program(SLEEPER))
    first = job.controller()
    job.start_agent("n1")
    pids = up(job, first)
    first.close()
    job.controllers.remove(first)
    second = job.controller()
    heartbeat = second.wait_for("n1", lambda b: b.epoch == second.epoch)
    assert (heartbeat.phase, heartbeat.generation) == (Phase.RUNNING, 1)
    assert all(is_alive(pid) for pid in pids)


def test_a_controller_of_a_lower_epoch_is_not_obeyed(make_job: MakeJob) -> None:
    job = make_job("", **as_program(SLEEPER))
    old = job.controller()
    job.start_agent("n1")
    pids = up(job, old)
    new = job.controller()
    # The old one falls silent, so the agent looks for a newer one.
    old.answering = False
    new.wait_for("n1", lambda b: b.epoch == new.epoch)
    old.socket.send(old.identities["n1"], Shutdown(epoch=old.epoch, grace_s=0))
    pause(0.5)
    assert all(is_alive(pid) for pid in pids)


def test_notes_are_repeated_until_they_are_acknowledged(make_job: MakeJob) -> None:
    job = make_job("", **as_program(SLEEPER))
    controller = job.controller()
    controller.answering = False
    cpus = str(os.cpu_count())
    job.start_agent("n1", SLURM_CPUS_ON_NODE=cpus, SLURM_GPUS_ON_NODE="8", CUDA_VISIBLE_DEVICES="0,1")
    controller.wait_for("n1", lambda b: b.seq >= 3 and any("2 of the 8 GPUs" in n for n in b.notes))
    controller.answering = True
    controller.wait_for("n1", lambda b: not b.notes)


def test_an_agent_of_another_release_than_its_controller_says_so(make_job: MakeJob) -> None:
    job = make_job("", **as_program(SLEEPER), version="9.9")
    controller = job.controller()
    job.start_agent("n1")
    controller.wait_for("n1", lambda b: any(f"{__version__}, its controller of 9.9" in n for n in b.notes))


def test_progress_and_a_requested_checkpoint_are_reported(make_job: MakeJob) -> None:
    job = make_job("", **as_program(STEPPER), heartbeat_s=1.0)
    controller = job.controller()
    job.start_agent("n1")
    controller.wait_for("n1", lambda b: b.ready)
    controller.launch("n1", 1, (0, 1))
    heartbeat = controller.wait_for("n1", all_stepped)
    target = max(p.step for p in heartbeat.progress) + 50
    controller.send("n1", RequestCheckpoint(epoch=controller.epoch, generation=1, step=target))
    heartbeat = controller.wait_for("n1", lambda b: all(p.checkpoint == target for p in b.progress))
    assert all(p.reported and p.loss is not None for p in heartbeat.progress)


def test_ranks_that_are_held_lose_no_step_when_they_are_ended(make_job: MakeJob) -> None:
    job = make_job(HELD)
    controller = job.controller()
    job.start_agent("n1", fresh=True)
    controller.wait_for("n1", lambda b: b.ready)
    controller.launch("n1", 1, (0, 1))
    heartbeat = controller.wait_for("n1", all_stepped)
    target = max(p.step for p in heartbeat.progress) + 100
    hold = RequestCheckpoint(epoch=controller.epoch, generation=1, step=target, hold_s=60.0)
    controller.send("n1", hold)
    heartbeat = controller.wait_for("n1", lambda b: all(p.checkpoint == target for p in b.progress))
    assert {p.phase for p in heartbeat.progress} == {UPDATE}
    controller.stop("n1", 1)
    heartbeat = controller.wait_for("n1", lambda b: b.phase is Phase.ENDED)
    assert [(p.step, p.checkpoint) for p in heartbeat.progress] == [(target, target)] * 2
    assert {copy.rank for copy in heartbeat.copies if copy.step == target} == {SHARED, 0, 1}
    assert [job.output(1, rank).split()[-1] for rank in (0, 1)] == [str(target)] * 2
    assert heartbeat.timings["stop"] < 1.0


def test_a_restart_opens_output_files_that_its_agent_has_made_ahead(make_job: MakeJob) -> None:
    job = make_job("", **as_program(STEPPER))
    controller = job.controller()
    job.start_agent("n1")
    controller.wait_for("n1", lambda b: b.ready)
    controller.launch("n1", 1, (0, 1), world=128)

    def are_ahead(generation: int) -> bool:
        return all(job.job.worker_log(generation, rank, "err").exists() for rank in (0, 1))

    controller.wait_for("n1", lambda _: are_ahead(2))
    mark = job.job.logs_ahead(2)
    before = {path: path.stat().st_ino for path in job.job.path.rglob("*") if path != mark}
    assert mark.exists()
    controller.stop("n1", 1, grace_s=0.1)
    controller.wait_for("n1", lambda b: b.phase is Phase.ENDED)
    controller.launch("n1", 2, (0, 1), world=128)
    controller.wait_for("n1", lambda b: b.generation == 2 and all_stepped(b) and are_ahead(3))
    after = {path: path.stat().st_ino for path in job.job.path.rglob("*") if path != mark}
    made = after.items() - before.items()
    assert {path for path, _ in made if not path.is_relative_to(job.job.logs(3))} == set()
    assert not mark.exists()


def test_workers_learn_the_strides_and_heartbeats_show_them_and_what_snapshots_take(
    make_job: MakeJob,
) -> None:
    script = STEPPER.replace(
        "for step in",
        "from slurm_robust.model.progress import SnapshotTimes\n"
        "times = SnapshotTimes(stride=1, apart_s=0.1, whole_s=0.5, blocked_s=0.2)\n"
        "record.show_snapshots(times)\n"
        "for step in",
    )
    job = make_job("", **as_program(script), heartbeat_s=1.0)
    controller = job.controller()
    job.start_agent("n1")
    controller.wait_for("n1", lambda b: b.ready)
    controller.launch("n1", 1, (0, 1))
    heartbeat = controller.wait_for("n1", lambda b: b.snapshots is not None)
    assert there(heartbeat.snapshots).whole_s == 0.5
    assert (heartbeat.stride, heartbeat.local_stride) == (1, 1)
    controller.send("n1", Pace(epoch=controller.epoch, generation=1, stride=8, local_stride=4))
    heartbeat = controller.wait_for("n1", lambda b: b.stride == 8)
    assert heartbeat.local_stride == 4


def test_shutdown_ends_the_agent_and_leaves_nothing(make_job: MakeJob) -> None:
    job, controller, agent = sleeping(make_job)
    pids = up(job, controller)
    assert runtime_folders(job)
    controller.send("n1", Shutdown(epoch=controller.epoch, grace_s=2.0))
    assert agent.wait(60) == 0
    assert not any(is_alive(pid) for pid in pids)
    assert not runtime_folders(job)
    controller.wait_for("n1", lambda b: b.phase is Phase.ENDED)


def test_term_of_the_step_reaches_the_workers(make_job: MakeJob) -> None:
    job, controller, agent = sleeping(make_job)
    pids = up(job, controller)
    agent.terminate()
    assert agent.wait(60) == 0
    assert not any(is_alive(pid) for pid in pids)
    heartbeat = controller.wait_for("n1", lambda b: b.phase is Phase.ENDED)
    assert [e.signal for e in heartbeat.exits] == [signal.SIGTERM] * 2


def test_workers_die_with_a_killed_agent_and_the_next_one_tidies_up(make_job: MakeJob) -> None:
    job, controller, agent = sleeping(make_job)
    pids = up(job, controller)
    agent.kill()
    wait_for(lambda: not any(is_alive(pid) for pid in pids))
    (left,) = runtime_folders(job)
    old = there(controller.newest("n1"))
    job.start_agent("n1")
    heartbeat = controller.wait_for("n1", lambda b: b.agent != old.agent)
    assert (heartbeat.phase, heartbeat.generation) == (Phase.IDLE, 0)
    assert left not in runtime_folders(job)


def test_a_killed_zygote_is_replaced(make_job: MakeJob) -> None:
    job, controller, agent = sleeping(make_job)
    pids = up(job, controller)
    (zygote,) = map(int, Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split())
    os.kill(zygote, signal.SIGKILL)
    heartbeat = controller.wait_for("n1", lambda b: b.phase is Phase.ENDED and bool(b.notes))
    assert any("it is started again" in note for note in heartbeat.notes)
    wait_for(lambda: not any(is_alive(pid) for pid in pids), message="its workers have ended with it")
    up(job, controller, 2)


def test_a_log_folder_that_cannot_be_written_is_told_as_the_reason(make_job: MakeJob) -> None:
    job = make_job("", **as_program(SLEEPER))
    (job.job.path / "logs").write_text("a file in the way")
    controller = job.controller()
    job.start_agent("n1")
    controller.wait_for("n1", lambda b: b.ready)
    controller.launch("n1", 1, (0, 1))
    heartbeat = controller.wait_for("n1", lambda b: b.phase is Phase.ENDED)
    error = there(heartbeat.exits[0].error)
    assert "cannot start without it" in error.message


def test_a_hung_file_system_holds_only_the_rank_that_needs_it(make_job: MakeJob) -> None:
    """A pipe that nobody reads hangs who opens it, as dead storage does."""
    job = make_job("", **as_program(SLEEPER))
    log = job.job.worker_log(1, 0, "out")
    log.parent.mkdir(parents=True)
    os.mkfifo(log)
    controller = job.controller()
    job.start_agent("n1")
    controller.wait_for("n1", lambda b: b.ready)
    controller.launch("n1", 1, (0, 1))
    heartbeat = controller.wait_for("n1", lambda b: b.phase is Phase.RUNNING)
    other = job.job.worker_log(1, 1, "out")
    wait_for(lambda: other.exists() and other.read_text())
    controller.wait_for("n1", lambda b: b.seq >= heartbeat.seq + 5)
    controller.stop("n1", 1)
    heartbeat = controller.wait_for("n1", lambda b: b.phase is Phase.ENDED)
    assert [e.signal for e in heartbeat.exits] == [signal.SIGTERM] * 2


def test_a_last_line_on_hung_storage_does_not_hold_the_agent(make_job: MakeJob) -> None:
    job = make_job("", **as_program("import os; os.rename(os.environ['LOG'], os.environ['LOG'] + '.away');"
                                    "os.mkfifo(os.environ['LOG']); os.abort()"))  # fmt: skip
    controller = job.controller()
    job.start_agent("n1", LOG=str(job.job.worker_log(1, 0, "err")))
    controller.wait_for("n1", lambda b: b.ready)
    controller.launch("n1", 1, (0,))
    heartbeat = controller.wait_for("n1", lambda b: b.phase is Phase.ENDED)
    assert heartbeat.exits[0].signal == signal.SIGABRT
    controller.wait_for("n1", lambda b: b.seq >= heartbeat.seq + 5)
    controller.launch("n1", 2, (0,))
    controller.wait_for("n1", lambda b: b.generation == 2)


@pytest.mark.parametrize("content", [None, b"{", b'{"run_id": 1}'])
def test_a_job_directory_that_is_not_there_is_told_in_one_line(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "job.json").write_bytes(content)
    told = refusal(tmp_path)
    assert told["node"] == "n3"
    assert "job.json" in str(told["srobust_agent_error"])
    assert told["unseen"] == (str(tmp_path.parent) if content is None else "")
    assert told["fix"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(CommandKind.SCRIPT, "away.py"), (CommandKind.MODULE, "away.train"), (CommandKind.EXEC, "./away")],
)
def test_a_node_that_lacks_what_is_to_be_run_says_so_before_the_first_worker(
    kind: CommandKind, name: str, tmp_path: Path
) -> None:
    spec = specs.job_spec(kind=kind, command=(name,), cwd=str(tmp_path))
    (tmp_path / "job.json").write_bytes(msgspec.json.encode(spec))
    told = refusal(tmp_path)
    assert "not found" in str(told["srobust_agent_error"])
    assert name.removeprefix("./") in str(told["srobust_agent_error"])
    assert (told["job_code"], bool(told["fix"]), told["unseen"]) == (66, True, str(tmp_path))


def test_copies_are_told_fetched_and_outlive_an_agent_until_the_job_is_over(make_job: MakeJob) -> None:
    """One machine and so one folder for both agents: what is tested is that orders have their effect."""
    job, controller, agent = sleeping(make_job)
    up(job, controller)
    folder = MemoryFolder(copies_folder(job), job.spec.run_id)
    for rank in (0, 1):
        fill(folder.own(rank, 0), rank, 5, 1, MIB, job.spec.run_id)
    agent.kill()
    agent.wait()
    old = there(controller.newest("n1"))
    agent = job.start_agent("n1")
    heartbeat = controller.wait_for("n1", lambda b: b.agent != old.agent and b.ready)
    assert {(c.rank, c.step, c.tier) for c in heartbeat.copies} == {(0, 5, Tier.MEMORY), (1, 5, Tier.MEMORY)}
    source = RestoreSource(rank=2, tier=Tier.PEER, address=heartbeat.address, port=heartbeat.data_port)
    controller.send(
        "n1",
        specs.launch(
            epoch=controller.epoch,
            generation=2,
            ranks=(0, 2),
            world_size=4,
            slots=2,
            master_addr=heartbeat.address,
            master_port=heartbeat.rendezvous_port,
            restore=CheckpointId(generation=1, step=5),
            sources=(RestoreSource(rank=0, tier=Tier.MEMORY), source),
        ),
    )
    wait_for(folder.fetch_error(2).exists)
    assert "there is no copy of rank 2" in folder.fetch_error(2).read_text()
    controller.send("n1", Shutdown(epoch=controller.epoch, grace_s=2.0, keep_copies=True))
    assert agent.wait(60) == 0
    assert folder.inventory()
    known = there(controller.newest("n1"))
    agent = job.start_agent("n1")
    controller.wait_for("n1", lambda b: b.agent != known.agent and len(b.copies) == 2)
    controller.send("n1", Shutdown(epoch=controller.epoch, grace_s=2.0))
    assert agent.wait(60) == 0
    assert not folder.path.exists()


def test_a_stopped_agent_is_told_from_one_that_is_gone_by_its_nodes_kernel(make_job: MakeJob) -> None:
    _, controller, agent = sleeping(make_job)
    heartbeat = controller.wait_for("n1", lambda b: b.ready and b.data_port > 0)
    place = {"n1": ("127.0.0.1", heartbeat.data_port)}
    assert probe_ports(place).taken == {"n1"}
    agent.send_signal(signal.SIGSTOP)
    for _ in range(20):
        assert probe_ports(place).taken == {"n1"}
    agent.send_signal(signal.SIGCONT)
    controller.wait_for("n1", lambda b: b.seq > heartbeat.seq + 5)
    assert not any("connection" in note for _, b in controller.heartbeats for note in b.notes)
    agent.kill()
    agent.wait()
    assert probe_ports(place).refused == {"n1"}
