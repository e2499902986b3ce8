"""The base of every frozen record: comparable, printable, and one JSON object in the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    # Tells type checkers what msgspec does at run time: subclasses inherit frozen and kw_only.
    @dataclass_transform(frozen_default=True, kw_only_default=True)
    class _RecordMeta(msgspec.StructMeta):
        pass

else:
    _RecordMeta = type(msgspec.Struct)


class Record(msgspec.Struct, metaclass=_RecordMeta, frozen=True, kw_only=True):
    """An immutable set of named fields. Records hold facts; they touch nothing.

    msgspec builds what it needs to decode a type when that is first done, and another thread that decodes
    the type meanwhile crashes the process (measured with 0.22). So what threads decode has a decoder that is
    made at import.
    """


T = TypeVar("T")
_T_co = TypeVar("_T_co", covariant=True)

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""All that msgspec raises for bytes that are not what was expected: no other kind, wrong text, too deep."""


class Decoder(Protocol[_T_co]):
    """A decoder of msgspec, of JSON or MessagePack."""

    def decode(self, buf: bytes | memoryview, /) -> _T_co:
        """Return the object that these bytes stand for."""


def decoded(decoder: Decoder[T], data: bytes | memoryview, error: Callable[[str], Exception]) -> T:
    """Decode ``data``. Raises what ``error`` makes of the reason for whatever else it is."""
    try:
        return decoder.decode(data)
    except UNREADABLE as reason:
        raise error(str(reason)) from reason
