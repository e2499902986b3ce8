"""The matrix for people: one row for each kind of training, one column for each length of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.code_matrix.cases import CASES, STEPS, Case
from benchmarks.code_matrix.outcomes import Outcome, complaints, lost_s

Outcomes = Mapping[Case, Outcome]


def print_mode(console: Console, mode: str, outcomes: Outcomes) -> None:
    """The table, which is Markdown, the sums, and all that is wrong with the words of the last decision."""
    outcomes = {case: found for case, found in outcomes.items() if case.undisturbed in outcomes}
    cases = [case for known in CASES if (case := replace(known, mode=mode)) in outcomes]
    found = [outcomes[case] for case in cases]
    console.print(_table(cases, outcomes))
    wrong = {o: why for o in found if (why := complaints(o, outcomes[o.case.undisturbed]))}
    lost = [s for o in found if (s := lost_s(o, outcomes[o.case.undisturbed])) is not None]
    console.print(
        f"{len(found) - len(wrong)} of {len(found)} right; innocents evicted: "
        f"{sum(len(o.evicted) for o in found)}; median of the time lost: {median(lost or [0.0]):.0f} s"
    )
    for outcome, why in wrong.items():
        console.print(f"WRONG {outcome.case.name} (job {outcome.job}): {'; '.join(why)}")
        console.print(f"      {', '.join(outcome.actions)}: {outcome.words}", markup=False)


def in_short(found: Outcome, undisturbed: Outcome | None) -> str:
    """One line; ``undisturbed`` is None while that training has not ended."""
    line = f"{found.case.name}: {found.ending}, attempts: {found.attempts}, {found.took_s:.0f} s"
    if undisturbed is None:
        return line
    return f"{line}: {'WRONG: ' + '; '.join(why) if (why := complaints(found, undisturbed)) else 'right'}"


def _table(cases: Sequence[Case], outcomes: Outcomes) -> Table:
    made = Table(box=box.MARKDOWN)
    for name in ("fault", "script", "comes", *(f"steps of {seconds:g} s" for seconds in STEPS)):
        made.add_column(name)
    for row in dict.fromkeys(replace(case, step_s=0.0) for case in cases):
        cells = (_cell(outcomes, replace(row, step_s=seconds)) for seconds in STEPS)
        made.add_row(row.fault, row.script, row.occurs, *cells)
    return made


def _cell(outcomes: Outcomes, case: Case) -> str:
    """Ending, attempts, nodes evicted if any, seconds lost."""
    found = outcomes.get(case)
    if found is None:
        return ""
    undisturbed = outcomes[case.undisturbed]
    lost = lost_s(found, undisturbed)
    parts = [found.ending, f"{found.attempts} attempt{'s' if found.attempts != 1 else ''}"]
    parts += [f"{len(found.evicted)} evicted"] if found.evicted else []
    parts += [f"{lost:.0f} s"] if lost is not None else []
    return f"{'**wrong** ' if complaints(found, undisturbed) else ''}{', '.join(parts)}"
