"""A text of several ranks with labels: the rank that failed first. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from slurm_robust.analysis.logs.ranks import first_causes
from slurm_robust.analysis.logs.rule import EvidenceTier, RuleSet
from slurm_robust.analysis.logs.text import lines_of
from slurm_robust.analysis.logs.verdict import Reading, read, without_conviction

# torch's label comes after those of srun --label and torchrun, which may count otherwise.
_LABEL = re.compile(
    r"(?:(?P<task>\d{1,7}):(?: |(?=\[)))?(?:\[default\d{1,3}\]:)?(?:\[rank ?(?P<rank>\d{1,7})\]:)?",
    re.IGNORECASE,
)
# srun tells how one task has ended.
_ENDED = re.compile(r"srun: error: \S{1,80}: task (\d{1,7}): ")
_NUMBER = re.compile(r"\d+")

MAX_ALIKE, MAX_RANKS = 4, 128
"""So many ranks are read that say the same but for numbers, and in all: each takes milliseconds."""


def read_merged(
    text: str, stream: str = "program", rules: RuleSet | None = None
) -> tuple[Reading, tuple[int, ...]]:
    """Return what holds for the whole text, and the ranks that failed first; none if nothing tells."""
    whole = read(text, stream, rules)
    if whole.tier is None or whole.verdict.symptom == "preemption_or_time_limit":
        return whole, ()  # no rank failed first
    parts = {rank: read(part, stream, rules) for rank, part in _by_rank(text).items()}
    failed = {rank: reading for rank, reading in parts.items() if reading.tier is not None}
    if len(failed) > 1:
        whole = without_conviction(whole)
    if not parts or whole.named:
        return whole, whole.named if parts else ()
    roots = first_causes(failed)
    only_waits = any(failed[rank].tier is EvidenceTier.EFFECT for rank in roots)
    # A line without a label tells more, or the only rank that is heard complains about another one.
    if only_waits and (len(failed) == 1 or whole.tier is not EvidenceTier.EFFECT):
        return whole, ()
    return whole, roots


def _by_rank(text: str) -> dict[int, str]:
    """Return the lines of each rank, of ranks that say the same only the first ones."""
    lines: dict[int, list[str]] = defaultdict(list)
    for _, line in lines_of(text):
        found = _LABEL.match(line)
        rank = (found["rank"] or found["task"]) if found else None
        if rank is None and (ended := _ENDED.search(line)):
            rank = ended[1]
        if rank is not None:
            lines[int(rank)].append(line)
    parts: dict[int, str] = {}
    alike: Counter[str] = Counter()
    for rank, own in lines.items():
        part = "\n".join(own)
        shape = _NUMBER.sub("0", part)
        alike[shape] += 1
        if alike[shape] <= MAX_ALIKE and len(parts) < MAX_RANKS:
            parts[rank] = part
    return parts
