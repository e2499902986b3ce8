"""``srobust spares create``, ``status`` and ``remove``: the reservation that holds a site's shared spares.

Slurm chooses its nodes: for a number of nodes it replaces those that are down or drained by idle ones of the
partition within a second (``REPLACE_DOWN``, since 17.11). Nothing here runs on: what is shown is what Slurm
says at that moment, and other users may change it at any time.
"""

from __future__ import annotations

import pwd
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec import structs
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.admin.reservations import end_reservation
from slurm_robust.admin.spare_plan import SpareRequirements, known_fleet, plan_for, rate_text
from slurm_robust.model.errors import SrobustError
from slurm_robust.model.record import Record
from slurm_robust.policy.spares import SparePlan
from slurm_robust.slurm import commands
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import (
    InvalidAccount,
    InvalidNode,
    InvalidPartition,
    NodesBusy,
    PermissionDenied,
    ReservationExists,
    ReservationInUse,
    ReservationNotFound,
    SlurmError,
    SlurmTimeout,
)
from slurm_robust.slurm.records import OF_RESERVATION, Reservation, SlurmJob, SlurmNode
from slurm_robust.slurm.requests import ReservationRequest
from slurm_robust.terminal.console import ScreenTable, facts_table, section, show
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import date_and_time, one_line

NAME = "srobust_spares"
_PLANNED = frozenset({"PLANNED"})
ANSWER_S = 60.0
"""How long one command of Slurm's may take: slurmdbd is asked for a month of failures."""

_ENDS_SOON_S = 30 * 86400.0
_ACCOUNTS = "compare with 'sacctmgr show association format=account,user'"
_PROLONG = "scontrol update reservationname={} endtime=now+365days"


class TooFewNodes(SrobustError):
    """The partition does not have as many nodes."""

    fix = "reserve fewer ('srobust spares plan' says how many are needed), or name a larger partition"


class Spare(Record):
    """One node of the reservation. ``state``: ``ready``, ``in use`` (by ``job_id`` of ``user``, which was
    submitted to the reservation), ``busy`` (with a job from before), ``planned`` (for a job that waits), or
    why it is no spare now.
    """

    node: str
    state: str
    job_id: int | None = None
    user: str = ""
    reason: str = ""


class Pool(Record):
    """The reservation now. ``size``: how many nodes it should have; ``usable``: ready, in use or planned.

    ``waiting``: jobs that wait for a node of it; ``replaced``: whether Slurm replaces nodes that fail.
    """

    name: str
    partition: str
    users: tuple[str, ...]
    accounts: tuple[str, ...]
    size: int
    ready: int
    usable: int
    spares: tuple[Spare, ...]
    waiting: tuple[int, ...]
    replaced: bool
    ends: float | None
    plan: SparePlan | None = None


# -- pure -------------------------------------------------------------------------------------------------


def request_of(
    name: str,
    *,
    count: int | None,
    nodes: Sequence[str],
    users: Sequence[str],
    accounts: Sequence[str],
    partition: str,
    ignore_jobs: bool,
) -> ReservationRequest:
    """Return the order to Slurm: ``count`` nodes that it chooses and replaces, or just ``nodes``."""
    flags = () if nodes else ("REPLACE_DOWN",)
    return ReservationRequest(
        name=name,
        nodes=tuple(nodes),
        node_count=None if nodes else count,
        users=tuple(users),
        accounts=tuple(accounts),
        partition=partition,
        flags=(*flags, "IGNORE_JOBS") if ignore_jobs else flags,
    )


