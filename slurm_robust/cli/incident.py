"""``srobust incident``: one incident of a job."""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, UsageError, add_command, whole_number
from slurm_robust.report import incident_view
from slurm_robust.sharing import archive


def register(commands: Commands) -> None:
    """Add the command."""
    one = add_command(
        commands,
        "incident",
        _incident,
        HELP["incident"],
        of_job=True,
        json=True,
        examples=(
            ("srobust incident 4711 2", "incident 2 of job 4711; 'srobust incidents 4711' lists them"),
            (
                "srobust incident 4711/2 --logs --stacks",
                "the same, with the last lines and the stacks of the ranks",
            ),
            (
                "srobust incident 4711 2 --bundle fault.tar.gz --anonymous",
                "to send with a report on a fault",
            ),
        ),
    )
    one.add_argument(
        "number",
        metavar="N",
        nargs="?",
        default="",
        help="its number, as 'srobust incidents' shows it; JOB/N names one, too",
    )
    one.add_argument(
        "--bundle",
        metavar="FILE",
        type=Path,
        help="write all that is known of it to this archive (.tar.gz), for a report on a fault; no secrets",
    )
    one.add_argument(
        "--anonymous",
        action="store_true",
        help="with --bundle: no names of people, machines, folders",
    )
    one.add_argument("--logs", action="store_true", help="also the last lines of the ranks' output")
    one.add_argument(
        "--stacks", action="store_true", help="also the stacks in full, of one rank of each group"
    )


def which_incident(job: str, number: str) -> tuple[str, int]:
    """Return the job and the number in ``JOB N``, ``JOB/N`` or ``NAME JOB/N``. Raises UsageError."""
    if not number and "/" in job and not Path(job).exists():
        job, _, number = job.rpartition("/")
    elif "/" in number:
        job, _, number = number.rpartition("/")
    if not number:
        raise UsageError(
            f"which incident of {job}? N, its number, is missing",
            fix=f"'srobust incidents {job}' lists them; then 'srobust incident {job} N' shows one",
        )
    try:
        return job, whole_number(1)(number)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"argument N: {error}", fix=f"'srobust incidents {job}' lists them") from error


def _incident(args: argparse.Namespace) -> int:
    job, number = which_incident(args.job, args.number)
    if args.anonymous and args.bundle is None:
        raise UsageError("--anonymous is for --bundle", fix="give --bundle FILE.tar.gz, too")
    if args.bundle is not None:
        return archive.main(job, number, args.bundle, anonymous=args.anonymous, job_dir=args.job_dir)
    return incident_view.show_one(
        job, number, json=args.json, logs=args.logs, stacks=args.stacks, job_dir=args.job_dir
    )
