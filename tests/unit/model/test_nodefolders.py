"""A folder's name says whose it is; what agents do not give is no such name."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.model.nodefolders import COPIES, JobFolder, folder_name, parse_folder_name


@given(st.integers(1, 2**31 - 1), st.text("0123456789abcdef", min_size=8, max_size=8), st.booleans())
def test_a_name_shows_the_user_and_the_job(job_id: int, suffix: str, copies: bool) -> None:
    name = folder_name(f"{job_id}-{suffix}", COPIES if copies else "")
    assert parse_folder_name(name) == JobFolder(uid=os.getuid(), job_id=job_id, has_copies=copies)


@pytest.mark.parametrize(
    "name",
    [
        "srobust-1-7",
        "srobust-x-7-ab",
        "srobust-1-7-",
        "srobust-1-7-a/b",
        "srobust-1-٣-ab",
        "other-1-7-ab",
        "",
    ],
)
def test_other_names_are_nobodys(name: str) -> None:
    assert parse_folder_name(name) is None
