"""Taking nodes out of the allocation: evicted ones while the job runs, dead ones before it is requeued.

At ``scontrol update NodeList=`` slurmctld orders the nodes that are left out to end the job and to run the
epilog, and calls them idle *immediately*. A node that does not respond gets no job; any other may get the
next one within a second. So a node is given back only when Slurm knows that it does not respond, or when its
slurmd takes a connection and so will run the epilog.

slurmctld goes on to count an exclusive job on the node (its make_node_idle leaves no_share_job_cnt as it is),
so that later jobs get it late. No other way to shrink avoids that; ``scontrol reconfigure`` mends it, which
is for administrators (docs/draining.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from slurm_robust.engine.questions import RequeueStatus, SlurmAnswer
from slurm_robust.model.probes import PortsProbed
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import ControllerUnreachable, SlurmError, SlurmTimeout, UpdateUnavailable
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.slurm.records import SlurmJob, SlurmNode
from slurm_robust.slurm.requeue import Clock, SystemClock
from slurm_robust.util.hostlist import fold
from slurm_robust.wire.sockets import probe_ports

PortProbe = Callable[[Mapping[str, tuple[str, int]]], PortsProbed]
Report = Callable[[str, bool, str], None]

TAKEN_BY_SLURM = "Slurm had taken it from the job"
"""How a node was given back that Slurm gave up by itself, mostly since its slurmd did not respond."""

NOTICE_S = 20.0
"""How long a requeue waits until Slurm has noticed that a dead node does not respond."""

POLL_S = 0.5
MAX_REFUSALS = 5


class Shrinker:
    """Gives nodes of one job back if that harms no other job."""

    def __init__(
        self,
        slurm: SlurmClient,
        job_id: int,
        *,
        own_node: str = "",
        probe_ports: PortProbe = probe_ports,
        clock: Clock | None = None,
    ) -> None:
        """``own_node``: the node of this controller, which after a takeover is not the batch host."""
        self._slurm = slurm
        self._job_id = job_id
        self._own_node = own_node
        self._probe_ports = probe_ports
        self._clock = clock or SystemClock()
        self._refusals: dict[str, int] = {}
        self._shrinking = threading.Lock()

    def give_back(self, node: str) -> SlurmAnswer:
        """Take one evicted node out of the allocation. Never raises for Slurm."""
        try:
            return self._give_back(node)
        except (ControllerUnreachable, SlurmTimeout, CommandTimeout) as error:
            return SlurmAnswer(said=RequeueStatus.NOTHING, detail=str(error))
        except (SlurmError, OSError) as error:
            # It may pass: if slurmdbd is slow, Slurm refuses to resize a job that began a moment ago.
            self._refusals[node] = count = self._refusals.get(node, 0) + 1
            said = RequeueStatus.REFUSED if count >= MAX_REFUSALS else RequeueStatus.NOTHING
            return SlurmAnswer(said=said, detail=str(error))

    def _give_back(self, name: str) -> SlurmAnswer:
        config = self._slurm.config()
        if "Epilog" not in config:
            return SlurmAnswer(
                said=RequeueStatus.REFUSED,
                detail="slurm.conf has no Epilog that would test it; the job keeps it",
            )
        job = self._slurm.job(self._job_id)
        if name not in job.nodes:
            return SlurmAnswer(said=RequeueStatus.DONE, detail=TAKEN_BY_SLURM)
        if name == job.batch_host:
            return SlurmAnswer(said=RequeueStatus.REFUSED, detail="it is the batch host")
        (node,) = self._slurm.nodes([name])
        if node.is_down:
            return SlurmAnswer(
                said=RequeueStatus.NOTHING, detail="Slurm takes it from the job by itself: it is DOWN"
            )
        if _is_offered(node) and not self._answering([node], config):
            detail = "its slurmd takes no connection, but Slurm would still give it to another job"
            return SlurmAnswer(said=RequeueStatus.NOTHING, detail=detail)
        self._shrink(job, [name])
        return SlurmAnswer(said=RequeueStatus.DONE, detail="the epilog tests it")

    def drop_dead(self, silent: Sequence[str], report: Report) -> None:
        """Take dead nodes out of the allocation, so that a requeue does not wait until Slurm gives them up.

        Dead is a node that does not respond to Slurm and whose slurmd takes no connection; a drained one may
        be alive. Waits, bounded, until Slurm knows that they do not respond. Never raises for Slurm: without
        this the requeue takes longer, and nothing else is lost. A second call waits for the first: to signal
        the job once more takes Slurm seconds.
        """
        try:
            with self._shrinking:
                self._drop_dead(silent, report)
        except (SlurmError, CommandTimeout, OSError) as error:
            report("shrink", False, str(error))

    def _drop_dead(self, silent: Sequence[str], report: Report) -> None:
        if not silent:
            return
        clock, deadline = self._clock, self._clock.monotonic() + NOTICE_S
        job, nodes = self._held(silent)
        if any(node.responding for node in nodes):
            self._slurm.cancel(self._job_id, signal="CONT")  # has slurmctld try all nodes now
        if nodes:
            alive = self._answering(nodes, self._slurm.config())
            silent = [node for node in silent if node not in alive]
            job, nodes = self._held(silent)
        while any(node.responding for node in nodes) and clock.monotonic() < deadline:
            clock.sleep(POLL_S)
            job, nodes = self._held(silent)
        if unnoticed := [node.name for node in nodes if node.responding]:
            text = f"the requeue waits for {fold(unnoticed)}, which Slurm still takes for alive"
            report("shrink", False, text)
        if dead := [node.name for node in nodes if not node.responding]:
            try:
                self._shrink(job, dead)
            except UpdateUnavailable:
                # Without slurmdbd, Slurm refuses to resize a job twice within some seconds.
                clock.sleep(POLL_S)
                self._shrink(job, dead)
            report("shrink", True, f"without {fold(dead)}, for which the requeue would have waited")

    def _held(self, silent: Sequence[str]) -> tuple[SlurmJob, tuple[SlurmNode, ...]]:
        """Return the job, and those of ``silent`` that it holds and Slurm has not given up."""
        job = self._slurm.job(self._job_id)  # anew: another thread may be at the same
        kept = (job.batch_host, self._own_node)
        held = [node for node in silent if node in job.nodes and node not in kept and job.is_running]
        return job, tuple(node for node in self._slurm.nodes(held) if not node.is_down)

    def _shrink(self, job: SlurmJob, without: Sequence[str]) -> None:
        self._slurm.shrink(self._job_id, [node for node in job.nodes if node not in without])

    def _answering(self, nodes: Sequence[SlurmNode], config: Mapping[str, str]) -> frozenset[str]:
        port = config.get("SlurmdPort", "")
        if not port.isdecimal():
            return frozenset()
        return self._probe_ports({node.name: (node.address, int(port)) for node in nodes}).taken


def _is_offered(node: SlurmNode) -> bool:
    """Return whether Slurm would give the node, once idle, to the next job."""
    return node.responding and not node.is_down and not node.is_leaving
