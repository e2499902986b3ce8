"""The command line client with a scripted runner: which command, which reading, which error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from slurm_robust.slurm import errors
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.commands import data_parser
from slurm_robust.slurm.need import Size
from slurm_robust.slurm.process import CommandTimeout, CompletedCommand
from slurm_robust.slurm.requests import ReservationRequest, StepRequest, SubmitRequest
from slurm_robust.slurm.values import parse_version
from tests.waiting import wait_for

DATA = Path(__file__).parents[2] / "data"
# Before 24.11 text is read.
RELEASES = sorted(folder.name for folder in (DATA / "slurm_json").iterdir())[1:]
NEWEST = data_parser(parse_version("99.05.0"))


class Script:
    """Answers by the beginning of the command; remembers what was asked."""

    def __init__(self, answers: Mapping[str, str | CompletedCommand]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.env: Mapping[str, str] = {}

    def __call__(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> CompletedCommand:
        self.asked.append(" ".join(command))
        self.env = env or {}
        for beginning, answer in self.answers.items():
            if self.asked[-1].startswith(beginning):
                if isinstance(answer, str):
                    return CompletedCommand(command=tuple(command), exit_code=0, stdout=answer, stderr="")
                return answer
        raise AssertionError(f"not in the script: {self.asked[-1]}")


def failed(stderr: str, exit_code: int = 1, stdout: str = "") -> CompletedCommand:
    return CompletedCommand(command=("scontrol",), exit_code=exit_code, stdout=stdout, stderr=stderr)


def test_text_before_24_11_and_json_from_there_on() -> None:
    text = (DATA / "slurm_text/22.05.8/nodes.txt").read_text()
    old = Script({"sinfo": "slurm-wlm 22.05.8", "scontrol show node": text})
    assert CliSlurmClient(run=old).nodes(["n2", "n1"])[0].name == "n2"
    assert old.asked == ["sinfo --version", "scontrol show node n[1-2]"]
    assert old.env["SLURM_TIME_FORMAT"] == "%s"
    json = (DATA / "slurm_json/24.11.5/scontrol_show_nodes.json").read_text()
    new = Script({"sinfo": "slurm 24.11.5", "scontrol --json=v0.0.42 show node": json})
    assert {node.name for node in CliSlurmClient(run=new).nodes()} == {"n1", "n4"}


def test_a_node_of_no_partition_which_sinfo_does_not_show_is_found_in_the_table() -> None:
    table = (DATA / "slurm_text/22.05.8/nodes.txt").read_text()
    script = Script({"sinfo --version": "slurm-wlm 22.05.8", "sinfo": "", "scontrol show node": table})
    assert CliSlurmClient(run=script).node("n2").name == "n2"
    script.answers = {"sinfo": (DATA / "slurm_text/22.05.8/node_state.txt").read_text()}
    assert CliSlurmClient(run=script).node("n1").is_drained
    assert script.asked[-1].startswith("sinfo --all --noheader --Node --nodes=n1 ")


def test_a_release_that_has_dropped_the_schema_is_read_as_text() -> None:
    text = (DATA / "slurm_text/22.05.8/nodes.txt").read_text()
    script = Script(
        {
            "sinfo": "slurm 99.05.0",
            "scontrol --json": failed("error: Unable to find plugin: data_parser/v0.0.50"),
            "scontrol show node": text,
        }
    )
    client = CliSlurmClient(run=script)
    assert len(client.nodes()) == 4
    assert len(client.nodes()) == 4
    asked = [command.split()[1] for command in script.asked]
    assert asked == ["--version", f"--json={NEWEST}", "show", "show"]


def test_squeue_speaks_json_in_every_release() -> None:
    script = Script(
        {
            "sinfo": "slurm 99.05.0",
            "squeue --json=": failed("error: Unable to find plugin: data_parser/v0.0.50"),
            "squeue --json": (DATA / "slurm_json/26.05.5/squeue.json").read_text(),
        }
    )
    assert {"train", "pend"} <= {job.name for job in CliSlurmClient(run=script).jobs()}
    assert script.asked[1:] == [f"squeue --json={NEWEST}", "squeue --json"]


@pytest.mark.parametrize("release", RELEASES)
def test_each_release_is_asked_for_the_json_that_was_recorded_of_it(release: str) -> None:
    json = (DATA / "slurm_json" / release / "scontrol_show_nodes.json").read_text()
    parser = json.partition('"data_parser/')[2].partition('"')[0]
    assert data_parser(parse_version(release)) == parser
    script = Script({"sinfo": f"slurm {release}", f"scontrol --json={parser} show node": json})
    assert [node.name for node in CliSlurmClient(run=script).nodes(["n1", "n4"])] == ["n1", "n4"]


def test_json_jobs_of_22_05_without_those_that_ended() -> None:
    squeue = (DATA / "slurm_json/22.05.8/squeue.json").read_text()
    script = Script({"sinfo": "slurm-wlm 22.05.8", "squeue --json": squeue})
    jobs = CliSlurmClient(run=script).jobs("root")
    assert {"train", "pend"} <= {job.name for job in jobs}
    assert not [job for job in jobs if job.is_finished]
    assert CliSlurmClient(run=script).jobs("nobody") == ()


def test_the_error_shows_output_that_cannot_be_read() -> None:
    script = Script({"sinfo": "slurm 24.11.5", "scontrol": ""})
    with pytest.raises(errors.UnparsableOutput, match=r"no output.*scontrol --json") as caught:
        CliSlurmClient(run=script).job(7)
    assert caught.value.fix


def test_a_prefix_enters_another_place_and_keeps_the_time_format() -> None:
    script = Script({"ssh head env SLURM_TIME_FORMAT=%s sinfo --version": "slurm 22.05.8"})
    assert CliSlurmClient(prefix=("ssh", "head"), run=script).version().major == 22


def test_a_missing_command_prints_the_path() -> None:
    client = CliSlurmClient(environ={"PATH": "/nowhere"})
    with pytest.raises(errors.SlurmCommandMissing, match=r"cannot start .*PATH is /nowhere"):
        client.release(7)
    with pytest.raises(errors.SlurmCommandMissing):
        client.launch_step(StepRequest(job_id=1, nodes=("n1",), command=("x",)), Path("/dev/null"))


def test_a_command_without_an_answer_in_time_is_retried_or_reported() -> None:
    limit_s = 3.0

    def run(command: Sequence[str], **rest: object) -> CompletedCommand:
        raise CommandTimeout(command, limit_s)

    client = CliSlurmClient(3.0, run=run)
    with pytest.raises(errors.SlurmTimeout, match="scontrol gave no answer within 3 s"):
        client.release(7)
    limit_s = 0.0  # as in a hook whose budget is over
    with pytest.raises(errors.SlurmTimeout, match="no time was left for scontrol"):
        client.release(7)
    with pytest.raises(ValueError, match="timeout_s"):
        CliSlurmClient(0)


def test_requeue_of_a_pending_job_is_harmless() -> None:
    pending = failed("Job is pending execution for job 7")
    CliSlurmClient(run=Script({"scontrol requeue 7": pending})).requeue(7)


def test_cancel_of_what_has_ended_is_harmless() -> None:
    gone = failed("scancel: error: Kill job error on job step id 17: Invalid job id specified", 225)
    CliSlurmClient(run=Script({"scancel": gone})).cancel(17, step_id="7")


def test_a_command_that_dies_of_the_end_of_the_run_is_asked_again() -> None:
    """Slurm sends SIGTERM to all processes of the run that it ends; a submission is not repeated."""
    job = (DATA / "slurm_text/22.05.8/job_running.txt").read_text()

    class Ending(Script):
        def __call__(self, command: Sequence[str], **more: Any) -> CompletedCommand:
            done = super().__call__(command, **more)
            is_first = self.asked.count(" ".join(command)) == 1
            return structs.replace(done, exit_code=-15, stdout="") if is_first else done

    script = Ending({"sinfo": "slurm-wlm 22.05.8", "scontrol -d show job 41": job, "sbatch": "7"})
    assert CliSlurmClient(run=script).job(41).job_id == 41
    assert script.asked.count("scontrol -d show job 41") == 2
    with pytest.raises(errors.SlurmCommandError):
        CliSlurmClient(run=script).submit(SubmitRequest(command=("job.sh",)))
    assert sum(asked.startswith("sbatch") for asked in script.asked) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda slurm: slurm.set_size(41, Size(least=4, most=5, tasks=5, cpus=5)),
        lambda slurm: slurm.set_required_nodes(41, ["n1"]),
    ],
    ids=["size", "required nodes"],
)
def test_what_slurm_would_take_as_an_order_to_shrink_is_never_sent_for_a_running_job(
    change: Callable[[CliSlurmClient], None],
) -> None:
    running = (DATA / "slurm_text/22.05.8/job_running.txt").read_text()
    script = Script({"sinfo": "slurm-wlm 22.05.8", "scontrol -d show job": running})
    with pytest.raises(errors.JobNotPending):
        change(CliSlurmClient(run=script))


def test_steps_of_a_job_without_any() -> None:
    script = Script(
        {
            "sinfo": "slurm-wlm 22.05.8",
            "scontrol show step 18": failed("", stdout="Job step 18. not found"),
            "scontrol -d show job 18": (DATA / "slurm_text/22.05.8/job_held.txt").read_text(),
        }
    )
    assert CliSlurmClient(run=script).steps(18) == ()


def test_what_slurm_refuses_of_a_submission_is_empty() -> None:
    job = (DATA / "slurm_text/22.05.8/job_running.txt").read_text()
    refused = failed("job script retrieval failed: Access/permission denied")
    script = Script(
        {
            "sinfo": "slurm-wlm 22.05.8",
            "scontrol -d show job": job,
            "sacct": "\nsbatch -k x.sh\n",
            "scontrol write batch_script 41 -": refused,
        }
    )
    found = CliSlurmClient(run=script).submission(41)
    assert (found.line, found.script) == ("sbatch -k x.sh", "")


def test_submit_reads_the_id_behind_a_plugin_s_chatter() -> None:
    script = Script({"sbatch": "welcome to the cluster\n77;mini\n"})
    request = SubmitRequest(command=("job.sh", "a b"), environment={"X": "1"}, nodes=2)
    assert CliSlurmClient(run=script).submit(request) == 77
    assert script.env["X"] == "1"
    assert script.asked == ["sbatch --parsable --requeue --nodes=2 job.sh a b"]
    with pytest.raises(errors.UnparsableOutput, match="no job id"):
        CliSlurmClient(run=Script({"sbatch": "later\n"})).submit(request)


def test_orders_without_substance() -> None:
    client = CliSlurmClient(run=Script({}))
    with pytest.raises(ValueError, match="reason"):
        client.drain(["n1"], " \n")
    with pytest.raises(ValueError, match="cancel"):
        client.shrink(7, [])
    client.drain([], "x")
    client.resume([])


def test_a_cluster_without_topology() -> None:
    none = failed("scontrol: error: No topology information available")
    assert CliSlurmClient(run=Script({"scontrol show topology": none})).topology() == ()
    refused = failed("Unable to contact slurm controller (connect failure)")
    with pytest.raises(errors.ControllerUnreachable):
        CliSlurmClient(run=Script({"scontrol show topology": refused})).topology()


def test_a_step_runs_in_a_session_of_its_own_with_a_scrubbed_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import os\nprint(os.getsid(0) == os.getpid(), sorted(os.environ))\n"
    (tmp_path / "srun").write_text(source)
    # With this prefix the stand-in is run as a script found in the working directory.
    monkeypatch.chdir(tmp_path)
    environ = {"PATH": "/bin", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}
    client = CliSlurmClient(environ=environ, prefix=(sys.executable,))
    request = StepRequest(job_id=7, nodes=("n1",), command=("x",))
    handle = client.launch_step(request, tmp_path / "log")
    wait_for(lambda: handle.poll() is not None, message="the stand-in for srun ends")
    assert handle.poll() == 0
    said = (tmp_path / "log").read_text()
    assert said.startswith("True ")
    assert "SLURM_JOB_ID" in said
    assert "SLURM_NTASKS" not in said


# -- no answer is no answer -----------------------------------------------------------------------------

UNKNOWN_NODE = (DATA / "slurm_language/unknown_node.json").read_text()
EMPTY = '{"nodes": [], "errors": [], "warnings": [{"description": "no nodes matched"}], "meta": {}}'
BOTH = '{"nodes": [{"name": "n1"}], "errors": [{"error": "Unable to contact slurm controller"}]}'


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (UNKNOWN_NODE, errors.CommandFailed),
        (BOTH, errors.ControllerUnreachable),
        ('{"nodes": [], "errors": {"error": "Unspecified error"}}', errors.CommandFailed),
        ('{"nodes": [], "errors": "no"}', errors.CommandFailed),
        ('{"nodes": null, "errors": []}', errors.UnparsableOutput),
        ('{"errors": []}', errors.UnparsableOutput),
        (UNKNOWN_NODE[: len(UNKNOWN_NODE) // 2], errors.UnparsableOutput),
        ("", errors.UnparsableOutput),
    ],
)
def test_of_a_node_nothing_is_known_then(output: str, kind: type[errors.SlurmCommandError]) -> None:
    """Neither drained nor healthy, nor not there."""
    script = Script({"sinfo": "slurm 26.05.5", "scontrol": output})
    for names in (["gpu-worker-17"], None):
        with pytest.raises(errors.SlurmCommandError) as raised:
            CliSlurmClient(run=script).nodes(names)
        assert type(raised.value) is kind
        assert raised.value.command[0] == "scontrol"
        assert raised.value.returncode == 0


def test_an_answer_without_a_node_says_that_a_name_is_unknown_but_never_that_there_are_none() -> None:
    script = Script({"sinfo": "slurm 26.05.5", "scontrol": EMPTY})
    with pytest.raises(errors.InvalidNode):
        CliSlurmClient(run=script).nodes(["gpu-worker-17"])
    with pytest.raises(errors.UnparsableOutput, match="no node"):
        CliSlurmClient(run=script).nodes()


@pytest.mark.parametrize("release", ["22.05.8", "26.05.5"])
@pytest.mark.parametrize("on_stdout", [True, False])
@pytest.mark.parametrize("code", [0, 1])
def test_a_job_that_is_gone_is_recognised_wherever_a_release_says_so(
    release: str, on_stdout: bool, code: int
) -> None:
    text = "Job 4711 not found"
    done = failed("" if on_stdout else f"scontrol: error: {text}", code, text if on_stdout else "")
    script = Script({"sinfo": f"slurm {release}", "scontrol": done})
    with pytest.raises(errors.JobNotFound):
        CliSlurmClient(run=script).job(4711)


def test_words_of_a_users_do_not_end_a_job() -> None:
    output = "JobId=7 JobName=x\nJob 7 not found JobName=y\n   JobState=RUNNING JobState=RUNNING\n"
    script = Script({"sinfo": "slurm 22.05.8", "scontrol": output})
    with pytest.raises(errors.UnparsableOutput):
        CliSlurmClient(run=script).job(7)


def test_a_queue_that_is_cut_off_is_no_empty_queue() -> None:
    whole = (DATA / "slurm_json/26.05.5/squeue.json").read_text()
    for part in (whole[:-3], whole[: len(whole) // 2], "{", '{"jobs": ['):
        with pytest.raises(errors.UnparsableOutput):
            CliSlurmClient(run=Script({"sinfo": "slurm 26.05.5", "squeue": part})).jobs()


def test_a_user_of_a_reservation_whom_slurm_does_not_know() -> None:
    """The words of 26.05.5."""
    script = Script({"scontrol create": failed("Error creating the reservation: Unspecified error")})
    request = ReservationRequest(name="r", node_count=1, users=("no-such-user",))
    with pytest.raises(errors.PermissionDenied, match="Unspecified error"):
        CliSlurmClient(run=script).create_reservation(request)
    with pytest.raises(errors.CommandFailed):
        CliSlurmClient(run=script).create_reservation(structs.replace(request, users=(), accounts=("a",)))
