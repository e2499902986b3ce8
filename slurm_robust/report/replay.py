"""What ``srobust replay`` prints: the suspects, and the result of each group of nodes."""

from __future__ import annotations

from enum import IntEnum

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slurm_robust.analysis.replay import Phase, ReplayVerdict
from slurm_robust.model.findings import Outcome
from slurm_robust.report.console import STYLES
from slurm_robust.util.text import one_line


class Code(IntEnum):
    """Exit codes of this command."""

    AGREE = 0
    SUSPECTS = 1
    NO_VERDICT = 3


def code_of(verdict: ReplayVerdict) -> Code:
    """What the verdict means for a script."""
    if verdict.suspects:
        return Code.SUSPECTS
    outcomes = {seen.outcome for seen in (*verdict.horizontal, *verdict.vertical)}
    return Code.AGREE if outcomes == {Outcome.PASS} else Code.NO_VERDICT


def render(verdict: ReplayVerdict) -> RenderableType:
    """The suspects and why, and a row for each group of each phase."""
    suspects = ", ".join(verdict.suspects)
    parts: list[RenderableType] = [
        Text(one_line(f"suspects: {suspects or 'none'}"), style="bold red" if suspects else "bold"),
        Text(one_line(verdict.reason)),
    ]
    table = Table("phase", "group", "nodes", "")
    for phase, seen in ((Phase.HORIZONTAL, verdict.horizontal), (Phase.VERTICAL, verdict.vertical)):
        for number, group in enumerate(seen):
            said = Text(one_line(f"{group.outcome.value} {group.text}"), style=STYLES[group.outcome])
            table.add_row(phase.value, str(number), Text(one_line(", ".join(group.nodes))), said)
    return Group(*parts, table) if table.row_count else Group(*parts)
