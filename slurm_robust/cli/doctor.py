"""``srobust doctor``: what in the environment of a job will hurt its recovery."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from msgspec import structs

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, Parser, UsageError, add_command, memory_size, whole_number
from slurm_robust.cli.settings import add_config_options, settings_of
from slurm_robust.cli.training_command import add_run, checked
from slurm_robust.cli.words import parse, split_command, width
from slurm_robust.config.job import JobConfig
from slurm_robust.config.jobfile import collect
from slurm_robust.config.reader import Layers
from slurm_robust.doctor.code import ScriptCommand
from slurm_robust.doctor.gather import DoctorRequest
from slurm_robust.doctor.launchers import RunLine
from slurm_robust.doctor.main import main, saved_s
from slurm_robust.doctor.script import RobustRun, expands, read, run_of, unquoted
from slurm_robust.doctor.shape import shape_of
from slurm_robust.model.errors import SrobustError
from slurm_robust.model.job import CommandKind
from slurm_robust.sharing.archive import cleaner
from slurm_robust.slurm.select import make_client
from slurm_robust.util.text import count, without_urls


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "doctor",
        _doctor,
        HELP["doctor"],
        examples=(
            ("srobust doctor train.sbatch", "a batch script, before it is submitted"),
            (
                "srobust doctor --state 40G train.sbatch --from 4711 train.py --lr 3e-4",
                "with what follows it on sbatch's line; own options come first",
            ),
            ("srobust doctor --job 4711 --verbose", "a job, with what is good or unknown"),
            ("srobust doctor", "what there is without a script: this node, or the job it runs in"),
        ),
        more="Looks at Slurm, the job, its software and its node. Runs on a login node, for a batch script "
        "before it is submitted, and inside a job ('srun srobust doctor' on each of its nodes). It changes "
        "nothing and needs no special rights. "
        "What it cannot see is unknown, which is not bad.",
        usage="srobust doctor [options] [SCRIPT [ARG ...]]",
        epilog="Exit codes: 0 nothing bad, 1 something bad.",
        json=True,
    )
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        nargs="?",
        type=Path,
        help="a batch script, as sbatch would get it, and the words that follow it there",
    )
    parser.add_argument(
        "-j",
        "--job",
        metavar="JOB",
        dest="jobid",
        type=whole_number(1),
        help="a job (default: the one it runs in)",
    )
    parser.add_argument(
        "--state",
        metavar="SIZE",
        type=memory_size,
        help="size of what the ranks of one node save in each step (40G): will snapshots fit?",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also list what is good or unknown, and all sources"
    )
    parser.add_argument(
        "--anonymous",
        action="store_true",
        help="with --json: without names of people, machines and folders, for a report on a fault",
    )
    add_config_options(parser)


def _doctor(args: argparse.Namespace) -> int:
    if args.script is not None and args.jobid is not None:
        raise UsageError("SCRIPT and --job exclude each other", fix="give one of them")
    if args.anonymous and not args.json:
        raise UsageError("--anonymous is for --json", fix="give --json, too")
    script = None if args.script is None else read(args.script)
    layers, known = (None, DoctorRequest()) if script is None else _known(script, args.command)
    if layers is None:
        layers = collect(args.config, os.environ, settings_of(args))
    else:
        if args.config is not None:
            layers.add_file(args.config)
        layers.overrule(settings_of(args))
    wanted = structs.replace(
        known,
        script=script,
        job_id=args.jobid,
        saved_s=None if args.jobid is None else saved_s(args.jobid),
        state_bytes=args.state,
        configured=known.configured or args.config is not None or bool(args.settings),
    )
    config, clean = layers.build(), None
    if args.anonymous:
        clean = cleaner(None, (), make_client(config.slurm.backend, config.slurm.timeout_s), anonymous=True)
    return main(wanted, config, json=args.json, verbose=args.verbose, clean=clean)


_PASSED = ('"$@"', "$@")
"""How a batch script passes on the words that follow it on sbatch's line."""


