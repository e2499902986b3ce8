"""Slurm's text output to records. Pure; for releases before 24.11 and those whose JSON we do not know.

``scontrol show job`` and ``show node`` are read in their form with several lines (not ``-o``): there, fields
with free text (JobName, Comment, Command, Reason) stand at the end of a line, so that a job named ``x
JobState=FAILED`` does not deceive us. Only a line break in such a field could: then a field appears twice,
and the record is refused as :class:`UnparsableOutput`. A node's reason is read with its line breaks: what one
administrator typed must not hide all nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from slurm_robust.slurm.commands import NODE_COLUMNS
from slurm_robust.slurm.errors import UnparsableOutput
from slurm_robust.slurm.records import (
    AccountingRow,
    Allocation,
    NodeEvent,
    Reservation,
    SlurmJob,
    SlurmNode,
    SlurmStep,
    Switch,
    Terms,
)
from slurm_robust.slurm.values import (
    parse_duration,
    parse_gres,
    parse_job_states,
    parse_list,
    parse_names,
    parse_states,
    parse_time,
)

# Fields that take the rest of their line.
_FREE_TEXT = frozenset(
    {"JobName", "Comment", "AdminComment", "SystemComment", "Command", "WorkDir", "Reason", "OS", "Extra"}
    | {"StdErr", "StdIn", "StdOut", "SubmitLine"}
)
# ``-d show job`` repeats these for every group of nodes; parse_allocation reads them.
_PER_NODE_LINE = re.compile(r"\s+Nodes=\S+ CPU_IDs=")
# Slurm prints who gave a node's reason, and when, after its first line, and indents the others.
_REASON = re.compile(r"(?m)^   Reason=(.*(?:\n {10}.*)*)$")
_STAMP = re.compile(r" \[[^\s\[\]@]+@[^\s\[\]]+\]$")
_CPUS = re.compile(r"(\d+)/\d+/\d+/(\d+)")  # allocated, idle, other, all
_SETTING = re.compile(r"(?P<key>\w+)(?:\[\d+\])?\s*=\s?(?P<value>.*)")
_EVENT_START = re.compile(r"\d+|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|Unknown")
_FIELD = re.compile(r"([A-Za-z][A-Za-z0-9_/:.]*)=")


def _string(fields: dict[str, str], name: str) -> str:
    value = fields.get(name, "")
    return "" if value in {"(null)", "N/A"} else value


def _integer(fields: dict[str, str], name: str) -> int:
    match = re.match(r"\d+", fields.get(name, ""))
    return int(match[0]) if match else 0


# -- the general form -------------------------------------------------------------------------------


def blocks(text: str, first: str) -> Iterator[str]:
    """Yield the records of an output: each begins with ``first=`` at the start of a line."""
    starts = [m.start() for m in re.finditer(rf"(?m)^{first}=", text)]
    for begin, end in zip(starts, [*starts[1:], len(text)][: len(starts)], strict=True):
        yield text[begin:end].rstrip()


def fields_of(block: str) -> dict[str, str]:
    """Return the fields of one record. Raises UnparsableOutput when one appears twice (see the module)."""
    fields: dict[str, str] = {}
    last = ""
    for line in block.splitlines():
        if _PER_NODE_LINE.match(line):
            continue
        found = list(_line_fields(line))
        if not found and last and line.strip():
            fields[last] += "\n" + line
        for name, value in found:
            if name in fields:
                raise UnparsableOutput(
                    f"field {name} appears twice: a name or comment with a line break cannot be told "
                    "from Slurm's own output; change it",
                    stdout=block,
                )
            fields[name] = value
            last = name
    return fields


def _line_fields(line: str) -> Iterator[tuple[str, str]]:
    """Yield pairs from ``A=1 B=x y``; a field with free text takes the rest of the line."""
    position = 0
    stripped = line.strip()
    while position < len(stripped):
        match = _FIELD.match(stripped, position)
        if match is None:
            return
        name = match[1]
        # A job's Reason is one word and other fields follow it; a node's is free text.
        if name in _FREE_TEXT and not (name == "Reason" and position > 0):
            yield name, stripped[match.end() :]
            return
        following = re.compile(r"\s+(?=[A-Za-z][A-Za-z0-9_/:.]*=)").search(stripped, match.end())
        end = following.start() if following else len(stripped)
        yield name, stripped[match.end() : end]
        position = following.end() if following else len(stripped)


def parse_now(text: str) -> float:
    """Output of ``sdiag``: when slurmctld made it."""
    found = re.search(r"(?m)^sdiag output at .*\((\d+)\)$", text)
    if found is None:
        raise UnparsableOutput("no time in sdiag's output", stdout=text)
    return float(found[1])


# -- nodes ------------------------------------------------------------------------------------------


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Output of ``scontrol show node``. Line breaks of a reason become blanks."""
    text = _REASON.sub(lambda found: f"   Reason={_in_one_line(found[1])}", text)
    return tuple(_node(fields_of(block)) for block in blocks(text, "NodeName"))


