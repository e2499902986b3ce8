"""The commands that show a job, its logs and its checkpoints; each hands over to a report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.cli.fleet import add_index, add_since, index_of
from slurm_robust.cli.parsing import (
    UsageError,
    add_command,
    add_job,
    hostlist,
    number,
    whole_number,
)

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the commands."""
    _register_status(commands)
    _register_top(commands)
    _register_report(commands)
    _register_logs(commands)
    _register_incidents(commands)
    _register_stacks(commands)
    _register_drill(commands)
    _register_classify(commands)
    _register_trace(commands)


# -- status ----------------------------------------------------------------------------------------


def _register_status(commands: Commands) -> None:
    text = "show what runs, what happened and what was done about it"
    parser = add_command(commands, "status", _status, text, of_job=True, json=True)
    parser.add_argument(
        "--phases",
        action="store_true",
        help="show instead how long each phase of a start and of a recovery took, with the slowest nodes",
    )
    parser.add_argument("--watch", action="store_true", help="show it again until the job has ended")
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=number(above=True),
        help="with --watch: how often (default: 2)",
    )
    parser.add_argument(
        "--generation",
        metavar="G",
        type=whole_number(1),
        help="with --phases: this generation (default: the newest)",
    )


def _status(args: argparse.Namespace) -> int:
    from slurm_robust.report import startup, status

    if args.watch:
        if args.json or args.phases:
            raise UsageError("--watch goes with neither --json nor --phases", fix="leave one of them out")
        return status.watch(args.job, args.every or 2.0, job_dir=args.job_dir)
    if args.every is not None:
        raise UsageError("--every needs --watch", fix="add --watch")
    if args.phases:
        return startup.main(args.job, generation=args.generation, json=args.json, job_dir=args.job_dir)
    if args.generation is not None:
        raise UsageError("--generation needs --phases", fix="add --phases")
    return status.main(args.job, json=args.json, job_dir=args.job_dir)


# -- top -------------------------------------------------------------------------------------------


def _register_top(commands: Commands) -> None:
    parser = add_command(
        commands,
        "top",
        _top,
        "watch jobs live in a terminal: nodes, steps, what is wrong and what is done about it",
        more="Reads the job's folder only. 's' sorts nodes, 'w' filters them, '?' shows all keys, 'q' quits.",
        json=True,
    )
    parser.add_argument(
        "jobs",
        metavar="JOB",
        nargs="*",
        help="as for 'srobust status'; several make a list (default: all jobs of --job-dir)",
    )
    parser.add_argument("--job-dir", metavar="DIR", help="the --job-dir given to 'srobust run', if any")


def _top(args: argparse.Namespace) -> int:
    from slurm_robust.report.top import command

    return command.main(args.jobs, json=args.json, job_dir=args.job_dir)


# -- report ----------------------------------------------------------------------------------------


def _register_report(commands: Commands) -> None:
    text = "report on a whole job or training: its ETTR, where its time went, incidents, nodes and starts"
    parser = add_command(
        commands,
        "report",
        _report,
        text,
        more="Of a running or ended job, or of all jobs of a training, also from a copy of their folders on "
        "a machine without Slurm.",
        of_job=True,
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
        choices=("incidents", "classes", "nodes", "steps", "chapters"),
        help="with --csv: which table (default: incidents)",
    )


def _report(args: argparse.Namespace) -> int:
    if args.table is not None and not args.csv:
        raise UsageError("--table needs --csv", fix="add --csv")
    if args.json and args.csv:
        raise UsageError("--json and --csv both print", fix="give one of them")
    from slurm_robust.report import job_main, job_text

    if args.html == job_main.STDOUT and (args.json or args.csv):
        raise UsageError("--html - prints, too", fix="give --html a file")
    table = job_text.Table(args.table or job_text.Table.INCIDENTS.value) if args.csv else None
    wanted = job_main.Wanted(html=args.html, json=args.json, csv=table)
    return job_main.main(args.job, wanted, job_dir=args.job_dir)


# -- logs ------------------------------------------------------------------------------------------


