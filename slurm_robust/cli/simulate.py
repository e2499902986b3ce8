"""``srobust simulate``: jobs that never ran, and real jobs under other settings."""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, UsageError, add_command, add_job_dir, whole_number
from slurm_robust.config.plan import load_plan
from slurm_robust.home import page
from slurm_robust.model.errors import PreflightError
from slurm_robust.page.write import STDOUT
from slurm_robust.simulator import command, shipped, spec
from slurm_robust.simulator.like import like
from slurm_robust.trainings.find import find, load


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "simulate",
        _simulate,
        HELP["simulate"],
        more="A spec says what the job is, what goes wrong, and how often; --like plays the faults of a real "
        f"job again: {page('simulator.md')}.",
        examples=(
            ("srobust simulate spec.yaml", "play ten lives of this job, and show its ETTR"),
            ("srobust simulate byterobust-dense", "a spec that the package brings"),
            ("srobust simulate byterobust-dense", "a spec that the package brings"),
            ("srobust simulate spec.yaml --seeds 1000 --lives lives.jsonl", "many; continue after Ctrl-C"),
            ("srobust simulate --like 4711 --what-if spares=0..8", "a real job, with other standbys"),
            ("srobust simulate spec.yaml --html page.html", "one page with curves"),
        ),
        json=True,
    )
    parser.add_argument(
        "spec", metavar="SPEC", nargs="?", type=Path, help="a YAML file, or the name of a shipped spec"
    )
    parser.add_argument(
        "--like", metavar="JOB", help="instead of SPEC: play the faults of this job again, by its journal"
    )
    add_job_dir(parser)
    parser.add_argument(
        "--what-if",
        metavar="KEY=VALUES",
        action="append",
        default=[],
        help="play it with other settings, too: a key of job.yaml or of a spec, and a range or a list "
        "(spares=0..8, checkpoint.every_s=60,600); keys of one --what-if are crossed",
    )
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
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write one HTML page with curves ('-': to standard output)"
    )
    parser.add_argument("--csv", action="store_true", help="print a line of figures for each life")


def _simulate(args: argparse.Namespace) -> int:
    if (args.spec is None) == (args.like is None):
        raise UsageError("give either a SPEC or --like JOB", fix="srobust simulate --help has examples")
    if args.csv and (args.json or args.html is not None):
        raise UsageError("--csv prints lives alone", fix="give --csv without --json and --html")
    if args.html == STDOUT and args.json:
        raise UsageError("--html - prints, too", fix="give --html a file")
    likeness = None
    if args.like is not None:
        directory = find(args.like, args.job_dir)
        journal = load(directory, quiet=args.json or args.csv)
        try:
            config = load_plan(directory).config
        except PreflightError:
            config = None  # the folder of another user, or a copy of the journal alone: the replay says so
        likeness = like(journal.events, config, journal.breaks_off)
    return command.main(
        command.SimulationRequest(
            spec=likeness.spec if likeness is not None else spec.read(shipped.located(args.spec)),
            name=args.spec.stem if args.spec is not None else "",
            likeness=likeness,
            what_if=tuple(args.what_if),
            seeds=args.seeds,
            processes=args.processes or 0,
            lives=args.lives,
            html=args.html,
            json=args.json,
            csv=args.csv,
        )
    )
