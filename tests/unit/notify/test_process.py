"""The process that follows a journal, as the supervisor starts it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from slurm_robust.config.job import JobConfig
from slurm_robust.config.notify import ChannelConfig, NotifyConfig
from slurm_robust.config.plan import RunPlan
from slurm_robust.controller.notifier import Notifier
from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.notice import NOTIFIED, ChannelState, Notified
from slurm_robust.notify.state import load
from slurm_robust.report.status import silent_channels
from slurm_robust.wire.epochs import take_epoch
from tests.builders.plans import plan
from tests.contracts.channel import SECRET
from tests.unit.notify.http_server import SECRET_PATH, Server
from tests.unit.notify.test_narrate import CLOSED, OPENED, STARTED, TAKEN
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # each starts an interpreter

KEEP = "cat > $$.tmp; mv $$.tmp $(date +%s%N).text"


class Job:
    """A folder of a job, and processes that tell people of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700)
        self.directory = JobDirectory(folder)
        self.processes: list[subprocess.Popen[str]] = []
        self.directory.spec.write_text(json.dumps({"run_id": "7-x"}))
        self.write(STARTED, TAKEN)

    def configure(self, *channels: ChannelConfig, batch_s: float = 0.1, **changes: object) -> RunPlan:
        notify = NotifyConfig(channels=channels, batch_s=batch_s)
        config = JobConfig(notify=notify, mode=changes.pop("mode", "act"))  # type: ignore[arg-type]
        made = msgspec.structs.replace(plan(), config=config, cwd=str(self.folder), **changes)
        (self.folder / "plan.json").write_bytes(msgspec.json.encode(made))
        return made

    def write(self, *events: ev.AnyEvent) -> None:
        with self.directory.journal.open("ab") as file:
            file.writelines(ev.encode_event(event) + b"\n" for event in events)

    def start(self, *options: str, **environ: str) -> subprocess.Popen[str]:
        since = ("--since", str(self.directory.journal.stat().st_size)) if "--since" not in options else ()
        process = subprocess.Popen(
            [sys.executable, "-m", "slurm_robust.notify", "--job-dir", str(self.folder), *since, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **environ},
        )
        self.processes.append(process)
        return process

    def end(self, process: subprocess.Popen[str], code: str = "0", within: float = 30.0) -> str:
        """What it has said, at the end of the run."""
        said, _ = process.communicate(code, timeout=within)
        assert process.returncode == 0, said
        return said

    @property
    def texts(self) -> list[str]:
        return [path.read_text() for path in sorted(self.folder.glob("*.text"))]

    def notified(self) -> Notified:
        return NOTIFIED.decode(self.directory.notified.read_bytes())


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path / "7")
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


def keep(name: str = "keep") -> ChannelConfig:
    return ChannelConfig(name=name, command=("bash", "-c", KEEP))


def test_a_process_that_is_killed_and_started_again_tells_everything_once(job: Job) -> None:
    job.configure(keep())
    process = job.start()
    job.write(OPENED)
    wait_for(lambda: job.texts)
    wait_for(lambda: job.notified().channels["keep"].sending is None)
    process.kill()
    process.communicate()
    job.write(CLOSED)
    since = (
        "--since",
        str(job.directory.journal.stat().st_size),
    )  # of the next supervisor: it tells it all the same
    again = job.start(*since)
    wait_for(lambda: len(job.texts) == 2)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        again.send_signal(number)
    job.write(ev.RunEnded(t=30.0, code=0, reason="done"))
    assert job.end(again) == ""
    told = "".join(job.texts)
    assert [told.count(text) for text in ("incident 1: ", "is over, recovered", "exit code 0: done")] == [
        1,
        1,
        1,
    ]


def test_a_channel_that_hangs_or_is_broken_delays_neither_the_others_nor_the_end(job: Job) -> None:
    hangs = ChannelConfig(name="hangs", command=("bash", "-c", "trap '' TERM; sleep 1000"), timeout_s=0.5)
    broken = ChannelConfig(name="broken", command=("/gone",))
    job.configure(hangs, broken, keep())
    process = job.start("--last-s", "1.5")
    job.write(OPENED)
    wait_for(lambda: job.texts)
    begun = time.monotonic()
    job.write(ev.RunEnded(t=30.0, code=1, reason="x"))
    said = job.end(process, "1")
    assert time.monotonic() - begun < 60
    assert "exit code 1: x" in "".join(job.texts)
    assert "channel broken is given up for 15 min, the job is not affected: /gone cannot be started" in said
    assert "2 notices could not be told by hangs" in said
    assert set(silent_channels(job.directory, time.time())) == {"broken"}


