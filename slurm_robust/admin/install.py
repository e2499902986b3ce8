"""``srobust admin install`` and ``uninstall``: this machine's files, and what they need in slurm.conf.

Order matters on a cluster: a ``Prolog`` that names files which a node does not have drains that node. So
every node is installed first, and slurm.conf is changed once, at last; an uninstallation begins with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from slurm_robust import __version__
from slurm_robust.admin import items, slurmconf, verify
from slurm_robust.admin.files import FileChange, InstallError
from slurm_robust.admin.items import Layout
from slurm_robust.admin.site import Site, must_be_root
from slurm_robust.admin.verify import matches
from slurm_robust.home import is_packaged
from slurm_robust.model.record import Record
from slurm_robust.slurm.configuration import ConfigurationRefused
from slurm_robust.terminal.console import show
from slurm_robust.util.text import one_line
from slurm_robust.util.trust import distrust

SYSTEMCTL_S = 30.0
_RUN_TIME = ("/var/lib/slurm-robust", "/var/log/slurm-robust", "/run/slurm-robust")

_NOT_LINKED = (
    "is not made yet: it is in a folder of the site, whose scripts Slurm runs immediately; "
    "'srobust admin install --link-site-folders' makes it, when what is shown here is what you want"
)

_NOT_FOUND = "slurm.conf was not found here (--slurm-conf names it)"

NODES_FIRST = (
    "a Prolog or Epilog that names files which a node does not have drains that node: run 'srobust admin "
    "install' on every node first, then this once with --apply --all-nodes-have-it"
)


class PlannedFile(Record):
    """What would be done with a path."""

    action: str
    """``same``: nothing, it is as it should be."""

    path: str
    why: str = ""


class DryRun(Record):
    """What an installation, or its removal, would do."""

    files: tuple[PlannedFile, ...]
    slurm_conf: str
    """The unified difference of slurm.conf and the files that it includes; empty if nothing would change."""

    why: dict[str, str]
    """By key of slurm.conf that would be set: why the hooks need it."""

    notes: tuple[str, ...]
    """What a person must know before."""


def main(
    *,
    prefix: str | None = None,
    dry_run: bool = False,
    json: bool = False,
    apply: bool = False,
    all_nodes: bool = False,
    link_site: bool = False,
    act: bool = False,
    timer: bool = False,
    slurm_conf: str = "",
    site: Site | None = None,
) -> int:
    """Install. Returns 0, or 1 if slurm.conf was changed and the cluster is not as it should be then.

    ``json``: a dry run prints what it would do as one document.

    Raises :class:`InstallError`, or ``InvalidSettings`` for a configuration that is wrong.
    """
    if not dry_run:
        must_be_root("srobust admin install")
    site = site or Site(slurm_conf)
    layout = _layout(site, prefix, act=act, timer=timer)
    files = site.slurm_files()
    plan = slurmconf.make_plan(files or {"slurm.conf": ""}, site.wish(timer=layout.timer))
    # A link in a folder of the site is live immediately, so it waits.
    known = site.tree.manifest().digests
    links = {
        path: target
        for path, target in plan.links.items()
        if apply
        or link_site
        or path.startswith(f"{items.HOOKS}/")
        or (path in known and site.tree.find(path) is not None)
    }
    waiting = sorted(plan.links.keys() - links.keys())
    if not all_nodes and not dry_run:
        _refuse_shared(site, links)
    wanted = items.items(layout, links)
    steps = site.tree.steps(wanted)
    unlinked = [f"{link} {_NOT_LINKED}" for link in waiting]
    changed = {step.path for step in steps}
    same = sorted(item.path for item in wanted if item.path not in changed)
    if dry_run and json:
        notes = (*unlinked, *(() if files else (_NOT_FOUND,)), *_order(plan.diff()))
        show(_planned(steps, plan, same, notes), str, json=True)
        return 0
    print(listed(steps) or "files: all as they should be")
    for note in unlinked:
        print(f"note: {one_line(note, None)}")
    if dry_run:
        for path in same:
            print(f"{'same':>8}  {one_line(path)}")
        _show(plan, bool(files), applied=False)
        return 0
    _refuse_open(site, layout)
    site.tree.carry_out(steps, wanted, __version__)
    if layout.timer:
        systemctl(site, "daemon-reload")
        systemctl(site, "enable", "--now", items.TIMER)
    if not apply:
        _show(plan, bool(files), applied=False)
        return 0
    if not files:
        raise InstallError("--apply: slurm.conf was not found", "name it with --slurm-conf")
    if site.is_configless:
        raise InstallError(
            f"--apply: {site.main} is a copy that slurmd fetched", "run it on the controller instead"
        )
    difference = plan.diff()
    names_files = any(line.startswith(("+Prolog=", "+Epilog=")) for line in difference.splitlines())
    if names_files and not all_nodes:
        _show(plan, True, applied=False)
        raise InstallError("slurm.conf was not changed", NODES_FIRST)
    _show(plan, True, applied=True)
    if difference:
        for backup in site.apply(plan, time.strftime("%Y%m%dT%H%M%S")):
            print(f"backup: {backup}")
    return verify.report(verify.cluster_points(site.live.read(), site.config, timer=layout.timer))


def _refuse_shared(site: Site, links: Iterable[str]) -> None:
    """Refuse to link in a folder that nodes share: what is linked there runs on all of them."""
    for link in links:
        kind = site.network_kind(os.path.dirname(link))
        if kind and site.tree.find(link) is None and not link.startswith(f"{items.HOOKS}/"):
            raise InstallError(
                f"{link} would be on a network file system ({kind}): every node that sees it runs the link, "
                "and Slurm drains each on which it leads nowhere",
                "install every node first, then this once with --all-nodes-have-it",
            )


def listed(steps: Sequence[FileChange]) -> str:
    """Return one line for each step."""
    return "\n".join(
        f"{step.action.value:>8}  {one_line(f'{step.path} ({step.why})' if step.why else step.path)}"
        for step in steps
    )


def systemctl(site: Site, *args: str) -> None:
    """Run it if systemd is in charge of this tree; otherwise print what to run."""
    command = ("systemctl", *args)
    if not site.tree.path("/run/systemd/system").is_dir() or site.tree.root != Path("/"):
        print(f"systemd does not run here; on the booted node: {' '.join(command)}")
        return
    try:
        subprocess.run(command, check=True, timeout=SYSTEMCTL_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallError(f"{' '.join(command)}: {error}", "run it by hand") from error


def _layout(site: Site, prefix: str | None, *, act: bool, timer: bool) -> Layout:
    known = site.tree.manifest().digests
    packaged = is_packaged()
    if packaged and prefix is not None:
        raise InstallError("--prefix: the package has its place already", "leave the option out")
    if prefix is not None and not prefix.startswith("/"):
        raise InstallError(f"--prefix {prefix}: not an absolute path", "give a path from / on")
    return Layout(
        node_command=site.node_command,
        prefix="/usr" if packaged else (prefix or "/usr/local").rstrip("/"),
        packaged=packaged,
        # What was asked for once stays asked for, until the file is removed.
        timer=timer or site.has_timer or f"{items.UNITS}/{items.TIMER}" in known,
        act=act or (items.ACT in known and site.tree.find(items.ACT) is not None),
    )


def _refuse_open(site: Site, layout: Layout) -> None:
    """Refuse what others can change: root would run it, in every hook of every job."""
    for path, why in site.distrusted().items():
        if why:
            raise InstallError(
                f"hooks run {path} as root, but {why}",
                "install slurm_robust as root, in a folder of root's (/opt), and call it by that path",
            )
    # The folder itself may not be there yet.
    folder = site.tree.path(layout.libexec)
    while not folder.is_dir():
        folder = folder.parent
    if why := distrust(str(folder)):
        raise InstallError(
            f"the scripts that root runs go to {layout.libexec}, but {why}",
            "chown root and chmod go-w what is named, or take another --prefix, such as /opt/slurm-robust",
        )


def _planned(
    steps: Sequence[FileChange],
    plan: slurmconf.SlurmConfChange,
    same: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> DryRun:
    difference = plan.diff()
    return DryRun(
        files=(
            *(PlannedFile(action=step.action.value, path=step.path, why=step.why) for step in steps),
            *(PlannedFile(action="same", path=path) for path in same),
        ),
        slurm_conf=difference,
        why=dict(slurmconf.whys(difference)),
        notes=(*notes, *plan.notes),
    )


def _order(difference: str) -> tuple[str, ...]:
    """Say what goes first, if the change of slurm.conf names files that nodes must have."""
    return (NODES_FIRST,) if any(line.startswith("+Prolog=") for line in difference.splitlines()) else ()


def _show(plan: slurmconf.SlurmConfChange, known: bool, *, applied: bool) -> None:
    for note in plan.notes:
        print(f"note: {one_line(note, None)}")
    difference = plan.diff()
    if not difference:
        print("slurm.conf: nothing to change")
        return
    if not known:
        print(f"{_NOT_FOUND}; it needs:")
    for key, why in slurmconf.whys(difference):
        print(f"why {key}: {why}")
    print(f"{difference}" if applied else f"{difference}\nslurm.conf was not changed (--apply does it)")
    for note in () if applied else _order(difference):
        print(f"note: {note}")


def uninstall(
    *,
    dry_run: bool = False,
    json: bool = False,
    apply: bool = False,
    purge: bool = False,
    slurm_conf: str = "",
    site: Site | None = None,
) -> int:
    """Take away what an installation wrote, and nothing else. State, events and backups go with ``purge``.

    Returns 0. Raises :class:`InstallError` while slurm.conf still names what would be removed.
    """
    if not dry_run:
        must_be_root("srobust admin uninstall")
    site = site or Site(slurm_conf)
    files = site.slurm_files()
    plan = slurmconf.without_ours(files)
    steps = site.tree.steps(())
    if dry_run and json:
        show(_planned(steps, plan), str, json=True)
        return 0
    print(plan.diff() or "slurm.conf: nothing to change")
    if dry_run:
        print(listed(steps) or "files: none of ours")
        return 0
    if apply and plan.diff():
        for backup in site.apply(plan, time.strftime("%Y%m%dT%H%M%S")):
            print(f"backup: {backup}")
    if names := still_named(site):
        raise InstallError(
            f"nothing was removed: {names}",
            "first 'srobust admin uninstall --apply' on the controller, then 'uninstall' on every node",
        )
    print(listed(steps) or "files: none of ours")
    if site.has_timer:
        systemctl(site, "disable", "--now", items.TIMER, items.WATCH)
    kept = site.tree.carry_out(steps, (), __version__)
    if kept:
        print(f"left as they are:\n{listed(kept)}")
    backups = site.backups()
    for name in _RUN_TIME if purge else ():
        shutil.rmtree(site.tree.path(name), ignore_errors=True)
    for old in backups:
        if purge:
            old.unlink(missing_ok=True)
        else:
            print(f"left as it is: {one_line(str(old))} (--purge removes it)")
    return 0


def still_named(site: Site) -> str:
    """Return the place in which Slurm still names our hooks: in the file, or in what slurmctld has in force;
    empty if nowhere.
    """
    for statement in slurmconf.statements(site.slurm_files(), site.main):
        if statement.value.startswith(items.HOOKS):
            return f"{statement.file} still says {statement.key}={statement.value}"
        if statement.key.lower() in ("prolog", "epilog"):
            matched = matches(site.tree, statement.value)
            if matched and set(matched) <= site.tree.manifest().digests.keys():
                return f"{statement.key}={statement.value} would match nothing any more, which drains nodes"
    try:
        live = site.live.read()
    except ConfigurationRefused:
        return ""  # The file is what slurmctld reads when it comes back.
    for key in ("prolog", "epilog", "healthcheckprogram"):
        if named := [value for value in live.get(key, ()) if value.startswith(items.HOOKS)]:
            return f"slurmctld still has {key.capitalize()}={named[0]}; scontrol reconfigure"
    return ""