def _in_one_line(reason: str) -> str:
    """Return a reason as Slurm prints it, with the stamp after all of it."""
    first, _, others = reason.partition("\n")
    stamp = _STAMP.search(first)
    first = first[: stamp.start()] if stamp else first
    lines = (line.strip() for line in f"{first}\n{others}".splitlines())
    return " ".join(filter(None, lines)) + (stamp[0] if stamp else "")


def _node(fields: dict[str, str]) -> SlurmNode:
    reason, user, when = fields.get("Reason", ""), "", None
    stamp = re.search(r"^(.*) \[([^@\]]+)@([^\]]+)\]$", reason, re.DOTALL)
    if stamp is not None:
        reason, user, when = stamp[1], stamp[2], parse_time(stamp[3])
    return SlurmNode(
        name=fields["NodeName"],
        address=_string(fields, "NodeAddr"),
        states=parse_states(fields.get("State", "UNKNOWN")),
        reason=reason,
        reason_user=user,
        reason_time=when,
        cpus=_integer(fields, "CPUTot"),
        allocated_cpus=_integer(fields, "CPUAlloc"),
        gres=parse_gres(fields.get("Gres", "")),
        partitions=parse_list(fields.get("Partitions", "")),
    )


def parse_node_state(text: str) -> SlurmNode | None:
    """Output of :func:`~slurm_robust.slurm.commands.show_node_state`; None if it is empty.

    A node of several partitions has a row for each, which otherwise say the same. Line breaks of a reason
    become blanks.
    """
    rows: list[dict[str, str]] = []
    for line in filter(str.strip, text.splitlines()):
        row = _columns(line)
        if _CPUS.fullmatch(row["CPUsState"]) and row["StateComplete"]:
            rows.append(row)
        elif rows:
            rows[-1]["Reason"] += f" {line.strip()}"  # a reason with a line break goes on here
        else:
            raise UnparsableOutput("no state of a node", stdout=text)
    if not rows:
        return None
    values = rows[0]
    allocated, *_, total = values["CPUsState"].split("/")
    reason = values["Reason"]
    return SlurmNode(
        name=values["NodeList"],
        address="",
        states=parse_states(values["StateComplete"]),
        reason="" if reason == "none" else reason,
        reason_user="" if values["User"] == "Unknown" else values["User"],
        reason_time=parse_time(values["Timestamp"]),
        cpus=int(total),
        allocated_cpus=int(allocated),
        partitions=tuple(row["PartitionName"] for row in rows),
    )


def _columns(line: str) -> dict[str, str]:
    values, begin = {}, 0
    for name, width in NODE_COLUMNS:
        # The reason comes last: letters that are not ASCII would shift what follows them.
        end = None if name == "Reason" else begin + width
        values[name], begin = line[begin:end].strip(), begin + width
    return values


# -- jobs -------------------------------------------------------------------------------------------


def parse_job(text: str, job_id: int | None = None) -> SlurmJob:
    """Output of ``scontrol show job ID``. Raises UnparsableOutput.

    An array's id stands for all its tasks, one of which has it for its own: that with ``job_id`` is meant.
    """
    own = (b for b in blocks(text, "JobId") if b.startswith(f"JobId={job_id} "))
    fields = fields_of(next(own, None) or _only_block(text, "JobId"))
    if "JobState" not in fields:
        raise UnparsableOutput("no JobState: the job's name holds a line break; change it", stdout=text)
    return SlurmJob(
        job_id=_integer(fields, "JobId"),
        name=fields.get("JobName", ""),
        user_name=re.sub(r"\(\d+\)$", "", fields.get("UserId", "")),
        states=parse_job_states(fields.get("JobState", "")),
        reason=fields.get("Reason", ""),
        partition=_string(fields, "Partition"),
        qos=_string(fields, "QOS"),
        nodes=parse_names(fields.get("NodeList", "")),
        num_nodes=_integer(fields, "NumNodes"),
        least_nodes=_least_nodes(fields),
        num_tasks=_integer(fields, "NumTasks"),
        tasks_per_node=_integer(fields, "NtasksPerN:B:S:C"),
        segment=_integer(fields, "SegmentSize"),
        cpus_per_task=max(1, _integer(fields, "CPUs/Task")),
        excluded_nodes=parse_names(fields.get("ExcNodeList", ""), functions=True),
        required_nodes=parse_names(fields.get("ReqNodeList", ""), functions=True),
        batch_host=_string(fields, "BatchHost"),
        restart_count=_integer(fields, "Restarts"),
        priority=_integer(fields, "Priority"),
        requeue=fields.get("Requeue") == "1",
        expedited=fields.get("ExpeditedRequeue") == "Yes",
        submit_time=parse_time(fields.get("SubmitTime", "")),
        eligible_time=parse_time(fields.get("EligibleTime", "")),
        start_time=parse_time(fields.get("StartTime", "")),
        end_time=parse_time(fields.get("EndTime", "")),
        preempt_time=parse_time(fields.get("PreemptTime", "")),
        time_limit_s=parse_duration(fields.get("TimeLimit", "")),
        reservation=_string(fields, "Reservation"),
        comment=_string(fields, "Comment").rstrip(),
        work_dir=_string(fields, "WorkDir"),
        stdout=_string(fields, "StdOut"),
    )


