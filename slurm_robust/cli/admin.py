"""``srobust admin``: the commands of administrators."""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_robust.admin import quarantine, repair
from slurm_robust.cli import fleet
from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, UsageError, add_command, add_group, add_node_config, add_nodes


def register(commands: Commands) -> None:
    """Add the commands."""
    own = add_group(commands, "admin", HELP["admin"])
    _register_quarantine(own)
    _register_repair(own)
    _register_install(own)
    _register_verify(own)
    _register_uninstall(own)
    _register_monitoring(own)
    fleet.register_admin(own)


def _register_quarantine(commands: Commands) -> None:
    text = "test the nodes that srobust drained; resume those that pass and report the others"
    parser = add_command(
        commands,
        "quarantine",
        _quarantine,
        text,
        json=True,
        examples=(
            ("srobust admin quarantine", "all nodes that srobust drained"),
            ("srobust admin quarantine gpu007 --once", "one node, for which one passed test is enough"),
        ),
    )
    add_nodes(parser)
    parser.add_argument(
        "--once", action="store_true", help="one passed test is enough (default: drain.pass_runs of them)"
    )
    add_node_config(parser)


def _quarantine(args: argparse.Namespace) -> int:
    return quarantine.main(args.nodes, once=args.once, json=args.json, config_file=args.config)


def _register_repair(commands: Commands) -> None:
    text = (
        "reset GPUs and reboot nodes that srobust drained, where repair.mode allows it, and test them again"
    )
    parser = add_command(
        commands,
        "repair",
        _repair,
        text,
        json=True,
        examples=(
            ("srobust admin repair --dry-run", "show what would be done"),
            ("srobust admin repair 'gpu[007,012]'", "only these nodes"),
        ),
    )
    add_nodes(parser)
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    add_node_config(parser)


def _repair(args: argparse.Namespace) -> int:
    return repair.main(args.nodes, dry_run=args.dry_run, json=args.json, config_file=args.config)


def _register_install(commands: Commands) -> None:
    text = "write hooks and configuration to this machine and show what slurm.conf needs"
    parser = add_command(
        commands,
        "install",
        _install,
        text,
        examples=(
            ("srobust admin install --dry-run", "show the files and the lines of slurm.conf"),
            ("srobust admin install --dry-run --json", "the same for a program"),
            ("srobust admin install --apply --all-nodes-have-it", "write them, and change slurm.conf"),
        ),
    )
    parser.add_argument(
        "--prefix", metavar="DIR", help="folder for scripts and manual pages (default: /usr/local)"
    )
    _add_dry_run(parser)
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
        help="link the hooks into the site's own hook folders, where they run immediately (as --apply does)",
    )
    parser.add_argument(
        "--act", action="store_true", help="drain nodes instead of only reporting (drain.mode)"
    )
    parser.add_argument(
        "--systemd-timer", action="store_true", help="periodic checks by systemd, not by HealthCheckProgram"
    )
    _add_slurm_conf(parser)


def _install(args: argparse.Namespace) -> int:
    # Timers run the other commands every few minutes: those need not import this.
    from slurm_robust.admin import install

    _check_json(args)
    return install.main(
        prefix=args.prefix,
        dry_run=args.dry_run,
        json=args.json,
        apply=args.apply,
        all_nodes=args.all_nodes_have_it,
        link_site=args.link_site_folders,
        act=args.act,
        timer=args.systemd_timer,
        slurm_conf=args.slurm_conf,
    )


def _register_verify(commands: Commands) -> None:
    text = "show what is wrong on this node and in Slurm's live configuration, and why it matters"
    _add_slurm_conf(
        add_command(
            commands,
            "verify",
            _verify,
            text,
            more="As root it creates a reservation of this node and deletes it, to see that the hooks can "
            "take the drain lock. For another user it checks what needs no root, and says what does.",
            json=True,
            examples=(
                ("srobust admin verify", "this node and Slurm's live configuration"),
                ("srobust admin verify --slurm-conf /etc/slurm/slurm.conf", "where slurm.conf is not found"),
            ),
        )
    )


def _verify(args: argparse.Namespace) -> int:
    from slurm_robust.admin import verify

    return verify.main(slurm_conf=args.slurm_conf, json=args.json)


def _register_uninstall(commands: Commands) -> None:
    text = "remove what install wrote, and show (or undo, with --apply) the change of slurm.conf"
    parser = add_command(
        commands,
        "uninstall",
        _uninstall,
        text,
        examples=(
            ("srobust admin uninstall --dry-run", "show what would be removed"),
            ("srobust admin uninstall --apply", "remove it, and undo the change of slurm.conf"),
        ),
    )
    _add_dry_run(parser)
    parser.add_argument("--apply", action="store_true", help="undo the change of slurm.conf")
    parser.add_argument(
        "--purge",
        action="store_true",
        help="also remove the state, the event log and backups of slurm.conf",
    )
    _add_slurm_conf(parser)


def _uninstall(args: argparse.Namespace) -> int:
    from slurm_robust.admin import install

    _check_json(args)
    return install.uninstall(
        dry_run=args.dry_run,
        json=args.json,
        apply=args.apply,
        purge=args.purge,
        slurm_conf=args.slurm_conf,
    )


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    parser.add_argument("--json", action="store_true", help="print what a dry run shows as JSON")


def _check_json(args: argparse.Namespace) -> None:
    if args.json and not args.dry_run:
        raise UsageError("--json is for --dry-run", fix="give both, or neither")


def _register_monitoring(commands: Commands) -> None:
    parser = add_command(
        commands,
        "monitoring",
        _monitoring,
        "write the dashboards for Grafana, and the alert rules and an example configuration for Prometheus",
        json=True,
        examples=(
            ("srobust admin monitoring --dir monitoring", "into a folder of their own"),
            ("srobust admin monitoring --dir /etc/prometheus/srobust --force", "again, after an upgrade"),
        ),
    )
    parser.add_argument(
        "--dir", metavar="DIR", type=Path, default=Path(), help="folder of the files (default: this one)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite files that are there")


def _monitoring(args: argparse.Namespace) -> int:
    from slurm_robust.admin import monitoring

    return monitoring.main(args.dir, force=args.force, json=args.json)


def _add_slurm_conf(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slurm-conf",
        metavar="FILE",
        default="",
        help="path of slurm.conf, if it is not found automatically",
    )