def check(
    request: ReservationRequest, nodes: Iterable[SlurmNode], made: Iterable[Reservation]
) -> tuple[str, ...]:
    """Return the nodes that Slurm can choose from. Raises what Slurm would, in words that help more.

    If asked for more nodes than the partition has, Slurm would give those that are free and call that a
    success.
    """
    if any(other.name == request.name for other in made):
        raise ReservationExists(
            f"there is a reservation {request.name} already",
            fix=f"see 'srobust spares status --name {request.name}'; remove it, or choose another --name",
        )
    every = list(nodes)
    where = f"partition {request.partition}" if request.partition else "the cluster"
    members = [n for n in every if not request.partition or request.partition in n.partitions]
    if not members:
        there = ", ".join(sorted({name for node in every for name in node.partitions}))
        raise InvalidPartition(f"there is no {where}; there are: {there}")
    taken = {name for other in made for name in other.nodes}
    # Slurm reserves also what its scheduler has planned for a job that waits.
    able = [n for n in members if n.usable_despite(_PLANNED) and n.name not in taken]
    free = tuple(n.name for n in able if "IGNORE_JOBS" in request.flags or "IDLE" in n.states)
    count = request.node_count or 0
    if count > len(members):
        raise TooFewNodes(f"{where} has {len(members)} nodes, and {count} are asked for")
    if unknown := {*request.nodes} - {node.name for node in members}:
        raise InvalidNode(f"{fold(unknown)}: no node of {where}")
    missing = [name for name in request.nodes if name not in free]
    if missing or count > len(free):
        what = f"{fold(missing)} cannot be reserved now" if missing else f"{count} are asked for"
        raise NodesBusy(
            f"{what}: of {len(members)} nodes of {where} {len(able)} are in service and in no other "
            f"reservation, and {sum('IDLE' in n.states for n in able)} of these are idle",
            fix="try again when more are idle, or add --ignore-jobs: a node whose job still runs is a spare "
            "when that job ends",
        )
    return free


def pool_of(made: Reservation, nodes: Iterable[SlurmNode], jobs: Iterable[SlurmJob]) -> Pool:
    """Return what the reservation is worth now."""
    every = list(jobs)
    own = [job for job in every if job.reservation == made.name]
    holders = {name: job for job in [*every, *own] for name in job.nodes}
    spares = tuple(_spare(node, holders.get(node.name), made.name) for node in nodes)
    return Pool(
        name=made.name,
        partition=made.partition,
        users=made.users,
        accounts=made.accounts,
        size=made.node_count,
        ready=sum(spare.state == "ready" for spare in spares),
        usable=sum(spare.state in ("ready", "in use", "planned") for spare in spares),
        spares=spares,
        waiting=tuple(job.job_id for job in own if not job.nodes),
        replaced=not made.flags & {"SPEC_NODES", "STATIC_ALLOC", "STATIC", "MAINT"},
        ends=made.end_time,
    )


def _spare(node: SlurmNode, job: SlurmJob | None, reservation: str) -> Spare:
    state = _unfit(node, busy=job is not None)
    if not state:
        state = "ready" if job is None else "in use" if job.reservation == reservation else "busy"
    return Spare(
        node=node.name,
        state=state,
        job_id=job.job_id if job else None,
        user=job.user_name if job else "",
        reason=node.reason if node.is_down or node.is_drained else "",
    )


def _unfit(node: SlurmNode, *, busy: bool) -> str:
    if node.is_down:
        return "down"
    if node.is_drained:
        return "draining" if busy else "drained"
    if not node.responding:
        return "not responding"
    if hindrances := node.hindrances - OF_RESERVATION - (_PLANNED if busy else frozenset()):
        return min(hindrances).lower().replace("_", " ")
    return ""


def _strangers(slurm: SlurmClient, request: ReservationRequest) -> str:
    """Return what is wrong with an account or with users not in it; "" for nothing, or if not known.

    Slurm may reserve nodes for them anyway, which no job gets (the client's ``create_reservation``).
    """
    try:
        known = slurm.accounts() if request.accounts else {}
    except SlurmError:
        return ""
    for account in request.accounts:
        if account.lower() not in known:
            return f"Slurm does not know the account {account}"
        if out := [user for user in request.users if user not in known[account.lower()]]:
            return f"the account {account} does not have the user {', '.join(out)}"
    return ""


def not_permitted(error: PermissionDenied, users: Sequence[str], *, is_root: bool) -> PermissionDenied:
    """Return which of two things it was, for which Slurm says ``Invalid user id``."""
    unknown = [user for user in users if not _is_known(user)]
    what = "only root and operators of Slurm may make reservations"
    fix = "run it as root, or: sacctmgr modify user $USER set adminlevel=operator"
    if unknown or is_root:
        fix = "compare with 'getent passwd' where slurmctld runs" + ("" if is_root else f"; and {what}")
        what = f"Slurm does not know the user {', '.join(unknown or users)}"
    return PermissionDenied(f"{what} ({error.what})", fix=fix)