def _known(script: str, behind: tuple[str, ...]) -> tuple[Layers[JobConfig] | None, DoctorRequest]:
    """Return the settings, None if they are wrong or ``srobust run`` is not there; and what else is known.

    It is ``configured`` if that is all of them, or has the spares at least. ``behind``: the words that follow
    the script on sbatch's line. Raises :class:`UsageError` for some that get lost there.
    """
    found = run_of(script)
    if found is None:
        return None, DoctorRequest(unseen=_instead_of_run(script))
    if behind and not {*_PASSED} & {*found.words}:
        raise UsageError(
            f"the script does not pass {' '.join(behind)} on to srobust run",
            fix='write "$@" at the end of its srobust run, or leave them out',
        )
    words: list[str] = []
    for word in found.words:
        if behind and word in _PASSED:
            words += behind
        else:
            words.append(word if expands(word) else unquoted(word))
    given, unseen = _given(words)
    if found.more:
        unseen.append(f"{count(found.more, 'other srobust run')} in the script")
    variables = {}
    for variable in found.variables:
        if expands(variable):
            unseen.append(f"{without_urls(variable)} in the script")
        else:
            name, _, variables[name] = unquoted(variable).partition("=")
    parser = Parser(prog="srobust")
    add_run(parser.add_subparsers())
    try:
        args = parse(parser, ["run", *given])
        kind, options = checked(args)
        file = args.config and Path(os.path.expanduser(args.config))
        if file and not os.path.exists(file):
            unseen.append(f"--config {file} of srobust run in the script: no such file")
            file = None
        layers = collect(file, os.environ | variables, options)
        # What is not seen may solve a contradiction.
        layers.whole = layers.whole and not unseen
        layers.build()
    except SrobustError as error:
        refused = "; ".join(line.strip() for line in error.in_full().splitlines())
        return None, DoctorRequest(refused=refused, hears=found.hears, unseen=tuple(unseen))
    sure = ("spares",) in layers.places and not any("spares" in text.lower() for text in unseen)
    return layers, DoctorRequest(
        configured=sure or not unseen,
        refused="",
        hears=found.hears,
        command=_command(kind, tuple(args.command), found),
        run=RunLine(options=_own(given), kind=kind, command=tuple(args.command)),
        unseen=tuple(unseen),
    )


def _instead_of_run(script: str) -> tuple[str, ...]:
    """Return what is not seen of a script without ``srobust run``; what is seen a rule says."""
    shape = shape_of(script)
    if shape is not None and (shape.training or not shape.elsewhere):
        return ()
    return ("srobust run in the script: without it the job is not protected",)


def _command(kind: CommandKind, command: tuple[str, ...], found: RobustRun) -> ScriptCommand | None:
    """Return what is run and where, as far as that tells the folder of the code; None if it is not known."""
    told = command if kind is CommandKind.EXEC else command[:1]
    if found.cd is None or any(map(expands, told)):
        return None
    cwd = ""
    for word in found.cd:
        folder = os.getcwd() if unquoted(word).strip("${}") == "SLURM_SUBMIT_DIR" else unquoted(word)
        if expands(folder) or folder.startswith(("~", "-")):
            return None
        cwd = os.path.join(cwd, folder)
    return ScriptCommand(kind=kind, command=command, cwd=cwd)


def _own(given: list[str]) -> tuple[str, ...]:
    return tuple(split_command(given)[0])


def _given(words: list[str]) -> tuple[list[str], list[str]]:
    """Return what follows ``srobust run`` without what only the shell knows, and that."""
    own, command, verbatim = split_command(words)
    given: list[str] = []
    unseen: list[str] = []
    while own:
        option, own = own[: width(own[0])], own[width(own[0]) :]
        if any(map(expands, option)):
            unseen.append(f"{without_urls(' '.join(option))} of srobust run in the script")
        elif option[0] not in ("-h", "--help"):
            given += option
    if verbatim:
        given.append("--")
    elif command and expands(command[0]):
        unseen.append(f"{command[0]} of srobust run in the script, and what follows it")
    return [*given, *command], unseen
