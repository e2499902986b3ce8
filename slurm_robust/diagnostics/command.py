"""``srobust diagnose`` tests nodes on demand; its screen, and that of ``srobust replay``."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial

from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.analysis.replay import ReplayPhase, ReplayVerdict
from slurm_robust.config.container import BadOption
from slurm_robust.config.job import JobConfig
from slurm_robust.diagnostics.places import HerePlace, SlurmPlace, TestSite, gpus_here
from slurm_robust.diagnostics.plan import BY_NAME, PROGRAMS
from slurm_robust.diagnostics.runner import PlaceDiagnoser
from slurm_robust.model.container import Container
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis, TestResult
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.companion import Lent
from slurm_robust.slurm.environment import allocation_from_environment
from slurm_robust.terminal.console import STYLES, ScreenTable, plain_table, show
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import one_line


class Code(IntEnum):
    """Exit codes of both commands."""

    PASSED = 0
    """All tests have passed, or all groups of a replay agree."""

    FAILED = 1
    """There are suspects, or tests that failed."""

    UNKNOWN = 3


class WrongArgument(SrobustError):
    """There is no such test, node or folder."""

    exit_code = ExitCode.USAGE


def main(
    *,
    nodes: Sequence[str],
    tests: Sequence[str],
    bitwise: bool,
    storage: str,
    budget_s: float,
    json: bool,
    config: JobConfig,
) -> int:
    """Run the tests and print what they found. Raises :class:`WrongArgument`, ``SlurmError``.

    Of ``config`` it counts in which container the nodes run them.
    """
    if strange := [test for test in tests if test not in BY_NAME]:
        raise WrongArgument(f"there is no test {', '.join(strange)}", fix=f"use some of {', '.join(BY_NAME)}")
    place, names = _place(os.environ, nodes, _container(config, storage))
    if storage and len(names) == 1 and not os.path.isdir(storage):
        # Several nodes are compared: what none of them has is no node's fault.
        fix = "name a folder that is there, on this host too"
        raise WrongArgument(f"--storage {storage}: there is no such folder", fix=fix, code=ExitCode.NO_INPUT)
    # When Slurm or a shell ends this process, the steps must end as with Ctrl-C: they would outlive it.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    tell = partial(print, file=sys.stderr, flush=True)
    diagnoser = PlaceDiagnoser(place, tests=tests, report=tell)
    diagnosis = diagnoser.diagnose(names, bitwise=bitwise, storage=storage, budget_s=budget_s)
    show(diagnosis, partial(render, nodes=names), json=json)
    return code_of(diagnosis)


def code_of(diagnosis: Diagnosis) -> Code:
    """Return what the diagnosis means for a script."""
    outcomes = {result.outcome for result in diagnosis.results}
    if Outcome.FAIL in outcomes or diagnosis.suspects:
        return Code.FAILED
    return Code.PASSED if outcomes == {Outcome.PASS} else Code.UNKNOWN


def render(diagnosis: Diagnosis, nodes: Sequence[str]) -> RenderableType:
    """Return the suspects, a row per node with a column per test, and the reason of each failure."""
    parts: list[RenderableType] = [_headline(diagnosis.suspects)]
    if diagnosis.reason:
        parts.append(Text(one_line(diagnosis.reason)))
    if diagnosis.results:
        parts.append(_table(diagnosis.results, nodes))
    parts += [
        Text(one_line(f"{r.node}: {r.test}{_with(r)}: {r.text}"), style=STYLES[r.outcome])
        for r in diagnosis.results
        if r.outcome is not Outcome.PASS
    ]
    parts += [
        Text(one_line(f"left out: {test} ({why})"), style="dim") for test, why in diagnosis.left_out.items()
    ]
    return Group(*parts)


def _headline(suspects: Sequence[str]) -> Text:
    text = f"suspects: {fold(suspects) or 'none'}"
    return Text(one_line(text), style="bold red" if suspects else "bold")


def _table(results: Sequence[TestResult], nodes: Sequence[str]) -> ScreenTable:
    ran = {result.test for result in results}
    tests = [program.name for program in PROGRAMS if program.name in ran]
    table = plain_table("node", *tests)
    for node in nodes:
        cells = [[r for r in results if r.node == node and r.test == test] for test in tests]
        table.add_row(Text(one_line(node)), *map(_cell, cells))
    return table


def _cell(results: Sequence[TestResult]) -> Text:
    if not results:
        return Text("-", style="dim")
    outcome = min((result.outcome for result in results), key=lambda one: one.order)
    value = ", ".join(dict.fromkeys(result.value for result in results if result.value))
    return Text(one_line(f"{outcome.value} {value}"), style=STYLES[outcome])


def _with(result: TestResult) -> str:
    others = [peer for peer in result.peers if peer != result.node]
    return f" with {fold(others)}" if others else ""


def _container(config: JobConfig, storage: str) -> Container:
    try:
        return config.agents.container((os.path.abspath(storage),) if storage else ())
    except BadOption as error:
        raise WrongArgument(f"agents.srun_options {error}", fix=error.fix, code=ExitCode.CONFIG) from error


def _place(
    environ: Mapping[str, str], wanted: Sequence[str], container: Container
) -> tuple[TestSite, Sequence[str]]:
    """Return the place in which to test, and the nodes there."""
    if not environ.get("SLURM_JOB_ID"):
        here = socket.gethostname().partition(".")[0]
        if wanted and tuple(wanted) != (here,):
            raise WrongArgument(
                "outside a job only this node can be tested",
                fix="use it inside sbatch or salloc",
                code=ExitCode.ALLOCATION,
            )
        return HerePlace((here,), gpus_here()), (here,)
    slurm = CliSlurmClient()
    # Slurm's own answer: the variables are stale once a node is lost.
    allocation = slurm.allocation(allocation_from_environment(environ).job_id)
    names = wanted or allocation.nodes
    if foreign := [name for name in names if name not in allocation.nodes]:
        raise WrongArgument(f"the job does not hold {fold(foreign)}", fix="name nodes of this job only")
    # In the order of Slurm, in which neighbours are near each other.
    place = SlurmPlace(slurm, allocation, Lent(allocation, container=container))
    return place, [name for name in allocation.nodes if name in names]


# -- srobust replay --------------------------------------------------------------------------------


def code_of_replay(verdict: ReplayVerdict) -> Code:
    """Return what the verdict means for a script."""
    if verdict.suspects:
        return Code.FAILED
    outcomes = {seen.outcome for seen in (*verdict.horizontal, *verdict.vertical)}
    return Code.PASSED if outcomes == {Outcome.PASS} else Code.UNKNOWN


def render_replay(verdict: ReplayVerdict) -> RenderableType:
    """Return the suspects and why, and a row for each group of each phase."""
    parts: list[RenderableType] = [_headline(verdict.suspects), Text(one_line(verdict.reason))]
    table = plain_table("phase", "group", "nodes", "")
    for phase, seen in (
        (ReplayPhase.HORIZONTAL, verdict.horizontal),
        (ReplayPhase.VERTICAL, verdict.vertical),
    ):
        for number, group in enumerate(seen):
            outcome = Text(one_line(f"{group.outcome.value} {group.text}"), style=STYLES[group.outcome])
            table.add_row(phase.value, str(number), Text(one_line(fold(group.nodes))), outcome)
    return Group(*parts, table) if table.row_count else Group(*parts)
