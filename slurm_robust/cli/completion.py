"""``srobust completion``: prints what makes a shell complete command lines of ``srobust``."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command
from slurm_robust.model.errors import ExitCode
from slurm_robust.terminal.completion import SCRIPTS


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "completion",
        _completion,
        HELP["completion"],
        more="The shell then completes commands, options, choices, and the ids of your jobs in srobust-jobs. "
        'To try it: eval "$(srobust completion bash)"',
        examples=(
            (
                "srobust completion bash > ~/.local/share/bash-completion/completions/srobust",
                "for bash, from the next shell on",
            ),
            ("srobust completion zsh > ~/.zfunc/_srobust", "for zsh, whose fpath has that folder"),
        ),
    )
    parser.add_argument("shell", metavar="SHELL", choices=tuple(SCRIPTS), help=" or ".join(SCRIPTS))


def _completion(args: argparse.Namespace) -> int:
    print(SCRIPTS[args.shell], end="")
    return ExitCode.SUCCESS
