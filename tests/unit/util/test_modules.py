"""Which names of modules count."""

from __future__ import annotations

import importlib.util

import pytest

from slurm_robust.util.modules import MAX_CHARS, MAX_MODULES, clean_names, is_installed

HOSTILE = [
    "", ".", "a..b", "os; import evil", "../evil", "a b", "a-b", "1a", "import", "a.class", "\x1b[31m", "é",
    "a\n", "__main__", "__main__.x", "x" * 1000, 7, None, b"a",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_what_no_import_statement_could_name_is_left_out(name: object) -> None:
    assert clean_names(["yaml", name]) == ("yaml",)


def test_packages_come_first_and_stay_where_there_are_too_many() -> None:
    assert clean_names(["a.b", "c", "a", "c"]) == ("c", "a", "a.b")
    many = [f"a.m{number}" for number in range(2 * MAX_MODULES)]
    assert clean_names([*many, "b"])[0] == "b"
    assert len(clean_names(many)) == MAX_MODULES
    long = ["n" * 100 + str(number) for number in range(200)]
    assert sum(map(len, clean_names(long))) <= MAX_CHARS


@pytest.mark.parametrize("name", ["json", "yaml", "tests", "sys"])
def test_only_installed_modules_count(name: str) -> None:
    assert is_installed(importlib.util.find_spec(name)) is (name in ("json", "yaml"))
    assert not is_installed(None)
