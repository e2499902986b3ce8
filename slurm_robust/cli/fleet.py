"""The commands about all jobs of a site: ``srobust fleet`` and ``srobust admin fleet``."""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path

from slurm_robust.admin import fleet
from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command, add_group, add_node_config, number
from slurm_robust.config.node import NodeConfig
from slurm_robust.config.nodefile import FILE, load
from slurm_robust.fleet.opening import index_url
from slurm_robust.fleet.view import show_fleet, show_training
from slurm_robust.model.libraries import need

_SPANS_S = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_DATES = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")
_MAX_DAYS = 36500.0


def register(commands: Commands) -> None:
    """Add ``srobust fleet``."""
    parser = add_command(
        commands,
        "fleet",
        _fleet,
        HELP["fleet"],
        json=True,
        examples=(
            ("srobust fleet --since 7d", "all jobs of the last week"),
            ("srobust fleet --training gpt-7b", "the jobs of trainings of this name"),
        ),
    )
    parser.add_argument(
        "--training", metavar="NAME", default="", help="only the jobs of trainings of this name"
    )
    add_since(parser, "28d")
    add_index(parser)


def register_admin(commands: Commands) -> None:
    """Add ``srobust admin fleet`` to the commands of administrators."""
    own = add_group(commands, "fleet", "fill the fleet index, and remove what is old", member="task")
    text = "move what the epilogs have put into the spool into the index; cron runs this"
    parser = add_command(
        own,
        "collect",
        _collect,
        text,
        json=True,
        examples=(
            ("srobust admin fleet collect", "from fleet.spool_dir into fleet.index of the configuration"),
            (
                "srobust admin fleet collect --spool /var/spool/srobust --index /srv/fleet.db",
                "from this folder into this index",
            ),
        ),
    )
    parser.add_argument("--spool", metavar="DIR", type=Path, help="the spool (default: fleet.spool_dir)")
    add_index(parser)
    parser = add_command(
        own,
        "forget",
        _forget,
        "remove jobs that ended long ago, with all that they added",
        examples=(
            ("srobust admin fleet forget --days 365", "keep the jobs of the last year"),
            (
                "srobust admin fleet forget --days 90 --index /srv/fleet.db",
                "the same for 90 days, in this index",
            ),
        ),
    )
    parser.add_argument("--days", metavar="D", type=number(1), required=True, help="keep what is younger")
    add_index(parser)


def add_index(parser: argparse.ArgumentParser) -> None:
    """Add ``--index`` and the nodes' configuration, which names the index otherwise."""
    parser.add_argument(
        "--index",
        metavar="URL",
        help="the fleet index: path of a SQLite file, or postgresql://user@host/database (default: "
        "SROBUST_FLEET_INDEX, then fleet.index of the nodes' configuration)",
    )
    add_node_config(parser)


def add_since(parser: argparse.ArgumentParser, default: str) -> None:
    """Add ``--since``, a date or a span."""
    parser.add_argument(
        "--since",
        metavar="WHEN",
        type=since,
        default=default,
        help="from then on: 12h, 7d, 4w, or a local date such as 2026-01-31 or 2026-01-31T10:00 "
        "(default: %(default)s)",
    )


def since(text: str) -> float:
    """Return the type of an option that takes a date or a span before now; seconds since 1970."""
    if match := re.fullmatch(r"([0-9]{1,6})([hdw])", text, re.ASCII):
        return time.time() - min(int(match[1]) * _SPANS_S[match[2]], _MAX_DAYS * 86400)
    for form in _DATES:
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    raise argparse.ArgumentTypeError(f"{text!r} is neither a span (12h, 7d, 4w) nor a date (2026-01-31)")


def index_of(args: argparse.Namespace) -> tuple[str, NodeConfig]:
    """Return the index that the command uses, "" for none, and the nodes' configuration."""
    config = load(args.config or FILE)
    return index_url(args.index, os.environ, config), config


def _fleet(args: argparse.Namespace) -> int:
    need("sqlalchemy", "srobust fleet")
    if args.training:
        return show_training(index_of(args)[0], args.training, args.since, json=args.json)
    return show_fleet(index_of(args)[0], args.since, json=args.json)


def _collect(args: argparse.Namespace) -> int:
    need("sqlalchemy", "srobust admin fleet")
    url, config = index_of(args)
    return fleet.collect(url, config, spool=args.spool, json=args.json)


def _forget(args: argparse.Namespace) -> int:
    need("sqlalchemy", "srobust admin fleet")
    return fleet.forget(index_of(args)[0], args.days)
