from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_robust.wire.keys import KeysError, create_keys, load_client, load_server


def test_keys_are_for_the_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create_keys(tmp_path / "keys")
    finally:
        os.umask(before)
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert {f.stat().st_mode & 0o777 for f in (tmp_path / "keys").iterdir()} == {0o600}


def test_both_sides_know_each_other(tmp_path: Path) -> None:
    create_keys(tmp_path)
    server, client = load_server(tmp_path), load_client(tmp_path)
    assert server.client_public == client.client.public
    assert client.server_public == server.server.public
    assert server.server.secret != client.client.secret


def test_keys_are_made_once(tmp_path: Path) -> None:
    """A requeued job keeps its keys, so agents that live on are not locked out."""
    create_keys(tmp_path)
    before = load_server(tmp_path)
    create_keys(tmp_path)
    assert load_server(tmp_path) == before


def test_keys_that_others_may_read_are_refused(tmp_path: Path) -> None:
    create_keys(tmp_path)
    (tmp_path / "agent.json").chmod(0o640)
    with pytest.raises(KeysError, match="others may read") as error:
        load_client(tmp_path)
    assert error.value.fix == f"chmod 600 {tmp_path / 'agent.json'}"


@pytest.mark.parametrize("content", [b"", b"{}", b'{"public": "x", "secret": "y"}', b"\xff"])
def test_a_broken_key_file_is_named(tmp_path: Path, content: bytes) -> None:
    create_keys(tmp_path)
    (tmp_path / "agent.json").write_bytes(content)
    with pytest.raises(KeysError, match=r"agent\.json"):
        load_client(tmp_path)


def test_a_missing_folder_is_told_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="nowhere") as error:
        load_client(tmp_path / "nowhere")
    assert error.value.fix.endswith("see the job directory")
