"""``srobust admin verify``: whether this node and its cluster are set up as the hooks need it, and why."""

from __future__ import annotations

import fnmatch
import glob
import os
import pwd
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from slurm_robust import __version__
from slurm_robust.admin import items
from slurm_robust.admin.files import FileAction, RootOnly, Tree
from slurm_robust.admin.site import Site
from slurm_robust.admin.slurmconf import WHY
from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.node import HEALTH_CHECK_LIMIT_S, NodeConfig
from slurm_robust.home import is_packaged
from slurm_robust.hooks.allocation import log_file
from slurm_robust.hooks.drain_lock import try_drain_lock
from slurm_robust.hooks.times import (
    HookTimes,
    is_near,
    meets_prologs,
    not_measured,
    read_times,
    said,
)
from slurm_robust.kernel.host import Host, node_name
from slurm_robust.model.record import Record
from slurm_robust.nodes.registry import CHECKS
from slurm_robust.nodes.site import checks
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.configuration import ConfigurationRefused
from slurm_robust.slurm.errors import ControllerUnreachable, InvalidNode, SlurmCommandError, SlurmTimeout
from slurm_robust.slurm.values import NEVER_S, PROLOG_AT_ALLOCATION, parse_number, parse_words
from slurm_robust.terminal.console import Bar, show
from slurm_robust.util.text import did_you_mean, near, one_line
from slurm_robust.util.trust import distrust

Live = Mapping[str, tuple[str, ...]]
_OURS = "slurm-robust"


class Point(Record):
    """One thing that was checked."""

    good: bool
    what: str
    why: str = ""
    """Why it matters, for what is not good."""

    fix: str = ""


def main(*, slurm_conf: str = "", json: bool = False, site: Site | None = None) -> int:
    """Verify. Returns 0 if all is good, or 1 if something is not, which is printed."""
    try:
        site = site or Site(slurm_conf)
        points = [Point(good=True, what=f"configuration: good, drain.mode is {site.config.drain.mode}")]
    except InvalidSettings as error:
        site = Site(slurm_conf, config=NodeConfig())
        why = "hooks run with the defaults, which only observe"
        points = [Point(good=False, what=problem, why=why, fix=error.fix) for problem in error.problems]
    known = (*CHECKS, *checks(site.config, Host(site.tree.root)))
    with Bar("looking at this node") as bar:
        points += rule_points(site.config, [check.name for check in known])
        points += file_points(site)
        bar.say("asking Slurm for its configuration")
        try:
            live = site.live.read()
        except ConfigurationRefused as error:
            points.append(
                Point(good=False, what=f"Slurm: {error}", why="hooks ask Slurm", fix="scontrol ping")
            )
        else:
            points += cluster_points(live, site.config, timer=site.has_timer)
            points += pattern_points(live, site.tree)
            points += measured_points(live, *_measured(site))
            points += allocation_points(live, site, os.uname().nodename)
            if os.geteuid() == 0:
                bar.say("taking the drain lock and releasing it")
                points += lock_points(site.slurm, node_name(os.environ))
            else:
                points.append(Point(good=True, what="drain lock: not tried, for only root may take it"))
    if json:
        show(points, str, json=True)
        return 0 if all(point.good for point in points) else 1
    return report(points)


