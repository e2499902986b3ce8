"""Slurm's ``--json`` output to records. Pure.

Two shapes are read by the same functions: 22.05 (openapi v0.0.38: plain numbers, states as one
string beside ``state_flags``) and the data parsers v0.0.42 of 24.11, v0.0.44 of 25.11 and v0.0.45 of 26.05
(numbers as ``{"set": true, "infinite": false, "number": 7}``, states as lists).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from slurm_robust.slurm.errors import UnparsableOutput, of_document
from slurm_robust.slurm.records import (
    TERMINAL_STATES,
    Allocation,
    Reservation,
    SlurmJob,
    SlurmNode,
    SlurmStep,
)
from slurm_robust.slurm.values import parse_gres, parse_list, parse_names, parse_states

# What json.loads gives for an object; its values are checked when they are read.
Object: TypeAlias = Mapping[str, Any]


def load(text: str) -> Object:
    """Return the document. Raises UnparsableOutput; an empty output is an error.

    (``sacct`` with a parser version that it does not know prints nothing and exits with 0.)
    """
    if not text.strip():
        raise UnparsableOutput("no output where JSON was expected", stdout=text)
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UnparsableOutput(f"not JSON: {error}", stdout=text[:2000]) from error
    if not isinstance(document, dict):
        raise UnparsableOutput("JSON, but not an object", stdout=text[:2000])
    return document


def _items(document: Object, key: str) -> list[Object]:
    """Return the items. Raises what the document calls wrong: a list beside an error is no answer."""
    if listed := document.get("errors"):
        raise of_document(listed if isinstance(listed, list) else [listed])
    items = document.get(key)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UnparsableOutput(f"no list {key!r} in the JSON", stdout=str(document)[:2000])
    return items


# -- values of both shapes -----------------------------------------------------------------------------


def number(value: object) -> float | None:
    """Turn 7 and ``{"set": true, "number": 7}`` into 7; null, unset and infinite into None."""
    if isinstance(value, dict):
        if not value.get("set") or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


def _integer(value: object) -> int:
    return int(number(value) or 0)


def _time(value: object) -> float | None:
    return number(value) or None


def _minutes(value: object) -> float | None:
    found = number(value)
    return None if found is None else found * 60.0


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _states(*values: object) -> frozenset[str]:
    """Return states in ``"idle"``, ``["IDLE", "DRAIN"]`` and ``state_flags``."""
    states: set[str] = set()
    for value in values:
        for state in value if isinstance(value, list) else [value]:
            if isinstance(state, str):
                states |= parse_states(state)
    return frozenset(states)


def _listed(value: object) -> tuple[str, ...]:
    """Return a list of names, or one string with commas."""
    if isinstance(value, list):
        return tuple(str(item) for item in value)
    return parse_list(_string(value))


# -- nodes ---------------------------------------------------------------------------------------------


def parse_nodes(document: Object) -> tuple[SlurmNode, ...]:
    """Parse ``scontrol show node --json`` (24.11 on) and ``sinfo --json`` of 22.05."""
    return tuple(_node(item) for item in _items(document, "nodes"))


def _node(item: Object) -> SlurmNode:
    return SlurmNode(
        name=_string(item.get("name")),
        address=_string(item.get("address")),
        states=_states(item.get("state"), item.get("state_flags")),
        reason=_string(item.get("reason")),
        reason_user=_string(item.get("reason_set_by_user")),
        reason_time=_time(item.get("reason_changed_at")),
        cpus=_integer(item.get("cpus")),
        allocated_cpus=_integer(item.get("alloc_cpus")),
        gres=parse_gres(_string(item.get("gres"))),
        partitions=_listed(item.get("partitions")),
    )


# -- jobs ----------------------------------------------------------------------------------------------


def parse_jobs(document: Object) -> tuple[SlurmJob, ...]:
    """Parse ``squeue --json`` of all releases and ``scontrol show job --json`` (24.11 on)."""
    return tuple(_job(item) for item in _items(document, "jobs"))


def _job(item: Object) -> SlurmJob:
    description = _string(item.get("state_description")).replace(" ", "_")
    return SlurmJob(
        job_id=_integer(item.get("job_id")),
        name=_string(item.get("name")),
        user_name=_string(item.get("user_name")),
        states=_states(item.get("job_state")),
        reason=description or _string(item.get("state_reason")),
        partition=_string(item.get("partition")),
        qos=_string(item.get("qos")),
        nodes=parse_names(_string(item.get("nodes"))),
        num_nodes=_integer(item.get("node_count")),
        least_nodes=_least_nodes(_string(item.get("tres_req_str"))),
        num_tasks=_integer(item.get("tasks")),
        tasks_per_node=_integer(item.get("tasks_per_node")),
        segment=_integer(item.get("segment_size")),
        cpus_per_task=max(1, _integer(item.get("cpus_per_task"))),
        excluded_nodes=parse_names(_string(item.get("excluded_nodes")), functions=True),
        required_nodes=parse_names(_string(item.get("required_nodes")), functions=True),
        batch_host=_string(item.get("batch_host")),
        restart_count=_integer(item.get("restart_cnt")),
        priority=_integer(item.get("priority")),
        requeue=bool(item.get("requeue")),
        expedited="EXPEDITED_REQUEUE" in _listed(item.get("flags")),
        submit_time=_time(item.get("submit_time")),
        eligible_time=_time(item.get("eligible_time")),
        start_time=_time(item.get("start_time")),
        end_time=_time(item.get("end_time")),
        preempt_time=_time(item.get("preempt_time")),
        time_limit_s=_minutes(item.get("time_limit")),
        reservation=_string(item.get("resv_name")),
        comment=_string(item.get("comment")),
        work_dir=_string(item.get("current_working_directory")),
        stdout=_string(item.get("standard_output")),
    )


def _least_nodes(tres: str) -> int:
    """Return the nodes in ``cpu=4,mem=250G,node=4,billing=4``."""
    counts = [part.removeprefix("node=") for part in tres.split(",") if part.startswith("node=")]
    return int(counts[0]) if counts and counts[0].isdecimal() else 0


def ended_for_good(job: SlurmJob) -> bool:
    """Return whether a listing of live jobs leaves ``job`` out (``squeue --json`` of 22.05 lists all)."""
    return job.is_finished and not job.is_completing and bool(job.states & TERMINAL_STATES)


def parse_allocation(document: Object) -> Allocation:
    """Return what the job holds, from ``scontrol show job ID --json`` (24.11 on)."""
    items = _items(document, "jobs")
    if not items:
        raise UnparsableOutput("no job in the JSON", stdout=str(document)[:2000])
    item = items[0]
    job = _job(item)
    details = item.get("gres_detail")
    gpus: dict[str, int] = {}
    # One entry per node of the allocation, in its order.
    if isinstance(details, list) and len(details) == len(job.held_nodes):
        for node, detail in zip(job.held_nodes, details, strict=True):
            gpus[node] = sum(g.count for g in parse_gres(_string(detail)) if g.name == "gpu")
    return Allocation.of(job, gpus)


# -- steps and reservations ----------------------------------------------------------------------------


def parse_steps(document: Object) -> tuple[SlurmStep, ...]:
    """Parse ``scontrol show step JOB --json`` (24.11 on); ``id`` is ``6.0`` or ``6.batch``."""
    return tuple(_step(item) for item in _items(document, "steps"))


def _step(item: Object) -> SlurmStep:
    identity = item.get("id")
    job, _, step = _string(identity).partition(".")
    return SlurmStep(
        job_id=int(job) if job.isdecimal() else 0,
        step_id=step,
        name=_string(item.get("name")),
        nodes=parse_names(_string(item.get("nodes"))),
        states=_states(item.get("state")),
    )


def parse_reservations(document: Object) -> tuple[Reservation, ...]:
    """Parse ``scontrol show reservation --json`` (24.11 on)."""
    return tuple(
        Reservation(
            name=_string(item.get("name")),
            nodes=parse_names(_string(item.get("node_list"))),
            node_count=_integer(item.get("node_count")),
            users=_listed(item.get("users")),
            accounts=_listed(item.get("accounts")),
            partition=_string(item.get("partition")),
            flags=frozenset(_listed(item.get("flags"))),
            start_time=_time(item.get("start_time")),
            end_time=_time(item.get("end_time")),
        )
        for item in _items(document, "reservations")
    )
