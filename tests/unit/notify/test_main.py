"""``srobust notify`` and the places where a secret must not be."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from slurm_robust.cli.main import main
from slurm_robust.config.job import JobConfig
from slurm_robust.config.notify import ChannelConfig, NotifyConfig
from slurm_robust.evidence import bundle
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.notice import ChannelState, Notified
from slurm_robust.notify.main import sample
from tests.builders.plans import plan
from tests.unit.report import incident_journal

SECRET = "T0SECRETT0SECRET"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a job with a channel that works, one that does not, and one by a URL in the configuration."""
    made = tmp_path / "7"
    made.mkdir(mode=0o700)
    channels = (
        ChannelConfig(name="good", command=("sh", "-c", "cat > told")),
        ChannelConfig(name="bad", command=("sh", "-c", "echo no; exit 4")),
        ChannelConfig(name="web", url=f"http://127.0.0.1:1/{SECRET}"),
    )
    config = JobConfig(notify=NotifyConfig(channels=channels))
    written = msgspec.structs.replace(plan(), config=config, cwd=str(made))
    (made / "plan.json").write_bytes(msgspec.json.encode(written))
    events = [*incident_journal.start(), *incident_journal.rank_killed()]
    (made / "journal.jsonl").write_bytes(b"".join(ev.encode_event(event) + b"\n" for event in events))
    return made


def test_a_test_message_goes_through_every_channel(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notify", str(folder), "--test", "--json"]) == 1
    said = capsys.readouterr().out
    found = {one["channel"]: one for one in json.loads(said)["channels"]}
    assert {name: one["ok"] for name, one in found.items()} == {"good": True, "bad": False, "web": False}
    assert found["bad"]["error"] == "sh: exit code 4: no"
    assert all(one["fix"] for name, one in found.items() if name != "good")
    assert "test message" in (folder / "told").read_text()
    assert main(["notify", str(folder), "--test"]) == 1
    said += capsys.readouterr().out
    assert "3 channels, 2 failed" in said
    assert SECRET not in said


def test_a_test_message_has_a_kind_of_its_own() -> None:
    message = sample("")
    assert message.subject.startswith("srobust: no job: test message")
    assert (message.facts["KIND"], message.facts["KINDS"], message.facts["JOB"]) == ("test", "test", "")
    assert sample("7").subject.startswith("srobust: job 7: test message")


def test_a_test_without_a_job_takes_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("notify: {channels: [{name: good, command: ['true']}]}")
    assert main(["notify", "--test", "--config", str(file)]) == 0
    assert "1 channel, 0 failed" in capsys.readouterr().out


def test_without_channels_there_is_nothing_to_test(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notify", "--test"]) == ExitCode.CONFIG
    assert "no channel is configured" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["7", "--test", "--set", "spares=1"]])
def test_notify_refuses_wrong_usage(options: list[str]) -> None:
    assert main(["notify", *options]) == ExitCode.USAGE


def test_how_far_the_channels_of_a_job_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ChannelState(sent=(1.0,), trouble="HTTP 500", given_up_until=4e9)
    notified = Notified(run_id=plan().run_id, channels={"web": state})
    JobDirectory(folder).notified.write_bytes(msgspec.json.encode(notified))
    assert main(["notify", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "given up until" in said
    assert "HTTP 500" in said
    assert main(["status", str(folder), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["silent"] == {"web": "HTTP 500"}
    assert "channel web of notifications is given up for a while: HTTP 500" in status["notes"]
    assert main(["status", str(folder)]) == 0
    assert "channel web of notifications (HTTP 500)" in capsys.readouterr().out
    assert SECRET not in said + json.dumps(status)


def test_the_evidence_of_an_incident_holds_no_secret(folder: Path) -> None:
    events = [ev.decode_event(line) for line in (folder / "journal.jsonl").read_bytes().splitlines()]
    made = bundle.save(JobDirectory(folder), 1, events)
    files = [path for path in made.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET in path.read_text()]


def test_config_show_and_option_errors_hold_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"notify: {{channels: [{{name: web, url: 'https://relay.example.org/{SECRET}'}}]}}")
    assert main(["config", "show", "--config", str(file)]) == 0
    assert main(["config", "check", str(file)]) == 0
    assert (
        main(["config", "show", "--set", f"notify.channels=https://example.org/{SECRET}"]) == ExitCode.USAGE
    )
    said = capsys.readouterr()
    assert "notify.channels" in said.err
    assert SECRET not in said.out + said.err
