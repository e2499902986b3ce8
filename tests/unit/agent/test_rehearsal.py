"""Rehearsals with real agents and real torch: what they warm, what they may do, and how they end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
from msgspec import structs

from slurm_robust.agent.rehearsal import MIN_FREE, Rehearsals
from slurm_robust.checkpoint.rank_tiers import rank_tiers
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.job import CommandKind
from slurm_robust.model.standby import Rehearsal, RehearsalState
from slurm_robust.util import proc
from slurm_robust.wire.messages import Phase, Rehearse
from slurm_robust.worker.rehearsal import NICENESS
from tests.forked_python import run_python
from tests.unit.agent.local_job import LocalJob, MakeJob, ScriptedController, is_alive
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


DDP = """
import os, sys, torch, torch.distributed as dist
import slurm_robust as sr
dist.init_process_group("gloo")
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
print("rank", dist.get_rank(), "of", dist.get_world_size(), "local", os.environ["LOCAL_RANK"], flush=True)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
names = [None]
dist.broadcast_object_list(names, src=0)
dist.all_gather_object([None] * dist.get_world_size(), "x")
ckpt = sr.Checkpointer({"model": model, "optimizer": optimizer}, path="own-checkpoints")
for step in range(ckpt.restore(), 1000):
    optimizer.zero_grad()
    loss = model(torch.ones(1, 8)).sum()
    loss.backward()
    dist.all_reduce(loss.detach())
    dist.barrier()
    optimizer.step()
    print("step", step, flush=True)
    ckpt.step(step, loss=float(loss))
"""

HANG = """
import os, time
print("pid", os.getpid(), flush=True)
if os.fork() == 0:
    os.setsid()
time.sleep(1000)
"""

# Each child has a session of its own, and is not seen before it is there.
FORKS = """
import os, time
print("pid", os.getpid(), flush=True)
for _ in range(500):
    if os.fork() == 0:
        os.setsid()
        break
