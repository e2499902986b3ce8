from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.util.hostlist import InvalidHostlist, expand, fold


@pytest.mark.parametrize(
    ("hostlist", "names"),
    [
        ("n[1-3,7],gpu[01-02]", ["n1", "n2", "n3", "n7", "gpu01", "gpu02"]),
        ("n[3,1-2],a", ["n3", "n1", "n2", "a"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("b,a", ["b", "a"]),
        ("", []),
        ("(null)", []),
        ("None assigned", []),
    ],
)
def test_expands_in_the_order_written(hostlist: str, names: list[str]) -> None:
    assert list(expand(hostlist)) == names


@pytest.mark.parametrize("hostlist", ["n[1", "n1]", "n[[1]]", "n[a-b]", "n[1-]"])
def test_says_what_it_cannot_read(hostlist: str) -> None:
    with pytest.raises(InvalidHostlist, match="hostlist"):
        expand(hostlist)


def test_folds_sorted_and_without_duplicates() -> None:
    assert fold(["n3", "n1", "n2", "n1", "gpu02", "gpu01"]) == "gpu[01-02],n[1-3]"
    assert fold([]) == ""


def test_at_signs_are_no_groups() -> None:
    assert fold(["a@b"]) == "a@b"


def test_only_the_last_number_is_folded() -> None:
    assert fold(["r1n1", "r1n2", "r2n1"]) == "r1n[1-2],r2n1"


@given(st.lists(st.from_regex(r"[a-z]{1,3}[0-9]{0,3}(-[a-z][0-9]{1,2})?", fullmatch=True), max_size=20))
def test_a_folded_list_expands_to_the_same_names(names: list[str]) -> None:
    assert set(expand(fold(names))) == set(names)
