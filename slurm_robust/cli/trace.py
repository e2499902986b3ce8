"""``srobust trace``: the life of a job as spans."""

from __future__ import annotations

from pathlib import Path

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command
from slurm_robust.report import trace


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "trace",
        lambda args: trace.main(
            args.job, otlp=args.otlp, perfetto=args.perfetto, json=args.json, job_dir=args.job_dir
        ),
        HELP["trace"],
        more="Also of a job that has ended. Sent twice, a span has the same id.",
        examples=(
            ("srobust trace 4711", "the spans in the order of their beginning"),
            ("srobust trace 4711 --otlp http://localhost:4318", "send them to an OpenTelemetry collector"),
            ("srobust trace 4711 --perfetto job.json", "a file for ui.perfetto.dev"),
        ),
        or_default_job=True,
        json=True,
    )
    parser.add_argument(
        "--otlp",
        metavar="URL",
        help="send them to this OpenTelemetry collector by OTLP over HTTP (http://localhost:4318)",
    )
    parser.add_argument(
        "--perfetto",
        metavar="FILE",
        type=Path,
        help="write them to this file for ui.perfetto.dev or chrome://tracing, with a row for each node",
    )
