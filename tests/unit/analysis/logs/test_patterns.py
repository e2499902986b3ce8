"""Patterns name a word that stands in every match, and never take for ever."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.analysis.logs.patterns import BadPattern, check, compiled, literals_of
from slurm_robust.analysis.logs.rule import shipped

ALL = sorted(
    {pattern for rule in shipped().rules for pattern in (*rule.any, *rule.all, *rule.without)}
    | {pattern for rule in shipped().rules for pattern in rule.unless if literals_of(pattern)}
)


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("abc+d", ("abc",)),
        ("CUDA error", ("cuda error",)),
        ("(foo|barz)x?", ("foo", "barz")),
        (r"(Signal|signal:?) 7\b", ("signal",)),
        ("a(?!xyz)bcd", ("bcd",)),
        ("(abc)?defg", ("defg",)),
        (r"foo.{0,3}(b|cde)", ("foo",)),
        ("abc|defg", ("abc", "defg")),
        ("x(a(bcde|fgh)|ijkl)", ("bcde", "fgh", "ijkl")),
        (r"exitcode\s*:? {0,3}-7", ("exitcode",)),
        ("abcdef*?gh", ("abcde",)),
        (r"a\.b\.c", ("a.b.c",)),
        (r"(?-i:Killed) x", ("killed",)),
        (r"\w+", ()),
        ("ab|cde", ()),
        ("[abc]{3}", ()),
    ],
)
def test_the_literals_of_a_pattern_are_found(pattern: str, literals: tuple[str, ...]) -> None:
    assert literals_of(pattern) == literals


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(abc", "not a regular expression"),
        ("(a+)+bcd", "repeats a repetition"),
        (r"(x(\w*)y)*abcd", "repeats a repetition"),
        (r"(\w{2,})+abcd", "repeats a repetition"),
        (r"\d+", "plain characters"),
    ],
)
def test_patterns_that_are_refused(pattern: str, reason: str) -> None:
    with pytest.raises(BadPattern, match=reason):
        check(pattern)


def test_the_patterns_of_the_builtin_rules_are_good() -> None:
    """In one test for all, since there are more than a thousand."""
    bad = []
    for pattern in ALL:
        try:
            check(pattern)
        except BadPattern as error:
            bad.append(f"{pattern}: {error}")
    assert not bad, "\n".join(bad)


@pytest.mark.slow
@given(pattern=st.sampled_from(ALL), data=st.data())
def test_every_match_holds_a_literal(pattern: str, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(re.compile(pattern, re.IGNORECASE | re.ASCII)))
    if compiled(pattern).search(text):
        assert any(literal in text.lower() for literal in literals_of(pattern))
