"""``srobust notify``: how far the notifications of a job are, and whether its channels work."""

from __future__ import annotations

import argparse
import os

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, UsageError, add_command, add_job
from slurm_robust.cli.settings import add_config_options, settings_of
from slurm_robust.config.jobfile import collect
from slurm_robust.notify import main


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "notify",
        _notify,
        HELP["notify"],
        examples=(
            ("srobust notify 4711", "the channels of a job, and what each has sent"),
            (
                "srobust notify --test --config job.yaml",
                "send a test message through the channels of a configuration",
            ),
        ),
        more="Without JOB, --test takes the configuration that 'srobust run' would use here.",
        epilog="Exit codes of --test: 0 all messages were sent, 1 a channel failed.",
        json=True,
    )
    add_job(parser, optional=True)
    parser.add_argument(
        "--test", action="store_true", help="send a test message through every channel, and report each"
    )
    add_config_options(parser)


def _notify(args: argparse.Namespace) -> int:
    if args.job is None and not args.test:
        raise UsageError("neither JOB nor --test was given", fix="give a job, or --test, or both")
    own = args.config is not None or bool(args.settings)
    if args.job is not None and own:
        raise UsageError("JOB and --config or --set exclude each other", fix="a job has its configuration")
    if not args.test:
        return main.overview(args.job, args.job_dir, json=args.json)
    if args.job is not None:
        directory, config, cwd = main.of_job(args.job, args.job_dir)
        return main.run_test(config.notify, cwd, directory.path.name, os.environ, json=args.json)
    config = collect(args.config, os.environ, settings_of(args)).build()
    return main.run_test(config.notify, os.getcwd(), "", os.environ, json=args.json)
