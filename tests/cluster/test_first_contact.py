"""What a new user meets: the job's log, the training's output, ids as squeue shows them, and exit codes."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.cluster.undisturbed import undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

TINY = "tiny.py --out OUT --steps"


def srobust(sandbox: Sandbox, *words: str, into: str = "") -> str:
    redirect = f" >{into}" if into else ""
    command = ["sh", "-c", f'cd && exec srobust "$@"{redirect}', "sh", *words]
    return sandbox.exec(command, user=USER, timeout_s=120.0, check=True).stdout


def test_srun_before_srobust_run_is_named_and_tasks_per_node_are_ranks(sandbox: Sandbox) -> None:
    home = sandbox.home(USER)
    (home / "twice.sbatch").write_text("#!/bin/bash\nsrun srobust run tiny.py --out twice.sha\n")
    options = ["--parsable", "--nodes=2", "--ntasks-per-node=1", "--output=twice.log", "--job-name=twice"]
    done = sandbox.exec(["sbatch", *options, "twice.sbatch"], user=USER, check=True)
    twice = done.stdout.strip()
    job = ProtectedJob(sandbox, f"{TINY} 5 --step-s 0", nodes=1, sbatch=("--ntasks-per-node=2",))
    assert job.wait_end() == 0, job.log
    assert (job.state.world.nproc_per_node, job.state.world.placement.world_size) == (2, 2)
    assert job.out.read_text() == undisturbed(2, f"{TINY} 5 --step-s 0", nproc_per_node=2)
    shown = sandbox.exec(["scontrol", "-o", "show", "job", twice], check=True).stdout
    said = (home / "twice.log").read_text()
    assert "ExitCode=64:0" in shown, said
    assert "srun has started 'srobust run' 2 times" in said
    assert not (home / "srobust-jobs" / twice / "journal.jsonl").exists()


def test_the_log_and_the_output_of_a_training_that_loses_a_rank(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 40 --step-s 0.3", nodes=2)
    job.wait_step(3)
    assert re.search(r"step \d+", srobust(sandbox, "logs", str(job.id)))
    followed = job.home / "followed.jsonl"
    with ThreadPoolExecutor(1) as pool:
        follow = pool.submit(srobust, sandbox, "logs", str(job.id), "-f", "--json", into=followed.name)
        job.wait(lambda: followed.exists() and followed.read_text(), 60, "first followed line")
        srobust(sandbox, "drill", str(job.id), "kill-rank", "--rank", "1")
        follow.result()  # it ends with the run
    assert job.wait_end() == 0
    lines = [json.loads(line) for line in followed.read_text().splitlines()]
    assert {line["generation"] for line in lines} == {1, 2}
    assert "step 39" in lines[-1]["line"]
    every = srobust(
        sandbox, "logs", str(job.folder.relative_to(job.home)), "--rank", "all", "--generation", "1"
    )
    assert {line.partition(" | ")[0] for line in every.splitlines()} >= {"rank 0"}

    stamped = [line for line in job.log.splitlines() if line.startswith("srobust: ")]
    assert all(re.match(r"srobust: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d ", line) for line in stamped)
    story = [line.split(" ", 2)[2] for line in stamped]
    expected = (
        rf"controller 1 of job {job.id}: tiny\.py .*; 2 ranks on n\[1-2\]; folder /.*/srobust-jobs/{job.id}",
        rf"output of the training: /.*/logs/gen-001/rank-00000\.out; .*srobust logs {job.id} -f",
        r"starting agents on n\[1-2\]",
        r"generation 1: first step \(step 0\) is done, \d+\.\d s after the launch, loss ",
        r"incident 1: rank 1: SIGKILL on n2",
        r"incident 1: .*restart in place",
        r"generation 2: first step \(step \d+\) is done",
        r"end, exit code 0: ",
    )
    at = 0
    for pattern in expected:
        at = next((i for i, line in enumerate(story[at:], at) if re.match(pattern, line)), -1)
        assert at >= 0, f"no {pattern} after that in {job.log}"


def test_tasks_of_an_array_are_found_as_squeue_shows_them(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 3", nodes=1, sbatch=("--array=1-2", "--output=/dev/null"))

    def runs() -> list[dict[str, object]]:
        found = job.home.glob("srobust-jobs/*/journal.jsonl")
        first = [json.loads(path.read_text().splitlines()[0]) for path in found if path.stat().st_size]
        return [event for event in first if str(event.get("array_task", "")).startswith(f"{job.id}_")]

    job.wait(lambda: len(runs()) == 2, 60, "both tasks")
    ids = [json.loads(srobust(sandbox, "status", f"{job.id}_{n}", "--json"))["job_id"] for n in (1, 2)]
    assert set(ids) == {run["job_id"] for run in runs()}
    assert ids[0] != ids[1]


def test_ctrl_c_ends_with_its_code(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 1000 --step-s 0.2", nodes=1)
    job.wait_step(2)
    sandbox.exec(["scancel", "--batch", "--signal=INT", str(job.id)], user=USER, check=True)
    assert job.wait_left() == "130:0"
    assert job.events(ev.IncidentOpened) == []


@pytest.mark.parametrize(
    ("command", "text"),
    [("-m nowhere.train", "module not found: nowhere.train"), ("-- nowhere", "program not found")],
)
def test_a_missing_script_or_program_is_refused_before_anything_starts(
    sandbox: Sandbox, command: str, text: str
) -> None:
    job = ProtectedJob(sandbox, command, nodes=2)
    assert job.wait_left() == "66:0"
    assert text in job.log
    assert "fix: " in job.log
    assert not job.folder.exists()
