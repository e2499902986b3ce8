"""``srobust doctor`` on a real Slurm: on the head node, for a batch script, inside of a job and outside."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import SBATCH, USER
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

INSIDE = """srun --ntasks=1 --nodes=1 srobust doctor --json --state 1T >inside.json
echo $? >inside.code
sleep 300
"""


def doctor(sandbox: Sandbox, *words: str) -> tuple[int, dict[str, Any]]:
    done = sandbox.exec(
        ["sh", "-c", 'cd && exec srobust doctor --json "$@"', "sh", *words],
        user=USER,
        timeout_s=120.0,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def levels(document: dict[str, Any]) -> dict[str, str]:
    return {hazard["rule"]: hazard["level"] for hazard in document["hazards"]}


def submit(sandbox: Sandbox, *options: str, script: str) -> int:
    (sandbox.home(USER) / "doctor.sbatch").write_text(script)
    command = ["sbatch", "--parsable", "--output=/dev/null", *options, "doctor.sbatch"]
    done = sandbox.exec(command, user=USER, timeout_s=30.0, check=True)
    return int(done.stdout.strip().partition(";")[0])


def test_outside_and_inside_of_jobs(sandbox: Sandbox) -> None:
    home = sandbox.home(USER)
    code, site = doctor(sandbox)
    assert code == 0
    assert levels(site)["slurm.kill_wait"] == "good"
    assert levels(site)["slurm.health_check"] == "note"
    assert levels(site)["clock.offset"] == "good"
    assert levels(site)["job.no_kill"] == levels(site)["memory.limit"] == "unknown"

    good = SBATCH.format(options="train.py", share="null", settings="").replace("USR1@60", "USR1@120")
    (home / "good.sbatch").write_text(good)
    (home / "train.py").touch()
    assert doctor(sandbox, "good.sbatch")[0] == 0
    (home / "bad.sbatch").write_text(good.replace("--no-kill", ""))
    code, bad = doctor(sandbox, "bad.sbatch")
    assert code == 1
    assert [rule for rule, level in levels(bad).items() if level == "bad"] == ["job.no_kill"]

    job = submit(sandbox, "--nodes=2", script=good.partition("exec ")[0] + INSIDE)
    try:
        ended = home / "inside.code"
        wait_for(lambda: ended.exists() and ended.read_text(), 60, "the doctor inside of the job has ended")
        inside = json.loads((home / "inside.json").read_text())
        assert ended.read_text().strip() == "1"
        assert levels(inside)["memory.no_snapshots"] == "bad"
        assert levels(inside)["job.no_kill"] == levels(inside)["job.requeue"] == "good"
        assert inside["unseen"] == []

        # What was asked for on the command line is known once slurmdbd has it.
        wait_for(lambda: levels(doctor(sandbox, "--job", str(job))[1])["job.nodelist"] == "good", 60, "known")
        _, outside = doctor(sandbox, "--job", str(job))
        assert levels(outside)["job.signal_time"] == "good"
        assert levels(outside)["memory.limit"] == levels(outside)["nccl.ras"] == "unknown"
    finally:
        sandbox.exec(["scancel", str(job)], user=USER)

    # slurmctld is away: unknown is not bad.
    sandbox.fault.kill_slurmctld()
    code, without = doctor(sandbox, "--set", "slurm.timeout_s=3")
    assert code == 0
    assert without["unseen"][0].startswith("Slurm: ")
    assert levels(without)["slurm.kill_wait"] == "unknown"
    sandbox.fault.start_slurmctld()
