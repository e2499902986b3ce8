"""When an alert begins, when it is over, and how long it is sent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.inspector.inspection import AlertBook
from slurm_robust.inspector.observation import Observation
from slurm_robust.model.findings import MAX_ALERTS, REMEMBERED_S, Alert, Finding, Outcome, Party, Suggestion


def failure(check: str = "gpu.lost", subject: str = "gpu3", **more: object) -> Finding:
    fields = {"outcome": Outcome.FAIL, "text": "fell off the bus", "suggestion": Suggestion.REBOOT, **more}
    return Finding(check=check, subject=subject, **fields)  # type: ignore[arg-type]


def flap(count: int = 1, suggestion: Suggestion = Suggestion.MONITOR) -> Finding:
    return failure(
        "infiniband.flaps",
        "mlx5_0/1",
        text="link was lost",
        blame=Party.FABRIC,
        suggestion=suggestion,
        count=count,
    )


LOST = Observation(failed=(failure(),))
WELL = Observation(well=(("gpu.lost", "gpu3"),))
QUIET = Observation(well=(("infiniband.flaps", "mlx5_0/1"),))


@pytest.fixture
def book() -> AlertBook:
    return AlertBook()


def test_a_fault_is_one_alert_from_its_beginning_to_its_end(book: AlertBook) -> None:
    assert book.take(LOST, 10.0, training=True)
    assert not book.take(LOST, 14.0, training=True)
    (alert,) = book.alerts(15.0)
    assert alert == Alert(
        number=1,
        check="gpu.lost",
        subject="gpu3",
        text="fell off the bus",
        blame=Party.NODE,
        suggestion=Suggestion.REBOOT,
        age_s=5.0,
    )
    assert book.take(WELL, 18.0, training=True)
    assert [(a.age_s, a.ended_s) for a in book.alerts(20.0)] == [(10.0, 2.0)]
    assert len(book.alerts(18.0 + REMEMBERED_S)) == 1
    assert book.alerts(18.1 + REMEMBERED_S) == ()


def test_a_fault_that_comes_again_is_another_alert(book: AlertBook) -> None:
    for now, observation in enumerate((LOST, WELL, LOST)):
        book.take(observation, float(now), training=True)
    assert [(a.number, a.ended_s) for a in book.alerts(2.0)] == [(1, 1.0), (2, None)]


@pytest.mark.parametrize(
    "observation",
    [
        Observation(),
        Observation(unknown=(("gpu.lost", "gpu3"),)),
        Observation(unknown=(("gpu.lost", ""),)),
        Observation(well=(("gpu.lost", "gpu0"), ("gpu.ecc", "gpu3"))),
    ],
    ids=["other checks", "unknown", "unknown as a whole", "vanished"],
)
def test_what_does_not_show_that_it_is_over_changes_nothing(
    book: AlertBook, observation: Observation
) -> None:
    book.take(LOST, 0.0, training=True)
    assert not book.take(observation, 1.0, training=True)
    assert [a.ended_s for a in book.alerts(1.0)] == [None]


def test_a_check_that_passes_as_a_whole_speaks_for_its_subjects(book: AlertBook) -> None:
    book.take(Observation(failed=(failure("kernel.xid"),)), 0.0, training=True)
    assert book.take(Observation(well=(("kernel.xid", ""),)), 1.0, training=True)


def test_a_driver_that_hung_is_over_when_nothing_of_the_check_is_wrong(book: AlertBook) -> None:
    book.take(Observation(failed=(failure(subject=""),)), 0.0, training=True)
    assert not book.take(Observation(well=WELL.well, unknown=(("gpu.lost", "gpu0"),)), 1.0, training=True)
    assert book.take(WELL, 2.0, training=True)
    assert [a.ended_s for a in book.alerts(2.0)] == [0.0]


def test_what_was_so_before_the_training_counts_only_if_it_keeps_jobs_away(book: AlertBook) -> None:
    before = Observation(failed=(failure(), flap()))
    book.take(before, 0.0, training=False)
    book.take(before, 10.0, training=True)
    assert [(a.check, a.age_s) for a in book.alerts(10.0)] == [("gpu.lost", 10.0)]
    assert not book.take(QUIET, 20.0, training=True), "the end of what was no alert is none"


def test_a_link_that_is_lost_again_is_counted_again(book: AlertBook) -> None:
    """Its check says for an hour that it was lost; each further loss is an alert of its own."""
    assert not book.take(Observation(failed=(flap(1),)), 0.0, training=False)
    counts = [1, 2, 3, 2, 2, 3]  # the oldest loss is forgotten after an hour
    began = [
        book.take(Observation(failed=(flap(n),)), 10.0 * i, training=True) for i, n in enumerate(counts, 1)
    ]
    assert began == [False, True, True, False, False, True]
    alerts = book.alerts(60.0)
    assert [(a.number, a.age_s, a.ended_s) for a in alerts] == [
        (1, 40.0, 30.0),
        (2, 30.0, 0.0),
        (3, 0.0, None),
    ]
    assert all(a.is_link for a in alerts)


def test_a_fault_that_gets_worse_is_reported_again(book: AlertBook) -> None:
    book.take(Observation(failed=(flap(),)), 0.0, training=False)
    assert book.take(Observation(failed=(flap(suggestion=Suggestion.RESET),)), 1.0, training=False)
    assert [a.suggestion for a in book.alerts(1.0)] == [Suggestion.RESET]


def test_open_alerts_are_sent_before_ended_ones_and_the_newest_before_the_oldest(book: AlertBook) -> None:
    book.take(LOST, 0.0, training=True)
    for number in range(50):
        book.take(Observation(failed=(flap(number + 1),)), float(number), training=True)
    alerts = book.alerts(50.0)
    assert len(alerts) == MAX_ALERTS
    assert (alerts[0].check, alerts[-1].number) == ("gpu.lost", 51)
    assert [a.number for a in alerts[1:]] == list(range(21, 52))


subject = st.sampled_from(
    [("gpu.lost", "gpu0"), ("gpu.lost", ""), ("infiniband.flaps", "mlx5_0/1"), ("kernel.xid", "")]
)
fault = st.builds(
    lambda s, suggestion, count: failure(*s, suggestion=suggestion, count=count),
    subject,
    st.sampled_from([Suggestion.MONITOR, Suggestion.RESET]),
    st.integers(0, 3),
)
observations_drawn = st.builds(
    Observation,
    failed=st.lists(fault, max_size=3, unique_by=lambda f: (f.check, f.subject)).map(tuple),
    well=st.lists(subject, max_size=3).map(tuple),
    unknown=st.lists(subject, max_size=2).map(tuple),
)


@settings(max_examples=50)
@given(st.lists(st.tuples(observations_drawn, st.booleans(), st.floats(0, 300)), max_size=20))
def test_alerts_are_numbered_and_their_times_fit_together(
    observations: list[tuple[Observation, bool, float]],
) -> None:
    book, now, highest = AlertBook(), 0.0, 0
    for observation, training, pause_s in observations:
        now += pause_s
        book.take(observation, now, training=training)
        alerts = book.alerts(now)
        numbers = [alert.number for alert in alerts]
        assert numbers == sorted(set(numbers))
        assert max(numbers, default=0) <= highest + len(observation.failed)
        highest = max([highest, *numbers])
        assert all(0 <= (a.ended_s or 0.0) <= a.age_s <= now for a in alerts)
        standing = [(a.check, a.subject) for a in alerts if a.ended_s is None]
        assert len(standing) == len(set(standing))
