"""``srobust simulate``: jobs that never ran, by the policy that runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command, whole_number
from slurm_robust.simulator import command


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "simulate",
        _simulate,
        HELP["simulate"],
        more="A spec says what the job is, what goes wrong, and how often: docs/simulator.md.",
        examples=(
            ("srobust simulate spec.yaml", "play ten lives of this job, and show its ETTR"),
            ("srobust simulate byterobust-dense", "a spec that the package brings"),
            ("srobust simulate spec.yaml --seeds 1000 --lives lives.jsonl", "many; continue after Ctrl-C"),
        ),
        json=True,
    )
    parser.add_argument("spec", metavar="SPEC", type=Path, help="a YAML file, or the name of a shipped spec")
    parser.add_argument(
        "--seeds", metavar="N", type=whole_number(1), help="number of lives (default: the spec's)"
    )
    parser.add_argument(
        "--processes",
        metavar="N",
        type=whole_number(1),
        help="lives at a time (default: one on each processor)",
    )
    parser.add_argument(
        "--lives",
        metavar="FILE",
        type=Path,
        help="keep lives in this file, and do not play those again that it has",
    )
    parser.add_argument("--csv", action="store_true", help="print a line of figures for each life")


def _simulate(args: argparse.Namespace) -> int:
    return command.main(
        args.spec,
        seeds=args.seeds,
        processes=args.processes or 0,
        lives=args.lives,
        json=args.json,
        as_csv=args.csv,
    )