def test_an_end_that_the_journal_lacks_is_told(job: Job) -> None:
    job.configure(keep())
    job.end(job.start(), "70")
    (text,) = job.texts
    assert "critical: srobust run ended with exit code 70" in text


def test_what_was_before_is_old_and_observe_mode_is_marked(job: Job) -> None:
    job.configure(keep(), mode="observe")
    job.write(OPENED)
    process = job.start()
    job.write(CLOSED, ev.RunEnded(t=30.0, code=0, reason="x"))
    job.end(process)
    told = "".join(job.texts)
    assert "incident 1: " not in told
    assert "is over" in told
    assert "job 7 (observe mode)" in told


def test_the_other_host_tells_after_a_takeover(job: Job) -> None:
    job.configure(keep())
    process = job.start()
    wait_for(job.directory.notified.exists)
    job.directory.epochs.mkdir(mode=0o700)
    take_epoch(job.directory.epochs, host="elsewhere", addresses=(), port=1, pid=1, run_id="7-x")
    job.write(OPENED)
    assert job.end(process) == ""
    assert job.texts == []


def test_a_state_that_nobody_can_read_costs_no_notice(job: Job) -> None:
    job.configure(keep())
    for content in (b"", b"{", b"\xff" * 100, b'{"run_id": 3}', b'{"run_id": "other"}'):
        job.directory.notified.write_bytes(content)
        assert load(job.directory, "7-x") is None
    process = job.start()
    with job.directory.journal.open("ab") as file:
        file.write(b'{"event": "of a later release"}\n' + ev.encode_event(OPENED) + b'\n{"event": "inci')
    job.end(process, "75")
    assert "incident 1: " in "".join(job.texts)


def test_a_folder_that_is_gone_ends_nothing_but_the_notices(job: Job) -> None:
    job.configure(keep())
    process = job.start()
    wait_for(job.directory.notified.exists)
    job.folder.rename(job.folder.with_name("gone"))
    process.communicate("0", timeout=60)
    assert not job.folder.exists()


def test_nothing_that_anybody_reads_holds_the_secret(job: Job) -> None:
    server = Server()
    url = f"{server.address}{SECRET_PATH}{SECRET}"
    (job.folder / "url").touch(0o600)
    (job.folder / "url").write_text(url)
    job.configure(
        ChannelConfig(name="file", url_file="url", timeout_s=0.3),
        ChannelConfig(name="env", url_env="HOOK", timeout_s=0.3),
    )
    process = job.start(HOOK=url)
    server.behaviour = "echoes"
    job.write(OPENED)
    wait_for(lambda: len(server.paths) >= 2)
    said = job.end(process, "1")
    server.close()
    assert "channel file is given up" in said
    parts = [part for part in SECRET.split("/") if len(part) > 7]
    files = [path for path in job.folder.rglob("*") if path.is_file() and path.name != "url"]
    assert {path.name for path in files} >= {"journal.jsonl", "plan.json", "notified.json"}
    for text in (said, *(path.read_text() for path in files)):
        assert not [part for part in parts if part in text]


def test_the_supervisor_starts_the_process_again_and_lets_it_end(job: Job) -> None:
    job.configure(keep())
    notifier = Notifier(job.directory, "7-x", 0)
    assert notifier.keep() == math.inf
    first = notifier.pid
    assert notifier.keep() == math.inf
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: notifier.keep() < math.inf)
    job.write(OPENED, ev.RunEnded(t=30.0, code=3, reason="x"))
    notifier.finish(3)  # before the next start was due
    assert notifier.pid != first
    told = "".join(job.texts)
    assert (told.count("incident 1: "), told.count("exit code 3: x")) == (1, 1)


def test_status_reads_a_torn_state_as_none(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path)
    assert silent_channels(directory, 1.0) == {}
    directory.notified.write_bytes(b"{")
    assert silent_channels(directory, 1.0) == {}
    state = ChannelState(trouble="no", given_up_until=5.0)
    directory.notified.write_bytes(msgspec.json.encode(Notified(run_id="r", channels={"a": state})))
    assert silent_channels(directory, 1.0) == {"a": "no"}
    assert silent_channels(directory, 6.0) == {}
