"""What srun 22.05 was seen to write when a step did not start, and what is read from it."""

from __future__ import annotations

import pytest

from slurm_robust.model.exits import Outlook
from slurm_robust.slurm.step_output import PREEMPTION, last_raised, step_end, task_ends, why_ended
from slurm_robust.version import __version__

NODES = ("n1", "n2", "n3")
NO_BINDING = "srun: cluster configuration lacks support for cpu binding"


@pytest.mark.parametrize(
    ("line", "outlook", "fix"),
    [
        (
            "srun: error: Unable to create step for job 7: Invalid account or account/partition combination "
            "specified",
            Outlook.STAYS,
            "account",
        ),
        (
            "srun: error: No directives to start application on any available hetjob components",
            Outlook.STAYS,
            "hetjob",
        ),
        ("srun: error: Only allocated 3 nodes asked for 9", Outlook.STAYS, "#SBATCH"),
        ("srun: error: Invalid generic resource (gres) specification", Outlook.STAYS, "#SBATCH"),
        ("srun: unrecognized option '--nonsense'", Outlook.STAYS, "#SBATCH"),
        (
            "srun: error: Unable to create step for job 1: Requested node configuration is not available",
            Outlook.STAYS,
            "#SBATCH",
        ),
        ("srun: error: cannot find mpi plugin for mpi/foo", Outlook.STAYS, "plug-in"),
        (
            "srun: error: Unable to create step for job 7: Job violates accounting/QOS policy (job submit "
            "limit, user's size and/or time limits)",
            Outlook.STAYS,
            "limit",
        ),
        (
            "srun: error: Unable to confirm allocation for job 6: Unable to contact slurm controller "
            "(connect failure)",
            Outlook.PASSES,
            "scontrol ping",
        ),
        (
            "srun: error: slurm_receive_msgs: Socket timed out on send/recv operation",
            Outlook.PASSES,
            "scontrol ping",
        ),
        ("srun: error: Unable to create step for job 7: Job credential expired", Outlook.UNKNOWN, ""),
    ],
)
def test_whether_it_may_pass(line: str, outlook: Outlook, fix: str) -> None:
    end = step_end(NODES, 1, [NO_BINDING, line])
    assert (end.outlook, end.message) == (outlook, line)
    assert fix in end.fix
    assert end.named == {}


def test_lines_without_the_name_of_srun_count_as_its_messages() -> None:
    end = step_end(NODES, 1, ["", "Unable to create step: Invalid account"])
    assert (end.outlook, end.message) == (Outlook.STAYS, "Unable to create step: Invalid account")


def test_a_node_that_srun_names() -> None:
    lines = [
        "srun: error: Task launch for StepId=7.0 failed on node n2: Communication connection failure",
        "srun: error: Application launch failed: Communication connection failure",
        "srun: Job step aborted",
    ]
    end = step_end(NODES, 233, lines)
    assert end.named == {"n2": lines[0]}
    assert end.outlook is Outlook.UNKNOWN
    assert end.message == " | ".join(lines[:2])


def test_of_a_step_that_ends_for_one_node_the_reason_is_told_and_not_its_consequences() -> None:
    """As 22.05 wrote it where the power of n3 had been cut."""
    lines = [
        NO_BINDING,
        "srun: error: Task launch for StepId=1.0 failed on node n3: Communication connection failure",
        "srun: error: Application launch failed: Communication connection failure",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "srun: error: n2: task 1: Killed",
        "slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-28T22:45:24 ***",
        "srun: error: n1: task 0: Killed",
    ]
    end = step_end(NODES, 137, lines)
    assert end.named == {"n3": lines[1]}
    assert end.message == " | ".join(lines[1:3])
    assert end.killed == ("n2", "n1")


TRACEBACK = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/slurm_robust/agent/loop.py", line 88, in run
    self.copies.count
    ^^^^^^^^^^^^^^^^^
