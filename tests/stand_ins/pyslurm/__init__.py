"""A stand-in for pyslurm: the part of its API (and its known bug) that the helper uses, over any client.

The real one must match the site's Slurm release when it is compiled, so tests cannot count on it.
The client beneath is :data:`client`, or the command line with the prefix in SROBUST_STAND_IN_PREFIX
(a JSON list of words).
"""

from __future__ import annotations

import json
import os

from slurm_robust.slurm import errors
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.client import SlurmClient

client: SlurmClient | None = None


def beneath() -> SlurmClient:
    global client
    if client is None:
        client = CliSlurmClient(prefix=json.loads(os.environ.get("SROBUST_STAND_IN_PREFIX", "[]")))
    return client


__version__ = os.environ.get("SROBUST_STAND_IN_VERSION", "22.5.3")


class RPCError(Exception):
    def __init__(self, errno: int, text: str) -> None:
        super().__init__(text)
        self.errno = errno


def _rpc(call, *args, **kwargs):
    try:
        return call(*args, **kwargs)
    except errors.JobNotFound as error:
        raise RPCError(2017, "Invalid job id specified") from error
    except errors.SlurmCommandError as error:
        raise RPCError(2000, error.what) from error


class Node:
    def __init__(self, name=None, state=None, reason=None, record=None):
        self.name, self.state, self.reason, self.record = name, state, reason, record
        if record is None:
            return
        self.name, self.address = record.name, record.address
        self.state = "+".join(sorted(record.states))
        self.reason = record.reason or None
        self.reason_user = record.reason_user or None
        self.reason_time = record.reason_time and int(record.reason_time)
        self.total_cpus, self.allocated_cpus = record.cpus, record.allocated_cpus
        self.configured_gres = {f"{g.name}:{g.type}": g.count for g in record.gres}
        self.partitions = list(record.partitions)


class Nodes(dict):
    @classmethod
    def load(cls):
        return cls({record.name: Node(record=record) for record in _rpc(beneath().nodes)})

    def modify(self, changes):
        if changes.state == "DRAIN":
            _rpc(beneath().drain, list(self), changes.reason)
        else:
            _rpc(beneath().resume, list(self))


class JobSubmitDescription:
    def __init__(self, excluded_nodes=None):
        self.excluded_nodes = excluded_nodes


class Job:
    def __init__(self, job_id):
        self.id = job_id

    @classmethod
    def load(cls, job_id):
        record = _rpc(beneath().job, job_id)
        job = cls(job_id)
        job.name, job.user_name = record.name, record.user_name
        job.state = "+".join(sorted(record.states))
        job.state_reason = record.reason.replace("_", " ")
        job.partition, job.batch_host = record.partition, record.batch_host or None
        job.allocated_nodes = ",".join(record.nodes) or None
        job.excluded_nodes = ",".join(record.excluded_nodes) or None
        job.required_nodes = ",".join(record.required_nodes) or None
        job.num_nodes, job.requeue_count = record.num_nodes, record.restart_count
        job.ntasks, job.ntasks_per_node = record.num_tasks or None, record.tasks_per_node or None
        job.cpus_per_task = record.cpus_per_task
        job.priority, job.is_requeueable = record.priority, record.requeue
        job.submit_time, job.eligible_time = record.submit_time, record.eligible_time
        job.start_time, job.end_time = record.start_time, record.end_time
        job.time_limit = record.time_limit_s and int(record.time_limit_s // 60)
        job.reservation, job.comment = record.reservation or None, record.comment or None
        job.working_directory = record.work_dir
        job.standard_output = record.stdout
        return job

    def requeue(self):
        _rpc(beneath().requeue, self.id)

    def release(self):
        _rpc(beneath().release, self.id)

    def modify(self, changes):
        # As in the real one: an empty list changes nothing, silently.
        if changes.excluded_nodes:
            _rpc(beneath().set_excluded_nodes, self.id, changes.excluded_nodes)