def _is_known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


# -- create -----------------------------------------------------------------------------------------------


def create(
    request: ReservationRequest, *, apply: bool, slurm: SlurmClient | None = None, is_root: bool
) -> int:
    """Show the order, or with ``apply`` give it and show what came of it; 0."""
    slurm = slurm or _client()
    free = check(request, slurm.nodes(), slurm.reservations())
    strangers = _strangers(slurm, request)
    if not apply:
        print(_proposal(request, free, strangers))
        return 0
    if strangers:
        raise InvalidAccount(strangers, fix=_ACCOUNTS)
    try:
        slurm.create_reservation(request)
    except ReservationExists as error:
        error.fix = f"another user was faster: see 'srobust spares status --name {request.name}'"
        raise
    except PermissionDenied as error:
        raise not_permitted(error, request.users, is_root=is_root) from error
    except InvalidAccount as error:
        accounts = ", ".join(request.accounts) or "of these users"
        raise InvalidAccount(
            f"Slurm does not know the account {accounts} ({error.what})", fix=_ACCOUNTS
        ) from error
    except SlurmTimeout as error:
        error.fix = f"it may exist all the same: see 'srobust spares status --name {request.name}'"
        raise
    made = find(slurm, request.name)
    if made and len(made.nodes) < (request.node_count or 0):
        count = request.node_count or 0
        # Give it back: Slurm gives what is free if the whole partition is smaller than what is asked for.
        now = "they are free again"
        try:
            slurm.delete_reservation(made.name)
        except ReservationNotFound:
            pass  # Another user was faster.
        except ReservationInUse:
            now = f"a job uses them already, so {made.name} stands"
        raise TooFewNodes(f"Slurm had only {len(made.nodes)} nodes for {count} spares; {now}")
    nodes = fold(made.nodes) if made else "its nodes"
    print(one_line(f"{request.name} holds {nodes}; 'srobust spares status' shows their state"))
    return 0


def _proposal(request: ReservationRequest, free: Sequence[str], strangers: str) -> str:
    ends = f"Slurm ends every reservation after a year; to prolong it: {_PROLONG.format(request.name)}"
    whom = [f"the users {', '.join(request.users)}"] if request.users else []
    whom += [f"the accounts {', '.join(request.accounts)}"] if request.accounts else []
    what = fold(request.nodes) or f"{request.node_count} of the {len(free)} nodes that are available now"
    lines = [
        shlex.join(commands.create_reservation(request)),
        "",
        f"Slurm keeps {what} for {' of '.join(whom)}, whose jobs get them by --reservation={request.name}.",
    ]
    if request.nodes:
        lines.append("Slurm replaces none that fails; with --count it chooses the nodes and replaces them.")
    else:
        lines.append("Slurm replaces those that are down or drained by idle nodes of the partition.")
    if "IGNORE_JOBS" in request.flags:
        lines.append("Jobs that run on them go on; such a node is a spare when its job ends.")
    unknown = [user for user in request.users if not _is_known(user)]
    if unknown:
        lines.append(
            f"This host does not know {', '.join(unknown)}; Slurm refuses users whom slurmctld does not know."
        )
    if strangers:
        lines.append(f"As sacctmgr shows it to you, {strangers}; with --apply that is refused.")
    return "\n".join([*lines, f"{ends}.", "", "Nothing was done; --apply does it."])


# -- status -----------------------------------------------------------------------------------------------


def find(slurm: SlurmClient, name: str) -> Reservation | None:
    """Return the reservation, None if there is none that this user may see."""
    return next((made for made in slurm.reservations() if made.name == name), None)


def status(
    name: str,
    wanted: SpareRequirements,
    *,
    json: bool,
    slurm: SlurmClient | None = None,
    clock: Callable[[], float] = time.time,
) -> int:
    """Print the pool; 0 if as many are usable as it and the plan should have, else 1.

    Raises ReservationNotFound.
    """
    slurm = slurm or _client()
    if (made := find(slurm, name)) is None:
        raise ReservationNotFound(
            f"there is no reservation {name}",
            fix="make one: 'srobust spares create'; see others: 'scontrol show reservation'",
        )
    every = slurm.nodes()
    pool = pool_of(made, [node for node in every if node.name in made.nodes], slurm.jobs())
    plan = plan_for(slurm, known_fleet(every, made.partition), wanted, clock())
    pool = structs.replace(pool, plan=plan)
    show(pool, partial(_pool_text, now=clock()), json=json)
    return 0 if pool.usable >= max(pool.size, plan.spares) else 1


