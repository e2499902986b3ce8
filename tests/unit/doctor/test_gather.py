"""The gatherer over fakes: what it sees inside and outside of jobs, and what it says that it did not see."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from slurm_robust.config.job import AgentsConfig, CompanionConfig, JobConfig
from slurm_robust.doctor.gather import DoctorRequest, gather, hook_times, node_of, software
from slurm_robust.doctor.rule import apply_all
from slurm_robust.doctor.rules import RULES
from slurm_robust.kernel.host import Host
from slurm_robust.slurm import errors
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.records import Terms
from slurm_robust.slurm.requests import ReservationRequest, SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.machines import MACHINES
from tests.there import there

HERE = Host()
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 12\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm(FakeCluster())


def job_of(slurm: FakeSlurm, *options: str) -> int:
    request = SubmitRequest(command=("train.sbatch",), nodes=2, options=options)
    return slurm.submit(request)


def test_facts_on_a_login_node(slurm: FakeSlurm) -> None:
    facts, unseen = gather(DoctorRequest(), JobConfig(), {"NCCL_DEBUG": "INFO"}, slurm, HERE)
    assert (facts.job, facts.options, facts.node, facts.configured) == (None, None, None, None)
    assert there(facts.slurm)["ClusterName"] == "fake"
    assert facts.environ == {"NCCL_DEBUG": "INFO"}
    assert facts.gpus is False  # a site without any
    assert [text.partition(":")[0] for text in unseen] == ["the job", "the job's node"]


def test_software_outside_says_nothing_of_that_in_a_container(slurm: FakeSlurm) -> None:
    config = JobConfig(agents=AgentsConfig(wrapper=("apptainer", "exec", "a.sif")))
    facts, unseen = gather(DoctorRequest(), config, {}, slurm, HERE)
    assert facts.software is None
    assert "the software in the job's container: run it in the image" in unseen


def test_a_batch_script_before_it_is_submitted(slurm: FakeSlurm) -> None:
    script = "#!/bin/sh\n#SBATCH --no-kill --nodes=4 --gpus-per-node=8\n"
    inside_of_another = {"SLURM_JOB_ID": "9", "SBATCH_SIGNAL": "B:USR1@60"}
    wanted = DoctorRequest(script=script, refused="", unseen=("the rest",))
    facts, unseen = gather(wanted, JobConfig(nproc_per_node=8), inside_of_another, slurm, HERE)
    assert facts.options is not None
    assert facts.options.complete
    assert facts.options.given["signal"] == "B:USR1@60"
    assert (facts.nodes, facts.ranks, facts.gpus, facts.job) == (4, 32, True, None)
    assert facts.refused == ""
    assert [text.partition(":")[0] for text in unseen] == ["the job's node", "the rest"]


def test_inside_of_a_job(slurm: FakeSlurm) -> None:
    job_id = job_of(slurm, "--no-kill")
    environ = {"SLURM_JOB_ID": str(job_id), "SLURMD_NODENAME": "n1"}
    facts, unseen = gather(DoctorRequest(), JobConfig(spares=1), environ, slurm, HERE)
    assert unseen == ()
    assert facts.job is not None
    assert "no-kill" in there(facts.options).given
    assert (facts.nodes, facts.ranks, facts.gpus) == (2, 8, True)
    assert facts.shared_memory.name == "the file system of /dev/shm"
    assert "lo" in there(facts.node).interfaces


def test_one_task_of_a_step_asks_slurm(slurm: FakeSlurm) -> None:
    job_id = job_of(slurm)
    environ = {"SLURM_JOB_ID": str(job_id), "SLURMD_NODENAME": "n2", "SLURM_PROCID": "1"}
    facts, unseen = gather(DoctorRequest(), JobConfig(), environ, slurm, HERE)
    assert (facts.slurm, facts.job, facts.options) == (None, None, None)
    assert facts.clock_s is not None
    assert facts.node is not None
    assert len(unseen) == 1


def test_facts_of_another_job(slurm: FakeSlurm) -> None:
    """Its environment and its node are not those here."""
    job_id = job_of(slurm)
    environ = {"SLURM_JOB_ID": "999", "SLURMD_NODENAME": "n4", "SBATCH_NO_KILL": "1"}
    facts, unseen = gather(DoctorRequest(job_id=job_id), JobConfig(), environ, slurm, HERE)
    assert there(facts.job).job_id == job_id
    assert (facts.environ, facts.node) == (None, None)
    assert "no-kill" not in there(facts.options).given
    assert len(unseen) == 2
    with pytest.raises(errors.JobNotFound):
        gather(DoctorRequest(job_id=12345), JobConfig(), environ, slurm, HERE)


def test_a_job_that_slurm_has_forgotten(slurm: FakeSlurm) -> None:
    facts, unseen = gather(DoctorRequest(), JobConfig(), {"SLURM_JOB_ID": "12345"}, slurm, HERE)
    assert facts.slurm is not None
    assert facts.job is None
    assert unseen[0].startswith("Slurm: ")


def test_without_slurms_commands(tmp_path: Path) -> None:
    slurm = CliSlurmClient(environ={"PATH": str(tmp_path)})
    facts, unseen = gather(DoctorRequest(), JobConfig(), {}, slurm, HERE)
    assert (facts.slurm, facts.clock_s, facts.gpus) == (None, None, None)
    assert unseen[0].startswith("Slurm: cannot start ")
    assert "; fix: go to a node that has Slurm's commands" in unseen[0]
    assert len(apply_all(RULES, facts)) == len(RULES)


def test_slurm_is_asked_for_reservations_where_the_job_names_one(slurm: FakeSlurm) -> None:
    slurm.create_reservation(ReservationRequest(name="spares", node_count=1, users=(slurm.user,)))
    named = JobConfig(companions=CompanionConfig(reservation="spares"))
    facts, _ = gather(DoctorRequest(), named, {}, slurm, HERE)
    assert facts.reservations == ("spares",)
    facts, _ = gather(DoctorRequest(), JobConfig(), {}, slurm, HERE)
    assert facts.reservations is None


def test_a_slurmctld_that_is_away_is_asked_once(slurm: FakeSlurm) -> None:
    slurm.cluster.unreachable = True
    facts, unseen = gather(DoctorRequest(), JobConfig(), {"SLURM_JOB_ID": "1"}, slurm, HERE)
    assert facts.slurm is None
    assert sum(text.startswith("Slurm: ") for text in unseen) == 1


def test_a_slurmctld_that_does_not_tell_its_time_tells_the_rest() -> None:
    class Closed(FakeSlurm):
        def now(self) -> float:
            raise errors.PermissionDenied("Access/permission denied")

    facts, _ = gather(DoctorRequest(), JobConfig(), {}, Closed(), HERE)
    assert facts.clock_s is None
    assert facts.slurm is not None


@pytest.mark.parametrize(
    ("text", "driver"), [(OPEN, (580, 65, 6)), (CLOSED, (535, 104, 5)), ("", ()), ("x", ())]
)
def test_the_version_of_the_driver_is_read_from_the_kernel(
    tmp_path: Path, text: str, driver: tuple[int, ...]
) -> None:
    file = tmp_path / "proc/driver/nvidia/version"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    seen = software(Host(tmp_path))
    assert seen.driver == driver
    assert not seen.torch or seen.torch >= (2, 4)


@pytest.mark.parametrize(
    ("installed", "cuda", "nccl"),
    [
        ({"torch": "2.9.1+cu128", "nvidia-nccl-cu12": "2.27.5"}, (12, 8), (2, 27, 5)),
        (
            {"torch": "2.13.0", "nvidia-cuda-runtime": "13.0.96", "nvidia-nccl-cu13": "2.30.7"},
            (13, 0, 96),
            (2, 30, 7),
        ),
        ({"torch": "2.13.0+cpu"}, (), ()),
        ({}, (), ()),
    ],
)
def test_releases_of_cuda_and_nccl_are_those_of_the_installed_packages(
    installed: dict[str, str], cuda: tuple[int, ...], nccl: tuple[int, ...]
) -> None:
    seen = software(HERE, lambda name: installed.get(name, ""))
    assert (seen.cuda, seen.nccl, bool(seen.torch)) == (cuda, nccl, bool(installed))


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("preempt/partition_prio", "", "main"),
        ("preempt/partition_prio", "--partition=low", "low"),
        ("preempt/qos", "--qos=cheap", "cheap"),
        ("preempt/qos", "", None),
        ("preempt/none", "--partition=low", None),
    ],
)
def test_how_a_job_will_be_preempted(slurm: FakeSlurm, kind: str, options: str, name: str | None) -> None:
    cluster = slurm.cluster
    cluster.settings = {"PreemptType": kind, "PreemptMode": "REQUEUE"}
    cluster.partitions = (Terms(name="main", is_default=True), Terms(name="low", grace_s=60))
    cluster.qos = (Terms(name="normal"), Terms(name="cheap", grace_s=30, mode="CANCEL"))
    wanted = DoctorRequest(script=f"#!/bin/sh\n#SBATCH --no-kill {options}\n")
    facts, _ = gather(wanted, JobConfig(), {}, slurm, HERE)
    assert (facts.preemption.name if facts.preemption is not None else None) == name
    cluster.slurmdbd = False
    facts, _ = gather(wanted, JobConfig(), {}, slurm, HERE)
    assert (facts.preemption is None) == (kind != "preempt/partition_prio")


def test_how_long_hooks_took_is_read_where_the_configuration_says(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert hook_times(host) is None
    event = {"at": time.time(), "node": "n1", "event": "run", "hook": "prolog", "hook_s": 0.5}
    for name in ("var/log/slurm-robust/events.jsonl", "own/events.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / "var/log/slurm-robust/events.jsonl").write_text(json.dumps(event))
    assert (hook_times(host) or {})["prolog"].longest_s == 0.5
    (tmp_path / "own/events.jsonl").write_text(json.dumps(event | {"hook_s": 2}))
    config = tmp_path / "etc/slurm-robust/config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("paths: {log: /own/events.jsonl}")
    assert (hook_times(host) or {})["prolog"].longest_s == 2
    config.write_text("paths: [")
    assert (hook_times(host) or {})["prolog"].longest_s == 0.5


@pytest.mark.parametrize(
    ("machine", "gigabytes", "mode"),
    [("gb200", 790, ""), ("gb200-cdmm", 0, "driver"), ("gh200", 102, "numa"), ("x86-cxl", 0, "")],
)
def test_memory_of_gpus_that_the_kernel_counts_is_named(machine: str, gigabytes: int, mode: str) -> None:
    """CXL memory is the host's, so it is no hazard."""
    found = node_of(Host(MACHINES / machine), "n1")
    assert (there(found.gpu_memory) // 10**9, found.memory_mode) == (gigabytes, mode)
