"""``srobust replay``: replays by hand, and shows what each group of nodes did."""

from __future__ import annotations

import os
import signal
import sys
from enum import IntEnum

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slurm_robust.analysis.replay import Phase, ReplayVerdict
from slurm_robust.config.job import JobConfig
from slurm_robust.controller.checkpoints import layout_of
from slurm_robust.controller.preflight import job_directory, sizes
from slurm_robust.diagnostics.replay.replayer import ReplayCommand
from slurm_robust.diagnostics.replay.steps import StepReplayer
from slurm_robust.model.findings import Outcome
from slurm_robust.model.job import CommandKind
from slurm_robust.report.outcomes import STYLES
from slurm_robust.report.screen import Screen
from slurm_robust.slurm.environment import allocation_from_environment
from slurm_robust.slurm.select import make_client
from slurm_robust.util.text import as_json, one_line


class Code(IntEnum):
    """Exit codes of this command."""

    AGREE = 0
    SUSPECTS = 1
    NO_VERDICT = 3


def main(config: JobConfig, command: tuple[str, ...], kind: CommandKind, *, json: bool) -> int:
    """Replay ``command``, which was checked, on all nodes of this job and print the verdict.

    Raises ``SlurmError``, and ``PreflightError`` for what does not fit the allocation.
    """
    slurm = make_client(config.slurm.backend, config.slurm.timeout_s)
    # Slurm's own word: the variables are stale once a node is lost.
    allocation = slurm.allocation(allocation_from_environment(os.environ).job_id)
    slots, _, nproc = sizes(config, allocation)
    replays = job_directory(config, os.environ, allocation.job_id, "").path / "replays"
    # Where Slurm or a shell ends us, the steps must end as with Ctrl-C: they would outlive us.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    print(
        f"replaying {config.replay.steps} steps on {slots} nodes; see {replays}", file=sys.stderr, flush=True
    )
    verdict = StepReplayer(slurm, allocation, replays, ports=config.rendezvous.ports).replay(
        allocation.nodes[:slots],
        layout_of(config, slots, nproc),
        ReplayCommand(kind=kind, command=(*command, *(config.replay.args or ())), cwd=os.getcwd()),
        steps=config.replay.steps,
        budget_s=config.replay.budget_s,
    )
    if json:
        print(as_json(verdict))
    else:
        Screen().print(render(verdict))
    return code_of(verdict)


def code_of(verdict: ReplayVerdict) -> Code:
    """What the verdict means for a script."""
    if verdict.suspects:
        return Code.SUSPECTS
    outcomes = {seen.outcome for seen in (*verdict.horizontal, *verdict.vertical)}
    return Code.AGREE if outcomes == {Outcome.PASS} else Code.NO_VERDICT


def render(verdict: ReplayVerdict) -> RenderableType:
    """Who is to blame and why, and a row for each group of each phase."""
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
