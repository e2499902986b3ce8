"""Messages of other versions: what each side reads of them, and what it refuses by name."""

from __future__ import annotations

import os
from typing import Any, get_args

import msgspec
import pytest

from slurm_robust.wire.messages import (
    Ack,
    Foreign,
    FromController,
    Heartbeat,
    Launch,
    Load,
    MalformedMessage,
    Phase,
    Rehearse,
    ToController,
    decode_from_controller,
    decode_to_controller,
    encode,
)
from slurm_robust.wire.protocol import PROTOCOL, knows, unknown_to
from tests.unit.full_records import holds
from tests.unit.wire.recorded_messages import KINDS, recorded, write

if os.environ.get("SROBUST_WRITE_GOLDEN"):
    write(PROTOCOL)
TO_CONTROLLER = {message.__struct_config__.tag for message in get_args(ToController)}


@pytest.mark.parametrize("protocol", range(PROTOCOL + 1))
def test_this_release_reads_the_messages_of_every_version(protocol: int) -> None:
    for kind, data in recorded(protocol).items():
        found = decode_to_controller(data) if kind in TO_CONTROLLER else decode_from_controller(data)
        assert not isinstance(found, Foreign), f"{kind} of protocol {protocol}: {found.describe()}"
        assert holds(msgspec.msgpack.decode(encode(found)), msgspec.msgpack.decode(data))


def test_the_messages_of_this_version_are_recorded() -> None:
    assert set(recorded(PROTOCOL)) == set(KINDS), (
        "a new message needs the next PROTOCOL and a line in SINCE (wire/protocol.py); record it with "
        "SROBUST_WRITE_GOLDEN=1 pytest tests/unit/wire/test_protocol.py"
    )


def test_a_message_that_older_versions_do_not_have_is_in_the_table() -> None:
    for protocol in range(PROTOCOL):
        new = {KINDS[kind] for kind in set(KINDS) - set(recorded(protocol))} & set(get_args(FromController))
        sent = {message for message in new if message.__name__ != "Refused"}
        assert all(not knows(protocol, message) for message in sent)  # type: ignore[arg-type]


def test_peers_without_a_version_are_of_protocol_0() -> None:
    heartbeat, ack = (
        decode_to_controller(recorded(0)["heartbeat"]),
        decode_from_controller(recorded(0)["ack"]),
    )
    assert isinstance(heartbeat, Heartbeat)
    assert isinstance(ack, Ack)
    assert (heartbeat.protocol, ack.protocol) == (0, 0)
    assert unknown_to(0) == ["load", "rehearse", "try_release"]
    assert unknown_to(PROTOCOL) == []
    assert [knows(0, order) for order in (Launch, Load, Rehearse)] == [True, False, False]


def packed(**fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


BEAT = {"kind": "heartbeat", "node": "n3", "agent": "a", "seq": 1, "epoch": 1, "phase": "idle"}


def test_a_field_that_is_not_known_is_passed_over() -> None:
    newer = packed(**BEAT, protocol=PROTOCOL + 1, mood="good")
    expected = Heartbeat(node="n3", agent="a", seq=1, epoch=1, phase=Phase.IDLE, protocol=PROTOCOL + 1)
    assert decode_to_controller(newer) == expected
    assert decode_from_controller(packed(kind="ack", epoch=1, seq=2, mood="good")) == Ack(epoch=1, seq=2)


def test_a_message_that_is_not_known_is_named() -> None:
    found = decode_to_controller(packed(kind="weather", node="n3", agent="a", protocol=9))
    assert found == Foreign(kind="weather", node="n3", protocol=9)
    assert found.describe() == "message 'weather' is unknown"
    assert decode_from_controller(packed(kind="dance", epoch=1)) == Foreign(kind="dance")


def test_a_known_message_that_cannot_be_read_is_named_with_the_field() -> None:
    wrong = packed(**{**BEAT, "phase": "dreaming"}, protocol=9)
    found = decode_to_controller(wrong)
    assert isinstance(found, Foreign)
    assert (found.kind, found.node, found.protocol) == ("heartbeat", "n3", 9)
    assert found.describe() == (
        "message 'heartbeat' cannot be read (Invalid enum value 'dreaming' - at `$.phase`)"
    )


def test_hostile_kinds_do_not_reach_a_terminal() -> None:
    found = decode_to_controller(packed(kind="\x1b[31m" + "x" * 1000, node="n3"))
    assert isinstance(found, Foreign)
    assert found.describe() == f"message '{'x' * 39}…' is unknown"


@pytest.mark.parametrize("data", [b"", b"\xff garbage", packed(a=1), packed(kind=7), b"\x91" * 5000])
def test_what_is_no_message_of_any_version_is_malformed(data: bytes) -> None:
    for decode in (decode_to_controller, decode_from_controller):
        with pytest.raises(MalformedMessage):
            decode(data)