def _least_nodes(fields: dict[str, str]) -> int:
    """Return the nodes in ``TRES=cpu=4,node=4`` (``ReqTRES=`` from 23.02 on): what is asked for as long as
    the job is pending.
    """
    match = re.search(r"(?:^|,)node=(\d+)", fields.get("ReqTRES") or fields.get("TRES", ""))
    return int(match[1]) if match else 0


def parse_allocation(text: str) -> Allocation:
    """Return what the job holds, from ``scontrol -d show job ID``."""
    job = parse_job(text)
    gpus: dict[str, int] = {}
    # ``Nodes=n[1-2] CPU_IDs=0-1,8 Mem=0 GRES=gpu:h200:4(IDX:0-3)``
    lines = re.finditer(r"(?m)^\s+Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(.*)$", _only_block(text, "JobId"))
    for line in lines:
        count = sum(g.count for g in parse_gres(line[2]) if g.name == "gpu")
        gpus |= dict.fromkeys(parse_names(line[1]), count)
    return Allocation.of(job, gpus)


def _only_block(text: str, first: str) -> str:
    found = list(blocks(text, first))
    if not found:
        raise UnparsableOutput(f"no {first}= in the output", stdout=text)
    return found[0]


# -- steps, reservations, switches, configuration, accounting ------------------------------------------


def parse_steps(text: str) -> tuple[SlurmStep, ...]:
    """Output of ``scontrol show step JOB``."""
    return tuple(_step(block) for block in blocks(text, "StepId"))


def _step(block: str) -> SlurmStep:
    # The name is the user's and stands before Network= in the middle of a line.
    name = re.search(r"(?m) Name=(.*) Network=\S*$", block)
    rest = block if name is None else block[: name.start()] + block[name.end() :]
    fields = fields_of(rest)
    job, _, step = fields["StepId"].partition(".")
    return SlurmStep(
        job_id=int("".join(takewhile(str.isdecimal, job)) or 0),
        step_id=step,
        name=name[1] if name else "",
        nodes=parse_names(fields.get("NodeList", "")),
        states=parse_states(fields.get("State", "")),
    )


def parse_reservations(text: str) -> tuple[Reservation, ...]:
    """Output of ``scontrol show reservation``."""
    return tuple(_reservation(fields_of(block)) for block in blocks(text, "ReservationName"))


def _reservation(fields: dict[str, str]) -> Reservation:
    return Reservation(
        name=fields["ReservationName"],
        nodes=parse_names(fields.get("Nodes", "")),
        node_count=_integer(fields, "NodeCnt"),
        users=parse_list(fields.get("Users", "")),
        accounts=parse_list(fields.get("Accounts", "")),
        partition=_string(fields, "PartitionName"),
        flags=frozenset(parse_list(fields.get("Flags", ""))),
        start_time=parse_time(fields.get("StartTime", "")),
        end_time=parse_time(fields.get("EndTime", "")),
    )


def parse_topology(text: str) -> tuple[Switch, ...]:
    """Output of ``scontrol show topology`` with topology/tree or topology/block: one switch or block a line.

    Source: Slurm's src/plugins/topology/block/topology_block.c, _print_topo_record(), 23.11 to 26.05.
    """
    return tuple(
        _switch(dict(_line_fields(line))) for line in text.splitlines() if line.startswith(_TOPOLOGY_LINES)
    )


_TOPOLOGY_LINES = ("SwitchName=", "BlockName=", "AggregatedBlock=")


def _switch(fields: dict[str, str]) -> Switch:
    aggregated = fields.get("AggregatedBlock")
    name = fields.get("BlockName", aggregated)
    return Switch(
        name=fields["SwitchName"] if name is None else name,
        level=int(aggregated is not None) if name is not None else _integer(fields, "Level"),
        nodes=parse_names(fields.get("Nodes", "")),
        is_block=name is not None,
    )


def parse_partitions(text: str) -> tuple[Terms, ...]:
    """Output of ``scontrol show partition``."""
    return tuple(
        Terms(
            name=fields["PartitionName"],
            grace_s=_integer(fields, "GraceTime"),
            mode=fields.get("PreemptMode", "").upper(),
            is_default=fields.get("Default") == "YES",
            is_up=fields.get("State", "UP") == "UP",
            max_time_s=parse_duration(fields.get("MaxTime", "")),
        )
        for fields in map(fields_of, blocks(text, "PartitionName"))
    )


