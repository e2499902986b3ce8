"""``srobust drill``: plant a fault in one's own job."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, UsageError, add_command, add_job, whole_number
from slurm_robust.drills import request
from slurm_robust.drills.faults import FAULTS
from slurm_robust.model.drill import DrillFault


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "drill",
        _drill,
        HELP["drill"],
        more="The journal, reports and figures count it as a drill: no node and no code is blamed outside of "
        "the job. What it costs is said first; more than a restart in place is done only if you agree.",
        epilog="Exit codes: 0 the recovery was as promised, 1 it was not or you did not agree, 64 it cannot "
        "be tried now or needs --yes, 66 no such job runs, 130 Ctrl-C: a fault that is planted stays so.",
        json=True,
        examples=(
            ("srobust drill --list", "all faults, and what comes of each"),
            ("srobust drill 4711 kill-rank --rank 3", "kill the worker of rank 3: all ranks restart"),
            ("srobust drill 4711 stop-rank --rank 3", "stop it: its node is evicted, so this asks first"),
        ),
    )
    add_job(parser, optional=True)
    parser.add_argument(
        "fault",
        metavar="FAULT",
        nargs="?",
        choices=[one.fault.value for one in FAULTS],
        help=", ".join(one.fault.value for one in FAULTS),
    )
    parser.add_argument(
        "--rank", metavar="R", type=whole_number(), help="the global rank that it is done to (default: 0)"
    )
    parser.add_argument(
        "--list", action="store_true", help="list the faults: what each does, and what comes of it"
    )
    parser.add_argument(
        "--yes", action="store_true", help="agree to what it costs: a node, a requeue, tests of nodes"
    )
    parser.add_argument(
        "--no-wait",
        dest="wait",
        action="store_false",
        help="return when the fault is planted, and do not say whether the job recovers as promised",
    )


def _drill(args: argparse.Namespace) -> int:
    if args.list:
        return request.listed(json=args.json)
    if args.job is None or args.fault is None:
        raise UsageError("name a job and a fault", fix="'srobust drill --list' lists the faults")
    return request.drill(
        args.job,
        DrillFault(args.fault),
        args.rank,
        yes=args.yes,
        wait=args.wait,
        json=args.json,
        job_dir=args.job_dir,
    )
