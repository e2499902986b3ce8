"""Which message is due on which channel: batches, the limit per hour, retries. Pure.

Times are seconds since 1970, since what was sent is remembered from one process to the next. Before a message
goes out it is written down as *sending*; so a process that finds one there knows that it may have arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from slurm_robust.model.notice import ChannelState, Notice, NoticeKind, Notified, Severity
from slurm_robust.model.record import Record
from slurm_robust.notify.message import MAX_NOTICES, Message, Subject, compose

HOUR_S = 3600.0

MAX_WAITING = 200
"""Notices of a channel; of more, the oldest and least urgent are left out."""

RETRY_S = (2.0, 5.0, 15.0, 60.0)
"""After the first failure in a row, the second, ..."""

MAX_TRIES = 5
"""Failures in a row after which a channel is given up for a while."""

GIVEN_UP_S = 900.0
MAX_RETRY_AFTER_S = 600.0
"""A channel that asks for more patience is given up that long."""

_GIVEN_UP = "notifications: channel {} is given up for {:.0f} min, the job is not affected"

LAST_RETRY_S = 2.0
"""At the end of the run, between two tries."""


class Route(Record):
    """What one channel is told."""

    name: str
    kinds: frozenset[NoticeKind]
    min_severity: Severity
    timeout_s: float
    """Time in which a message has been sent, or has failed."""

    def wants(self, notice: Notice) -> bool:
        """Return whether the notice is for this channel."""
        return notice.kind in self.kinds and notice.severity.rank >= self.min_severity.rank


class Delivery(Record):
    """Send ``message`` by ``channel`` now."""

    channel: str
    message: Message


class SendFailure(Record):
    """A message that was, it seems, not sent."""

    text: str
    fix: str = ""
    retry_after_s: float = 0.0
    """The channel asks for this patience."""
    permanent: bool = False
    """Another try soon is of no use."""
    unsure: bool = False
    """The message may have arrived."""


@dataclass
class _Box:
    """One channel."""

    route: Route
    state: ChannelState
    told: set[str]
    since: float | None = None  # when the oldest that waits was taken
    not_before: float = 0.0
    failures: int = 0
    under_way: tuple[Notice, ...] = ()  # in the hands of the channel
    saying: int = 0  # how many the message under way says were left out
    is_lost: bool = False  # it failed in the last call, in which another try is of no use
    suspect_until: float = 0.0  # another process may still be sending
    lines: list[str] = field(default_factory=list)


class Courier:
    """Decides for all channels of a job. Write its :meth:`record` down before you carry out its orders."""

    def __init__(
        self,
        job: Subject,
        routes: Sequence[Route],
        *,
        per_hour: int,
        batch_s: float,
        before: Notified,
        now: float,
    ) -> None:
        """Take ``before``, what an earlier process has written down."""
        self._job = job
        self._per_hour = per_hour
        self._batch_s = batch_s
        self._run_id = before.run_id
        self._others = {n: c for n, c in before.channels.items() if n not in {r.name for r in routes}}
        self._boxes = {route.name: _box(route, before.channels.get(route.name), now) for route in routes}
        self._last = False

    def take(self, notices: Iterable[Notice], now: float, *, old: bool = False) -> None:
        """Let them be told. ``old``: they are from before there was anyone to tell, and count as told."""
        for notice in notices:
            for box in self._boxes.values():
                if notice.key in box.told:
                    continue
                box.told.add(notice.key)
                box.state = replace(box.state, told=(*box.state.told, notice.key))
                if not old and (box.route.wants(notice) or _settles(notice, box.state.waiting)):
                    box.state = replace(box.state, waiting=(*box.state.waiting, notice))
                    box.since = now if box.since is None else box.since
                    _shorten(box)

    def due(self, now: float) -> list[Delivery]:
        """Return the messages to send now. They count as being sent from now on: write that down first."""
        orders = []
        for name, box in self._boxes.items():
            _set_clock(box, now)
            if now >= self._due_at(box, now):
                orders.append(Delivery(channel=name, message=self._begin(box, now)))
        return orders

    def sent(self, channel: str, now: float) -> None:
        """Note that the message of ``channel`` has arrived."""
        box = self._boxes[channel]
        if box.failures >= MAX_TRIES or box.state.given_up_until is not None:
            box.lines.append(f"notifications: channel {channel} works again")
        box.failures, box.under_way, box.not_before = 0, (), now
        left_out = box.state.left_out - box.saying
        box.state = replace(
            box.state, sending=None, again=False, trouble="", given_up_until=None, left_out=left_out
        )
        box.since = now if box.state.waiting else None

    def failed(self, channel: str, failure: SendFailure, now: float) -> None:
        """Put the message of ``channel`` back among those that wait."""
        box = self._boxes[channel]
        box.failures += 1
        state = box.state
        back = box.under_way
        box.under_way = ()
        sent = state.sent if failure.unsure else state.sent[:-1]
        state = replace(
            state,
            sent=sent,
            sending=None,
            again=state.again or failure.unsure,
            waiting=(*back, *state.waiting),
            trouble=failure.text,
        )
        wait_s = max(RETRY_S[min(box.failures, len(RETRY_S)) - 1], failure.retry_after_s)
        gives_up = failure.permanent or box.failures >= MAX_TRIES or wait_s > MAX_RETRY_AFTER_S
        if gives_up:
            wait_s = GIVEN_UP_S
            if state.given_up_until is None:
                box.lines.append(f"{_GIVEN_UP.format(channel, wait_s / 60)}: {failure.text}")
            state = replace(state, given_up_until=now + wait_s)
            box.is_lost = self._last
        elif self._last:
            wait_s = max(LAST_RETRY_S, failure.retry_after_s)
        box.not_before = now + wait_s
        box.since = now - self._batch_s
        box.state = state
        _shorten(box)

    def last_call(self, now: float) -> None:
        """Note that the run is over: what waits is tried once more now, and until the process ends."""
        self._last = True
        for box in self._boxes.values():
            box.not_before = now

    @property
    def is_done(self) -> bool:
        """Nothing is under way or could be sent now, in the last call."""
        return all(
            not box.under_way
            and (box.is_lost or not box.state.waiting or not self._has_place(box, box.not_before))
            for box in self._boxes.values()
        )

    def next_at(self, now: float) -> float | None:
        """Return when something is due next, if nothing happens; None if nothing waits."""
        for box in self._boxes.values():
            _set_clock(box, now)
        found = min((self._due_at(box, now) for box in self._boxes.values()), default=float("inf"))
        return found if found < float("inf") else None

    def untold(self) -> dict[str, int]:
        """Return how many notices wait, by channel."""
        found = {n: len(box.state.waiting) + len(box.under_way) for n, box in self._boxes.items()}
        return {name: number for name, number in found.items() if number}

    def lines(self) -> list[str]:
        """Return what to say in the job's log since the last call."""
        found = [line for box in self._boxes.values() for line in box.lines]
        for box in self._boxes.values():
            box.lines.clear()
        return found

    def record(self, offset: int) -> Notified:
        """Return what the next process must know; ``offset``: the journal was read up to there."""
        channels = {name: _written(box) for name, box in self._boxes.items()}
        return Notified(run_id=self._run_id, offset=offset, channels={**self._others, **channels})

    def _due_at(self, box: _Box, now: float) -> float:
        if box.under_way or not box.state.waiting or box.since is None or box.is_lost:
            return float("inf")
        batched = box.since if self._last else box.since + self._batch_s
        at = max(batched, box.not_before, box.suspect_until)
        return at if self._has_place(box, max(at, now)) else max(at, self._place_at(box))

    def _has_place(self, box: _Box, now: float) -> bool:
        """Return whether the limit allows another message."""
        return sum(t > now - HOUR_S for t in box.state.sent) < self._allowed(box)

    def _place_at(self, box: _Box) -> float:
        """Return when it does next, if it does not now."""
        return sorted(box.state.sent)[-self._allowed(box)] + HOUR_S

    def _allowed(self, box: _Box) -> int:
        """Return the messages per hour. One is kept for what is critical."""
        critical = any(notice.severity is Severity.CRITICAL for notice in box.state.waiting)
        return self._per_hour if critical else max(1, self._per_hour - 1)

    def _begin(self, box: _Box, now: float) -> Message:
        state = box.state
        chosen = _most_urgent(state.waiting, MAX_NOTICES)
        left_out = box.saying = state.left_out + len(state.waiting) - len(chosen)
        box.under_way = chosen
        recent = tuple(t for t in state.sent if t > now - HOUR_S)
        box.state = replace(state, waiting=(), left_out=left_out, sent=(*recent, now), sending=now)
        return compose(self._job, chosen, left_out, again=state.again)


