"""``srobust checkpoint``: the checkpoints of a job or a training, and a plan for one to come."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import (
    Commands,
    UsageError,
    add_command,
    add_group,
    memory_size,
    number,
    too_large,
    whole_number,
)
from slurm_robust.inventory import listing, planning, removing
from slurm_robust.inventory.planning import PlannedTraining
from slurm_robust.inventory.removing import RemovalOptions
from slurm_robust.model.libraries import need


def register(commands: Commands) -> None:
    """Add the group."""
    parts = add_group(commands, "checkpoint", HELP["checkpoint"])

    text = "list the checkpoints that this node sees in all tiers, and which would be restored"
    add_command(
        parts,
        "ls",
        _list_copies,
        text,
        or_default_job=True,
        json=True,
        examples=(
            ("srobust checkpoint ls 4711", "the checkpoints of a job"),
            ("srobust checkpoint ls gpt-7b", "those of a training, which a next job would go on from"),
        ),
    )

    text = "read every copy within reach and compare its checksums; exit code 1 if one is damaged"
    add_command(
        parts,
        "verify",
        _verify_copies,
        text,
        or_default_job=True,
        json=True,
        examples=(
            ("srobust checkpoint verify gpt-7b", "read and compare every copy"),
            ("srobust checkpoint verify gpt-7b --json", "the same for a program"),
        ),
    )

    text = "make a folder for torch.distributed.checkpoint from the copies within reach"
    export = add_command(
        parts,
        "export",
        _export,
        text,
        of_job=True,
        json=True,
        examples=(
            ("srobust checkpoint export 4711 latest --to /shared/export", "the newest checkpoint"),
            ("srobust checkpoint export gpt-7b 1200 --to /shared/step-1200", "the checkpoint of step 1200"),
        ),
    )
    export.add_argument("step", metavar="STEP", help="a step that 'ls' shows, or 'latest'")
    export.add_argument("--to", metavar="DIR", type=Path, required=True, help="the folder to create")

    text = "remove checkpoints from storage that no running or later job needs"
    remove = add_command(
        parts,
        "rm",
        lambda args: removing.rm_main(
            args.job, args.steps, _asked(args, force=args.force), job_dir=args.job_dir
        ),
        text,
        more="Of a job of a training: those of the training.",
        examples=(
            ("srobust checkpoint rm gpt-7b 1200 1300", "two checkpoints, after a question"),
            ("srobust checkpoint rm gpt-7b 1200 --dry-run", "only show what would go"),
        ),
        of_job=True,
        json=True,
    )
    remove.add_argument("steps", metavar="STEP", nargs="+", help="a step that 'ls' shows on storage")
    remove.add_argument("--force", action="store_true", help="also what a job needs to go on")
    _add_consent(remove)

    text = "remove all checkpoints from storage but the newest, and incomplete ones that no job will complete"
    prune = add_command(
        parts,
        "prune",
        lambda args: removing.prune_main(args.job, args.keep, _asked(args), job_dir=args.job_dir),
        text,
        more="Of a job of a training: those of the training.",
        examples=(
            (
                "srobust checkpoint prune gpt-7b --keep 1 --dry-run",
                "show what would go if only the newest stays",
            ),
            ("srobust checkpoint prune 4711 --yes", "all but checkpoint.keep, without a question"),
        ),
        of_job=True,
        json=True,
    )
    prune.add_argument(
        "--keep",
        metavar="K",
        type=whole_number(1),
        help="how many stay (default: checkpoint.keep of the job)",
    )
    _add_consent(prune)

    _register_plan(parts)


def _register_plan(parts: Commands) -> None:
    text = "say how many snapshots would fit into the nodes' memory, and how long each takes"
    plan = add_command(
        parts,
        "plan",
        _plan,
        text,
        more="For a training that need not exist; asks nobody. The seconds follow from measured rates.",
        epilog="Exit codes: 0 snapshots fit, 1 none does.",
        examples=(
            (
                "srobust checkpoint plan --params 70e9 --layout 16x8 --node-memory 2T",
                "70 billion parameters on 16 nodes of 8 GPUs and 2 TiB",
            ),
            (
                "srobust checkpoint plan --params 7B --layout 1x8 --node-memory 1T --replicas 8",
                "DistributedDataParallel: each of the 8 ranks has the whole state",
            ),
        ),
        json=True,
    )
    plan.add_argument(
        "--params", metavar="N", type=_parameters, required=True, help="parameters of the model: 70e9 or 70B"
    )
    plan.add_argument(
        "--layout",
        metavar="NODESxGPUS",
        type=_layout,
        required=True,
        help="nodes, and GPUs of each: 16x8; whether tensors, layers or data are parallel does not matter",
    )
    plan.add_argument(
        "--node-memory",
        metavar="SIZE",
        type=memory_size,
        required=True,
        help="memory of a node, without that of its GPUs, in Slurm's units: 2T is 2 TiB",
    )
    plan.add_argument(
        "--shm",
        metavar="SIZE",
        type=memory_size,
        help="size of /dev/shm (default: half of the memory, as Linux has it)",
    )
    plan.add_argument(
        "--bytes-per-param",
        metavar="N",
        type=number(0.1, most=1000),
        default=planning.BYTES_PER_PARAM,
        help="bytes of state for each parameter (default: %(default)g, FSDP2 with AdamW in float32; "
        "14 with bfloat16 weights beside it)",
    )
    plan.add_argument(
        "--replicas",
        metavar="N",
        type=whole_number(1),
        default=1,
        help="whole states that all ranks have together (default: 1, all is sharded; HSDP: its replicas; "
        "DistributedDataParallel: the number of ranks)",
    )
    plan.add_argument(
        "--link",
        metavar="SPEED",
        type=_speed,
        default=planning.LINK,
        help="speed of the interface over which copies go to peers: 25G is 25 Gbit/s (default: 25G)",
    )


def _plan(args: argparse.Namespace) -> int:
    nodes, gpus = args.layout
    if nodes * gpus % args.replicas:
        raise UsageError(
            f"--replicas {args.replicas} does not divide the {nodes * gpus} ranks of {nodes}x{gpus}",
            fix="give the number of whole states that the ranks have together, 1 if all is sharded",
        )
    training = PlannedTraining(
        params=args.params,
        nodes=nodes,
        gpus=gpus,
        node_memory=args.node_memory,
        shm=args.shm or args.node_memory // 2,
        bytes_per_param=args.bytes_per_param,
        replicas=args.replicas,
        link=args.link,
    )
    return planning.plan_main(training, json=args.json)


_POWERS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_MAX_PARAMETERS = 1e15
_MIN_BARE_PARAMETERS = 1e4
"""Fewer without a unit are a mistake: who writes 70 means 70B."""

_MAX_GPUS = 999
_MIN_LINK, _MAX_LINK = 1e6, 1e15  # bits per second


def _parameters(text: str) -> float:
    match = re.fullmatch(r"([0-9.]+(?:e[+]?[0-9]{1,9})?)([KMBT]?)", text, re.IGNORECASE | re.ASCII)
    try:
        value = float(match[1]) * _POWERS[match[2].upper()] if match else 0.0
    except ValueError:
        value = 0.0
    if value > _MAX_PARAMETERS:
        raise too_large(text, "1000T parameters at most")
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of parameters such as 70e9 or 70B")
    if value < _MIN_BARE_PARAMETERS and re.fullmatch("[0-9.]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} parameters are few: give the unit, as in 70e9 or 70B")
    return value


def _layout(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9][0-9]{0,99})x([1-9][0-9]{0,99})", text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a layout such as 16x8: nodes, an x, GPUs of each node"
        )
    nodes, gpus = int(match[1]), int(match[2])
    if nodes > planning.MAX_NODES or gpus > _MAX_GPUS:
        raise too_large(text, f"{planning.MAX_NODES} nodes of {_MAX_GPUS} GPUs at most")
    return nodes, gpus


def _speed(text: str) -> float:
    match = re.fullmatch(r"([0-9.]+)([MGT])(?:b|bit|bps|b/s|bit/s)?", text, re.ASCII)
    try:
        bits = float(match[1]) * _POWERS[match[2]] if match else 0.0
    except ValueError:
        bits = 0.0
    if bits > _MAX_LINK:
        raise too_large(text, "1000T, in bits per second, at most")
    if bits < _MIN_LINK:
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed such as 25G, in bits per second")
    return bits / 8


def _add_consent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show what would go")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _list_copies(args: argparse.Namespace) -> int:
    return listing.list_main(args.job, json=args.json, job_dir=args.job_dir)


def _verify_copies(args: argparse.Namespace) -> int:
    return listing.verify_main(args.job, json=args.json, job_dir=args.job_dir)


def _export(args: argparse.Namespace) -> int:
    need("torch", "srobust checkpoint export")
    from slurm_robust.inventory import export  # it writes with torch

    return export.main(args.job, args.step, args.to, json=args.json, job_dir=args.job_dir)


def _asked(args: argparse.Namespace, *, force: bool = False) -> RemovalOptions:
    return RemovalOptions(yes=args.yes, dry_run=args.dry_run, json=args.json, force=force)
