"""Tables of cases of Slurm's language in ``tests/data/slurm_language``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "data" / "slurm_language"


class Case(NamedTuple):
    """One line of a table."""

    given: str
    expected: str
    remark: str

    @property
    def id(self) -> str:
        """For parametrised tests."""
        return ascii(self.given)


def cases(table: str) -> list[Case]:
    r"""The cases of a table; ``\t`` and ``\n`` in the first column become what they stand for."""
    lines = (FOLDER / table).read_text().splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return [
        Case(given.replace("\\t", "\t").replace("\\n", "\n"), expected, remark)
        for given, expected, remark in rows
    ]
