"""The journals that releases have written are read by this one: state, status, report, training."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from slurm_robust.cli.main import main
from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.model.journal import fold, read
from slurm_robust.model.state import JobState
from slurm_robust.trainings.earlier import earlier_job
from slurm_robust.version import __version__
from tests.unit.full_records import full, holds

JOURNALS = Path(__file__).parents[2] / "data" / "journals"
EVERY = "every-event"
"""The journal with one event of each class, with a value in each field: no job has written it."""


def state_facts(state: JobState) -> dict[str, Any]:
    """What recovery depends on; the names are those of the files, whatever the fields are called today."""
    world = state.world
    return {
        "run_id": state.run_id,
        "restart_count": state.restart_count,
        "epoch": state.epoch,
        "taken_from": state.taken_from,
        "slots": list(world.slots),
        "spares": list(state.spares),
        "held": list(state.held),
        "evicted": state.evicted,
        "excluded": list(state.excluded),
        "generation": world.generation,
        "running": world.running,
        "best_step": world.best_step,
        "incidents": state.incidents,
        "attempts": [str(attempt.signature) for attempt in world.attempts],
        "sealed": {str(generation): step for generation, step in world.sealed.items()},
        "unsealed": list(world.unsealed),
        "stored": str(world.newest_on_storage),
        "restored": str(world.restored),
        "stride": world.stride,
        "layouts": {str(generation): layout for generation, layout in world.layouts.items()},
        "learned": list(state.learned.modules) if state.learned is not None else [],
        "tested_standbys": {node: test.outcome.value for node, test in state.standby_tests.items()},
        "continued_from": state.continued.from_job if state.continued is not None else 0,
        "code": state.ended.code if state.ended is not None else None,
        "release": state.release,
        "releases": {name: one.value for name, one in state.releases.items()},
        "last_good": state.last_good,
        "candidate": state.candidate.release if state.candidate is not None else "",
        "update": state.update.update if state.update is not None else 0,
        "updates": state.updates,
    }


def every_event(release: str) -> Path:
    return JOURNALS / release / EVERY / "journal.jsonl"


def tags(path: Path) -> set[str]:
    """The classes of events in a journal."""
    return {msgspec.json.decode(line)["event"] for line in path.read_bytes().splitlines()}


def write_golden() -> None:
    """Add what this release has and its journals lack; no line or fact that is there is written anew."""
    path = every_event(__version__)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    known = tags(path)
    with path.open("ab") as journal:
        for kind in get_args(ev.AnyEvent):
            if kind.__struct_config__.tag not in known:
                journal.write(ev.encode_event(full(kind)) + b"\n")
    for journal in (JOURNALS / __version__).glob("*/journal.jsonl"):
        facts = journal.with_name("facts.json")
        if not facts.exists():
            facts.write_text(json.dumps(state_facts(fold(read(journal))), indent=1) + "\n")


if os.environ.get("SROBUST_WRITE_GOLDEN"):
    write_golden()
FOLDERS = sorted(path.parent for path in JOURNALS.glob("*/*/journal.jsonl"))
each_journal = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: f"{path.parent.name}/{path.name}")


@pytest.fixture
def copied(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of that job, on a machine without Slurm."""
    monkeypatch.setenv("PATH", "/nowhere")
    return Path(shutil.copytree(folder, tmp_path / "1", copy_function=shutil.copyfile))


@each_journal
def test_every_line_of_a_released_journal_is_read_with_all_its_fields(folder: Path) -> None:
    for line in (folder / "journal.jsonl").read_bytes().splitlines():
        found = msgspec.json.decode(ev.encode_event(ev.decode_event(line)))
        assert holds(found, msgspec.json.decode(line)), line.decode()


@each_journal
def test_a_released_journal_folds_into_the_same_facts(folder: Path) -> None:
    known = json.loads((folder / "facts.json").read_text())
    found = state_facts(fold(read(folder / "journal.jsonl")))
    assert {name: found[name] for name in known} == known


@each_journal
def test_status_and_report_show_the_job_of_a_released_journal(
    copied: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = json.loads((folder / "facts.json").read_text())
    assert main(["status", str(copied), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["exit_code"], status["generation"]) == (facts["code"], facts["generation"])
    assert main(["report", str(copied), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["incidents"]) == facts["incidents"] or folder.name == EVERY
    assert main(["report", str(copied)]) == 0


@each_journal
def test_a_job_can_go_on_from_the_folder_of_a_released_job(copied: Path) -> None:
    directory = JobDirectory(copied)
    found = earlier_job(directory)
    assert found is not None
    if directory.spec.exists():
        spec = msgspec.json.decode(directory.spec.read_bytes(), type=JobSpec)
        assert holds(json.loads(msgspec.json.encode(spec)), json.loads(directory.spec.read_text()))
        assert (spec.run_id, found.storage) == (found.started.run_id, directory.checkpoints)


def test_the_journals_of_this_release_have_every_event() -> None:
    found = {kind.__struct_config__.tag for kind in get_args(ev.AnyEvent)}
    assert found == tags(every_event(__version__)), (
        "SROBUST_WRITE_GOLDEN=1 pytest tests/unit/report/test_released_journals.py"
    )


def test_a_release_has_journals_of_real_jobs() -> None:
    jobs = [folder for folder in FOLDERS if folder.parent.name == __version__ and folder.name != EVERY]
    events = set[str]().union(*(tags(job / "journal.jsonl") for job in jobs))
    assert events >= {"incident_opened", "node_evicted", "requeue_started", "controller_started"}