def report(points: Iterable[Point]) -> int:
    """Print them, and a fix once for all that it mends; 1 if one is not good."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        if point.good:
            print(f"{'good':>6}  {one_line(point.what, None)}")
        else:
            groups.setdefault(point.fix, []).append(point)
    for fix, group in groups.items():
        for point in group:
            print(f"{'BAD ':>6}  {one_line(point.what, None)}")
            print(f"          why: {one_line(point.why, None)}")
        of_all = f" (for all {len(group)})" if len(group) > 1 else ""
        print(f"          fix: {one_line(fix, None)}{of_all}")
    return int(bool(groups))


def rule_points(config: NodeConfig, names: Sequence[str]) -> Iterator[Point]:
    """Yield rules of the configuration that speak of no check at all. Pure."""
    for pattern in config.checks:
        if not fnmatch.filter(names, pattern):
            yield Point(
                good=False,
                what=f"configuration: no check matches checks.{pattern}",
                why="the rule has no effect",
                fix=did_you_mean(near(pattern, names)) or "srobust check --explain names them all",
            )


def file_points(site: Site) -> Iterator[Point]:
    """Check the files of this node: as they were installed, and closed to all but root."""
    try:
        manifest = site.tree.manifest()
    except RootOnly as error:
        yield Point(good=True, what=f"files: not checked, for {error}: run it with sudo")
        return
    fix = f"srobust admin install (on {socket.gethostname()})"
    if not manifest.digests:
        yield Point(good=False, what="not installed on this node", why="no hook finds us", fix=fix)
        return
    # After an upgrade of a package the links still lead to the scripts that it replaced.
    same = manifest.version == __version__ or is_packaged()
    yield Point(
        good=same,
        what=f"installed by version {manifest.version}, this is {__version__}",
        why="scripts and program belong together",
        fix=fix,
    )
    wrong = [
        step for step in site.tree.steps(()) if step.action is FileAction.KEEP and step.path != items.CONFIG
    ]
    gone = [path for path in manifest.digests if site.tree.find(path) is None]
    for path, why in [*((step.path, step.why) for step in wrong), *((path, "is gone") for path in gone)]:
        yield Point(
            good=False, what=f"{path} {why}", why="it is not what was tested", fix=f"rm -f it, then {fix}"
        )
    if not wrong and not gone:
        yield Point(good=True, what=f"files: {len(manifest.digests)}, all as installed")
    for path, why in site.distrusted().items():
        yield Point(
            good=not why,
            what=f"{path}: {why or 'root alone can change it'}",
            why="hooks run it as root",
            fix="chown root and chmod go-w what is named",
        )
    for link in sorted(path for path, digest in manifest.digests.items() if digest.startswith("link:")):
        real = site.tree.real(link)
        why = distrust(str(real)) if _runs(real) else f"{real} cannot be executed"
        yield Point(
            good=not why,
            what=f"{link}: {why or 'root alone can change what it runs'}",
            why="Slurm runs it as root; without it, it drains the node",
            fix=f"chown root and chmod go-w what is named, or {fix}",
        )


def cluster_points(live: Live, config: NodeConfig, *, timer: bool) -> Iterator[Point]:
    """Compare what slurmctld has in force with what the hooks need. Pure."""
    fix = "srobust admin install shows the change of slurm.conf, --apply makes it"
    values = _values(live, "schedulerparameters")
    yield Point(
        good="nohold_on_prolog_fail" in values,
        what="SchedulerParameters: nohold_on_prolog_fail",
        why=WHY["SchedulerParameters"],
        fix=fix,
    )
    yield Point(
        good=bool(_values(live, "prologflags") & PROLOG_AT_ALLOCATION),
        what="PrologFlags: Alloc",
        why=WHY["PrologFlags"],
        fix=fix,
    )
    for key, budget in (("prolog", config.hooks.prolog_s), ("epilog", config.hooks.epilog_s)):
        patterns = live.get(key, ())
        yield Point(
            good=bool(patterns),
            what=f"{key.capitalize()}: {' '.join(patterns) or 'none'}",
            why=WHY[key.capitalize()],
            fix=fix,
        )
        limit = _hook_limit(live, key)
        yield Point(
            good=limit is not None and budget < limit < NEVER_S,
            what=f"PrologEpilogTimeout: {limit} s, hooks.{key}_s is {budget:g} s",
            why=WHY["PrologEpilogTimeout"],
            fix=fix,
        )
    program = " ".join(live.get("healthcheckprogram", ()))
    interval = _number(live, "healthcheckinterval") or 0
    yield Point(
        good=timer or (_OURS in program and interval > 0),
        what="periodic checks: by systemd"
        if timer
        else f"HealthCheckProgram: {program or 'none'}, {interval} s",
        why=WHY["HealthCheckProgram"],
        fix=_health_check_fix(program, fix),
    )
    if not timer:
        yield from _health_check_limit(live, interval, config.hooks.periodic_s)


def measured_points(live: Live, times: Mapping[str, HookTimes], unread: str) -> Iterator[Point]:
    """Compare Slurm's limits with what this node's hooks took. Pure. ``unread``: why nothing is known."""
    for hook in ("prolog", "epilog"):
        if why_not := unread or not_measured(times, hook):
            yield Point(good=True, what=f"time of {hook}s: not measured: {why_not}")
            continue
        limit = _hook_limit(live, hook)
        yield Point(
            good=not is_near(times[hook], limit),
            what=f"{said(hook, times[hook])}; Slurm's limit is {limit} s",
            why=f"Slurm kills the {hook} at its limit and drains the node",
            fix=f"PrologEpilogTimeout in slurm.conf ({hook.capitalize()}Timeout where it is set) well above "
            "that; took_s in the event log says what is slow",
        )
        start, flags = _number(live, "batchstarttimeout"), _values(live, "prologflags")
        if hook == "prolog" and start is not None and meets_prologs(flags):
            usual = f"99 % of prologs took {times[hook].usual_s:.3g} s or less"
            yield Point(
                good=not is_near(times[hook], start),
                what=f"BatchStartTimeout: {start} s, {usual}",
                why="Slurm may take a batch job that starts later for missing, and srun give up a step",
                fix="BatchStartTimeout in slurm.conf well above that, or DeferBatch in PrologFlags",
            )


def _measured(site: Site) -> tuple[dict[str, HookTimes], str]:
    log = site.config.paths.log
    try:
        return read_times(site.tree.path(log), time.time()), ""
    except OSError as error:
        return {}, f"{log}: {error.strerror}"


def _hook_limit(live: Live, hook: str) -> int | None:
    return _number(live, f"{hook}timeout") or _number(live, "prologepilogtimeout")


def _health_check_fix(program: str, fix: str) -> str:
    """Return the fix: a program of the site stays, so no change of slurm.conf brings ours."""
    if not program or _OURS in program:
        return fix
    return (
        f"srobust admin install --systemd-timer on every node; or link {program} into "
        f"/etc/slurm-robust/periodic.d and set HealthCheckProgram={items.HEALTH_CHECK}"
    )


def _health_check_limit(live: Live, interval: int, budget: float) -> Iterator[Point]:
    """Check the limit, which is no setting before 26.05."""
    limit = _number(live, "healthchecktimeout") or int(HEALTH_CHECK_LIMIT_S)
    yield Point(
        good=budget < limit,
        what=f"HealthCheckTimeout: {limit} s, hooks.periodic_s is {budget:g} s",
        why="Slurm kills a HealthCheckProgram after that time",
        fix="HealthCheckTimeout in slurm.conf above hooks.periodic_s, or a smaller hooks.periodic_s",
    )
    if "healthchecktimeout" in live and interval:
        yield Point(
            good=limit < interval,
            what=f"HealthCheckInterval: {interval} s, HealthCheckTimeout is {limit} s",
            why="Slurm says that this is an error, at each start of a daemon",
            fix="HealthCheckInterval in slurm.conf above HealthCheckTimeout",
        )


def pattern_points(live: Live, tree: Tree) -> Iterator[Point]:
    """Check what Slurm's patterns match on this node: ours among it, and nothing that cannot be executed."""
    for key in ("prolog", "epilog"):
        matched = [path for pattern in live.get(key, ()) for path in matches(tree, pattern)]
        if not live.get(key):
            continue
        bad = [path for path in matched if not _runs(tree.real(path))]
        ours = any(_OURS in str(tree.real(path)) for path in matched)
        yield Point(
            good=bool(matched) and not bad,
            what=f"{key.capitalize()} on this node: {' '.join(bad or matched) or 'no file'}",
            why="Slurm takes what is missing or cannot be executed for a failed hook and drains the node",
            fix="remove it or chmod 755; if all is missing: srobust admin install",
        )
        yield Point(
            good=ours,
            what=f"{key.capitalize()} runs slurm_robust",
            why="the node is not checked there",
            fix="srobust admin install; for a folder of the site with --link-site-folders",
        )


