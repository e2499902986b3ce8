"""One message of each kind, as peers of each version of the protocol send it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import msgspec

from slurm_robust.wire.messages import FromController, ToController
from tests.unit.full_records import full

FOLDER = Path(__file__).parents[2] / "data" / "wire"
KINDS: dict[str, type[msgspec.Struct]] = {
    str(message.__struct_config__.tag): message for message in get_args(ToController | FromController)
}


def recorded(protocol: int) -> dict[str, bytes]:
    """One message of each kind as peers of version ``protocol`` send it."""
    lines = (FOLDER / f"protocol-{protocol}.json").read_text()
    return {kind: bytes.fromhex(data) for kind, data in json.loads(lines).items()}


def write(protocol: int) -> None:
    """Write what this release sends."""
    found = {kind: msgspec.msgpack.encode(full(message)).hex() for kind, message in sorted(KINDS.items())}
    (FOLDER / f"protocol-{protocol}.json").write_text(json.dumps(found, indent=0) + "\n")