def parse_qos(text: str) -> tuple[Terms, ...]:
    """Output of ``sacctmgr --parsable2 --noheader show qos`` with name, grace time and mode."""
    found = []
    for line in filter(None, text.splitlines()):
        try:
            name, grace, mode = line.split("|")
        except ValueError:
            raise UnparsableOutput(f"sacctmgr printed the row {line!r}", stdout=text) from None
        of_site = mode.lower() in ("", "cluster")
        found.append(
            Terms(name=name, grace_s=int(parse_duration(grace) or 0), mode="" if of_site else mode.upper())
        )
    return tuple(found)


def parse_associations(text: str) -> dict[str, frozenset[str]]:
    """Output of ``sacctmgr --parsable2 --noheader show association`` with account and user."""
    found: dict[str, frozenset[str]] = {}
    for line in filter(None, text.splitlines()):
        account, bar, user = line.partition("|")
        if not bar:
            raise UnparsableOutput(f"sacctmgr printed the row {line!r}", stdout=text)
        found[account] = found.get(account, frozenset()) | ({user} if user else set())
    return found


def parse_config(text: str) -> dict[str, tuple[str, ...]]:
    """Output of ``scontrol show config``: the values of each key that has one.

    A key may have several: some releases number prologs (``Prolog[0]``), all number hosts.
    """
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        match = _SETTING.fullmatch(line.rstrip())
        if match and match["value"].lower() not in ("(null)", "n/a"):
            found[match["key"]] = (*found.get(match["key"], ()), match["value"])
    return found


def parse_accounting(text: str) -> tuple[AccountingRow, ...]:
    """Output of ``sacct --parsable2`` with its header, which tells an empty answer from none."""
    lines = text.splitlines()
    if not lines or "|" not in lines[0]:
        raise UnparsableOutput("sacct printed no header", stdout=text)
    names = lines[0].split("|")
    rows: list[AccountingRow] = []
    run = -1
    for line in lines[1:]:
        # Node lists and states hold no '|', so a line of another shape is no row.
        values = line.split("|")
        if len(values) != len(names):
            raise UnparsableOutput(f"sacct printed the row {line!r}", stdout=text)
        fields = dict(zip(names, values, strict=True))
        job, _, step = fields["JobIDRaw"].partition(".")
        if rows and rows[-1].job_id != int(job):
            run = -1
        # Rows come run by run, each begins with the job's own row; RESIZING continues the same run.
        if not step and not (rows and rows[-1].run == run and _resized(rows, run)):
            run += 1
        code, _, signal = fields["ExitCode"].partition(":")
        rows.append(
            AccountingRow(
                job_id=int(job),
                step=step,
                run=max(run, 0),
                state=fields["State"].split()[0] if fields["State"] else "",
                exit_code=int(code or 0),
                signal=int(signal or 0),
                nodes=parse_names(fields["NodeList"]),
                submit_time=parse_time(fields.get("Submit", "")),
                eligible_time=parse_time(fields.get("Eligible", "")),
                start_time=parse_time(fields["Start"]),
                end_time=parse_time(fields["End"]),
            )
        )
    return tuple(rows)


def parse_events(text: str) -> tuple[NodeEvent, ...]:
    """Output of ``sacctmgr --parsable2 show event``.

    The reason is the last column: it may hold ``|`` and line breaks, which become blanks.
    """
    lines = text.splitlines()
    if not lines or lines[0].count("|") != 5:
        raise UnparsableOutput("sacctmgr printed no header", stdout=text)
    rows: list[list[str]] = []
    for line in lines[1:]:
        values = line.split("|", 5)
        if len(values) == 6 and _EVENT_START.fullmatch(values[1]):
            rows.append(values)
        elif rows:
            rows[-1][-1] += f" {line}"  # a reason with a line break goes on here
        else:
            raise UnparsableOutput(f"sacctmgr printed the row {line!r}", stdout=text)
    found: list[NodeEvent] = []
    for node, start, end, state, user, reason in rows:
        if not node:
            continue  # an event of the whole cluster
        found.append(
            NodeEvent(
                node=node,
                state="+".join(sorted(parse_states(state.rstrip("~#!%$@^-")))),
                reason=reason,
                user=user.partition("(")[0],
                start_time=parse_time(start),
                end_time=parse_time(end),
            )
        )
    return tuple(found)


def _resized(rows: list[AccountingRow], run: int) -> bool:
    """Return whether the job's newest row in ``run`` says that the same run goes on with fewer nodes."""
    own = [row for row in rows if row.run == run and not row.step]
    return bool(own) and own[-1].state == "RESIZING"