def _box(route: Route, before: ChannelState | None, now: float) -> _Box:
    state = before or ChannelState()
    box = _Box(route, state, set(state.told))
    if state.sending is not None:
        box.suspect_until = min(state.sending, now) + route.timeout_s
        box.state = replace(state, sending=None, again=True)
    if state.given_up_until is not None:
        box.not_before = state.given_up_until
    box.since = now if state.waiting else None
    return box


def _set_clock(box: _Box, now: float) -> None:
    """Set the clock: one that was set back must not keep a channel silent."""
    if box.since is not None:
        box.since = min(box.since, now)
    box.not_before = min(box.not_before, now + GIVEN_UP_S)
    box.suspect_until = min(box.suspect_until, now + box.route.timeout_s)
    if any(t > now for t in box.state.sent):
        box.state = replace(box.state, sent=tuple(min(t, now) for t in box.state.sent))


def _written(box: _Box) -> ChannelState:
    """Return the state. What is under way is written down as waiting, too: it may not arrive."""
    return replace(box.state, waiting=(*box.under_way, *box.state.waiting))


def _settles(notice: Notice, waiting: Iterable[Notice]) -> bool:
    """Return whether it ends the incident of one that waits: nobody is woken by what is over already."""
    return notice.kind is NoticeKind.RECOVERY and any(one.incident == notice.incident for one in waiting)


def _most_urgent(notices: Sequence[Notice], most: int) -> tuple[Notice, ...]:
    """Return this many in their order, without the least urgent and, among equals, without the oldest."""
    ranked = sorted(range(len(notices)), key=lambda i: (-notices[i].severity.rank, -i))
    return tuple(notices[i] for i in sorted(ranked[:most]))


def _shorten(box: _Box) -> None:
    waiting = box.state.waiting
    if len(waiting) > MAX_WAITING:
        kept = _most_urgent(waiting, MAX_WAITING)
        box.state = replace(box.state, waiting=kept, left_out=box.state.left_out + len(waiting) - len(kept))
