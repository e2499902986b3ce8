from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.util.hostlist import MAX_NAMES, InvalidHostlist, expand, fold
from tests.slurm_language import Case, cases


@pytest.mark.parametrize("case", cases("hostlists.tsv"), ids=lambda case: case.id)
def test_reads_as_slurm_reads(case: Case) -> None:
    if case.expected == "ERROR":
        with pytest.raises(InvalidHostlist, match=r"hostlist|list of at most"):
            expand(case.given)
    else:
        assert " ".join(expand(case.given)) == case.expected


@pytest.mark.parametrize("case", cases("folded.tsv"), ids=lambda case: case.id)
def test_writes_what_every_release_reads(case: Case) -> None:
    """The table is run on Slurm's own commands in test_slurm_contract.py."""
    assert fold(case.given.split()) == case.expected
    assert sorted(expand(case.expected, functions=True)) == sorted(set(case.given.split()))


def test_a_function_stays_where_the_list_goes_back_to_slurm() -> None:
    names = expand("switch{leaf3},n[1-2]", functions=True)
    assert names == ("switch{leaf3}", "n1", "n2")
    assert fold(names) == "n[1-2],switch{leaf3}"


def test_the_message_names_what_only_slurm_knows() -> None:
    with pytest.raises(InvalidHostlist, match=r"only Slurm knows the nodes of 'switch\{leaf3\}'"):
        expand("n1,switch{leaf3}")


def test_an_empty_hostlist_has_no_nodes() -> None:
    assert expand("") == expand("  ") == expand("\n") == expand(",") == ()
    assert fold([]) == ""


def test_at_signs_are_no_groups() -> None:
    assert fold(["a@b"]) == "a@b"
    assert expand("a@b") == ("a@b",)


@pytest.mark.parametrize(
    "text",
    [
        "n[0-99999999]",
        f"n[0-{'9' * 5000}]",
        f"n[{'9' * 5000}]",
        "[1-2]" * 1000,
        "n[1-60000]x[1-60000]",
        "n[" * 100_000,
        "n[1]" * 100_000,
        "n[1]," * 100_000,
        "n" * 2_000_000,
        "{" * 100_000,
        "a," * (MAX_NAMES + 1),
    ],
    ids=lambda text: f"{text[:16]}...",
)
def test_what_would_fill_memory_is_refused_at_once(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(InvalidHostlist) as raised:
        expand(text)
    assert time.process_time() - begun < 0.05
    assert len(str(raised.value)) < 400


def test_the_largest_cluster() -> None:
    assert expand(f"n[0-{MAX_NAMES - 1}]")[-1] == f"n{MAX_NAMES - 1}"
    with pytest.raises(InvalidHostlist, match="more than 65536 nodes"):
        expand(f"n[1-{MAX_NAMES}],m")


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,6}[0-9]{0,5}(-[a-z]{1,3}[0-9]{0,2})?", fullmatch=True)


@given(st.lists(NAMES, max_size=40), st.randoms(use_true_random=False))
def test_a_folded_list_expands_to_the_same_names(names: list[str], order: random.Random) -> None:
    folded = fold(names)
    order.shuffle(names)
    assert fold(names) == folded
    assert len(expand(folded)) == len(set(names))
    assert set(expand(folded)) == set(names)
    # Nothing stands behind a bracket.
    assert all(part in ("", ",") or part[0] == "," for part in folded.split("]")[1:])


PIECES = st.sampled_from(
    [*"[]{},- \t\n0129nx:()!^/=é٣", "n[1-3]", "[0-99999]", "switch{a}", "(null)", "DOWN", "65535", "-ib"]
)


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=60))
def test_anything_is_names_or_refused_and_soon(text: str) -> None:
    begun = time.process_time()
    try:
        names = expand(text)
    except InvalidHostlist:
        names = ()
    assert len(names) <= MAX_NAMES
    assert not any(set(name) & set("[]{}(), \t\n") for name in names)
    # Generous where names are many: the limit of a text that says nothing is tested above.
    assert time.process_time() - begun < 0.25


@given(st.text(max_size=30))
def test_folding_never_fails(text: str) -> None:
    assert text in fold([text, "n1", "n2"])
