"""Words that verdicts have in common."""

from __future__ import annotations

from collections.abc import Collection

_MOST_NAMED = 8


def named_ranks(ranks: Collection[int]) -> str:
    """``rank 3``, ``ranks 3,7``, ``ranks 0,1,2,3,4,5,6,7 and 56 more``."""
    shown = sorted(ranks)[:_MOST_NAMED]
    more = f" and {len(ranks) - len(shown)} more" if len(ranks) > len(shown) else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {','.join(map(str, shown))}{more}"
