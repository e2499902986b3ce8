"""When a driver that does not answer, or answers with errors, is held against the node."""

from __future__ import annotations

import pytest

from slurm_robust.inspector.inspection import BUSY_S, PROBE_S, Doubts
from slurm_robust.inspector.observation import Observation
from slurm_robust.model.findings import Finding, Outcome, Suggestion

DRIVER, GPU = ("gpu.lost", ""), ("gpu.lost", "gpu3")


def failing(subject: tuple[str, str]) -> Observation:
    check, name = subject
    found = Finding(check=check, subject=name, outcome=Outcome.FAIL, suggestion=Suggestion.REBOOT)
    return Observation(failed=(found,))


def doubtful(subject: tuple[str, str]) -> Observation:
    return Observation(unknown=(subject,))


class Node:
    """A node whose observations come at any time, and whose workers disturb some of them."""

    def __init__(self) -> None:
        self._doubts = Doubts()
        self._now = 0.0

    def until(self, now: float, *, busy: bool) -> None:
        while self._now < now:
            self._now = min(now, self._now + 1.0)
            self._doubts.note(self._now, busy=busy)

    def observe(self, observation: Observation) -> bool:
        """Whether anything of it fails."""
        sifted = self._doubts.settle(observation, self._now)
        assert len(sifted.failed) + len(sifted.unknown) == len(observation.failed) + len(observation.unknown)
        return bool(sifted.failed)


@pytest.fixture
def node() -> Node:
    made = Node()
    made.until(100.0, busy=False)
    return made


@pytest.mark.parametrize("subject", [DRIVER, GPU])
def test_two_observations_far_enough_apart_count(node: Node, subject: tuple[str, str]) -> None:
    assert not node.observe(doubtful(subject))
    node.until(109.0, busy=False)
    assert not node.observe(failing(subject))
    node.until(110.0, busy=False)
    assert node.observe(failing(subject))


@pytest.mark.parametrize("subject", [DRIVER, GPU])
def test_observations_beside_a_worker_that_starts_or_dies_do_not_count(
    node: Node, subject: tuple[str, str]
) -> None:
    node.until(140.0, busy=True)
    assert not node.observe(doubtful(subject))
    node.until(150.0, busy=True)
    assert not node.observe(failing(subject))
    node.until(150.0 + PROBE_S, busy=False)
    assert not node.observe(failing(subject)), "it began beside the worker"
    node.until(160.0, busy=False)
    assert not node.observe(failing(subject)), "the first that counts"
    node.until(170.0, busy=False)
    assert node.observe(failing(subject))


def test_a_disturbed_run_between_two_others_changes_nothing(node: Node) -> None:
    assert not node.observe(doubtful(DRIVER))
    node.until(110.0, busy=True)
    assert not node.observe(failing(DRIVER))
    node.until(120.0, busy=False)
    assert node.observe(failing(DRIVER))


def test_an_answer_in_between_begins_anew(node: Node) -> None:
    assert not node.observe(doubtful(DRIVER))
    node.observe(Observation(well=(GPU,)))
    node.until(120.0, busy=False)
    assert not node.observe(doubtful(DRIVER))
    assert not node.observe(failing(DRIVER))


def test_workers_that_never_get_started_do_not_excuse_the_driver_for_ever(node: Node) -> None:
    node.until(100.0 + BUSY_S, busy=True)
    assert not node.observe(doubtful(DRIVER))
    node.until(110.0 + BUSY_S, busy=True)
    assert not node.observe(failing(DRIVER))
    node.until(120.0 + BUSY_S, busy=True)
    assert node.observe(failing(DRIVER))


def test_what_was_no_doubt_before_counts_at_once(node: Node) -> None:
    node.until(110.0, busy=True)
    assert node.observe(failing(GPU))
    assert node.observe(failing(("gpu.ecc", "gpu3")))
