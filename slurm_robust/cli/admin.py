"""``srobust admin``: what root does for a whole cluster. One function per command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command and its own commands."""
    text = "install the node's side, test nodes that were drained"
    parser = commands.add_parser("admin", help=text, description=text.capitalize() + ".")
    own = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _register_quarantine(own)
    _register_install(own)
    _register_verify(own)
    _register_uninstall(own)


def _register_quarantine(commands: Commands) -> None:
    text = "test the nodes that srobust drained; return those that pass, keep the others with a report"
    parser = commands.add_parser("quarantine", help=text, description=text.capitalize() + ".")
    parser.add_argument("nodes", metavar="NODES", nargs="?", default="", help="only these, as a hostlist")
    parser.add_argument("--once", action="store_true", help="one test decides, instead of drain.pass_runs")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--config", metavar="FILE", type=Path, help="the nodes' configuration")
    parser.set_defaults(handler=_quarantine)


def _quarantine(args: argparse.Namespace) -> int:
    from slurm_robust.admin import quarantine

    return quarantine.main(args.nodes, once=args.once, json=args.json, config_file=args.config)


def _register_install(commands: Commands) -> None:
    text = "write the node's side to this machine and show what slurm.conf needs"
    parser = commands.add_parser("install", help=text, description=text.capitalize() + ".")
    parser.add_argument("--prefix", metavar="DIR", help="where scripts and manual pages go (/usr/local)")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    parser.add_argument(
        "--apply", action="store_true", help="change slurm.conf, with a backup, and scontrol reconfigure"
    )
    parser.add_argument(
        "--all-nodes-have-it",
        action="store_true",
        help="say that every node has been installed (for --apply, and for folders that nodes share)",
    )
    parser.add_argument(
        "--link-site-folders",
        action="store_true",
        help="link ours into the site's own hook folders, where it runs at once (as --apply does)",
    )
    parser.add_argument(
        "--act", action="store_true", help="drain nodes, instead of only telling (drain.mode)"
    )
    parser.add_argument(
        "--systemd-timer", action="store_true", help="periodic checks by systemd, not by HealthCheckProgram"
    )
    _add_slurm_conf(parser)
    parser.set_defaults(handler=_install)


def _install(args: argparse.Namespace) -> int:
    from slurm_robust.admin import install

    return install.main(
        prefix=args.prefix,
        dry_run=args.dry_run,
        apply=args.apply,
        all_nodes=args.all_nodes_have_it,
        link_site=args.link_site_folders,
        act=args.act,
        timer=args.systemd_timer,
        slurm_conf=args.slurm_conf,
    )


def _register_verify(commands: Commands) -> None:
    text = "tell what is wrong on this node and in the live configuration of Slurm, and why it matters"
    parser = commands.add_parser("verify", help=text, description=text.capitalize() + ".")
    _add_slurm_conf(parser)
    parser.set_defaults(handler=_verify)


def _verify(args: argparse.Namespace) -> int:
    from slurm_robust.admin import verify

    return verify.main(slurm_conf=args.slurm_conf)


def _register_uninstall(commands: Commands) -> None:
    text = "remove what install wrote, and show (or undo, with --apply) the change of slurm.conf"
    parser = commands.add_parser("uninstall", help=text, description=text.capitalize() + ".")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    parser.add_argument("--apply", action="store_true", help="undo the change of slurm.conf")
    parser.add_argument(
        "--purge",
        action="store_true",
        help="also remove the state, the log of events and backups of slurm.conf",
    )
    _add_slurm_conf(parser)
    parser.set_defaults(handler=_uninstall)


def _uninstall(args: argparse.Namespace) -> int:
    from slurm_robust.admin import uninstall

    return uninstall.main(
        dry_run=args.dry_run, apply=args.apply, purge=args.purge, slurm_conf=args.slurm_conf
    )


def _add_slurm_conf(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slurm-conf", metavar="FILE", default="", help="slurm.conf, where it is not found")
