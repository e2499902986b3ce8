"""The commands about nodes: ``srobust check``, ``diagnose``, ``nodes``, and ``srobust admin`` for root."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.cli import fleet
from slurm_robust.cli.parsing import add_command, add_group, hostlist, number

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the commands."""
    _register_check(commands)
    _register_diagnose(commands)
    _register_nodes(commands)
    own = add_group(commands, "admin", "install the hooks and checks of nodes, and test drained nodes")
    _register_quarantine(own)
    _register_repair(own)
    _register_install(own)
    _register_verify(own)
    _register_uninstall(own)
    fleet.register_admin(own)


def _add_node_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="the nodes' configuration")


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "nodes", metavar="NODES", nargs="?", type=hostlist, default=(), help="only these nodes, as a hostlist"
    )


# -- check, diagnose, nodes ------------------------------------------------------------------------


def _register_check(commands: Commands) -> None:
    parser = add_command(
        commands,
        "check",
        _check,
        "check this node as the hooks do, and show the findings",
        epilog="Exit codes: 0 healthy, 1 a warning, 2 the node must not run jobs, 3 something is unknown.",
        json=True,
    )
    parser.add_argument(
        "--only", metavar="PATTERN", action="append", default=[], help="only these checks ('gpu.*')"
    )
    parser.add_argument(
        "--deep", action="store_true", help="run every check, with nothing from the cache, as for a suspect"
    )
    parser.add_argument(
        "--explain", metavar="CHECK", nargs="?", const="*", help="explain a check, or all of them"
    )
    parser.add_argument(
        "--record-baseline", action="store_true", help="record the node's present state as its baseline"
    )
    _add_node_config(parser)


def _check(args: argparse.Namespace) -> int:
    from slurm_robust.admin import node_checks

    if args.explain is not None:
        return node_checks.explain(args.explain, json=args.json, config_file=args.config)
    if args.record_baseline:
        return node_checks.record(json=args.json, config_file=args.config)
    return node_checks.main(only=args.only, deep=args.deep, json=args.json, config_file=args.config)


def _register_diagnose(commands: Commands) -> None:
    parser = add_command(
        commands,
        "diagnose",
        _diagnose,
        "test the nodes of this allocation, or this node, and name those that fail",
        epilog="Exit codes: 0 all passed, 1 something failed, 3 something unknown.",
        json=True,
    )
    parser.add_argument(
        "--nodes", metavar="LIST", type=hostlist, default=(), help="only these nodes, as a hostlist"
    )
    parser.add_argument(
        "--tests", metavar="A,B", default="", help="only these tests (default: all that apply)"
    )
    parser.add_argument(
        "--bitwise", action="store_true", help="also compare a step of a reference model bit by bit"
    )
    parser.add_argument("--storage", metavar="DIR", default="", help="also write and read in this folder")
    parser.add_argument(
        "--budget",
        metavar="S",
        type=number(above=True),
        default=300.0,
        help="seconds for all tests together (default: %(default)g)",
    )


def _diagnose(args: argparse.Namespace) -> int:
    from slurm_robust.diagnostics import command

    return command.main(
        nodes=args.nodes,
        tests=tuple(filter(None, args.tests.split(","))),
        bitwise=args.bitwise,
        storage=args.storage,
        budget_s=args.budget,
        json=args.json,
    )


def _register_nodes(commands: Commands) -> None:
    text = "show how often nodes fail, their history, or with --lemons those that fail too often"
    more = "Without a fleet index it shows the history."
    parser = add_command(commands, "nodes", _nodes, text, more=more, json=True)
    _add_nodes(parser)
    parser.add_argument("--history", action="store_true", help="show what happened to each node")
    parser.add_argument("--lemons", action="store_true", help="score every node by its failures")
    parser.add_argument(
        "--days", type=number(above=True), default=28.0, help="days to look back (default: %(default)g)"
    )
    parser.add_argument(
        "--log",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="event log of a node instead of this one's; may be repeated",
    )
    fleet.add_index(parser)


