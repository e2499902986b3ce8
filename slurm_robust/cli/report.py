"""``srobust report``: a whole job or training."""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, UsageError, add_command
from slurm_robust.page.write import STDOUT
from slurm_robust.report import job_main, job_text


def register(commands: Commands) -> None:
    """Add the command."""
    text = HELP["report"]
    parser = add_command(
        commands,
        "report",
        _report,
        text,
        more="Of a running or ended job, or of all jobs of a training, also from a copy of their folders on "
        "a machine without Slurm.",
        examples=(
            ("srobust report 4711 --html report.html", "one page with timeline, curves and evidence"),
            ("srobust report gpt-7b", "all jobs of a training, as text"),
            ("srobust report 4711 --csv --table incidents", "a table for a spreadsheet"),
        ),
        or_default_job=True,
        json=True,
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help="write one HTML page with timeline, curves and evidence ('-': to standard output)",
    )
    parser.add_argument("--csv", action="store_true", help="print one table as CSV")
    parser.add_argument(
        "--table",
        choices=[table.value for table in job_text.CsvTable],
        help="with --csv: which table (default: incidents)",
    )


def _report(args: argparse.Namespace) -> int:
    if args.table is not None and not args.csv:
        raise UsageError("--table needs --csv", fix="add --csv")
    if args.json and args.csv:
        raise UsageError("--json and --csv both print", fix="give one of them")
    if args.html == STDOUT and (args.json or args.csv):
        raise UsageError("--html - prints, too", fix="give --html a file")
    table = job_text.CsvTable(args.table or job_text.CsvTable.INCIDENTS.value) if args.csv else None
    wanted = job_main.ReportFormat(html=args.html, json=args.json, csv=table)
    return job_main.main(args.job, wanted, job_dir=args.job_dir)