AttributeError: 'NoneType' object has no attribute 'count'
""".splitlines()


def test_the_exception_that_ended_an_agent_is_told() -> None:
    ended = "srun: error: n1: task 0: Exited with exit code 1"
    lines = [NO_BINDING, *TRACEBACK, "", "During handling of it:", *TRACEBACK, "bye", ended]
    (end,) = task_ends(NODES, lines, lines)
    assert end.message == f"{ended} | {TRACEBACK[-1]}"
    killed = "srun: error: n1: task 0: Killed"
    (end,) = task_ends(NODES, [killed], [*TRACEBACK, killed])
    assert end.message == killed  # by another; the traceback says nothing of it


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ("ImportError", "ImportError"),
        ("zmq.error.ZMQError: Address already in use", "zmq.error.ZMQError: Address already in use"),
        ("srun: error: n2: task 1: Killed", ""),
        ("    raise ValueError", ""),
    ],
)
def test_the_line_that_names_the_exception(last: str, told: str) -> None:
    assert last_raised([*TRACEBACK[:4], last]) == ((told,) if told else ())


def test_tasks_that_end_while_srun_goes_on() -> None:
    lines = [
        NO_BINDING,
        "srun: error: n[1-2]: tasks 0-1: Exited with exit code 2",
        "slurmstepd-n1: error: execve(): /nope/python: No such file or directory",
        "srun: error: n3: task 2: Killed",
        "n9: task 4: Killed",
    ]
    first, second, third = task_ends(NODES, lines, lines[:-1])
    assert (first.nodes, first.code) == (("n1",), 2)
    assert first.message == f"{lines[1]} | {lines[2]}"
    assert first.named == {"n1": first.message}
    assert (second.nodes, second.message) == (("n2",), lines[1])
    assert (third.nodes, third.code) == (("n3",), -1)


def test_a_warning_of_srun_at_its_start_is_not_why_it_ended() -> None:
    end = step_end(("n1",), -9, ["srun: cluster configuration lacks support for cpu binding"])
    assert (end.message, end.named) == ("", {})


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("*** STEP 1.0 ON n1 CANCELLED AT 2026-11-28T18:37:21 DUE TO PREEMPTION ***", PREEMPTION),
        ("*** JOB 1 ON n1 CANCELLED AT 2026-11-28T18:37:21 DUE TO PREEMPTION ***", PREEMPTION),
        ("*** JOB 12 ON n1 CANCELLED AT 2026-11-28T18:37:21 DUE TO PREEMPTION ***", None),
        ("*** STEP 2.0 ON n1 CANCELLED AT 2026-11-28T18:32:01 ***", None),
        ("*** STEP 1.0 ON n1 CANCELLED AT 2026-11-28T18:32:30 DUE TO JOB REQUEUE ***", "JOB REQUEUE"),
        ("*** STEP 1.0 ON n1 CANCELLED AT 2026-11-28T18:32:01 ***", ""),
        ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", None),
    ],
)
def test_why_slurm_ends_a_step(line: str, why: str | None) -> None:
    """As 22.05 writes it; other lines of srun stand before it or after."""
    lines = [
        NO_BINDING,
        f"slurmstepd-n1: error: {line}",
        "srun: got SIGCONT",
        "srun: forcing job termination",
    ]
    assert why_ended(lines, 1) == why
    assert why_ended([*lines[:1], *lines[2:]], 1) is None


@pytest.mark.parametrize(
    "said",
    [
        "/usr/bin/python3: No module named slurm_robust",
        "/usr/bin/python3: No module named slurm_robust.agent",
        "/usr/bin/python3: Error while finding module specification for 'slurm_robust.agent' "
        "(ModuleNotFoundError: No module named 'slurm_robust')",
        "ModuleNotFoundError: No module named 'msgspec'",
        "ImportError: libzmq.so.5: cannot open shared object file: No such file or directory",
    ],
)
def test_an_image_without_slurm_robust_or_what_it_needs_is_named_with_the_fix(said: str) -> None:
    line = "srun: error: n2: task 1: Exited with exit code 1"
    (end,) = task_ends(NODES, [line], [*TRACEBACK[:3], said, line])
    assert said in end.message
    assert f"install slurm_robust {__version__}" in end.fix


@pytest.mark.parametrize(
    "said",
    [
        "/usr/bin/env: ‘python3’: No such file or directory",
        "slurmstepd: error: execve(): apptainer: No such file or directory",
    ],
)
def test_a_program_that_the_image_lacks_is_named_with_the_fix(said: str) -> None:
    line = "srun: error: n2: task 1: Exited with exit code 127"
    (end,) = task_ends(NODES, [line], [said, line])
    assert said in end.message
    assert "agents.python" in end.fix


@pytest.mark.parametrize(
    "said",
    [
        ["FATAL:   could not open image /shared/none.sif: no such file or directory"],
        [
            "Unable to find image 'none:1' locally",
            "\x1b[31mdocker: Error response from daemon: pull access denied for none.\x1b[0m",
            "",
            "Run 'docker run --help' for more information",
        ],
    ],
)
def test_what_a_wrapper_says_before_it_fails_is_told(said: list[str]) -> None:
    line = "srun: error: n2: task 1: Exited with exit code 255"
    (end,) = task_ends(NODES, [line], [NO_BINDING, *said, *said, line])
    told = [text.replace("\x1b[31m", "").replace("\x1b[0m", "") for text in said if text]
    assert end.message.split(" | ") == [line, *(" ".join(text.split()) for text in told)]


@pytest.mark.parametrize(
    "said",
    ['{"srobust_agent_error": "cannot read x", "node": "n1"}', "CUDA out of memory", "slurmd: usec=3", ""],
)
def test_of_a_task_that_fails_nothing_is_told_that_others_say(said: str) -> None:
    """A refusal is told by itself, and who ran out of memory say srun and slurmstepd."""
    line = "srun: error: n2: task 1: Exited with exit code 3"
    (end,) = task_ends(NODES, [line], [said, line])
    assert end.message == line


def test_what_enroot_says_of_a_container_is_told() -> None:
    line = "srun: error: n2: task 1: Exited with exit code 1"
    output = [
        "pyxis: importing docker image: none/such",
        "slurmstepd-n2: error: pyxis: failed to import docker image",
        "slurmstepd-n2: error: pyxis: printing enroot log file:",
        "slurmstepd-n2: error: pyxis:     [INFO] Querying registry for permission grant",
        "slurmstepd-n2: error: pyxis:     [ERROR] URL https://registry returned error code: 401",
        "slurmstepd-n2: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1",
        "slurmstepd-n2: error: Failed to invoke spank plugin stack",
        line,
    ]
    (end,) = task_ends(NODES, [line], output)
    assert "error code: 401" in end.message
    assert "agents.srun_options" in end.fix


def test_a_cluster_without_pyxis_is_named() -> None:
    end = step_end(NODES, 1, ["srun: unrecognized option '--container-image=a'"])
    assert end.outlook is Outlook.STAYS
    assert "pyxis" in end.fix