time.sleep(1000)
"""


def order(
    number: int = 1, *, limit_s: float = 110.0, writes: tuple[str, ...] = (), epoch: int = 1
) -> Rehearse:
    return Rehearse(epoch=epoch, number=number, slots=2, steps=2, limit_s=limit_s, writes=writes)


def up(job: LocalJob) -> ScriptedController:
    controller = job.controller()
    job.start_agent("n1")
    controller.wait_for("n1", lambda b: b.ready, 120)
    return controller


def rehearse(controller: ScriptedController, message: Rehearse) -> Rehearsal:
    """How it ends."""
    controller.send("n1", message)
    heartbeat = controller.wait_for(
        "n1",
        lambda b: (
            b.rehearsal is not None
            and b.rehearsal.number == message.number
            and b.rehearsal.state is not RehearsalState.RUNNING
        ),
        120,
    )
    assert heartbeat.rehearsal is not None
    return heartbeat.rehearsal


def log(job: LocalJob) -> str:
    path = job.job.rehearsals / "n1.log"
    return path.read_text() if path.exists() else ""


def printed_pid(job: LocalJob, *controllers: ScriptedController) -> int:
    """Of the script in the rehearsal. ``controllers`` go on answering meanwhile."""

    def has_come() -> bool:
        for controller in controllers:
            controller.pump()
        return "pid " in log(job) and log(job).endswith("\n")

    wait_for(has_come, 120)
    return int(log(job).split("pid ")[1].split()[0])


def family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in proc.descendants(proc.process_table(), pid))]


def alive_in(folder: Path) -> list[int]:
    """Rehearsals with this folder on their command line, and what they have forked."""
    found: list[int] = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes()
        except OSError:
            continue  # it has ended
        if b"worker.rehearsal" in words and bytes(folder) in words:
            found.append(int(line.parent.name))
    return [pid for pid in found if is_alive(pid)]


def test_a_script_makes_two_steps_alone_and_leaves_nothing(make_job: MakeJob) -> None:
    job = make_job(DDP)
    controller = up(job)
    found = rehearse(controller, order())
    assert (found.state, found.reason) == (RehearsalState.PASSED, ""), log(job)
    assert "rank 2 of 4 local 0" in log(job)
    assert "step 0" in log(job)
    assert "step 2" not in log(job)
    assert not (job.folder / "own-checkpoints").exists()
    assert not job.job.checkpoints.exists()
    assert not job.job.logs(0).parent.exists()  # nothing among the ranks' output
    # The node is as good as before.
    controller.launch("n1", 1, (0, 1))
    controller.wait_for("n1", lambda b: b.generation == 1 and b.phase in (Phase.RUNNING, Phase.ENDED), 120)


def test_code_that_does_not_fit_the_newest_checkpoint_is_found_out_in_its_rehearsal(
    make_job: MakeJob,
) -> None:
    job = make_job(DDP.replace("Linear(8, 8)", "Linear(8, 9)"))
    before, checkpoint = torch.nn.Linear(8, 8), CheckpointId(step=7, generation=1)
    state = before.state_dict()
    for rank in range(4):
        rank_tiers(
            job.spec.tier_places(job.job),
            job_dir=str(job.job.path),
            run_id=job.spec.run_id,
            rank=rank,
            world_size=4,
            layout="",
        )[Tier.STORAGE].save(
            checkpoint, Snapshot(own={"model": {}, "optimizer": {}}, shared={"model": state}, rng={})
        )
    controller = up(job)
    found = rehearse(controller, structs.replace(order(), checkpoint=checkpoint))
    assert found.state is RehearsalState.FAILED
    assert "EntryMismatch at train.py:13: entry 'model' does not fit checkpoint" in found.reason
    assert "'weight' has shape [8, 8] in the checkpoint and [9, 8] in the script" in found.reason
    assert rehearse(controller, order(2)).state is RehearsalState.PASSED


def test_a_rehearsal_that_crashes_says_where(make_job: MakeJob) -> None:
    job = make_job("import torch\nimport not_a_module\n")
    found = rehearse(up(job), order())
    assert found.state is RehearsalState.FAILED
    assert found.reason == "ModuleNotFoundError at train.py:2: No module named 'not_a_module'"
    assert "Traceback" in log(job)


def test_a_rehearsal_that_dies_by_a_signal_says_which(make_job: MakeJob) -> None:
    found = rehearse(up(make_job("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")), order())
    assert (found.state, found.reason) == (RehearsalState.FAILED, "SIGSEGV")


def test_a_rehearsal_that_hangs_is_ended_with_all_that_it_started(make_job: MakeJob) -> None:
    job = make_job(HANG)
    controller = up(job)
    controller.send("n1", order(limit_s=8.0))
    pid = printed_pid(job, controller)
    wait_for(lambda: len(family(pid)) == 2)
    mine = family(pid)
    found = controller.wait_for("n1", lambda b: b.rehearsal is not None and bool(b.rehearsal.reason))
    assert found.rehearsal is not None
    assert found.rehearsal.reason == "it was not done within 8 s"
    wait_for(lambda: not any(map(is_alive, mine)))


WRITER = """
import json, logging, os, pathlib
kept = pathlib.Path("kept.json")
log = logging.FileHandler("logs/rank.log")
log.emit(logging.makeLogRecord({"msg": "hello"}))
log.close()
assert pathlib.Path("logs/rank.log").open().read() == "hello\\n"
with open("state.tmp", "w") as file:
    json.dump({"step": 1}, file)
os.replace("state.tmp", "kept.json")
assert json.load(kept.open()) == {"step": 1}
with open("kept.json", "r+") as file:
    file.write("[")
try:
    open("old.txt", "x")
except FileExistsError:
    print("as it should be")
