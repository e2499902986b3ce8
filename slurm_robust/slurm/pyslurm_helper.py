"""The process in which pyslurm lives: ``python -m slurm_robust.slurm.pyslurm_helper``.

``import pyslurm`` ends the interpreter when slurm.conf cannot be read, and every call holds the GIL
(for 9 s when slurmctld is down), so it must not run in the controller. One JSON object a line:

    <- {"pyslurm": "25.11.2"}                                once, after the import
    -> {"method": "job", "params": {"job_id": 7}}
    <- {"value": {...}}                                      a record, or null
    <- {"error": "Invalid job id specified", "errno": 2017}  Slurm's refusal
    <- {"missing": "…"}                                      this pyslurm cannot do that
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from slurm_robust.slurm.records import SlurmJob, SlurmNode
from slurm_robust.slurm.values import parse_gres, parse_job_states, parse_states
from slurm_robust.util.hostlist import expand

# pyslurm publishes no types, and what it gives differs between its releases.
Module = Any


def read_nodes(pyslurm: Module, names: list[str] | None) -> list[SlurmNode]:
    """Return all nodes, or those named."""
    loaded = pyslurm.Nodes.load()
    if names is None:
        return [to_node(loaded[name]) for name in loaded]
    for name in names:
        if name not in loaded:
            raise LookupError(f"Node {name} not found")
    return [to_node(loaded[name]) for name in names]


def to_node(node: Any) -> SlurmNode:
    """Return a ``pyslurm.Node``. ``configured_gres`` is ``{"gpu:h100": 8}``."""
    return SlurmNode(
        name=node.name,
        address=node.address or "",
        states=parse_states(node.state or "UNKNOWN"),
        reason=node.reason or "",
        reason_user=node.reason_user or "",
        reason_time=float(node.reason_time) if node.reason_time else None,
        cpus=node.total_cpus or 0,
        allocated_cpus=node.allocated_cpus or 0,
        gres=parse_gres(",".join(f"{name}:{count}" for name, count in (node.configured_gres or {}).items())),
        partitions=tuple(getattr(node, "partitions", None) or ()),
    )


def to_job(job: Any) -> SlurmJob:
    """Return a ``pyslurm.Job``. Its time limit is in minutes; None is unlimited."""
    return SlurmJob(
        job_id=job.id,
        name=job.name or "",
        user_name=job.user_name or "",
        states=parse_job_states(job.state or ""),
        reason=(job.state_reason or "").replace(" ", "_"),
        partition=job.partition or "",
        nodes=expand(job.allocated_nodes or ""),
        num_nodes=_first_number(job.num_nodes),
        num_tasks=_first_number(getattr(job, "ntasks", 0)),
        tasks_per_node=_first_number(getattr(job, "ntasks_per_node", 0)),
        cpus_per_task=max(1, _first_number(getattr(job, "cpus_per_task", 1))),
        excluded_nodes=expand(job.excluded_nodes or "", functions=True),
        required_nodes=expand(job.required_nodes or "", functions=True),
        batch_host=job.batch_host or "",
        restart_count=job.requeue_count or 0,
        priority=job.priority or 0,
        requeue=bool(job.is_requeueable),
        submit_time=_time(job.submit_time),
        eligible_time=_time(job.eligible_time),
        start_time=_time(job.start_time),
        end_time=_time(job.end_time),
        time_limit_s=float(job.time_limit) * 60 if isinstance(job.time_limit, int) else None,
        reservation=job.reservation or "",
        comment=job.comment or "",
        work_dir=job.working_directory or "",
        stdout=job.standard_output or "",
    )


def _time(value: int | None) -> float | None:
    return float(value) if value else None


def _first_number(value: Any) -> int:
    return int(str(value or 0).split("-")[0])


def modify_nodes(pyslurm: Module, nodes: list[str], **changes: str) -> None:
    """Send one request for all."""
    pyslurm.Nodes({name: pyslurm.Node(name) for name in nodes}).modify(pyslurm.Node(**changes))


def methods(pyslurm: Module) -> dict[str, Callable[..., object]]:
    """Return what the helper can do. Clearing excluded nodes is not here: pyslurm silently does nothing."""
    return {
        "nodes": lambda names: read_nodes(pyslurm, names),
        "job": lambda job_id: to_job(pyslurm.Job.load(job_id)),
        "requeue": lambda job_id: pyslurm.Job(job_id).requeue(),
        "release": lambda job_id: pyslurm.Job(job_id).release(),
        "exclude": lambda job_id, nodes: pyslurm.Job(job_id).modify(
            pyslurm.JobSubmitDescription(excluded_nodes=nodes)
        ),
        "drain": lambda nodes, reason: modify_nodes(pyslurm, nodes, state="DRAIN", reason=reason),
        "resume": lambda nodes: modify_nodes(pyslurm, nodes, state="RESUME"),
    }


def answer(table: dict[str, Callable[..., object]], rpc_error: type[Exception], line: bytes) -> object:
    """Return the reply to one request."""
    request = msgspec.json.decode(line)
    try:
        return {"value": table[request["method"]](**request["params"])}
    except rpc_error as error:
        return {"error": str(error), "errno": getattr(error, "errno", 1)}
    except LookupError as error:
        return {"error": str(error.args[0] if error.args else error), "errno": 1}
    except (AttributeError, TypeError, ValueError) as error:
        # Another release of pyslurm: its classes differ. The caller uses the command line instead.
        return {"missing": f"{type(error).__name__}: {error}"}


def main() -> int:
    """Serve requests until stdin ends."""
    import pyslurm

    _say({"pyslurm": str(pyslurm.__version__)})
    table = methods(pyslurm)
    for line in sys.stdin.buffer:
        _say(answer(table, pyslurm.RPCError, line))
    return 0


def _say(reply: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
