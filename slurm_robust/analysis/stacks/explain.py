"""Stacks for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from slurm_robust.analysis.stacks.ranks import views
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.stacks import RankStacks
from slurm_robust.util.text import fold_ranks

FRAMES = 5
"""Calls shown of each group."""


def explain(
    stacks: Sequence[RankStacks],
    layout: ParallelLayout,
    missing: Collection[int] = (),
    *,
    frames: int = FRAMES,
) -> tuple[str, ...]:
    """Who does what: ranks that do the same in one group, the largest first, with their innermost calls."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    seen = views(stacks, layout, missing)
    for rank, view in seen.items():
        groups[view.key].append(rank)
    lines = []
    for _, ranks in sorted(groups.items(), key=lambda item: (-len(item[1]), item[1])):
        view = seen[ranks[0]]
        noun = "ranks" if len(ranks) > 1 else "rank"
        lines.append(f"{len(ranks)} {noun} [{fold_ranks(ranks)}]: {view.activity.value}")
        calls = view.form.splitlines()
        lines += [f"    {call}" for call in calls[:frames]]
        if len(calls) > frames:
            lines.append(f"    ... {len(calls) - frames} more")
        if view.helper:
            lines.append(f"    {view.helper}")
    return tuple(lines)
