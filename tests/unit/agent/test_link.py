from __future__ import annotations

from slurm_robust.agent.link import CHECK_EVERY_S, RECONNECT_EVERY_S, SILENCE_S, ControllerLink
from slurm_robust.wire.epochs import EpochRecord


def epoch(number: int) -> EpochRecord:
    return EpochRecord(epoch=number, host="h", addresses=(), port=1, pid=1, run_id="r")


def test_the_first_read_is_due_at_once_and_only_one_at_a_time() -> None:
    link = ControllerLink()
    assert link.wants_epoch(0.0)
    assert not link.wants_epoch(100.0)


def test_without_a_controller_it_reads_the_epochs_again_and_again() -> None:
    link = ControllerLink()
    for second in range(100):
        assert link.wants_epoch(float(second))
        assert not link.on_epoch(None, float(second))


def test_a_read_that_fails_is_repeated() -> None:
    link = ControllerLink()
    link.wants_epoch(0.0)
    link.on_epoch_failed()
    assert not link.wants_epoch(0.5)
    assert link.wants_epoch(1.0)


def test_an_answering_controller_is_kept_and_others_are_searched_rarely() -> None:
    link = ControllerLink()
    link.wants_epoch(0.0)
    assert link.on_epoch(epoch(1), 0.0)
    looked = []
    for second in range(1, 130):
        link.on_answer(1, second - 0.5)
        if link.wants_epoch(float(second)):
            looked.append(second)
            assert not link.on_epoch(epoch(1), float(second))
    assert looked == [CHECK_EVERY_S, 2 * CHECK_EVERY_S]


def test_a_silent_controller_leads_to_the_newest_one() -> None:
    link = ControllerLink()
    link.wants_epoch(0.0)
    link.on_epoch(epoch(1), 0.0)
    link.on_answer(1, 10.0)
    assert not link.wants_epoch(10.0 + SILENCE_S)
    assert link.wants_epoch(10.1 + SILENCE_S)
    assert link.on_epoch(epoch(2), 14.0)
    assert link.controller == epoch(2)


def test_an_answer_of_an_older_controller_does_not_count() -> None:
    link = ControllerLink()
    link.wants_epoch(0.0)
    link.on_epoch(epoch(2), 0.0)
    link.on_answer(1, 5.0)
    assert link.wants_epoch(5.1)


def test_all_addresses_are_tried_again_while_nobody_answers() -> None:
    link = ControllerLink()
    link.wants_epoch(0.0)
    link.on_epoch(epoch(1), 0.0)
    tried = []
    for second in range(1, 25):
        if link.wants_epoch(float(second)) and link.on_epoch(epoch(1), float(second)):
            tried.append(second)
    assert tried == [RECONNECT_EVERY_S + 1, 2 * (RECONNECT_EVERY_S + 1)]
