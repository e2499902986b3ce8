"""Hostile and huge logs are read in bounded time, and nothing of them reaches a terminal."""

from __future__ import annotations

import time

import pytest

from slurm_robust.analysis.logs import classify, read
from slurm_robust.analysis.logs.text import HEAD, LINE, TAIL, lines_of
from slurm_robust.util.text import without_controls

OOM = "RuntimeError: CUDA out of memory"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("a\x00b\x07c\x84d", "abcd"),
        ("tab\tstays", "tab\tstays"),
        ("\u202eturned", "turned"),
        ("\x1bcreset", "reset"),
    ],
)
def test_what_a_terminal_would_act_on_is_left_out(text: str, expected: str) -> None:
    assert without_controls(text) == expected


def test_the_deciding_line_is_clean() -> None:
    assert classify(f"\x1b[1m{OOM}\x1b[0m\x07").line == OOM


def test_long_lines_keep_both_ends() -> None:
    (line,) = lines_of("x" * 10 * LINE + OOM)
    assert len(line.text) < LINE + 10
    assert classify("x" * 10 * LINE + " " + OOM).symptom == "gpu_oom"


@pytest.mark.slow
def test_of_a_huge_log_both_ends_are_read_with_the_right_numbers() -> None:
    lines = (HEAD + TAIL) // 50
    filler = f"{'step ':-<100}\n" * lines
    assert read(f"{OOM}\n{filler}").number == 1
    assert read(f"{filler}{OOM}\n").number == lines + 1
    assert classify(f"{filler}{OOM}\n{filler}").symptom == "unknown"  # the middle is not read


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "repeated", "count"),
    [
        ("", "a", 100_000_000),
        ("", "error: failed ", 1_000_000),
        ("", "error: failed\n", 1_000_000),
        ("", "\x1b[", 1_000_000),
        ("", "(failed to save the the the the the the the ", 100_000),
        ("", "loss: " + "1" * 500 + " ", 10_000),
        ('  File "', "x", 500_000),
    ],
    ids=["one line", "words", "lines", "escapes", "backtracking", "numbers", "frames"],
)
def test_hostile_logs_take_bounded_time(begin: str, repeated: str, count: int) -> None:
    text = begin + count * repeated
    began = time.process_time()
    classify(text)
    assert time.process_time() - began < 10


@pytest.mark.slow
def test_a_log_of_a_megabyte_takes_less_than_a_second() -> None:
    log = "".join(
        f"iteration {i} | lm loss: 2.{i % 100:02d} | grad norm: 0.3 | node{i % 8}\n" for i in range(20_000)
    )
    classify("")
    began = time.process_time()
    assert classify(log).symptom == "healthy_noise"
    assert time.process_time() - began < 1
