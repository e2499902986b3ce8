"""``srobust update``: new code, arguments, environment or configuration for a running job."""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, UsageError, add_command, span, whole_number
from slurm_robust.model.release import When
from slurm_robust.updates import request
from slurm_robust.updates.wish import UpdateWish

MORE = (
    "What no option names stays as it runs; the code is taken anew from its place. Words behind '--' are the "
    "new arguments of the script, as --args."
)


def register(commands: Commands) -> None:
    """Add the command."""
    text = HELP["update"]
    parser = add_command(
        commands,
        "update",
        _update,
        text,
        more=MORE,
        examples=(
            ("srobust update 4711 --now", "take the code anew and start it at once on the same nodes"),
            (
                "srobust update 4711 --lazy --deadline 6h -m 'batch 32' -- --lr 3e-4 --batch 32",
                "other arguments of the script, with the next recovery or in 6 hours",
            ),
        ),
        of_job=True,
        json=True,
    )
    parser.add_argument(
        "--code",
        metavar="DIR",
        help="take the code from this folder, for example another checkout (default: the folder from which "
        "the running release was taken)",
    )
    parser.add_argument(
        "--args", metavar="TEXT", help="all arguments of the script, in one word that is split as by a shell"
    )
    parser.add_argument(
        "--env",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="set a variable of the ranks; without a value to that which it has here; may be repeated",
    )
    parser.add_argument(
        "--unset",
        metavar="NAME",
        action="append",
        default=[],
        help="no longer set a variable that an update has set; may be repeated",
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="YAML file with keys of the configuration that change"
    )
    parser.add_argument("--image", metavar="PATH", help="another container image")
    add_when(parser, default=When.LAZY)
    parser.add_argument(
        "--deadline",
        metavar="TIME",
        type=span,
        help="with --lazy: apply it after so long at the latest, e.g. 6h, 90m, 1-12:00:00 or seconds "
        "(default: updates.deadline_s)",
    )
    add_request(parser)
    parser.add_argument(
        "--discard-optimizer",
        action="store_true",
        help="restore all but the state of the optimizer, which begins anew",
    )


def add_when(parser: argparse.ArgumentParser, default: When) -> argparse._MutuallyExclusiveGroup:
    """Add ``--now`` and ``--lazy``; returns their group, in which each option excludes the others."""
    when = parser.add_mutually_exclusive_group()
    texts = {
        When.NOW: "stop at the next step boundary, behind a snapshot, and start it on the same nodes",
        When.LAZY: "apply it with the next recovery, at its deadline at the latest",
    }
    for choice, text in texts.items():
        shown = f"{text} (default)" if choice is default else text
        when.add_argument(
            f"--{choice.value}", dest="when", action="store_const", const=choice, default=default, help=shown
        )
    return when


def add_request(parser: argparse.ArgumentParser) -> None:
    """Add what every request for a release takes."""
    parser.add_argument(
        "-m", "--message", metavar="TEXT", default="", help="why, for the journal and all who read it"
    )
    parser.add_argument(
        "--from",
        metavar="STEP",
        dest="step",
        type=whole_number(),
        default=-1,
        help="go on from the newest checkpoint up to this step (default: the newest of all)",
    )
    parser.add_argument(
        "--no-wait", dest="wait", action="store_false", help="do not wait for what becomes of it"
    )


def _update(args: argparse.Namespace) -> int:
    if args.deadline is not None and args.when is When.NOW:
        raise UsageError("--deadline is for an update that waits", fix="leave out --now, or --deadline")
    wish = UpdateWish(
        code=args.code,
        args=args.args,
        words=args.words,
        env=tuple(args.env),
        unset=tuple(args.unset),
        config=args.config,
        image=args.image,
        when=args.when,
        deadline_s=args.deadline,
        message=args.message,
        from_step=args.step,
        discard_optimizer=args.discard_optimizer,
        wait=args.wait,
        json=args.json,
    )
    return request.update(args.job, wish, job_dir=args.job_dir)
