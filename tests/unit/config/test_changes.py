"""What of a job's configuration an update can change."""

from __future__ import annotations

import pytest

from slurm_robust.config.changes import CHANGEABLE, changes, with_file
from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.job import JobConfig, Limits
from slurm_robust.config.reader import schema_keys
from slurm_robust.model.errors import ExitCode

BEGAN = JobConfig(nodes=4, limits=Limits(total=7))


def refusal(text: str) -> str:
    with pytest.raises(InvalidSettings) as caught:
        with_file(BEGAN, text.encode(), "new.yaml")
    assert caught.value.exit_code == ExitCode.CONFIG
    return str(caught.value)


def test_what_a_file_sets_changes_and_the_rest_stays() -> None:
    found = with_file(BEGAN, b"detect:\n  hang_factor: 5\n", "new.yaml")
    assert (found.detect.hang_factor, found.nodes, found.limits.total) == (5, 4, 7)
    (change,) = changes(BEGAN, found)
    assert (change.key, change.before, change.after) == ("detect.hang_factor", "3.0", "5.0")


def test_the_whole_file_of_the_job_may_be_given_again() -> None:
    assert with_file(BEGAN, b"nodes: 4\nlimits:\n  total: 9\n", "new.yaml").limits.total == 9


def test_an_empty_file_changes_nothing() -> None:
    assert with_file(BEGAN, b"# nothing\n", "new.yaml") == BEGAN


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nodes: 8\n", "new.yaml, line 1: nodes cannot change while the job runs (4, not 8)"),
        ("parallel:\n  tp: 2\n", "new.yaml, line 2: parallel.tp cannot change"),
        ("job_dir: /elsewhere\n", "submit a new job"),
        ("agents:\n  wrapper: [apptainer, exec, b.sif]\n", "--image PATH"),
        ("timings:\n  heartbeat_s: 2\n", "agents and workers are started with it"),
        ("code:\n  releases: false\n", "without releases there are no updates"),
    ],
)
def test_what_cannot_change_is_named_with_the_way_that_can(text: str, says: str) -> None:
    assert says in refusal(text)


def test_all_that_is_wrong_is_said_together() -> None:
    said = refusal("nodes: 8\nlimits:\n  total: many\nmode: observe\n")
    assert all(key in said for key in ("nodes cannot", "limits.total must be", "mode cannot"))


def test_addresses_of_channels_are_secrets_and_not_shown() -> None:
    secret = "https://hooks.example.org/T0/s3cret"
    said = refusal(f"notify:\n  channels:\n    - name: chat\n      slack: {secret}\n")
    assert "notify.channels cannot change" in said
    assert "s3cret" not in said


def test_values_that_contradict_those_that_stay_are_refused() -> None:
    assert "less than two heartbeats" in refusal("timings:\n  node_dead_s: 0.5\n")


def test_every_key_that_may_change_exists() -> None:
    assert set(schema_keys(JobConfig)) >= CHANGEABLE
