"""Which lines are read for a literal: those that have it, of many the first and the last ones."""

from __future__ import annotations

import random
from itertools import product

import pytest

from slurm_robust.analysis.logs import match
from slurm_robust.analysis.logs.text import lines_of

LITERALS = ("cuda error", "error:", "[hardware error]", "step 7", " lost", "not there")


def plainly(texts: list[str], literal: str) -> list[int]:
    """As the docstring says it, one line after the other."""
    shape = match._shape(literal)
    found = [at for at, text in enumerate(texts) if shape in match._shape(text)]
    half = match.MAX_LINES // 2
    return found if len(found) <= match.MAX_LINES else [*found[:half], *found[-half:]]


def word(number: int) -> str:
    return "".join(chr(ord(digit) + 49) for digit in str(number))


@pytest.mark.parametrize("count", [0, 1, 199, 200, 201, 399, 400, 401, 402, 900])
@pytest.mark.parametrize("shapes", [1, 3, 199, 200, 401, 5000])
def test_of_many_lines_the_first_and_the_last_ones_are_read(count: int, shapes: int) -> None:
    choose = random.Random(count * shapes)
    texts = [f"{word(choose.randrange(shapes))} CUDA error: step {at} lost" for at in range(count)]
    texts += ["[Hardware Error]: Error:", "an error : and a step", "cuda", "error"]
    choose.shuffle(texts)
    log = match._Log(lines_of("\n".join(texts)))
    for literal in LITERALS:
        assert log.having(literal) == plainly(texts, literal)


def test_a_literal_may_end_inside_a_word_and_stand_between_any_spaces() -> None:
    texts = ["xcuda errors", "cuda  error", "\tcuda error\t", "cuda", "error"]
    log = match._Log(lines_of("\n".join(texts)))
    for literal, space in product(("cuda error", "a err", "a", "error"), ("", " ")):
        assert log.having(literal + space) == plainly(texts, literal + space)
