"""A folder's name says whose it is; what agents do not give is no such name."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.model.nodefolders import (
    CODE,
    COPIES,
    JobFolder,
    folder_name,
    parse_folder_name,
    within_release,
)


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


@pytest.mark.parametrize("base", ["/dev/shm", "/tmp", "/var/tmp/some/where"])
@pytest.mark.parametrize("folder", ["project", "my project", ".editable/mine"])
def test_a_place_in_a_release_reads_the_same_on_all_nodes_and_in_all_releases(base: str, folder: str) -> None:
    for name, release in ((folder_name("17-ab", CODE), "0123456789ab"), (folder_name("17-ab-x_1"), "f" * 12)):
        own = "" if name.endswith(CODE) else "/rehearsal"
        place = f"{base}/{name}{own}/{release}/{folder}"
        top = folder.partition("/")[2]
        below = f"{top}/" if top else ""
        assert within_release(f"{place}/train.py") == f"{below}train.py"
        text = f'  File "{place}/a b/train.py", line 3\nbad: {place}/x and {place}/y'
        assert within_release(text) == f'  File "{below}a b/train.py", line 3\nbad: {below}x and {below}y'


@pytest.mark.parametrize(
    "text", ["/dev/shm/srobust-0-7-ab-copies/x", "/home/me/train.py", "srobust-1-7-a-code", ""]
)
def test_other_texts_stay(text: str) -> None:
    assert within_release(text) == text
