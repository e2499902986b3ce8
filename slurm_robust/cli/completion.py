"""``srobust completion``: the lines with which a shell completes command lines of ``srobust``."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command
from slurm_robust.model.errors import ExitCode

SCRIPTS = {
    "bash": """_srobust() {
    local cur=${COMP_WORDS[COMP_CWORD]} found IFS=$'\\n'
    [[ $cur == = ]] && cur=
    found=$("$1" completion --words "${COMP_WORDS[@]:1:COMP_CWORD-1}" "$cur" 2>/dev/null)
    if [[ $found == :files ]]; then
        compopt -o filenames
        COMPREPLY=($(compgen -f -- "$cur"))
    else
        COMPREPLY=($found)
    fi
}
complete -F _srobust srobust
""",
    "zsh": """#compdef srobust
_srobust() {
    local -a found
    found=("${(@f)$("${words[1]}" completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ $found[1] == :files ]]; then
        _files
    else
        compadd -- ${found:#}
    fi
}
if [[ $funcstack[1] == _srobust ]]; then
    _srobust "$@"
else
    compdef _srobust srobust
fi
""",
}
"""By shell."""


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
