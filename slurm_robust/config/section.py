"""The parts of a configuration: sections, and the types of their values.

A field is documented by the string below it, which messages and reference pages quote. The range of a value
is part of its type; ``title`` says it in words. So that hooks start fast, this module imports nothing but
msgspec.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from slurm_robust.model.record import Record

_INT64 = 2**63 - 1
FINITE = 1.7976931348623157e308

Count = Annotated[int, Meta(ge=0, le=_INT64, title="an integer of 0 or more")]
Positive = Annotated[int, Meta(ge=1, le=_INT64, title="an integer of 1 or more")]
Number = Annotated[float, Meta(ge=0, le=FINITE, title="a number of 0 or more")]
Seconds = Annotated[float, Meta(gt=0, le=FINITE, title="a number of seconds above 0")]
Factor = Annotated[float, Meta(ge=1, le=FINITE, title="a number of 1 or more")]
Share = Annotated[float, Meta(ge=0, le=1, title="a share from 0 to 1 (0.1 is ten percent)")]
# A folder named "~" or "$USER" would be made.
Folder = Annotated[str, Meta(pattern="^[^~$][^$]*$", title="the name of a folder, without ~ and $")]
SECRET = "secret"
"""Key in ``Meta(extra=...)`` of a field whose value is never shown."""

CHECK = "check"
"""Key in ``Meta(extra=...)`` of what reads a text: it raises ``ValueError``, ``what is wrong; the fix``."""

AbsolutePath = Annotated[str, Meta(pattern="^/", title="an absolute path")]


class Contradiction(Record):
    """Values of the right types that cannot be meant, alone or together."""

    keys: tuple[str, ...]
    """Fields concerned, as the section names them; dots lead into nested sections and lists."""

    text: str
    """What is wrong, and why."""

    fix: str


class Section(Record, forbid_unknown_fields=True):
    """A mapping of the configuration: each key is a field, each field has a default and a documentation."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield what no type can express; :mod:`slurm_robust.config.reader` asks every section."""
        return iter(())
