"""Records with a value in each field, for data that releases to come must be able to read."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T", bound=msgspec.Struct)


def full(record: type[T]) -> T:
    """Make one with a value in each field, and one of each kind where a field holds several of a union."""
    return msgspec.convert(_value(inspect.type_info(record)), record)


def _value(kind: inspect.Type) -> Any:
    match kind:
        case inspect.StructType(fields=fields, array_like=True):
            return [_value(field.type) for field in fields]
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
            values = {field.encode_name: _value(field.type) for field in fields}
            return values | ({tag_field: tag} if tag_field else {})
        case inspect.UnionType():
            return _value(_kinds(kind)[0])
        case inspect.VarTupleType(item_type=item):
            return [_value(one) for one in _kinds(item)]
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


def _kinds(kind: inspect.Type) -> list[inspect.Type]:
    if not isinstance(kind, inspect.UnionType):
        return [kind]
    return [one for one in kind.types if not isinstance(one, inspect.NoneType)]


def holds(found: Any, known: Any) -> bool:
    """Whether ``found`` has all that ``known`` has, at every depth; what is new since does not matter."""
    if isinstance(known, dict):
        return isinstance(found, dict) and all(k in found and holds(found[k], v) for k, v in known.items())
    if isinstance(known, list):
        same = isinstance(found, list) and len(found) >= len(known)
        return same and all(map(holds, found, known))
    return bool(found == known)
