"""Journals are read up to a torn last line, at once or line by line, with the same result."""

from __future__ import annotations

from collections import Counter

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.journal import JournalDamaged, parse
from tests.unit.ledger.journals import Journal, at

EVENTS = Journal().controller(0).allocation(1).launch(2, 1).first(3, 1, 0).progress(4, 1, 1).events
LINES = [ev.encode_event(event) + b"\n" for event in EVENTS]
DATA = b"".join(LINES)
FUTURE = b'{"event":"meteor_struck","t":5.0,"epoch":1,"crater":[1]}\n'


def test_wherever_a_journal_is_torn_its_whole_lines_are_read() -> None:
    for cut in range(len(DATA) + 1):
        whole = DATA[:cut].count(b"\n")
        assert parse(DATA[:cut]) == (EVENTS[:whole], sum(map(len, LINES[:whole])))


@pytest.mark.parametrize("between", [b"\n", b"{}\n", b"\x00\n", FUTURE, LINES[0][:-1] + LINES[1]])
def test_what_is_no_event_amid_a_journal_is_damage_with_its_line(between: bytes) -> None:
    with pytest.raises(JournalDamaged, match="line 3: "):
        parse(DATA[: len(LINES[0] + LINES[1])] + between + LINES[2])


def test_a_reader_may_go_on_past_events_of_another_release() -> None:
    unread: Counter[str] = Counter()
    events, offset = parse(LINES[0] + FUTURE + DATA + FUTURE + b"{", unread=unread)
    assert unread == {"meteor_struck": 2}
    assert offset == len(LINES[0] + DATA) + 2 * len(FUTURE)
    note = ev.Noted(t=5.0, epoch=1, text="an event of another release: meteor_struck")
    assert events == [EVENTS[0], note, *EVENTS, note]


def test_what_a_later_controller_has_not_read_is_left_out_all_the_same() -> None:
    """It counts the events that its own release knew, those that this one cannot read among them."""
    late = Journal()
    late.epoch = 1
    late.progress(6, 1, 2).controller(7, known=len(EVENTS) + 1)
    journal = DATA + FUTURE + b"".join(ev.encode_event(event) + b"\n" for event in late.events)
    events, _ = parse(journal, unread=Counter())
    assert [event.t for event in events[len(EVENTS) :]] == [5.0, at(7)]
