"""``srobust update`` and ``srobust rollback`` against a controller's end of real sockets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from slurm_robust.cli.main import main
from slurm_robust.config.job import AgentsConfig, CodeConfig, JobConfig
from slurm_robust.config.plan import save_plan
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.release import Release, UpdateEnd, When
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, take
from slurm_robust.run.preflight import open_directory
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.updates.request import NOT_DONE, UpdateAnswer
from slurm_robust.wire.epochs import take_epoch
from slurm_robust.wire.keys import load_server
from slurm_robust.wire.messages import Ping, Pong, Refused, UpdateJob, UpdateReply
from slurm_robust.wire.sockets import ControllerSocket
from tests.builders.plans import plan
from tests.unit.diagnostics.test_live import serving
from tests.unit.updates.stories import OLD, Story

Step = Callable[[Story], Story]
"""Something that happens to a job."""


class Job:
    """A job whose first release runs, with its code, its folder and what its controller was asked."""

    def __init__(self, root: Path) -> None:
        self.code = root / "gpt"
        self.code.mkdir()
        (self.code / "train.py").write_text("import model\n")
        (self.code / "model.py").write_text("size = 1\n")
        self.directory = JobDirectory(root / "7")
        open_directory(self.directory)
        self.store = ReleaseStore(self.directory.releases)
        self.first = take(
            self.store,
            Taking(
                kind=CommandKind.SCRIPT,
                command=("train.py", "--lr", "3e-4"),
                cwd=str(self.code),
                roots=(str(self.code),),
                env={"TOKEN": "s3cret"},
            ),
        )
        self.story = Story()
        self.story.events = [structs.replace(self.story.events[0], run_id="7-x"), *self.story.events[1:]]
        self.story.add(ev.ReleaseTaken(t=self.story.t, release=self.first))
        self.story.trains(self.first.name, 0, 60).proven(self.first.name)
        self.asked: list[UpdateJob] = []
        self.configured(JobConfig())
        self.write()

    def configured(self, config: JobConfig) -> None:
        save_plan(
            self.directory,
            plan(command=self.first.command, cwd=str(self.code), config=config),
        )

    def write(self) -> None:
        lines = [ev.encode_event(event) + b"\n" for event in self.story.events]
        self.directory.journal.write_bytes(b"".join(lines))

    def accept(self, order: UpdateJob) -> UpdateReply:
        """Write down the request, as a controller does."""
        release = self.store.read(order.release)
        if all(not isinstance(e, ev.ReleaseTaken) or e.release != release for e in self.story.events):
            self.story.add(ev.ReleaseTaken(t=self.story.t, release=release, by=order.by))
        number = 1 + sum(isinstance(e, ev.UpdateRequested) for e in self.story.events)
        self.story.asked(
            number,
            order.release,
            order.when,
            message=order.message,
            changes=order.changes,
            rollback=order.rollback,
            token=order.token,
        )
        return UpdateReply(ok=True, text=f"update {number} is accepted", update=number)

    @contextmanager
    def controller(self, *then: Step, answers: Callable[[UpdateJob], object] | None = None) -> Iterator[None]:
        """A controller that answers, and to whose job happens what ``then`` says."""
        with closing(ControllerSocket(load_server(self.directory.keys))) as server:
            take_epoch(
                self.directory.epochs,
                host="localhost",
                addresses=("127.0.0.1",),
                port=server.port,
                pid=1,
                run_id="7-x",
            )

            def answer(wish: UpdateJob | Ping) -> object:
                if isinstance(wish, Ping) and answers is None:
                    return Pong(epoch=1, host="n1", pid=1)
                self.asked.append(wish)
                if answers is not None:
                    return answers(wish)
                reply = self.accept(wish)
                for step in then:
                    step(self.story)
                self.write()
                return reply

            with serving(server, answer):
                yield

    def releases(self) -> Sequence[Release]:
        return self.store.all()

    def run(self, command: str, *words: str) -> int:
        return main([command, str(self.directory.path), *words])


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr("slurm_robust.updates.request.SILENT_S", 0.0)
    return Job(tmp_path)


def runs(job: Job) -> Step:
    """The update is applied and its release makes a step."""

    def step(story: Story) -> Story:
        order = job.asked[-1]
        story.tried(1).stops(1).applied(1, order.release, job.first.name, 60, 60)
        return story.trains(order.release, 61, 62, restore=60)

    return step


def edited(job: Job) -> None:
    (job.code / "model.py").write_text("size = 2\n")


def test_new_code_is_taken_and_asked_for_and_followed_until_it_trains(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(job)
    with job.controller(runs(job)):
        assert job.run("update", "--now", "-m", "a larger model") == ExitCode.SUCCESS
    (order,) = job.asked
    assert (order.when, order.message, order.by.uid) == (When.NOW, "a larger model", os.geteuid())
    assert order.changes == ("1 file changed: gpt/model.py",)
    assert job.store.read(order.release).command == job.first.command
    assert job.store.env(order.release) == {"TOKEN": "s3cret"}
    said = capsys.readouterr().out
    assert f"release {order.release} has made step 61; 3.0 s without training, 0 steps repeated" in said
    assert f"release {job.first.name} comes back by itself" in said


def test_an_update_that_waits_for_storage_says_so(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_robust.updates.request.SLURM_S", 0.0)
    edited(job)

    def answers(wish: UpdateJob | Ping) -> object:
        if isinstance(wish, UpdateJob):
            reply = job.accept(wish)
            job.write()
            return reply
        if isinstance(job.asked.pop(), Ping):
            runs(job)(job.story)
            job.write()
        return Pong(epoch=1, host="n1", pid=1, blocked="storage does not take the journal: no space")

    with job.controller(answers=answers):
        assert job.run("update", "--now") == ExitCode.SUCCESS
    told = capsys.readouterr().err
    assert "update 1 waits: storage does not take the journal: no space; free space under" in told


def test_arguments_and_variables_change_without_the_code(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    with job.controller():
        words = ("--no-wait", "--env", "SEED=7", "--unset", "TOKEN", "--", "--lr", "1e-4", "--fast")
        assert job.run("update", *words) == ExitCode.SUCCESS
    (order,) = job.asked
    release = job.store.read(order.release)
    assert (release.command, release.code) == (("train.py", "--lr", "1e-4", "--fast"), job.first.code)
    assert job.store.env(order.release) == {"SEED": "7"}
    assert order.changes == (
        "old command: train.py --lr 3e-4",
        "new command: train.py --lr 1e-4 --fast",
        "environment set: SEED",
        "environment unset: TOKEN",
    )
    assert capsys.readouterr().out.splitlines() == [
        "update 1 is accepted",
        *(f"  {change}" for change in order.changes),
    ]


def test_arguments_with_blanks_are_quoted_in_the_changes(job: Job) -> None:
    with job.controller():
        assert job.run("update", "--no-wait", "--", "--lr", "3e-4", "-a b") == ExitCode.SUCCESS
    assert job.asked[0].changes == (
        "old command: train.py --lr 3e-4",
        "new command: train.py --lr 3e-4 '-a b'",
    )


@pytest.mark.parametrize("words", [("--args=--fast",), ("--args", "--fast"), ("--", "--fast")])
def test_arguments_that_begin_with_a_dash_need_no_tricks(job: Job, words: tuple[str, ...]) -> None:
    with job.controller():
        assert job.run("update", "--no-wait", *words) == ExitCode.SUCCESS
    assert job.store.read(job.asked[0].release).command == ("train.py", "--fast")


def test_another_checkout_takes_the_place_of_the_code(job: Job, tmp_path: Path) -> None:
    other = tmp_path / "checkout"
    other.mkdir()
    (other / "train.py").write_text("size = 3\n")
    with job.controller():
        assert job.run("update", "--no-wait", "--code", str(other)) == ExitCode.SUCCESS
    release = job.store.read(job.asked[0].release)
    assert [root.path for root in release.roots] == [str(job.code)]
    assert release.entry == "gpt/train.py"
    assert job.asked[0].changes == ("1 file changed: gpt/train.py", "1 file removed: gpt/model.py")


def checkout(job: Job, folder: Path) -> Path:
    """Another checkout of the code, of which a release runs."""
    folder.mkdir()
    (folder / "train.py").write_text("size = 3\n")
    with job.controller(runs(job)):
        assert job.run("update", "--now", "--code", str(folder)) == ExitCode.SUCCESS
    (folder / "train.py").write_text("size = 4\n")
    return folder


def test_the_next_update_takes_the_code_from_where_that_of_the_running_release_was_taken(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = checkout(job, tmp_path / "checkout")
    capsys.readouterr()
    with job.controller():
        assert job.run("update", "--no-wait") == ExitCode.SUCCESS
    assert capsys.readouterr().err.splitlines() == [f"the code is taken from {other}"]
    assert job.asked[1].changes == ("1 file changed: gpt/train.py",)
    (root,) = job.store.read(job.asked[1].release).roots
    assert (root.path, root.source) == (str(job.code), str(other))


def test_the_first_folder_is_taken_again_if_it_is_named(job: Job, tmp_path: Path) -> None:
    checkout(job, tmp_path / "checkout")
    edited(job)
    with job.controller():
        assert job.run("update", "--no-wait", "--code", str(job.code)) == ExitCode.SUCCESS
    (root,) = job.store.read(job.asked[1].release).roots
    assert root.source == str(job.code)


def test_the_folder_of_an_update_that_does_not_run_is_named(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = checkout(job, tmp_path / "checkout")
    edited(job)
    job.story.crashes(1).rolled_back(1, job.asked[0].release, job.first.name, 60)
    job.write()
    capsys.readouterr()
    with job.controller():
        assert job.run("update", "--no-wait") == ExitCode.SUCCESS
    assert capsys.readouterr().err.splitlines() == [
        f"the code is taken from {job.code}",
        f"update 1 took its code from {other}; --code {other} does so again",
    ]


def test_a_folder_that_is_gone_since_is_to_be_named_anew(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = checkout(job, tmp_path / "checkout")
    other.rename(tmp_path / "away")
    assert job.run("update") == ExitCode.NO_INPUT
    said = capsys.readouterr().err
    assert f"{other} is no folder" in said
    assert "--code DIR" in said


def test_an_error_in_another_checkout_names_the_file_there(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = checkout(job, tmp_path / "checkout")
    (other / "train.py").write_text("size = \n")
    assert job.run("update") == NOT_DONE
    assert f'File "{other}/train.py", line 1' in capsys.readouterr().err


def test_a_configuration_goes_with_the_release_and_is_told_by_its_keys(job: Job, tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text("# less patience\ndetect:\n  hang_factor: 2\n")
    with job.controller():
        assert job.run("update", "--no-wait", "--config", str(file)) == ExitCode.SUCCESS
    assert job.store.config_text(job.asked[0].release) == file.read_text()
    assert job.asked[0].changes == ("configuration: -detect.hang_factor: 3.0, +detect.hang_factor: 2.0",)


def refused(job: Job, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = job.run("update", *words)
    assert not job.asked
    return code, capsys.readouterr().err


@pytest.mark.parametrize("words", [(), ("--now",), ("--now", "-m", "once more"), ("--deadline", "6h")])
def test_what_changes_nothing_is_not_asked_for(
    job: Job, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = refused(job, capsys, *words)
    assert code == ExitCode.USAGE
    assert f"nothing has changed: the code in {job.code}, the arguments" in said


def test_an_update_that_waits_is_applied_now_by_asking_again(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    waits(job)
    with job.controller():
        assert job.run("update", "--now", "--no-wait") == ExitCode.SUCCESS
    lazy, now = job.asked
    assert (lazy.release, lazy.when, now.release, now.when) == (now.release, When.LAZY, now.release, When.NOW)


def test_code_that_does_not_compile_is_shown_with_its_line(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    (job.code / "model.py").write_text("size = \n")
    code, said = refused(job, capsys)
    assert code == NOT_DONE
    assert f'File "{job.code}/model.py", line 1' in said
    assert "SyntaxError" in said
    assert "the job trains on" in said


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--code", "nowhere"), ExitCode.NO_INPUT, "--code nowhere is no folder"),
        (("--code", "/proc/self"), ExitCode.USAGE, "has no train.py: it would take the place of"),
        (("--image", "/x.sif"), ExitCode.USAGE, "the job runs in no container"),
        (("--env", "RANK=1"), ExitCode.USAGE, "sets it for each rank"),
        (("--args", "'"), ExitCode.USAGE, "no closing quotation"),
        (("--nodes", "8"), ExitCode.USAGE, "srobust update has no option --nodes"),
        (("--now", "--lazy"), ExitCode.USAGE, "not allowed with argument"),
        (("--deadline", "soon"), ExitCode.USAGE, "'soon' is no time span"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    job: Job, words: tuple[str, ...], code: ExitCode, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = refused(job, capsys, *words)
    assert found == code
    assert says in said


def test_an_image_whose_place_in_the_wrapper_is_not_known_is_refused(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.sif").touch()
    job.configured(JobConfig(agents=AgentsConfig(wrapper=("./inside.sh", "a.sif"))))
    code, said = refused(job, capsys, "--image", str(tmp_path / "b.sif"))
    assert code == ExitCode.USAGE
    assert "--image: agents.wrapper begins with ./inside.sh, and nothing says which of its words" in said


def test_keys_that_cannot_change_name_the_command_that_can(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.yaml"
    file.write_text("nproc_per_node: 4\n")
    code, said = refused(job, capsys, "--config", str(file))
    assert code == ExitCode.CONFIG
    assert "nproc_per_node cannot change while the job runs" in said
    assert "submit a new job" in said


def test_a_job_without_releases_says_why(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.story.events = [e for e in job.story.events if not isinstance(e, ev.ReleaseTaken | ev.ReleaseProven)]
    job.write()
    job.configured(JobConfig(code=CodeConfig(releases=False)))
    with job.controller():
        code, said = refused(job, capsys)
    assert code == ExitCode.USAGE
    assert "code.releases is false" in said
    assert "scontrol requeue" in said


def test_another_user_is_told_whose_job_it_is(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(job)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    code, said = refused(job, capsys)
    assert code == ExitCode.REFUSED
    assert f"(uid {mine}): only its owner updates it" in said


def test_a_job_that_has_ended_is_not_updated(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.story.add(ev.RunEnded(t=job.story.t, code=0, reason="all ranks ended"))
    job.write()
    assert refused(job, capsys)[0] == ExitCode.NO_INPUT


def test_a_trial_that_fails_shows_its_traceback_and_ends_with_a_code_of_its_own(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(job)
    trace = "Traceback (most recent call last):\nModuleNotFoundError: no flash_attn"

    def fails(story: Story) -> Story:
        story.tried(1, ok=False, node="n2", text="no flash_attn", traceback=trace)
        return story.ended(1, UpdateEnd.REFUSED, "its trial failed")

    with job.controller(fails):
        assert job.run("update", "--now") == NOT_DONE
    said = capsys.readouterr().out
    assert "failed its trial on n2" in said
    assert "ModuleNotFoundError" in said
    assert "the job goes on as before" in said


def test_a_lazy_update_is_done_when_its_trial_has_passed(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(job)
    with job.controller(lambda story: story.tried(1)):
        assert job.run("update", "--deadline", "6h", "--json") == ExitCode.SUCCESS
    answer = msgspec.json.decode(capsys.readouterr().out, type=UpdateAnswer)
    assert (answer.phase.value, answer.when, answer.update) == ("waiting", When.LAZY, 1)
    assert job.asked[0].deadline_s == 6 * 3600


def test_an_update_that_replaces_one_that_waits_begins_from_what_runs(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    with job.controller(lambda story: story.tried(1)):
        assert job.run("update", "--env", "SEED=7") == ExitCode.SUCCESS
    with job.controller():
        assert job.run("update", "--no-wait", "--", "--lr", "1e-5") == ExitCode.SUCCESS
    assert job.store.env(job.asked[-1].release) == {"TOKEN": "s3cret"}
    assert "update 1, which waits, is replaced; nothing of it is part of this one" in capsys.readouterr().err


def test_a_file_that_is_not_imported_need_not_compile(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    (job.code / "unfinished.py").write_text("def\n")
    with job.controller():
        assert job.run("update", "--no-wait") == ExitCode.SUCCESS
    assert f"does not compile: {job.code}/unfinished.py, line 1" in capsys.readouterr().err


def test_the_controllers_refusal_is_told_with_its_fix(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    edited(job)
    reply = UpdateReply(ok=False, text="update 3 is being applied now", fix="ask again when it is over")
    with job.controller(answers=lambda wish: reply):
        assert job.run("update", "--now") == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "update 3 is being applied now" in said
    assert "ask again when it is over" in said


def test_an_older_controller_is_named(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    edited(job)
    with job.controller(answers=lambda wish: Refused(refused="update_job", protocol=1)):
        assert job.run("update", "--now") == ExitCode.NO_INPUT
    assert "it speaks protocol 1" in capsys.readouterr().err


def test_a_request_whose_answer_was_lost_is_found_in_the_journal(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slurm_robust.updates.request.ANSWER_S", 0.3)
    edited(job)

    def loses(wish: UpdateJob) -> object:
        job.accept(wish)
        job.story.tried(1)
        job.write()
        return b""

    with job.controller(answers=loses):
        assert job.run("update", "--lazy") == ExitCode.SUCCESS
    assert "update 1: the journal shows it" in capsys.readouterr().out


def test_a_controller_that_stays_silent_is_told_with_what_was_changed(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slurm_robust.updates.request.ANSWER_S", 0.1)
    edited(job)
    with job.controller(answers=lambda wish: b""):
        assert job.run("update", "--now") == ExitCode.NO_INPUT
    assert "Nothing was changed: the journal shows no request" in capsys.readouterr().err


def test_ctrl_c_leaves_the_update_in_force_and_says_so(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slurm_robust.updates.request._follow", interrupted)
    edited(job)
    with job.controller():
        assert job.run("update", "--now") == ExitCode.INTERRUPTED
    said = capsys.readouterr().err
    assert "update 1 stays in force" in said
    assert "'srobust rollback 7 --withdraw' withdraws it while it waits" in said


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Slurm, in which job 7 runs."""
    fake = FakeSlurm()
    for job_id in range(1, 8):
        assert fake.submit(SubmitRequest(command=("train.sh",), nodes=1)) == job_id
        state = "RUNNING" if job_id == 7 else "COMPLETED"
        fake.cluster.put(fake.job(job_id), states=frozenset({state}))
    monkeypatch.setattr("slurm_robust.diagnostics.live.make_slurm", lambda: fake)
    return fake


