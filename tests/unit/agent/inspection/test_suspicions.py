"""When a driver that does not answer, or answers with errors, is held against the node."""

from __future__ import annotations

import pytest

from slurm_robust.agent.inspection.looked import Looked
from slurm_robust.agent.inspection.suspicions import BUSY_S, LOOK_S, Suspicions
from slurm_robust.model.findings import Finding, Outcome, Suggestion

DRIVER, GPU = ("gpu.lost", ""), ("gpu.lost", "gpu3")


def failing(subject: tuple[str, str]) -> Looked:
    check, name = subject
    found = Finding(check=check, subject=name, outcome=Outcome.FAIL, suggestion=Suggestion.REBOOT)
    return Looked(failed=(found,))


def doubtful(subject: tuple[str, str]) -> Looked:
    return Looked(unknown=(subject,))


class Node:
    """A node whose looks come at any time, and whose workers disturb some of them."""

    def __init__(self) -> None:
        self._suspicions = Suspicions()
        self._now = 0.0

    def until(self, now: float, *, busy: bool) -> None:
        while self._now < now:
            self._now = min(now, self._now + 1.0)
            self._suspicions.note(self._now, busy=busy)

    def look(self, looked: Looked) -> bool:
        """Whether anything of it fails."""
        sifted = self._suspicions.sift(looked, self._now)
        assert len(sifted.failed) + len(sifted.unknown) == len(looked.failed) + len(looked.unknown)
        return bool(sifted.failed)


@pytest.fixture
def node() -> Node:
    made = Node()
    made.until(100.0, busy=False)
    return made


@pytest.mark.parametrize("subject", [DRIVER, GPU])
def test_two_looks_far_enough_apart_count(node: Node, subject: tuple[str, str]) -> None:
    assert not node.look(doubtful(subject))
    node.until(109.0, busy=False)
    assert not node.look(failing(subject))
    node.until(110.0, busy=False)
    assert node.look(failing(subject))


@pytest.mark.parametrize("subject", [DRIVER, GPU])
def test_looks_beside_a_worker_that_starts_or_dies_do_not_count(node: Node, subject: tuple[str, str]) -> None:
    node.until(140.0, busy=True)
    assert not node.look(doubtful(subject))
    node.until(150.0, busy=True)
    assert not node.look(failing(subject))
    node.until(150.0 + LOOK_S, busy=False)
    assert not node.look(failing(subject)), "it began beside the worker"
    node.until(160.0, busy=False)
    assert not node.look(failing(subject)), "the first that counts"
    node.until(170.0, busy=False)
    assert node.look(failing(subject))


def test_a_disturbed_look_between_two_others_changes_nothing(node: Node) -> None:
    assert not node.look(doubtful(DRIVER))
    node.until(110.0, busy=True)
    assert not node.look(failing(DRIVER))
    node.until(120.0, busy=False)
    assert node.look(failing(DRIVER))


def test_an_answer_in_between_begins_anew(node: Node) -> None:
    assert not node.look(doubtful(DRIVER))
    node.look(Looked(well=(GPU,)))
    node.until(120.0, busy=False)
    assert not node.look(doubtful(DRIVER))
    assert not node.look(failing(DRIVER))


def test_workers_that_never_get_started_do_not_excuse_the_driver_for_ever(node: Node) -> None:
    node.until(100.0 + BUSY_S, busy=True)
    assert not node.look(doubtful(DRIVER))
    node.until(110.0 + BUSY_S, busy=True)
    assert not node.look(failing(DRIVER))
    node.until(120.0 + BUSY_S, busy=True)
    assert node.look(failing(DRIVER))


def test_what_was_no_doubt_before_counts_at_once(node: Node) -> None:
    node.until(110.0, busy=True)
    assert node.look(failing(GPU))
    assert node.look(failing(("gpu.ecc", "gpu3")))
