"""Seconds from the SIGKILL of one of four ranks to the end of the next new step, beside the alternatives."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict

from rich.console import Console

from benchmarks import common, contenders
from benchmarks.contenders import Contender, Outcome
from benchmarks.samples import Summary, interleaved
from benchmarks.timeline import MILESTONES, Recovery

OURS = "srobust run"
DEFAULT_SCHEDULER = "SchedulerParameters=batch_sched_delay=3,sched_interval=60,bf_interval=30"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all contenders in turn; 0 when ours always recovered."""
    options = _parse(argv)
    console = common.console()
    machine = common.machine()
    outcomes: dict[str, list[Outcome]] = {}
    try:
        with ExitStack() as stack:
            repeated, once = _line_up(options, stack, console)
            for rep, contender in interleaved(repeated, options.reps):
                outcomes.setdefault(contender.name, []).append(_run(contender, rep, console))
            for contender in once:
                outcomes[contender.name] = [_run(contender, 0, console)]
    finally:
        # Also what was measured until something failed: it took minutes.
        path = common.write("restart", {"machine": machine, **_facts(outcomes)})
        _show(console, outcomes)
        console.print(f"every sample is in {path}")
    ours = outcomes.get(OURS, [])
    return 0 if all(isinstance(o.recovery, Recovery) for o in ours) else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.parser(__doc__, reps=5)
    parser.add_argument("--only", help="part of the name of the contenders to run")
    parser.add_argument("--slow", action="store_true", help="also Slurm's default requeue, once: 3 minutes")
    return parser.parse_args(argv)


def _line_up(
    options: argparse.Namespace, stack: ExitStack, console: Console
) -> tuple[list[Contender], list[Contender]]:
    """Contenders that run ``--reps`` times, and those that run once, with their sandboxes up."""
    plain = stack.enter_context(common.boot("plain", nodes=1))
    tuned = stack.enter_context(common.boot("tuned", nodes=1, cred_expire_s=5))
    repeated = [
        Contender(OURS, plain, contenders.srobust),
        Contender("torchrun, store not shared", plain, contenders.torchrun),
        Contender("scontrol requeue, tuned", tuned, contenders.requeue),
    ]
    once = [Contender("torchrun, default", plain, contenders.torchrun_default)]
    if problem := contenders.install_nvrx():
        console.print(f"[yellow]NVRx is left out:[/] {problem}")
    else:
        repeated.insert(2, Contender("NVRx ft_launcher", plain, contenders.nvrx))
    if options.slow:
        slow = stack.enter_context(common.boot("slow", nodes=1, slurm_conf_lines=(DEFAULT_SCHEDULER,)))
        once.append(Contender("scontrol requeue, default", slow, contenders.slow_requeue))
    if options.only:
        repeated = [c for c in repeated if options.only in c.name]
        once = [c for c in once if options.only in c.name]
    return repeated, once


def _run(contender: Contender, rep: int, console: Console) -> Outcome:
    slug = "".join(c if c.isalnum() else "-" for c in contender.name)
    outcome = contender.run(contender.sandbox, common.folder_for(contender.sandbox, f"{slug}-{rep}"))
    found = outcome.recovery
    text = f"new step after {found.step:.2f} s" if isinstance(found, Recovery) else "never recovered"
    console.print(f"{rep + 1} {contender.name}: {text}")
    return outcome


def _facts(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, object]:
    return {
        "samples": {name: [asdict(o) for o in runs] for name, runs in outcomes.items()},
        "summary": {
            name: {m: asdict(s) for m, s in _summaries(runs).items()} for name, runs in outcomes.items()
        },
    }


def _summaries(runs: Sequence[Outcome]) -> dict[str, Summary]:
    good = [o for o in runs if isinstance(o.recovery, Recovery)]
    if not good:
        return {}
    found = {m: Summary.of([getattr(o.recovery, m) for o in good]) for m in ("respawn", *MILESTONES)}
    for phase in good[0].phases:
        found[f"phase: {phase}"] = Summary.of([o.phases[phase] for o in good])
    return found


def _show(console: Console, outcomes: Mapping[str, Sequence[Outcome]]) -> None:
    columns = ("", "runs", "respawn", "imported", "group", "ready", "new step", "/ ours")
    table = common.table("Seconds after SIGKILL of one of 4 ranks: median (range)", *columns)
    ours = _summaries(outcomes.get(OURS, []))
    for name, runs in outcomes.items():
        found = _summaries(runs)
        good = sum(isinstance(o.recovery, Recovery) for o in runs)
        cells = [found[m].text() if found else "-" for m in ("respawn", "imported", "group", "ready")]
        step = found["step"].text() if found else "never"
        ratio = f"{found['step'].median / ours['step'].median:.1f}" if found and ours else "-"
        table.add_row(name, f"{good} of {len(runs)}", *cells, f"[bold]{step}[/]", ratio)
    console.print(table)
    parts = [f"{name.removeprefix('phase: ')} {s.text()}" for name, s in ours.items() if "phase" in name]
    if parts:
        console.print("ours, phase by phase: " + ", ".join(parts))


if __name__ == "__main__":
    sys.exit(main())