def allocation_points(live: Live, site: Site, host: str) -> Iterator[Point]:
    """Check whether the hooks that run beside slurmctld as SlurmUser can write their events."""
    hooks = [word for key in ("prologslurmctld", "epilogslurmctld") for word in live.get(key, ())]
    controllers = {name.partition("(")[0].partition(".")[0] for name in live.get("slurmctldhost", ())}
    if not any(_OURS in hook for hook in hooks) or host.partition(".")[0] not in controllers:
        return
    name, _, number = " ".join(live.get("slurmuser", ())).rstrip(")").partition("(")
    folder = Path(log_file(site.config.paths)).parent
    good = may_write(site.tree, folder, int(number)) if number.isdigit() else False
    yield Point(
        good=good,
        what=f"{folder}: SlurmUser {name} {'writes' if good else 'cannot write'} there",
        why="else each job costs a line in syslog instead of one in the log of allocations",
        fix=f"install -d -m 751 {folder.parent}; install -d -m 750 -o {name} {folder}",
    )


def lock_points(slurm: SlurmClient, node: str) -> Iterator[Point]:
    """Try whether Slurm gives this node the lock that it needs to drain itself, and release it."""
    what = f"drain lock: a reservation of {node} for root, created and deleted"
    why = "nothing is ever drained without it"
    try:
        try_drain_lock(slurm, node)
    except InvalidNode:
        yield Point(good=True, what=f"drain lock: not tried, for Slurm has no node {node}; verify on a node")
    except (SlurmTimeout, ControllerUnreachable) as error:
        yield Point(good=False, what=f"{what}: no answer: {error}", why=why, fix=error.fix)
    except SlurmCommandError as error:
        yield Point(good=False, what=f"{what}: refused: {error}", why=why, fix=error.fix)
    else:
        yield Point(good=True, what=what)


def may_write(tree: Tree, folder: Path, uid: int) -> bool:
    """Return whether a user comes to a folder and may make files in it, by owners, groups and modes."""
    if uid == 0:
        return True
    groups = _groups(uid)
    for place in (folder, *folder.parents):
        try:
            found = tree.path(str(place)).stat()
        except OSError:
            return False
        wanted = 0o003 if place == folder else 0o001
        if found.st_uid == uid:
            wanted <<= 6
        elif found.st_gid in groups:
            wanted <<= 3
        if found.st_mode & wanted != wanted:
            return False
    return True


def _groups(uid: int) -> set[int]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return set()
    return set(os.getgrouplist(user.pw_name, user.pw_gid))


def matches(tree: Tree, pattern: str) -> list[str]:
    """Return the paths that a pattern of Slurm's, glob(7), matches on this machine."""
    return sorted(f"/{name}" for name in glob.glob(pattern.lstrip("/"), root_dir=tree.root))


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _values(live: Live, key: str) -> frozenset[str]:
    return parse_words(",".join(live.get(key, ())))


def _number(live: Live, key: str) -> int | None:
    return parse_number(" ".join(live.get(key, ())))
