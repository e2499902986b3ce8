"""Text of others cannot command a terminal, break a line or swallow what follows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.util.text import as_json, first_sentence, one_line, settled, visible, without_escapes


@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x1bPdata\x1b\\text", "text"),
        ("\x1b(Btext", "text"),
        ("end\x1b", "end"),
        ("two\nlines\t", "two\nlines\t"),
    ],
)
def test_what_a_terminal_obeys_goes(given_: str, shown: str) -> None:
    assert without_escapes(given_) == shown


def test_a_sequence_that_nobody_ends_swallows_little() -> None:
    assert without_escapes("\x1b]" + "x" * 1000).count("x") == 800


HOSTILE = st.text(alphabet=st.characters() | st.sampled_from("\x1b\x9b\n\r[]0;m\\\x07\u202e"), max_size=60)


@given(HOSTILE, st.integers(1, 40))
def test_one_line_is_one_of_bounded_length(text: str, most: int) -> None:
    line = one_line(text, most)
    assert line.isprintable()
    assert len(line) <= most
    assert line == one_line(line, most)


@given(HOSTILE)
def test_what_is_visible_keeps_its_lines_and_stays_as_it_is(text: str) -> None:
    shown = visible(text)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert shown.count("\n") == text.count("\n")
    assert visible(shown) == shown


def whole(value: object) -> object:
    """``value`` with a ``?`` for each half of a character."""
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


@given(st.recursive(HOSTILE | st.none() | st.integers(), lambda inner: st.lists(inner, max_size=3)))
def test_json_says_the_same_and_commands_nothing(value: object) -> None:
    text = as_json(value)
    assert json.loads(text) == whole(value)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()


def test_of_a_progress_bar_its_last_state_counts() -> None:
    assert settled("10%\r20%\r30%\r\ndone\r\n") == "30%\ndone\n"


def test_a_cut_is_marked() -> None:
    assert one_line(" a\nb\x1b[31m é ") == "a b é"
    assert one_line("one two three", 8) == "one two…"
    assert one_line("one two", 7) == "one two"
    assert one_line("x " * 5000, None).count("x") == 5000


@pytest.mark.parametrize(
    ("reason", "about", "sentence"),
    [
        ("its power is off", "", "its power is off"),
        ("", "n1", ""),
        ("n2 is off; n3 is on", "n3", "n3 is on …"),
        ("n2 is off; n3 is on", "n30", "n2 is off …"),
        ("n12 is off; n1 is on", "n1", "n1 is on …"),
        ("srun: error: no\nsrun: error: again", "n1", "srun: error: no …"),
        ("It failed. Again. And again", "", "It failed …"),
        ("version 2.5 failed", "", "version 2.5 failed"),
        ("x" * 200, "", "x" * 119 + "…"),
    ],
)
def test_the_first_sentence_of_a_reason(reason: str, about: str, sentence: str) -> None:
    assert first_sentence(reason, about) == sentence
