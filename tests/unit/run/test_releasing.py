"""The release that a job starts with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.config.job import CodeConfig, JobConfig
from slurm_robust.config.plan import RunPlan
from slurm_robust.engine.lost_release import in_place_of_lost
from slurm_robust.model import events as ev
from slurm_robust.model.errors import PreflightError
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.journal import fold
from slurm_robust.model.release import Release, ReleaseState, Requester
from slurm_robust.model.state import JobState
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, take
from slurm_robust.run import releasing
from slurm_robust.run.releasing import first_release, later_release
from tests.builders import updates
from tests.builders.events import run_started
from tests.builders.plans import plan

ADA = Requester(user="ada", uid=1000)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text("lr = 1")
    return folder


@pytest.fixture
def directory(code: Path) -> JobDirectory:
    path = code / "srobust-jobs/7"
    path.mkdir(parents=True, mode=0o700)
    return JobDirectory(path)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(releasing, "say", texts.append)
    # What a thread says is said before the test looks.
    monkeypatch.setattr(releasing, "start_thread", lambda name, work: work())
    return texts


def planned(code: Path, **config: object) -> RunPlan:
    return plan(cwd=str(code), config=JobConfig(code=CodeConfig(**config)))


def after(release: Release | None) -> JobState:
    assert release is not None
    return fold([run_started(), ev.ReleaseTaken(t=1.0, release=release)])


def test_a_job_takes_its_first_release_and_says_once_what_was_left_in_its_place(
    code: Path, directory: JobDirectory, said: list[str]
) -> None:
    (code / "data").mkdir()
    (code / "data/a.bin").write_text("x")
    (code / ".gitignore").write_text("data/")
    release = first_release(planned(code), directory)
    assert release == ReleaseStore(directory.releases).read(release.name if release else "")
    assert (release.entry, release.workdir) == ("job/train.py", False)
    (text,) = said
    assert text.startswith(f"release {release.name}: 2 files (")
    assert text.endswith(f" of {code}; left in their places: data (in .gitignore)")


def test_ranks_run_in_the_copy_if_the_configuration_says_so(
    code: Path, directory: JobDirectory, said: list[str]
) -> None:
    release = first_release(planned(code, workdir="release"), directory)
    assert release is not None
    assert release.workdir


def test_a_switch_turns_releases_off(code: Path, directory: JobDirectory, said: list[str]) -> None:
    assert first_release(planned(code, releases=False), directory) is None
    assert (said, directory.releases.exists()) == ([], False)


def test_a_job_whose_code_cannot_be_taken_starts_all_the_same(
    code: Path, directory: JobDirectory, said: list[str]
) -> None:
    for number in range(30):
        (code / f"{number}.txt").write_text("x")
    assert first_release(planned(code, max_files=10), directory) is None
    (text,) = said
    assert text.startswith("warning: the ranks read the code in its place, since no copy of it can be taken")
    assert "more than 10 files" in text
    assert "code.releases: false" in text


@pytest.mark.parametrize("ends_good", [False, True])
def test_code_that_an_earlier_job_rolled_back_runs_again_with_a_warning(
    code: Path, directory: JobDirectory, said: list[str], ends_good: bool
) -> None:
    bad = first_release(planned(code), directory)
    assert bad is not None
    said.clear()
    earlier = JobDirectory(directory.path.parent / str(updates.JOB))
    earlier.path.mkdir(mode=0o700)
    proven = ev.ReleaseProven(t=updates.BEGIN + 900, release=updates.LAYERS, reason="100 steps", step=900)
    events = [*updates.whole(), *([proven] if ends_good else [])]
    for index, event in enumerate(events):
        if isinstance(event, ev.RunStarted):
            command = (*planned(code).command, "--other", "arguments")
            events[index] = structs.replace(event, cwd=str(code), command=command)
        elif isinstance(event, ev.ReleaseTaken) and event.release.name == updates.LAYERS:
            events[index] = structs.replace(event, release=structs.replace(event.release, code=bad.code))
    earlier.journal.write_bytes(b"".join(ev.encode_event(event) + b"\n" for event in events))
    assert first_release(planned(code), directory) == bad
    warnings = [text for text in said if "rolled back" in text]
    if ends_good:
        assert warnings == []
        return
    (text,) = warnings
    assert text.startswith(
        f"warning: this code is that of release {updates.LAYERS}, which job 4711 rolled back"
    )
    assert "it runs all the same" in text
    (code / "train.py").write_text("lr = 2")
    said.clear()
    first_release(planned(code), directory)
    assert [text for text in said if "rolled back" in text] == [], "mended code is new"


def test_a_later_run_goes_on_with_the_release_of_the_journal(
    code: Path, directory: JobDirectory, said: list[str]
) -> None:
    release = first_release(planned(code), directory)
    said.clear()
    assert later_release(planned(code), directory, after(release)) is None
    assert said == []


def test_a_later_run_says_that_the_code_was_edited_meanwhile(
    code: Path, directory: JobDirectory, said: list[str]
) -> None:
    release = first_release(planned(code), directory)
    (code / "train.py").write_text("lr = 2")
    (code / "new.py").write_text("")
    (code / "results.csv").write_text("1")
    said.clear()
    assert later_release(planned(code), directory, after(release)) is None
    assert release is not None
    differs = f"the code in {code} differs from release {release.name}, which goes on"
    assert said == [f"{differs}: new.py, train.py; 'srobust update 7' applies it"]


def test_a_later_run_looks_for_edits_where_the_code_of_its_release_was_taken_from(
    code: Path, directory: JobDirectory, said: list[str], tmp_path: Path
) -> None:
    other = tmp_path / "checkout"
    other.mkdir()
    (other / "train.py").write_text("lr = 3")
    wish = Taking(
        kind=CommandKind.SCRIPT,
        command=("train.py",),
        cwd=str(code),
        roots=(str(other),),
        stands_for={str(other): str(code)},
    )
    release = take(ReleaseStore(directory.releases), wish)
    assert later_release(planned(code), directory, after(release)) is None
    assert said == []
    (other / "train.py").write_text("lr = 4")
    assert later_release(planned(code), directory, after(release)) is None
    (text,) = said
    assert text.startswith(
        f"the code in {other} differs from release {release.name}, which goes on: train.py"
    )


def test_a_job_that_began_without_a_release_goes_on_without_one(
    code: Path, directory: JobDirectory, said: list[str]
) -> None:
    assert later_release(planned(code), directory, fold([run_started()])) is None


@pytest.mark.parametrize("damage", ["gone", "half"])
def test_files_of_a_release_that_are_gone_come_back_from_the_code_in_its_place(
    code: Path, directory: JobDirectory, said: list[str], damage: str
) -> None:
    release = first_release(planned(code), directory)
    assert release is not None
    if damage == "gone":
        shutil.rmtree(directory.releases)
    else:
        (directory.releases / release.name / "code.tar").unlink()
    said.clear()
    again = later_release(planned(code), directory, after(release))
    assert again is not None
    assert (again.name, again.code) == (release.name, release.code)
    assert "are gone from" in said[0]
    assert ReleaseStore(directory.releases).is_whole(again)


def test_a_release_that_can_come_from_nowhere_is_an_error(
    code: Path, directory: JobDirectory, said: list[str]
) -> None:
    release = first_release(planned(code), directory)
    shutil.rmtree(directory.releases)
    with pytest.raises(PreflightError, match="are gone"):
        later_release(planned(code, max_mb=1, paths=("no-such-folder",)), directory, after(release))


def test_the_journal_says_which_code_took_the_place_of_a_release_that_is_gone() -> None:
    old = Release(name="a" * 12, kind=plan().kind, command=("train.py",))
    new = Release(name="b" * 12, kind=plan().kind, command=("train.py",))
    before = [run_started(), ev.ReleaseTaken(t=1.0, release=old)]
    events = in_place_of_lost(fold(before), new, ADA, 5.0)
    state = fold([*before, *events])
    assert (state.release, state.last_good, state.candidate) == (new.name, new.name, None)
    assert state.releases[new.name] is ReleaseState.GOOD
    assert state.update is None


def test_an_update_that_waits_is_superseded_by_what_takes_the_place_of_a_lost_release() -> None:
    old = Release(name="a" * 12, kind=plan().kind, command=("train.py",))
    waiting = Release(name="b" * 12, kind=plan().kind, command=("train.py",))
    first = [run_started(), ev.ReleaseTaken(t=1.0, release=old), ev.ReleaseTaken(t=2.0, release=waiting)]
    asked = ev.UpdateRequested(t=3.0, update=1, release=waiting.name, when="lazy", by=ADA)
    state = fold([*first, asked])
    events = in_place_of_lost(state, waiting, ADA, 5.0)
    assert [type(event).__name__ for event in events] == [
        "UpdateEnded",
        "UpdateRequested",
        "UpdateApplied",
        "ReleaseProven",
    ]
    assert fold([*first, asked, *events]).release == waiting.name
