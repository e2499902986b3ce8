"""The archive on an incident: bounded, without secrets, and without any of the names that were planted."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import msgspec
import pytest

from slurm_robust.cli.main import main
from slurm_robust.evidence import bundle
from slurm_robust.evidence.incidents import find_report, incident_reports
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import JobDirectory
from slurm_robust.sharing.archive import MAX_FILE, write_archive
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.trainings.find import load_events
from tests.builders import specs
from tests.builders.plans import plan
from tests.unit.report import incident_journal

SECRET = "0123456789abcdef-planted"
PLANTED = ("alicesmith", "gpu4242", "login77", "moonproject", "10.9.8.7", "deepmoon", "4711", "secretscript")


pytestmark = pytest.mark.slow  # the doctor looks at this machine


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDirectory:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("SLURM_JOB_ACCOUNT", "deepmoon")
    directory = JobDirectory(tmp_path / "moonproject" / "srobust-jobs" / "4711")
    directory.path.mkdir(parents=True)
    started, *others = incident_journal.start()
    assert isinstance(started, ev.RunStarted)
    started = msgspec.structs.replace(
        started,
        job_id=4711,
        command=("runs/secretscript.py", "--project=moonproject"),
        cwd="/home/alicesmith/moonproject",
        cluster="login77",
    )
    text = f"gpu4242 (10.9.8.7) of alicesmith: {SECRET} in /home/alicesmith/moonproject/x.py"
    events = [
        started,
        *others,
        ev.Noted(t=incident_journal.rank_killed()[0].t, node="gpu4242", text=text),
        *incident_journal.rank_killed(),
    ]
    directory.journal.write_bytes(b"".join(ev.encode_event(event) + b"\n" for event in events))
    directory.spec.write_bytes(msgspec.json.encode(specs.job_spec(job_id=4711, cwd=started.cwd)))
    output = tmp_path / "moonproject" / "train-4711.log"
    output.write_text(f"srobust: {text}\n")
    made = msgspec.structs.replace(plan(), job_id=4711, output=str(output), cwd=started.cwd)
    (directory.path / "plan.json").write_bytes(msgspec.json.encode(made))
    log = directory.worker_log(1, 3, "err")
    log.parent.mkdir(parents=True)
    log.write_text("x" * 2 * MAX_FILE + f"\nTraceback of secretscript on gpu4242: {text}\n")
    bundle.save(directory, 1, events)
    return directory


def packed(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        assert {(one.uid, one.gid, one.uname, one.mtime) for one in archive} == {(0, 0, "", 0)}
        members = {one.name.partition("/")[2]: archive.extractfile(one) for one in archive.getmembers()}
        folders = {one.name.partition("/")[0] for one in archive.getmembers()}
        assert len(folders) == 1
        found = {name: file.read().decode() for name, file in members.items() if file is not None}
    return {**found, "folder": folders.pop()}


def test_an_archive_has_the_evidence_and_no_secret(job: JobDirectory, tmp_path: Path) -> None:
    target = tmp_path / "fault.tar.gz"
    assert main(["incident", str(job.path), "1", "--bundle", str(target)]) == 0
    found = packed(target)
    assert {"versions.txt", "journal.jsonl", "doctor.json", "job.json", "incident.json", "README.txt"} <= set(
        found
    )
    assert "gpu4242" in found["logs/gen-001/rank-00003.err"]
    assert "alicesmith" in found["logs/job.log"]
    assert "rank 3" in found["README.txt"]
    assert json.loads(found["journal.jsonl"].splitlines()[0])["event"] == "run_started"
    assert max(map(len, found.values())) <= MAX_FILE
    assert SECRET not in "".join(found.values())


def test_none_of_the_planted_names_is_in_an_anonymous_archive(job: JobDirectory, tmp_path: Path) -> None:
    target = tmp_path / "fault.tar.gz"
    assert main(["incident", str(job.path), "1", "--bundle", str(target), "--anonymous"]) == 0
    found = packed(target)
    text = "".join((*found, *found.values()))
    assert [name for name in (*PLANTED, SECRET, str(tmp_path)) if name in text] == []
    for line in found["journal.jsonl"].splitlines():
        ev.decode_event(line.encode())  # the journal stays one
    json.loads(found["incident.json"])
    said = r"srobust: n\d+ \(ip1\) of user1: <hidden> in /path\d+/file\d+.py\n"
    assert re.fullmatch(said, found["logs/job.log"])


def test_a_job_that_slurm_has_forgotten_has_findings_of_its_site_and_software(
    job: JobDirectory, tmp_path: Path
) -> None:
    target, events = tmp_path / "fault.tar.gz", load_events(job)
    report = find_report(job, incident_reports(events), 1, "7")
    write_archive(job, report, events, target, FakeSlurm(), anonymous=False)
    assert json.loads(packed(target)["doctor.json"])["hazards"]


def test_an_incident_that_is_not_there_makes_no_archive(
    job: JobDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "fault.tar.gz"
    assert main(["incident", str(job.path), "9", "--bundle", str(target)]) == ExitCode.NO_INPUT
    assert f"fix: 'srobust incidents {job.path}' lists them" in capsys.readouterr().err
    assert main(["incident", str(job.path), "1", "--anonymous"]) == ExitCode.USAGE
    assert main(["doctor", "--anonymous"]) == ExitCode.USAGE
    assert not target.exists()
