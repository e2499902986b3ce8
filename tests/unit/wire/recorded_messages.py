"""A message of each kind with a value in each field, and those that releases have sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import inspect

from slurm_robust.wire.messages import FromController, ToController

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


def full(message: type[msgspec.Struct]) -> Any:
    """One message with a value in each field."""
    return msgspec.convert(_value(inspect.type_info(message)), message)


def _value(kind: inspect.Type) -> Any:
    match kind:
        case inspect.StructType(fields=fields, array_like=True):
            return [_value(field.type) for field in fields]
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
            values = {field.encode_name: _value(field.type) for field in fields}
            return values | ({tag_field: tag} if tag_field else {})
        case inspect.UnionType(types=types):
            return _value(next(one for one in types if not isinstance(one, inspect.NoneType)))
        case inspect.VarTupleType(item_type=item):
            return [_value(item)]
        case inspect.TupleType(item_types=items):
            return [_value(item) for item in items]
        case inspect.DictType(key_type=key, value_type=value):
            return {_value(key): _value(value)}
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.StrType():
            return "x"
    raise AssertionError(f"no value for {kind}")
