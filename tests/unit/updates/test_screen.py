"""What people read of updates and releases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from msgspec import structs
from rich.console import Console

from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.release import When
from slurm_robust.releases.compare import ReleaseDiff
from slurm_robust.terminal.console import show
from slurm_robust.updates import screen
from slurm_robust.updates.follow import UpdatePhase, progress_of
from slurm_robust.updates.listing import listing
from tests.unit.updates.stories import NEW, OLD, Story, trained, updated

JUDGING = screen.Judging(good_steps=100, good_s=1800, before=OLD)
DEADLINE = 1_764_586_400.0


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def told(story: Story) -> str:
    return "\n".join(screen.outcome(progress_of(story.events, 1), "7", JUDGING))


def asked(when: When = When.NOW) -> Story:
    deadline = DEADLINE if when is When.LAZY else None
    return trained().taken(NEW).asked(1, NEW, when, deadline=deadline)


@pytest.mark.parametrize(
    ("story", "says"),
    [
        (trained, "update 1: waiting for the journal to show it"),
        (asked, f"update 1: trying release {NEW}"),
        (lambda: asked().crashes(3), f"update 1: trying release {NEW} (incident 3 goes first)"),
        (lambda: asked().tried(1), f"update 1: release {NEW} passed its trial, waiting for a step boundary"),
        (
            lambda: asked(When.LAZY).tried(1),
            "update 1: waiting for the next recovery, until 2025-12-01 10:53:20 at the latest",
        ),
        (lambda: asked().tried(1).stops(1), "update 1: stopping the ranks behind a snapshot"),
        (
            lambda: asked().tried(1).stops(1).applied(1, NEW, OLD, 60, 60),
            f"update 1: starting release {NEW} from step 60",
        ),
    ],
)
def test_a_progress_line_says_what_is_done_now(story: Callable[[], Story], says: str) -> None:
    assert screen.line(progress_of(story().events, 1)) == says


def test_a_progress_line_says_what_the_trial_is_at_if_that_is_known() -> None:
    known = progress_of(asked().events, 1)
    said = screen.line(known, "first steps on n3")
    assert said == f"update 1: trying release {NEW}: first steps on n3"


def test_an_update_that_runs_says_what_it_cost_and_how_to_go_back() -> None:
    assert told(updated()) == (
        f"update 1: release {NEW} has made step 61; 3.0 s without training, 0 steps repeated\n"
        f"it is a candidate, good after 100 steps or 30 min; if it fails before, release {OLD} comes back by "
        "itself; 'srobust rollback 7' goes back at once"
    )


def test_an_update_of_a_job_without_steps_says_that_it_was_started() -> None:
    started = Story().taken(OLD).taken(NEW).asked(1, NEW).tried(1).stops(1).applied(1, NEW, OLD, -1, -1)
    known = progress_of(started.events, 1)
    assert not known.has_stepped
    assert told(started).startswith(f"update 1: release {NEW} was started; the job has never made a step")


def test_a_release_without_a_way_back_is_called_no_candidate() -> None:
    none = structs.replace(JUDGING, before="")
    said = list(screen.outcome(progress_of(updated().events, 1), "7", none))
    assert (
        said[-1]
        == "it is good after 100 steps or 30 min; if it fails before, no release comes back by itself"
    )


def test_of_a_script_that_resumes_by_itself_no_steps_are_counted() -> None:
    story = asked().tried(1).stops(1).applied(1, NEW, OLD, 60, -1).trains(NEW, 0, 1)
    story.events[-2] = structs.replace(story.events[-2], reported=False)
    assert "has made its first step; 3.0 s without training; it goes on where the script resumes" in told(
        story
    )
    known = progress_of(story.events, 1)
    assert (known.repeated, known.undone) == (None, None)


def test_steps_are_repeated_if_the_snapshot_of_the_update_is_lost_before_the_first_step() -> None:
    story = asked().tried(1).stops(1).applied(1, NEW, OLD, 60, 60)
    launch = ev.GenerationLaunched(t=story.t, generation=2, slots=("n1",), master="n1", release=NEW)
    story.add(structs.replace(launch, restore=CheckpointId(step=60, generation=1)))
    story.generation = 2
    assert ", 13 steps repeated" in told(story.trains(NEW, 48, 49, restore=47))


def test_an_update_from_an_older_step_says_how_many_are_undone() -> None:
    story = trained().taken(NEW).asked(1, NEW, from_step=20).tried(1).stops(1)
    said = told(story.applied(1, NEW, OLD, step=60, kept=20).trains(NEW, 21, 22, restore=20))
    assert "3.0 s without training; it goes on from step 20: 40 steps after it are undone\n" in said


def test_an_update_that_was_refused_shows_where_and_why() -> None:
    trace = 'Traceback (most recent call last):\n  File "train.py", line 3\nImportError: no \x1b[2Jflash_attn'
    story = asked().tried(1, ok=False, node="n2", text="ImportError: no flash_attn", traceback=trace)
    said = told(story)
    assert f"refused: release {NEW} failed its trial on n2: ImportError: no flash_attn" in said
    assert '  File "train.py", line 3' in said
    assert "\x1b" not in said
    assert said.endswith("the job goes on as before")


def test_an_update_that_waits_says_how_to_withdraw_it_and_what_was_not_tried() -> None:
    said = told(asked(When.LAZY).tried(1, untried=("its steps: no standby is ready",)))
    assert "waits for the next recovery, until 2025-12-01 10:53:20 at the latest" in said
    assert "not tried: its steps: no standby is ready" in said
    assert "'srobust rollback 7 --withdraw' withdraws it" in said


def test_a_rollback_names_the_incident_with_the_evidence() -> None:
    said = told(updated().crashes(4).rolled_back(4, NEW, OLD, 60))
    assert said.splitlines() == [
        f"update 1 was rolled back: release {NEW} raised ValueError at train.py:12",
        "'srobust incident 7 4' has the evidence",
    ]


def test_the_table_of_releases_marks_the_one_that_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    story = updated().asked(2, OLD, When.LAZY, rollback=True, deadline=DEADLINE).tried(2)
    show(listing(story.events), screen.releases, json=False)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "2 releases of job 7"
    (old,) = (line for line in lines if line.startswith(OLD))
    assert old.startswith(f"{OLD} good 2025-11-30 10:53:20 job 0-60 9f8e7d6c5 main (changed)")
    (new,) = (line for line in lines if line.startswith(f"> {NEW}"))
    for part in ("candidate", "61-80", 'update 1 by ada "smaller lr", applied at step 60: candidate'):
        assert part in new
    waits = (
        f"rollback 2 to release {OLD} by ada (uid 1000) on login1: it is tried; it is applied with the next"
    )
    assert any(line.startswith(waits) for line in lines)
    assert "command train.py --lr 1e-4" in lines


@pytest.mark.parametrize("columns", [60, 80, 119])
def test_on_a_narrow_screen_names_and_states_stay_whole(
    columns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Console(width=columns, force_terminal=True, color_system=None, highlight=False)
    terminal.print(screen.releases(listing(updated().events)))
    out = capsys.readouterr().out.splitlines()
    assert max(map(len, out)) <= columns
    lines = [" ".join(line.split()) for line in out]
    assert f"> {NEW} candidate 61-80" in lines
    said = " ".join(lines)
    assert f"> {NEW} taken 2025-11-30 10:53:25 by ada of 9f8e7d6c5 main (changed): update 1 by ada" in said


def test_what_became_of_an_update_that_the_journal_never_showed() -> None:
    known = structs.replace(progress_of(trained().events, 1), end="Slurm says CANCELLED")
    (line,) = screen.outcome(known, "7", JUDGING)
    assert line == "the job has ended before update 1 was done: Slurm says CANCELLED"


def test_steps_of_other_ranks_than_those_that_train_are_not_of_the_release() -> None:
    story = asked().tried(1).stops(1).applied(1, NEW, OLD, 60, 60)
    story.add(ev.FirstStep(t=story.t, generation=2, step=61, reported=True, world="rollout"))
    assert progress_of(story.events, 1).phase is UpdatePhase.STARTING


def test_a_program_gets_the_lines_of_a_difference_whole(capsys: pytest.CaptureFixture[str]) -> None:
    line = "+x = " + "1 + " * 100 + "1"
    diff = ReleaseDiff(changed=tuple(f"gpt/{n}.py" for n in range(30)), patch=(line,))
    show(diff, lambda one: screen.difference(OLD, NEW, one), json=False)
    out = capsys.readouterr().out
    assert line in out.splitlines()
    assert "10 files changed" in out
    show(diff, lambda one: screen.difference(OLD, NEW, one, most_paths=100), json=False)
    assert "gpt/29.py" in capsys.readouterr().out


def test_hostile_names_and_messages_control_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    story = trained().taken(NEW).asked(1, NEW, message="\x1b[2J\x9b31mgone\nnew line\u202e")
    show(listing(story.events), screen.releases, json=False)
    out = capsys.readouterr().out
    assert not {"\x1b", "\x9b", "\u202e"} & set(out)