def _register_logs(commands: Commands) -> None:
    parser = add_command(
        commands,
        "logs",
        _logs,
        "show the output of a training, of rank 0 or of other ranks, and follow it",
        more="What 'srobust run' itself prints is in the job's own log.",
        of_job=True,
        json=True,
    )
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="keep printing new output, across restarts and requeues, until the run is over",
    )
    parser.add_argument(
        "--rank", metavar="R", type=_number_or_all, default=0, help="the rank, or 'all' (default: 0)"
    )
    parser.add_argument(
        "--gen", metavar="G", type=whole_number(), help="the generation (default: the newest)"
    )
    parser.add_argument("--err", action="store_true", help="standard error instead of standard output")
    parser.add_argument(
        "-n",
        "--lines",
        metavar="N",
        type=_number_or_all,
        default=50,
        help="begin with the last N lines of each rank, or 'all' (default: 50)",
    )


def _number_or_all(text: str) -> int | None:
    if text == "all":
        return None
    try:
        return whole_number()(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number from 0 nor 'all'") from error


def _logs(args: argparse.Namespace) -> int:
    from slurm_robust.report import logs

    wanted = logs.Wanted(
        rank=args.rank,
        generation=args.gen,
        stream="err" if args.err else "out",
        lines=args.lines,
        follow=args.follow,
        json=args.json,
    )
    return logs.main(args.job, wanted, job_dir=args.job_dir)


# -- trace -----------------------------------------------------------------------------------------


def _register_trace(commands: Commands) -> None:
    parser = add_command(
        commands,
        "trace",
        _trace,
        "show the life of a job as spans: starts and their phases, training, incidents and recoveries",
        more="Also of a job that has ended. Sent twice, a span has the same id.",
        of_job=True,
        json=True,
    )
    parser.add_argument(
        "--otlp",
        metavar="URL",
        help="send them to this OpenTelemetry collector by OTLP over HTTP (http://localhost:4318)",
    )


def _trace(args: argparse.Namespace) -> int:
    from slurm_robust.report import trace

    return trace.main(args.job, otlp=args.otlp, json=args.json, job_dir=args.job_dir)


# -- incidents -------------------------------------------------------------------------------------


def _register_incidents(commands: Commands) -> None:
    text = "list what went wrong with a job, or with all jobs, what was blamed and what was done"
    every = add_command(
        commands, "incidents", _incidents, text, more="--all asks the fleet index of the site.", json=True
    )
    add_job(every, optional=True)
    every.add_argument("--last", metavar="N", type=whole_number(1), help="only the newest N incidents")
    every.add_argument("--all", action="store_true", help="of all jobs of the site, the newest first")
    every.add_argument("--csv", action="store_true", help="with --all: print CSV")
    every.add_argument(
        "--node",
        metavar="NODES",
        type=hostlist,
        default=(),
        help="with --all: that blamed one of these nodes",
    )
    causes = ("node", "network", "code", "nobody", "undecided")
    every.add_argument("--cause", choices=causes, default="", help="with --all: with this cause")
    every.add_argument("--user", metavar="USER", default="", help="with --all: of this user's jobs")
    every.add_argument(
        "--training", metavar="NAME", default="", help="with --all: of jobs of trainings of this name"
    )
    every.add_argument(
        "--limit",
        metavar="N",
        type=whole_number(1),
        default=100,
        help="with --all: most of them (default: 100)",
    )
    add_since(every, "5200w")
    add_index(every)

    text = "report on one incident of a job: the timeline and the evidence"
    one = add_command(commands, "incident", _incident, text, of_job=True, json=True)
    one.add_argument(
        "number",
        metavar="N",
        nargs="?",
        default="",
        help="its number, as 'srobust incidents' shows it; JOB/N names one, too",
    )
    one.add_argument("--logs", action="store_true", help="also the last lines of the ranks' output")
    one.add_argument(
        "--stacks", action="store_true", help="also the stacks in full, of one rank of each group"
    )


def _incidents(args: argparse.Namespace) -> int:
    if args.all == bool(args.job):
        raise UsageError(
            "a job, or --all for all jobs of the site, is to be named, and not both",
            fix="write srobust incidents JOB, or srobust incidents --all",
        )
    if args.all:
        return _incidents_of_all(args)
    if given := [
        name for name in ("node", "cause", "user", "training", "csv", "index") if getattr(args, name)
    ]:
        raise UsageError(f"--{given[0]} is for the incidents of all jobs", fix="give --all in place of JOB")
    from slurm_robust.report import incident_view

    return incident_view.show_all(args.job, json=args.json, last=args.last, job_dir=args.job_dir)


def _incidents_of_all(args: argparse.Namespace) -> int:
    from slurm_robust.fleet.view import IncidentQuestion, show_incidents

    if args.json and args.csv:
        raise UsageError("--json and --csv exclude each other", fix="give one of them")
    asked = IncidentQuestion(
        since=args.since,
        nodes=args.node,
        cause=args.cause,
        user=args.user,
        training=args.training,
        limit=min(args.limit, args.last or args.limit),
    )
    return show_incidents(index_of(args)[0], asked, json=args.json, as_csv=args.csv)


def which_incident(job: str, number: str) -> tuple[str, int]:
    """The job and the number in ``JOB N``, ``JOB/N`` or ``NAME JOB/N``. Raises UsageError."""
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
        raise UsageError(f"argument N: {error}", fix="'srobust incidents JOB' lists them") from error


def _incident(args: argparse.Namespace) -> int:
    from slurm_robust.report import incident_view

    job, number = which_incident(args.job, args.number)
    return incident_view.show_one(
        job, number, json=args.json, logs=args.logs, stacks=args.stacks, job_dir=args.job_dir
    )


# -- stacks, drill: these ask the controller -----------------------------------------------------------------


def _register_stacks(commands: Commands) -> None:
    parser = add_command(
        commands,
        "stacks",
        _stacks,
        "sample the stacks of all ranks of a running job and name the rank that blocks the others",
        more="Training goes on undisturbed.",
        epilog="Exit codes: 0 all nodes answered, 1 some did not, 66 no stacks can be taken.",
        of_job=True,
        json=True,
    )
    parser.add_argument("--raw", action="store_true", help="also the full stacks of every rank")
    parser.add_argument(
        "--rank",
        metavar="R",
        type=whole_number(),
        action="append",
        default=[],
        help="also the full stacks of this rank; may be repeated",
    )
    parser.add_argument(
        "--save", metavar="FILE", type=Path, help="also write everything, with full stacks, as JSON"
    )


def _stacks(args: argparse.Namespace) -> int:
    from slurm_robust.diagnostics import live

    return live.stacks(
        args.job, json=args.json, raw=args.raw, ranks=args.rank, save=args.save, job_dir=args.job_dir
    )


def _register_drill(commands: Commands) -> None:
    text = "break a worker of your own running job, to see that the job recovers"
    parser = add_command(commands, "drill", _drill, text, of_job=True)
    parser.add_argument(
        "fault", choices=("kill-rank", "stop-rank"), help="SIGKILL; or SIGSTOP, so that the worker hangs"
    )
    parser.add_argument(
        "--rank", metavar="R", type=whole_number(), default=0, help="its global rank (default: 0)"
    )


def _drill(args: argparse.Namespace) -> int:
    from slurm_robust.diagnostics import live

    return live.drill(args.job, args.fault, args.rank, job_dir=args.job_dir)


# -- classify --------------------------------------------------------------------------------------


def _register_classify(commands: Commands) -> None:
    parser = add_command(
        commands,
        "classify",
        _classify,
        "explain from logs what failed, what is to blame and what to do",
        epilog="Several files are logs of several ranks: by their names (rank-00003.err), else in order.",
    )
    parser.add_argument("files", metavar="FILE", nargs="*", help="a log; - for standard input")
    parser.add_argument(
        "--stream",
        choices=("program", "kernel", "slurm", "nvidia-smi"),
        default="program",
        help="what wrote the logs",
    )
    parser.add_argument(
        "--rules",
        metavar="FILE",
        action="append",
        default=[],
        type=Path,
        help="the site's rules, a YAML file or a folder; they override the built-in ones; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--jsonl", metavar="IN", help="classify each record of a file of JSON lines instead")
    parser.add_argument("--out", metavar="OUT", type=Path, help="file for the answers to --jsonl")


def _classify(args: argparse.Namespace) -> int:
    if (args.jsonl is None) != (args.out is None):
        raise UsageError("--jsonl and --out belong together", fix="write --jsonl IN --out OUT")
    if bool(args.files) == (args.jsonl is not None):
        raise UsageError(
            "neither log files nor --jsonl were given, or both", fix="give log files, or --jsonl IN --out OUT"
        )
    from slurm_robust.analysis.logs import command

    if args.jsonl is not None:
        return command.answer_file(args.jsonl, args.out, rules=args.rules)
    return command.main(args.files, stream=args.stream, rules=args.rules, json=args.json)