"""


def test_what_python_writes_elsewhere_is_written_for_nobody(make_job: MakeJob) -> None:
    job = make_job(WRITER)
    (job.folder / "kept.json").write_text("{}")
    (job.folder / "old.txt").write_text("old")
    before = sorted(path.name for path in job.folder.iterdir())
    found = rehearse(up(job), order())
    assert (found.state, found.reason) == (RehearsalState.PASSED, ""), log(job)
    assert "as it should be" in log(job)
    assert (job.folder / "kept.json").read_text() == "{}"
    assert [n for n in sorted(p.name for p in job.folder.iterdir()) if n != "agent-n1.log"] == before


def test_what_else_would_change_a_file_is_refused(make_job: MakeJob) -> None:
    job = make_job("import os; os.mkdir('results')")
    found = rehearse(up(job), order())
    assert found.state is RehearsalState.FAILED
    assert "PermissionError at train.py:1" in found.reason
    assert "standby.rehearse_writes" in found.reason
    assert found.confined
    assert not (job.folder / "results").exists()


def test_a_rehearsal_may_write_temporary_files_and_to_allowed_folders(
    make_job: MakeJob, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    script = f"import tempfile; tempfile.mkstemp(); open({str(index / 'made')!r}, 'w').write('x')"
    found = rehearse(up(make_job(script)), order(writes=(str(index),)))
    assert (found.state, found.reason) == (RehearsalState.PASSED, "")
    assert (index / "made").read_text() == "x"


def test_a_node_that_is_needed_ends_its_rehearsal_at_once(make_job: MakeJob) -> None:
    job = make_job(f"import os\nif os.environ.get('SROBUST_REHEARSAL'):\n    exec({HANG!r})\n")
    controller = up(job)
    controller.send("n1", order())
    pid = printed_pid(job, controller)
    wait_for(lambda: len(family(pid)) == 2)
    mine = family(pid)
    controller.launch("n1", 1, (0, 1))
    ended = controller.wait_for("n1", lambda b: b.generation == 1 and b.phase is Phase.ENDED)
    assert [e.code for e in ended.exits] == [0, 0]
    assert ended.rehearsal == Rehearsal(number=1, state=RehearsalState.ENDED)
    wait_for(lambda: not any(map(is_alive, mine)))


def test_a_rehearsal_ends_with_its_agent(make_job: MakeJob) -> None:
    job = make_job("import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(1000)\n")
    controller = up(job)
    controller.send("n1", order())
    pid = printed_pid(job, controller)
    job.agents["n1"].send_signal(signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))


def test_trackers_of_experiments_are_told_to_report_nothing(make_job: MakeJob) -> None:
    job = make_job("import os; print(os.environ['WANDB_MODE'], os.environ['MLFLOW_TRACKING_URI'])")
    assert rehearse(up(job), order()).state is RehearsalState.PASSED
    mode, uri = log(job).split()[-2:]
    assert mode == "disabled"
    assert uri.startswith("file:///")


def test_a_rehearsal_is_nice_and_the_first_that_the_kernel_kills(make_job: MakeJob) -> None:
    script = "import os; print(os.nice(0), open('/proc/self/oom_score_adj').read())"
    job = make_job(script)
    assert rehearse(up(job), order()).state is RehearsalState.PASSED
    assert log(job).split()[-2:] == [str(min(19, os.nice(0) + NICENESS)), "1000"]


def test_a_program_is_not_rehearsed(make_job: MakeJob) -> None:
    job = make_job("", kind=CommandKind.EXEC, command=("sleep", "1000"))
    found = rehearse(up(job), order())
    assert found.state is RehearsalState.IMPOSSIBLE
    assert "not programs" in found.reason


def test_a_torch_without_a_fake_group_convicts_nobody(make_job: MakeJob) -> None:
    job = make_job("", kind=CommandKind.MODULE, command=("impossible",))
    (job.folder / "impossible.py").write_text(
        "from slurm_robust.worker.fakegroup import NoFakeGroup\nraise NoFakeGroup('torch has none')\n"
    )
    found = rehearse(up(job), order())
    assert (found.state, found.reason) == (RehearsalState.IMPOSSIBLE, "torch has none")


WITHOUT = """
import sys
from slurm_robust.worker.fakegroup import NoFakeGroup, pretend_world
sys.modules["torch.testing._internal.distributed.fake_pg"] = None
try:
    pretend_world()
except NoFakeGroup as error:
    print(error)
"""


def test_a_torch_without_a_fake_group_is_recognised() -> None:
    assert "no fake process group" in run_python("-c", WITHOUT).stdout


def test_a_rehearsal_that_needs_more_memory_than_there_is_is_ended(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job(FORKS)
    free = 1.0
    with closing(Rehearsals(job.spec, job.job, "n1", tmp_path / "rehearsal", lambda: free)) as rehearsals:
        rehearsals.start(order(), time.monotonic())
        wait_for(lambda: rehearsals.read(time.monotonic()) is None and "pid " in log(job), 120)
        pid = printed_pid(job)
        free = MIN_FREE / 2
        over = rehearsals.read(time.monotonic())
        assert over is not None
        assert over.rehearsal.state is RehearsalState.FAILED
        assert "want of memory: 2.5% of the node's or the job's" in over.rehearsal.reason
        assert over.pid == pid
        wait_for(lambda: rehearsals.read(time.monotonic()) is None and not alive_in(tmp_path))
