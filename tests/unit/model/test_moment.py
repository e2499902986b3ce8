"""The file of a moment: what is written is read back, and nothing else is taken for one."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.model.moment import (
    FORMAT,
    JobMoment,
    NodeMoment,
    NodeState,
    NotAMoment,
    decode,
    encode,
    read,
)
from tests.builders.moments import job_moment

HOSTILE = ["\x1b[2J\x1b]0;owned\x07", "[bold red]x[/]", "<script>", "n" * 1_000_000, "\u202eevil", "a\nb\tc"]


def test_a_moment_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "moment.json"
    path.write_bytes(encode(job_moment(3)))
    assert read(path) == job_moment(3)


def test_fields_of_a_newer_release_are_left_out() -> None:
    plain = msgspec.to_builtins(job_moment(1)) | {"weather": "fine"}
    assert decode(msgspec.json.encode(plain)) == job_moment(1)


def test_a_newer_format_is_refused_by_its_number() -> None:
    with pytest.raises(NotAMoment, match="newer release"):
        decode(encode(structs.replace(job_moment(1), format=FORMAT + 1)))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_comes_through(text: str) -> None:
    node = NodeMoment(node=text, state=NodeState.EVICTED, why=text, alerts=(text,))
    moment = structs.replace(job_moment(0), nodes=(node,), stage_why=text)
    assert decode(encode(moment)) == moment


@given(st.binary(max_size=200) | st.builds(lambda cut: encode(job_moment(2))[:cut], st.integers(0, 1500)))
def test_torn_and_foreign_bytes_are_refused(data: bytes) -> None:
    try:
        assert isinstance(decode(data), JobMoment)
    except NotAMoment:
        pass


def test_nothing_but_a_plain_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "missing"):
        with pytest.raises(OSError):  # noqa: PT011 - which one is the system's
            read(path)
