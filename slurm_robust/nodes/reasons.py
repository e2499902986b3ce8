"""The reasons of drains, read in parts: which of them are ours. Pure, and light enough for hooks.

Slurm shows one line, in which several may have written: slurmctld adds what it does itself behind `` : ``
(``set_node_reason`` in its ``node_mgr.c``), and health checks add theirs behind ``;`` or ``&``. What we write
holds none of these (:func:`as_one_part`), so our part ends where the next one begins. docs/draining.md
describes the form.
"""

from __future__ import annotations

import itertools
import re

TAG = "srobust: "
"""How every reason of ours begins; Slurm shows it in front of the evidence."""

_SEPARATOR = re.compile(r"\s*[;&|\n]\s*|\s:\s+")
# A person may have put other words right before ours.
_OURS = re.compile(rf"(?:^|(?<=[\s,.)\]])){TAG}")


def parts(reason: str) -> tuple[str, ...]:
    """Return what one after the other wrote, without what separates it; nothing for an empty reason.

    ``Epilog error; srobust: gpu3 XID 79`` has two parts.
    """
    found: list[str] = []
    for text in _SEPARATOR.split(reason):
        cuts = [0, *(match.start() for match in _OURS.finditer(text) if match.start()), len(text)]
        found += (text[begin:end].strip(" ,") for begin, end in itertools.pairwise(cuts))
    return tuple(part for part in found if part)


def is_ours(part: str) -> bool:
    """Return whether this part is of srobust."""
    return part.startswith(TAG)


def has_ours(reason: str) -> bool:
    """Return whether srobust wrote a part of it, whoever wrote the others."""
    return any(map(is_ours, parts(reason)))


def of_others(reason: str) -> tuple[str, ...]:
    """Return the parts that srobust did not write."""
    return tuple(part for part in parts(reason) if not is_ours(part))


def as_one_part(text: str) -> str:
    """Return ``text`` of a reason without what separates parts. As long as it was, or shorter."""
    return _SEPARATOR.sub(lambda found: ": " if ":" in found[0] else ", ", text)
