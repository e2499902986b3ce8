from __future__ import annotations

from slurm_robust.agent.beats import BeatBook
from slurm_robust.agent.state import AgentState


def test_beats_are_numbered_and_carry_notes_until_one_of_them_is_answered() -> None:
    book, state = BeatBook("n1", "a", always_ready=False), AgentState(kill_wait_s=1.0)
    book.note("first")
    one = book.make(state, (), 0.0)
    book.note("second")
    two = book.make(state, (), 0.0)
    assert (one.seq, one.notes, two.seq, two.notes) == (1, ("first",), 2, ("first", "second"))
    book.on_ack(1)
    assert book.make(state, (), 0.0).notes == ("second",)
    book.on_ack(2)
    assert book.make(state, (), 0.0).notes == ()


def test_a_note_is_kept_once_and_their_number_is_bounded() -> None:
    book, state = BeatBook("n1", "a", always_ready=False), AgentState(kill_wait_s=1.0)
    for number in range(1000):
        book.note(f"note {number % 500}")
    assert len(book.make(state, (), 0.0).notes) == 100


def test_programs_need_no_readiness_but_a_fatal_agent_is_never_ready() -> None:
    state = AgentState(kill_wait_s=1.0)
    assert not BeatBook("n", "a", always_ready=False).make(state, (), 0.0).ready
    assert BeatBook("n", "a", always_ready=True).make(state, (), 0.0).ready
    state.fatal = "broken"
    assert not BeatBook("n", "a", always_ready=True).make(state, (), 0.0).ready