def _nodes(args: argparse.Namespace) -> int:
    from slurm_robust.admin import history

    url, _ = fleet.index_of(args)
    if url and not (args.history or args.lemons):
        from slurm_robust.admin import node_table

        return node_table.main(args.nodes, url=url, days=args.days, json=args.json)
    return history.main(
        args.nodes,
        lemons=args.lemons,
        days=args.days,
        json=args.json,
        config_file=args.config,
        logs=args.log,
        url=url,
    )


# -- srobust admin ---------------------------------------------------------------------------------


def _register_quarantine(commands: Commands) -> None:
    text = "test the nodes that srobust drained; resume those that pass and report the others"
    parser = add_command(commands, "quarantine", _quarantine, text, json=True)
    _add_nodes(parser)
    parser.add_argument(
        "--once", action="store_true", help="one passed test is enough (default: drain.pass_runs of them)"
    )
    _add_node_config(parser)


def _quarantine(args: argparse.Namespace) -> int:
    from slurm_robust.admin import quarantine

    return quarantine.main(args.nodes, once=args.once, json=args.json, config_file=args.config)


def _register_repair(commands: Commands) -> None:
    text = (
        "reset GPUs and reboot nodes that srobust drained, where repair.mode allows it, and test them again"
    )
    parser = add_command(commands, "repair", _repair, text, json=True)
    _add_nodes(parser)
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    _add_node_config(parser)


def _repair(args: argparse.Namespace) -> int:
    from slurm_robust.admin import repair

    return repair.main(args.nodes, dry_run=args.dry_run, json=args.json, config_file=args.config)


def _register_install(commands: Commands) -> None:
    text = "write hooks and configuration to this machine and show what slurm.conf needs"
    parser = add_command(commands, "install", _install, text)
    parser.add_argument(
        "--prefix", metavar="DIR", help="folder for scripts and manual pages (default: /usr/local)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    parser.add_argument(
        "--apply", action="store_true", help="change slurm.conf, with a backup, and run scontrol reconfigure"
    )
    parser.add_argument(
        "--all-nodes-have-it",
        action="store_true",
        help="confirm that every node has been installed (for --apply, and for folders that nodes share)",
    )
    parser.add_argument(
        "--link-site-folders",
        action="store_true",
        help="link the hooks into the site's own hook folders, where they run at once (as --apply does)",
    )
    parser.add_argument(
        "--act", action="store_true", help="drain nodes instead of only reporting (drain.mode)"
    )
    parser.add_argument(
        "--systemd-timer", action="store_true", help="periodic checks by systemd, not by HealthCheckProgram"
    )
    _add_slurm_conf(parser)


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
    text = "show what is wrong on this node and in Slurm's live configuration, and why it matters"
    _add_slurm_conf(add_command(commands, "verify", _verify, text))


def _verify(args: argparse.Namespace) -> int:
    from slurm_robust.admin import verify

    return verify.main(slurm_conf=args.slurm_conf)


def _register_uninstall(commands: Commands) -> None:
    text = "remove what install wrote, and show (or undo, with --apply) the change of slurm.conf"
    parser = add_command(commands, "uninstall", _uninstall, text)
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    parser.add_argument("--apply", action="store_true", help="undo the change of slurm.conf")
    parser.add_argument(
        "--purge",
        action="store_true",
        help="also remove the state, the event log and backups of slurm.conf",
    )
    _add_slurm_conf(parser)


def _uninstall(args: argparse.Namespace) -> int:
    from slurm_robust.admin import install

    return install.uninstall(
        dry_run=args.dry_run, apply=args.apply, purge=args.purge, slurm_conf=args.slurm_conf
    )


def _add_slurm_conf(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slurm-conf",
        metavar="FILE",
        default="",
        help="path of slurm.conf, if it is not found automatically",
    )
