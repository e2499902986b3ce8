"""The file of a moment: what is written is read back, and nothing else is taken for one."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.model.live_status import (
    FORMAT,
    LiveNode,
    LiveStatus,
    NodeState,
    NotALiveStatus,
    decode,
    encode,
    read,
)
from tests.builders.live_statuses import live_status

HOSTILE = ["\x1b[2J\x1b]0;owned\x07", "[bold red]x[/]", "<script>", "n" * 1_000_000, "\u202eevil", "a\nb\tc"]


def test_a_moment_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "moment.json"
    path.write_bytes(encode(live_status(3)))
    assert read(path) == live_status(3)


def test_fields_of_a_newer_release_are_left_out() -> None:
    plain = msgspec.to_builtins(live_status(1)) | {"weather": "fine"}
    assert decode(msgspec.json.encode(plain)) == live_status(1)


def test_a_newer_format_is_refused_by_its_number() -> None:
    with pytest.raises(NotALiveStatus, match="newer release"):
        decode(encode(structs.replace(live_status(1), format=FORMAT + 1)))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_comes_through(text: str) -> None:
    node = LiveNode(node=text, state=NodeState.EVICTED, why=text, alerts=(text,))
    moment = structs.replace(live_status(0), nodes=(node,), stage_why=text)
    assert decode(encode(moment)) == moment


@given(st.binary(max_size=200) | st.builds(lambda cut: encode(live_status(2))[:cut], st.integers(0, 1500)))
def test_torn_and_foreign_bytes_are_refused(data: bytes) -> None:
    try:
        assert isinstance(decode(data), LiveStatus)
    except NotALiveStatus:
        pass


def test_nothing_but_a_plain_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "missing"):
        with pytest.raises(OSError):  # noqa: PT011 - which one is the system's
            read(path)
