"""``srobust admin uninstall``: takes away what an installation wrote, and nothing else.

slurm.conf first: a ``Prolog`` that names files which are gone drains every node that starts a job.
"""

from __future__ import annotations

import shutil
import time

from slurm_robust import __version__
from slurm_robust.admin import items, slurmconf
from slurm_robust.admin.files import InstallError
from slurm_robust.admin.install import listed, systemctl
from slurm_robust.admin.site import Site, must_be_root
from slurm_robust.admin.verify import matches
from slurm_robust.slurm.configuration import ConfigurationRefused
from slurm_robust.util.text import one_line

_RUN_TIME = ("/var/lib/slurm-robust", "/var/log/slurm-robust", "/run/slurm-robust")


def main(
    *,
    dry_run: bool = False,
    apply: bool = False,
    purge: bool = False,
    slurm_conf: str = "",
    site: Site | None = None,
) -> int:
    """Returns 0. Raises :class:`InstallError` while slurm.conf still names what would be removed."""
    if not dry_run:
        must_be_root("srobust admin uninstall")
    site = site or Site(slurm_conf)
    files = site.slurm_files()
    plan = slurmconf.without_ours(files)
    steps = site.tree.steps(())
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
    _leave_or_purge(site, purge=purge)
    return 0


def _leave_or_purge(site: Site, *, purge: bool) -> None:
    """State, events and backups of slurm.conf go only when that is asked for."""
    backups = site.backups()
    for name in _RUN_TIME if purge else ():
        shutil.rmtree(site.tree.path(name), ignore_errors=True)
    for backup in backups:
        if purge:
            backup.unlink(missing_ok=True)
        else:
            print(f"left as it is: {one_line(str(backup))} (--purge removes it)")


def still_named(site: Site) -> str:
    """Where Slurm still names our hooks: in the file, or in what slurmctld has in force; empty if nowhere."""
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