def test_a_job_that_slurm_has_ended_meanwhile_is_not_waited_for(
    job: Job, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slurm_robust.updates.request.SLURM_S", 0.0)
    edited(job)

    def cancelled(story: Story) -> Story:
        slurm.cluster.put(slurm.job(7), states=frozenset({"CANCELLED"}))
        return story

    with job.controller(cancelled):
        assert job.run("update", "--now") == NOT_DONE
    assert "the job has ended before update 1 was done: Slurm says CANCELLED" in capsys.readouterr().out


def test_a_job_that_does_not_run_says_what_starts_it_before_anything_is_taken(
    job: Job, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.cluster.put(
        slurm.job(7),
        states=frozenset({"PENDING"}),
        reason="JobHeldUser",
        priority=0,
        restart_count=1,
        nodes=(),
    )
    edited(job)
    take_epoch(job.directory.epochs, host="n1", addresses=("127.0.0.1",), port=7, pid=1, run_id="7-x")
    code, said = refused(job, capsys)
    assert code == ExitCode.NO_INPUT
    assert "job 7 was requeued and is PENDING (JobHeldUser)" in said
    assert "scontrol release 7" in said
    assert job.store.names() == (job.first.name,)


# -- rollback ----------------------------------------------------------------------------------------


def updated(job: Job) -> Release:
    """The job runs a second release."""
    edited(job)
    with job.controller(runs(job)):
        assert job.run("update", "--now") == ExitCode.SUCCESS
    return job.store.read(job.asked.pop().release)


def test_a_rollback_goes_to_the_last_good_release_and_says_what_that_changes(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    updated(job)
    with job.controller():
        assert job.run("rollback", "--no-wait", "-m", "worse loss") == ExitCode.SUCCESS
    (order,) = job.asked
    assert (order.release, order.when, order.rollback) == (job.first.name, When.NOW, True)
    assert order.changes == ("1 file changed: gpt/model.py",)


def test_a_rollback_can_name_a_release_and_an_older_step(job: Job) -> None:
    second = updated(job)
    job.story.proven(second.name)
    job.write()
    with job.controller():
        words = ("previous", "--lazy", "--from", "40", "--no-wait")
        assert job.run("rollback", *words) == ExitCode.SUCCESS
    (order,) = job.asked
    assert (order.release, order.when, order.from_step) == (job.first.name, When.LAZY, 40)


def waits(job: Job) -> None:
    """A lazy update has been tried."""
    edited(job)
    with job.controller(lambda story: story.tried(1)):
        assert job.run("update", "--lazy") == ExitCode.SUCCESS


def withdrawn(_: UpdateJob) -> UpdateReply:
    return UpdateReply(ok=True, text="update 1 is withdrawn", update=1)


@pytest.mark.parametrize("words", [(), ("--withdraw",)])
def test_an_update_that_waits_is_withdrawn_first(
    job: Job, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    waits(job)
    with job.controller(answers=withdrawn):
        assert job.run("rollback", *words) == ExitCode.SUCCESS
    order = job.asked[-1]
    assert (order.withdraw, order.release, order.running, order.updates) == (
        True,
        job.first.name,
        job.first.name,
        1,
    )
    assert capsys.readouterr().out.splitlines()[-1] == "update 1 is withdrawn"


def test_who_withdraws_beside_a_good_release_is_told_how_to_go_back(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    second = updated(job)
    job.story.proven(second.name)
    (job.code / "model.py").write_text("size = 3\n")
    with job.controller(lambda story: story.tried(2)):
        assert job.run("update") == ExitCode.SUCCESS
    with job.controller(answers=withdrawn):
        assert job.run("rollback") == ExitCode.SUCCESS
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == (
        f"'srobust rollback 7 {job.first.name}' goes back to the good release before {second.name}"
    )


def test_withdrawing_never_goes_back(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    updated(job)
    assert job.run("rollback", "--withdraw") == ExitCode.USAGE
    assert job.run("rollback", job.first.name, "--withdraw") == ExitCode.USAGE
    assert job.run("rollback", "--withdraw", "--lazy") == ExitCode.USAGE
    assert job.run("rollback", "--withdraw", job.first.name) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "no update waits: update 1 was applied at step 60" in said
    assert said.count("--withdraw leads to no release") == 2
    assert not job.asked


def test_a_step_to_go_back_to_is_not_taken_for_a_wish_to_withdraw(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    waits(job)
    job.asked.clear()
    assert job.run("rollback", "--from", "40") == ExitCode.USAGE
    assert "update 1 waits, and --from is of a release that is to run" in capsys.readouterr().err
    assert not job.asked


def test_without_a_way_back_a_rollback_says_so(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert job.run("rollback") == ExitCode.USAGE
    assert f"has no good release before {job.first.name}" in capsys.readouterr().err
    assert job.run("rollback", OLD) == ExitCode.NO_INPUT
    assert job.run("rollback", "running") == ExitCode.USAGE
    assert "runs already, and no update waits" in capsys.readouterr().err


# -- diff and releases -------------------------------------------------------------------------------


def test_a_difference_shows_lines_and_no_values(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    edited(job)
    with job.controller(runs(job)):
        words = ("--now", "--env", "TOKEN=0ther", "--args", "--lr 1e-4")
        assert job.run("update", *words) == ExitCode.SUCCESS
    capsys.readouterr()
    assert job.run("diff") == ExitCode.SUCCESS
    said = capsys.readouterr().out
    for line in ("-size = 1", "+size = 2", "new command", "environment, another value  TOKEN"):
        assert line in said
    assert job.run("diff", "--json", "--stat") == ExitCode.SUCCESS
    said += capsys.readouterr().out
    assert job.run("releases", "--json") == ExitCode.SUCCESS
    said += capsys.readouterr().out + job.directory.journal.read_text()
    assert "s3cret" not in said
    assert "0ther" not in said


@pytest.mark.parametrize(
    "words", [("--stat", "running", "good"), ("running", "--stat", "good"), ("running", "good", "--stat")]
)
def test_options_stand_before_or_after_the_names_of_releases(
    job: Job, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert job.run("diff", *words) == ExitCode.SUCCESS
    assert "runs the same as" in capsys.readouterr().out


def test_the_value_of_an_option_is_no_name_of_a_release(job: Job) -> None:
    second = updated(job)
    with job.controller():
        words = ("--lazy", "-m", "good", "--from", "40", job.first.name, "--no-wait")
        assert job.run("rollback", *words) == ExitCode.SUCCESS
    (order,) = job.asked
    assert (order.release, order.message, order.from_step) == (job.first.name, "good", 40)
    assert order.running == second.name


def test_a_difference_to_itself_is_none(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert job.run("diff", "running", "good") == ExitCode.SUCCESS
    assert "runs the same as" in capsys.readouterr().out


def test_old_releases_are_removed_beyond_the_bound(job: Job) -> None:
    job.configured(JobConfig(updates=structs.replace(JobConfig().updates, keep=2)))
    for size in range(2, 6):
        (job.code / "model.py").write_text(f"size = {size}\n")
        with job.controller():
            assert job.run("update", "--no-wait") == ExitCode.SUCCESS
    names = {release.name for release in job.releases()}
    assert job.first.name in names
    assert len(names) <= 4


def test_a_configuration_that_no_longer_fits_keeps_nobody_from_going_back(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.yaml"
    file.write_text("detect:\n  hang_factor: 2\n")
    with job.controller(runs(job)):
        assert job.run("update", "--now", "--config", str(file)) == ExitCode.SUCCESS
    release = job.asked[-1].release
    (job.directory.releases / release / "config.yaml").write_text("detect:\n  of_another_version: 2\n")
    with job.controller():
        assert job.run("rollback", "--no-wait") == ExitCode.SUCCESS
    assert job.asked[-1].release == job.first.name
    assert f"the configuration of release {release} is left out" in capsys.readouterr().err
