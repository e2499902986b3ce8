from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.agent.heartbeat import HeartbeatState
from slurm_robust.agent.state import AgentState
from slurm_robust.wire.messages import Heartbeat, Progress, Pulse, encode

AT_STEP_5 = Progress(rank=0, step=5, reported=True, age_s=0.5, loss=1.0)


def test_heartbeats_are_numbered_and_carry_notes_until_one_of_them_is_answered() -> None:
    book, state = HeartbeatState("n1", "a", always_ready=False), AgentState(kill_wait_s=1.0)
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
    book, state = HeartbeatState("n1", "a", always_ready=False), AgentState(kill_wait_s=1.0)
    for number in range(1000):
        book.note(f"note {number % 500}")
    assert len(book.make(state, (), 0.0).notes) == 100


def test_programs_need_no_readiness_but_a_fatal_agent_is_never_ready() -> None:
    state = AgentState(kill_wait_s=1.0)
    assert not HeartbeatState("n", "a", always_ready=False).make(state, (), 0.0).ready
    assert HeartbeatState("n", "a", always_ready=True).make(state, (), 0.0).ready
    state.fatal = "broken"
    assert not HeartbeatState("n", "a", always_ready=True).make(state, (), 0.0).ready


def book_with(state: AgentState) -> tuple[HeartbeatState, Heartbeat]:
    """One whose first heartbeat the controller has answered."""
    book = HeartbeatState("n1", "a", always_ready=False)
    heartbeat = book.make(state, (AT_STEP_5,), 10.0)
    assert isinstance(heartbeat, Heartbeat)
    book.on_ack(heartbeat.seq)
    return book, heartbeat


def test_a_heartbeat_that_would_tell_nothing_new_is_a_pulse() -> None:
    state = AgentState(kill_wait_s=1.0)
    book, heartbeat = book_with(state)
    pulse = book.make(state, (AT_STEP_5.aged(3.0),), 13.0)
    assert pulse == Pulse(node="n1", agent="a", seq=2, base=heartbeat.seq)
    assert len(encode(pulse)) < 60 < len(encode(heartbeat))


@pytest.mark.parametrize(
    "progress",
    [
        structs.replace(AT_STEP_5, step=6, age_s=0.1),
        structs.replace(AT_STEP_5.aged(3.0), loss=2.0),
        structs.replace(AT_STEP_5.aged(3.0), phase="checkpoint", phase_s=1.0),
        structs.replace(AT_STEP_5, age_s=0.1),  # the same step once more
    ],
)
def test_whatever_else_but_time_has_changed_is_reported(progress: Progress) -> None:
    state = AgentState(kill_wait_s=1.0)
    book, _ = book_with(state)
    heartbeat = book.make(state, (progress,), 13.0)
    assert isinstance(heartbeat, Heartbeat)
    assert heartbeat.progress == (progress,)


def test_without_an_answer_all_is_told_again() -> None:
    """The heartbeat may be lost, or the controller be another one, or have lost sight of this node."""
    state = AgentState(kill_wait_s=1.0)
    book, _ = book_with(state)
    told = [book.make(state, (AT_STEP_5.aged(1.0 * i),), 10.0 + i) for i in range(1, 6)]
    assert [type(message) for message in told] == [Pulse, Pulse, Pulse, Heartbeat, Heartbeat]
    book.on_ack(5)
    assert isinstance(
        book.make(state, (AT_STEP_5.aged(6.0),), 16.0), Heartbeat
    )  # the fifth is no base, the sixth
    book.on_ack(7)
    assert isinstance(book.make(state, (AT_STEP_5.aged(7.0),), 17.0), Pulse)
    book.forget()
    assert isinstance(book.make(state, (AT_STEP_5.aged(8.0),), 18.0), Heartbeat)


def test_what_was_learned_goes_with_every_heartbeat_until_one_is_answered() -> None:
    book, state = HeartbeatState("n1", "a", always_ready=False), AgentState(kill_wait_s=1.0)
    book.make(state, (), 0.0)
    book.learn(("yaml",))
    assert [heartbeat.learned for heartbeat in (book.make(state, (), 0.0), book.make(state, (), 0.0))] == [
        ("yaml",),
        ("yaml",),
    ]
    book.on_ack(1)
    assert book.make(state, (), 0.0).learned == ("yaml",)
    book.on_ack(2)
    assert book.make(state, (), 0.0).learned == ()