def _pool_text(pool: Pool, now: float) -> RenderableType:
    nodes = f"{pool.size} {f'of partition {pool.partition}' if pool.partition else 'nodes'}"
    facts = [
        ("reservation", f"{pool.name}: {nodes}"),
        ("users", ", ".join(pool.users) or "any"),
        ("accounts", ", ".join(pool.accounts) or "any"),
        ("ready", f"{pool.ready} of {pool.size}, {pool.usable - pool.ready} in use"),
    ]
    if pool.plan:
        short = pool.plan.spares - pool.size
        more = f": {short} more than there are" if short > 0 else ""
        facts.append(("planned", f"{pool.plan.spares} for {pool.plan.nodes:,} nodes{more}"))
        facts.append(("rate", rate_text(pool.plan.rate)))
    if not pool.replaced:
        facts.append(("not replaced", "Slurm keeps these nodes in the reservation also when they fail"))
    if pool.waiting:
        facts.append(("waiting", f"jobs {', '.join(map(str, pool.waiting))} wait for a node of it"))
    if pool.ends is not None:
        soon = pool.ends - now < _ENDS_SOON_S
        facts.append(("ends", date_and_time(pool.ends) + (f"; {_PROLONG.format(pool.name)}" if soon else "")))
    table = ScreenTable()
    for title in ("node", "state", "job", "user", "reason"):
        table.add_column(title, overflow="fold")
    for spare in pool.spares:
        cells = (spare.node, spare.state, str(spare.job_id or ""), spare.user, spare.reason)
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    return Group(facts_table((name, one_line(text)) for name, text in facts), *section("nodes", table))


# -- remove -----------------------------------------------------------------------------------------------


def remove(
    name: str,
    *,
    apply: bool,
    force: bool,
    slurm: SlurmClient | None = None,
    clock: Callable[[], float] = time.time,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Show what deleting it does, or with ``apply`` delete it; with ``force`` jobs in it are cancelled; 0.

    Raises ReservationInUse, PermissionDenied.
    """
    slurm = slurm or _client()
    made = find(slurm, name)
    if made is None:
        print(f"there is no reservation {name}: nothing to remove")
        return 0
    jobs = [job for job in slurm.jobs() if job.reservation == name]
    if not apply:
        print(_removal(made, jobs))
        return 0
    if force:
        end_reservation(slurm, name, clock=clock, pause=pause)
    else:
        try:
            slurm.delete_reservation(name)
        except ReservationNotFound:
            pass  # Another user was faster.
        except ReservationInUse as error:
            raise ReservationInUse(
                f"{name} is in use: {_jobs_text(jobs, holding=True) or error.what}",
                fix="wait for these jobs, or cancel them with --force",
            ) from error
    print(one_line(f"{name} is removed; {_opened(made)}"))
    return 0


def _opened(made: Reservation) -> str:
    return f"{fold(made.nodes)} {'is' if len(made.nodes) == 1 else 'are'} open to all jobs again"


def _removal(made: Reservation, jobs: Sequence[SlurmJob]) -> str:
    lines = [
        one_line(shlex.join(commands.delete_reservation(made.name)), None),
        "",
        one_line(f"{_opened(made)}."),
    ]
    if running := _jobs_text(jobs, holding=True):
        lines.append(f"Slurm refuses while they run: {running}. --force cancels them.")
    if waiting := _jobs_text(jobs, holding=False):
        lines.append(f"Slurm holds those that wait in it: {waiting}.")
    return "\n".join([*lines, "", "Nothing was done; --apply does it."])


def _jobs_text(jobs: Sequence[SlurmJob], *, holding: bool) -> str:
    found = [job for job in jobs if bool(job.nodes) is holding]
    return ", ".join(f"job {job.job_id} of {one_line(job.user_name)}" for job in found)


def _client() -> SlurmClient:
    return CliSlurmClient(ANSWER_S)
