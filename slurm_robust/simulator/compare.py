"""Lives under other settings beside those under the spec's own, and beside reality. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from slurm_robust.model.record import Record
from slurm_robust.simulator.curves import LifeCurve
from slurm_robust.simulator.figures import Estimate, LifeFigures, Together, estimate, together
from slurm_robust.simulator.like import Likeness, Reality
from slurm_robust.simulator.what_if import Variation, described

FAITHFUL = 0.03
"""Points of ETTR by which a job's lives under its own settings may differ from reality."""

AS_GOOD = 0.001
"""A difference in ETTR that is none."""


class Compared(Record):
    """Lives under other settings."""

    settings: dict[str, str]
    together: Together
    gain: Estimate
    """By how much the ETTR is higher than that of the same life under its own settings."""
    is_own: bool = False
    """These are the spec's own settings."""
    changes: bool = True
    """Any life is another one than under its own settings."""


class Comparison(Record):
    """Lives under the spec's own settings, under others, and what really was."""

    own: Together
    what_if: tuple[Compared, ...] = ()
    real: Reality | None = None
    """None for a job that never ran."""
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def comparison(
    name: str,
    fidelity: str,
    own: Sequence[LifeFigures],
    others: Sequence[tuple[Variation, Sequence[LifeFigures]]],
    likeness: Likeness | None,
) -> Comparison:
    """Return all lives of one spec, and those of its ``others``, each in the order of its seeds."""
    return Comparison(
        own=together(name, fidelity, own),
        what_if=tuple(
            Compared(
                settings=variation.settings,
                together=together(str(variation), fidelity, lives),
                gain=estimate([one.ettr - as_it_is.ettr for one, as_it_is in zip(lives, own, strict=True)]),
                is_own=lives is own,
                changes=[_figures(one) for one in lives] != [_figures(one) for one in own],
            )
            for variation, lives in others
        ),
        real=likeness.real if likeness is not None else None,
        assumed=likeness.assumed if likeness is not None else (),
        left_out=likeness.left_out if likeness is not None else (),
    )


def _figures(life: LifeFigures) -> LifeFigures:
    """Return the figures of a life alone: more standbys that nobody needs are no other life."""
    return structs.replace(life, curve=LifeCurve())


def percent(share: float) -> str:
    """Return ``97.3 %``."""
    return f"{100 * share:.1f} %"


def number(value: float) -> str:
    """Return a figure with three digits, or whole from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def best(what_if: Sequence[Compared]) -> Compared | None:
    """Return the first settings that may be as good as any others, by their confidence intervals.

    None if they are no better than the own ones.
    """
    most = max((one.together.figures["ettr"].mean for one in what_if), default=0.0)
    found = next((one for one in what_if if one.together.figures["ettr"].high >= most - AS_GOOD), None)
    return found if found is not None and found.gain.low > AS_GOOD else None


def conclusions(made: Comparison) -> list[str]:
    """Return what follows from the comparison, a sentence each."""
    own, said = made.own.figures["ettr"], []
    if (real := made.real) is not None and abs(own.mean - real.ettr) > FAITHFUL:
        apart = 100 * abs(own.mean - real.ettr)
        said.append(f"The replay differs from reality by {apart:.1f} points: take differences with care.")
    found = best(made.what_if)
    if found is not None:
        ettr = found.together.figures["ettr"]
        said.append(
            f"With {described(found.settings)}, this job would have had {percent(ettr.mean)} instead of "
            f"{percent(own.mean)} (95 %: {100 * ettr.low:.1f} to {percent(ettr.high)})."
        )
    elif made.what_if:
        said.append(f"None of these settings gives more than the job's own, {percent(own.mean)}.")
    if idle := [one for one in made.what_if if not one.changes and not one.is_own]:
        names = ", ".join(" and ".join(f"{n}={v}" for n, v in one.settings.items()) for one in idle[:3])
        more = f" and {len(idle) - 3} more" if len(idle) > 3 else ""
        said.append(f"{names}{more} {'changes' if len(idle) == 1 else 'change'} nothing here.")
    return said
