"""``srobust top``: jobs live in a terminal."""

from __future__ import annotations

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command, add_job_dir
from slurm_robust.report.top import command


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "top",
        lambda args: command.main(args.jobs, json=args.json, job_dir=args.job_dir),
        HELP["top"],
        more="Reads the job's folder only. 's' sorts nodes, 'w' filters them, '?' shows all keys, 'q' quits.",
        examples=(
            ("srobust top", "all jobs of the folder srobust-jobs"),
            ("srobust top 4711", "one job"),
        ),
        json=True,
    )
    parser.add_argument(
        "jobs",
        metavar="JOB",
        nargs="*",
        help="as for 'srobust status'; several make a list (default: all jobs of --job-dir)",
    )
    add_job_dir(parser)
