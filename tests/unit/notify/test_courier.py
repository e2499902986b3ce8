"""Batches, the limit per hour, retries, and what survives a restart of the process."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_robust.model.notice import ChannelState, Notice, NoticeKind, Notified, Severity
from slurm_robust.notify.courier import (
    GIVEN_UP_S,
    HOUR_S,
    MAX_TRIES,
    MAX_WAITING,
    Courier,
    Delivery,
    Route,
    SendFailure,
)
from slurm_robust.notify.message import MAX_NOTICES, Subject
from tests.unit.notify.test_message import notice

JOB = Subject(job="7", name="7")
BATCH_S = 10.0
LIMIT_S = 5.0
FAILURE = SendFailure(text="no")


def route(
    name: str = "a", least: Severity = Severity.INFO, kinds: frozenset[NoticeKind] = frozenset(NoticeKind)
) -> Route:
    return Route(name=name, kinds=kinds, min_severity=least, timeout_s=LIMIT_S)


def courier(
    *routes: Route,
    per_hour: int = 20,
    before: Notified | None = None,
    now: float = 0.0,
    batch_s: float = BATCH_S,
) -> Courier:
    return Courier(
        JOB,
        routes or (route(),),
        per_hour=per_hour,
        batch_s=batch_s,
        before=before or Notified(run_id="r"),
        now=now,
    )


def numbers(order: Delivery) -> list[int]:
    """The incidents in a message."""
    lines = [line for line in order.message.text.splitlines() if ": incident " in line and line[0] != "s"]
    return [int(line.split(": incident ")[1].split(":")[0]) for line in lines]


def test_what_happens_within_the_time_of_a_batch_is_one_message() -> None:
    it = courier()
    it.take([notice(1)], 0.0)
    it.take([notice(2)], 9.0)
    assert it.due(9.9) == []
    assert it.next_at(9.9) == 10.0
    (order,) = it.due(10.0)
    assert numbers(order) == [1, 2]
    it.take([notice(3)], 11.0)
    assert it.due(30.0) == []  # the message is still on its way
    it.sent("a", 30.0)
    assert it.due(39.0) == []
    assert [numbers(order) for order in it.due(40.0)] == [[3]]


def test_a_channel_gets_its_kinds_from_its_severity_on() -> None:
    it = courier(
        route("all"),
        route("urgent", Severity.CRITICAL),
        route("ends", kinds=frozenset({NoticeKind.END})),
        batch_s=0.0,
    )
    it.take([notice(1)], 0.0)
    assert [order.channel for order in it.due(0.0)] == ["all"]
    it.take([notice(2, kind=NoticeKind.END, severity=Severity.CRITICAL)], 0.0)
    assert [order.channel for order in it.due(0.0)] == ["urgent", "ends"]


def test_a_channel_for_warnings_is_told_with_them_that_an_incident_is_over_and_never_that_alone() -> None:
    it = courier(route(least=Severity.WARNING, kinds=frozenset({NoticeKind.INCIDENT})))
    over = notice(1, key="over", kind=NoticeKind.RECOVERY, severity=Severity.INFO, text="it is over")
    it.take([notice(1), over, replace(over, key="other", incident=2)], 0.0)
    (order,) = it.due(BATCH_S)
    assert order.message.subject.endswith("it is over")
    assert order.message.facts["COUNT"] == "2"
    it.sent("a", BATCH_S)
    it.take([replace(over, key="late")], 20.0)
    assert it.due(100.0) == []


def test_the_last_message_of_an_hour_is_kept_for_what_is_critical() -> None:
    it = courier(per_hour=3, batch_s=0.0)
    sent = []
    for number in range(30):
        it.take([notice(number)], float(number))
        for order in it.due(float(number)):
            sent.append(numbers(order))
            it.sent("a", float(number))
    assert sent == [[0], [1]]
    it.take([notice(30, severity=Severity.CRITICAL, t=30.0)], 30.0)
    (order,) = it.due(30.0)
    assert 30 in numbers(order)
    assert f"{29 - MAX_NOTICES} more were left out." in order.message.text
    it.sent("a", 30.0)
    it.take([notice(31)], 31.0)
    assert it.due(HOUR_S - 1) == []
    assert it.next_at(31.0) == HOUR_S + 1
    assert [numbers(order) for order in it.due(HOUR_S + 1)] == [[31]]


def test_of_too_many_the_oldest_are_left_out_and_counted() -> None:
    it = courier()
    it.take([notice(number) for number in range(MAX_WAITING + 7)], 0.0)
    (order,) = it.due(BATCH_S)
    assert numbers(order) == list(range(MAX_WAITING + 7 - MAX_NOTICES, MAX_WAITING + 7))
    assert f"{MAX_WAITING + 7 - MAX_NOTICES} more were left out." in order.message.text


def test_a_failure_is_tried_again_later_and_later_then_the_channel_is_given_up_for_a_while() -> None:
    it = courier(batch_s=0.0)
    it.take([notice(1)], 0.0)
    now, times = 0.0, []
    for _ in range(MAX_TRIES):
        at = it.next_at(now)
        assert at is not None
        now = max(now, at)
        assert len(it.due(now)) == 1
        it.failed("a", FAILURE, now)
        times.append(now)
    assert times == [0.0, 2.0, 7.0, 22.0, 82.0]
    assert it.lines() == ["notifications: channel a is given up for 15 min, the job is not affected: no"]
    assert it.record(0).given_up(now) == {"a": "no"}
    assert it.next_at(now) == now + GIVEN_UP_S
    it.due(now + GIVEN_UP_S)
    it.failed("a", FAILURE, now + GIVEN_UP_S)
    assert it.lines() == []  # it was said
    (order,) = it.due(now + 2 * GIVEN_UP_S)
    it.sent("a", now + 2 * GIVEN_UP_S)
    assert numbers(order) == [1]
    assert it.lines() == ["notifications: channel a works again"]
    assert it.record(0).given_up(now) == {}


def test_a_channel_that_asks_for_patience_gets_it() -> None:
    it = courier(batch_s=0.0)
    it.take([notice(1)], 0.0)
    it.due(0.0)
    it.failed("a", SendFailure(text="429", retry_after_s=90.0), 0.0)
    assert it.next_at(0.0) == 90.0
    it.due(90.0)
    it.failed("a", SendFailure(text="429", retry_after_s=1e9), 90.0)
    assert it.next_at(90.0) == 90.0 + GIVEN_UP_S


def test_a_permanent_failure_gives_the_channel_up_at_once() -> None:
    it = courier(batch_s=0.0)
    it.take([notice(1)], 0.0)
    it.due(0.0)
    it.failed("a", SendFailure(text="revoked", permanent=True), 0.0)
    assert it.next_at(0.0) == GIVEN_UP_S


def test_one_channel_that_fails_does_not_delay_another() -> None:
    it = courier(route("bad"), route("good"), batch_s=0.0)
    it.take([notice(1)], 0.0)
    it.due(0.0)
    it.failed("bad", FAILURE, 0.0)
    it.sent("good", 0.0)
    it.take([notice(2)], 1.0)
    assert [(order.channel, numbers(order)) for order in it.due(1.0)] == [("good", [2])]
    assert [(order.channel, numbers(order)) for order in it.due(2.0)] == [("bad", [1, 2])]


def test_the_last_call_waits_for_no_batch_and_tries_a_channel_that_was_given_up_once() -> None:
    it = courier(route("new"), route("dead"))
    it.take([notice(1)], 0.0)
    it.due(10.0)
    it.sent("new", 10.0)
    it.failed("dead", SendFailure(text="x", permanent=True), 10.0)
    it.take([notice(2)], 11.0)
    it.last_call(11.0)
    assert not it.is_done
    assert {order.channel: numbers(order) for order in it.due(11.0)} == {"new": [2], "dead": [1, 2]}
    it.failed("dead", SendFailure(text="x", permanent=True), 11.0)
    it.failed("new", FAILURE, 11.0)
    assert not it.is_done
    assert [order.channel for order in it.due(13.0)] == ["new"]
    it.sent("new", 13.0)
    assert it.is_done
    assert it.untold() == {"dead": 2}


def test_a_limit_does_not_hold_up_the_end() -> None:
    it = courier(per_hour=1, batch_s=0.0)
    it.take([notice(1)], 0.0)
    it.due(0.0)
    it.sent("a", 0.0)
    it.take([notice(2)], 1.0)
    it.last_call(1.0)
    assert it.is_done


def test_what_may_have_been_sent_is_sent_again_and_says_so() -> None:
    it = courier(batch_s=0.0)
    it.take([notice(1)], 100.0)
    it.due(100.0)
    after = courier(before=it.record(5), now=101.0, batch_s=0.0)
    assert after.next_at(101.0) == 100.0 + LIMIT_S  # the other process may still be sending
    assert after.due(104.9) == []
    (order,) = after.due(105.0)
    assert numbers(order) == [1]
    assert "may have been sent before" in order.message.text
    assert len(after.record(5).channels["a"].sent) == 2


def test_what_was_sent_is_known_to_the_next_process() -> None:
    it = courier(batch_s=0.0)
    it.take([notice(1)], 0.0)
    it.due(0.0)
    it.sent("a", 0.0)
    after = courier(before=it.record(5), now=1.0, batch_s=0.0)
    after.take([notice(1)], 1.0)
    assert after.next_at(1.0) is None


def test_what_is_old_or_not_for_a_channel_is_never_told_also_with_another_configuration() -> None:
    it = courier(route(least=Severity.CRITICAL), batch_s=0.0)
    it.take([notice(1)], 0.0, old=True)
    it.take([notice(2)], 0.0)
    after = courier(route("a"), route("new"), before=it.record(5), now=1.0, batch_s=0.0)
    after.take([notice(1), notice(2)], 1.0, old=True)
    after.take([notice(3)], 1.0)
    assert [numbers(order) for order in after.due(1.0)] == [[3], [3]]


def test_the_state_of_a_channel_that_is_not_configured_now_is_kept() -> None:
    before = Notified(run_id="r", channels={"b": ChannelState(told=("incident/1",))})
    assert courier(before=before).record(1).channels["b"] == before.channels["b"]


def test_a_clock_that_was_set_back_silences_nobody_for_long() -> None:
    before = Notified(run_id="r", channels={"a": ChannelState(sent=(1e12,) * 20, given_up_until=1e12)})
    it = courier(before=before, now=0.0, batch_s=0.0)
    it.take([notice(1)], 0.0)
    assert it.next_at(0.0) == HOUR_S
    it = courier()
    it.take([notice(1)], 1e9)
    assert it.next_at(0.0) == BATCH_S


# -- any interleaving ---------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("event"), st.sampled_from(list(Severity))),
        st.tuples(st.just("time"), st.sampled_from([0.5, 3.0, 11.0, 70.0, 1000.0])),
        st.tuples(st.just("arrives"), st.none()),
        st.tuples(st.just("is lost"), st.none()),
        st.tuples(st.just("is refused"), st.none()),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    max_size=60,
)


class World:
    """A channel that remembers, and processes that end at any moment."""

    def __init__(self, per_hour: int) -> None:
        self.per_hour = per_hour
        self.now = 0.0
        self.happened: list[Notice] = []
        self.read = 0
        self.disk = Notified(run_id="r")
        self.under_way: Delivery | None = None
        self.arrived: list[tuple[float, Delivery]] = []
        self.sent_at = 0.0
        self.it = self._new()

    def _new(self) -> Courier:
        it = courier(per_hour=self.per_hour, before=self.disk, now=self.now)
        # The journal is read from its beginning, whatever was told.
        it.take(self.happened[: self.disk.offset], self.now, old=True)
        self.read = self.disk.offset
        return it

    def restart(self, *, arrives: bool) -> None:
        """The process is killed; its message may arrive all the same."""
        if self.under_way is not None and arrives:
            self.arrived.append((self.sent_at, self.under_way))
        self.under_way = None
        self.it = self._new()

    def answer(self, *, arrives: bool, unsure: bool) -> None:
        """What the process learns of its message."""
        order, self.under_way = self.under_way, None
        if order is None:
            return
        if arrives:
            self.arrived.append((self.sent_at, order))
        if arrives and not unsure:
            self.it.sent("a", self.now)
        else:
            self.it.failed("a", SendFailure(text="x", unsure=unsure), self.now)

    def go_on(self) -> None:
        """One turn of the process."""
        self.it.take(self.happened[self.read :], self.now)
        self.read = len(self.happened)
        self.disk = self.it.record(self.read)
        orders = self.it.due(self.now)
        self.disk = self.it.record(self.read)
        for order in orders:
            assert self.under_way is None
            self.under_way, self.sent_at = order, self.now


@settings(max_examples=60)
@given(STEPS, st.integers(1, 4))
def test_every_notice_is_told_once_and_never_more_than_the_limit(
    steps: list[tuple[str, object]], per_hour: int
) -> None:
    world = World(per_hour)
    for what, value in steps:
        if what == "event":
            severity = Severity(value)
            number = len(world.happened)
            world.happened.append(notice(number, severity=severity, t=world.now))
        elif what == "time":
            assert isinstance(value, float)
            world.now += value
        elif what == "restart":
            world.restart(arrives=bool(value))
        else:
            world.answer(arrives=what != "is refused", unsure=what == "is lost")
        world.go_on()
    for _ in range(3 * len(world.happened) + 10):  # in the end the channel works
        world.answer(arrives=True, unsure=False)
        world.now += HOUR_S
        world.go_on()
    times = [t for t, _ in world.arrived]
    assert all(sum(t - HOUR_S < other <= t for other in times) <= per_hour for t in times)
    seen: set[int] = set()
    counted = 0
    for _, order in world.arrived:
        again = "may have been sent before" in order.message.text
        assert again or not seen & set(numbers(order))
        seen |= set(numbers(order))
        counted = max(counted, int(order.message.facts["LEFT_OUT"]))
    assert seen == set(range(len(world.happened))) or counted
    assert len(seen) + sum(int(order.message.facts["LEFT_OUT"]) for _, order in world.arrived) >= len(
        world.happened
    )
