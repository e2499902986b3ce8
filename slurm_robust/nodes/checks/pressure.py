"""Memory that runs out: how long processes wait for it, and how near the job is to its limit."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.jobgroups import CGROUPS, JobGroup, group_of, own_job
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion, Writer
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import EVERYWHERE, AnyCheck, Check, CheckContext, Probe, Source, View

PSI, OWN = "/proc/pressure/memory", "/proc/self/cgroup"
# As text: re compiles it when it is first needed, and every hook imports this.
_FULL = r"(?m)^full avg10=\S+ avg60=(\d+(?:\.\d+)?)"
# What version 1 says if there is no limit.
_NO_LIMIT = 2**60


class JobMemory(Record):
    """Memory of the job in which we run. In MiB."""

    name: str
    """``job_7``, or the SLUID of a job whose id is not known."""

    used: int | None = None
    """Without caches of files."""

    limit: int | None = None
    stalled: float | None = None
    """As in :class:`PressureFacts`, of the job's processes."""

    @property
    def share(self) -> float | None:
        """The share of the limit that is used; None without a limit."""
        return self.used / self.limit if self.used is not None and self.limit else None


class PressureFacts(Record):
    """How long processes wait for memory."""

    stalled: float | None = None
    """Share of the last minute in which all processes that had work waited; None if the kernel does not
    measure it.
    """

    job: JobMemory | None = None
    """None outside of jobs that have a cgroup."""


def gather(host: Host, config: NodeConfig) -> PressureFacts:
    """Read what there is."""
    return PressureFacts(stalled=_stalled(host, PSI), job=_job(host))


def _stalled(host: Host, file: str) -> float | None:
    found = re.search(_FULL, host.read_or(file))
    return float(found[1]) / 100 if found else None


def _job(host: Host) -> JobMemory | None:
    for line in host.read_or(OWN).splitlines():
        _, controllers, path = line.split(":", 2)
        group = group_of(path)
        if path == "/" and not controllers and host.number(f"{CGROUPS}/memory.current") is not None:
            # The root counts nothing: in a container it is a group of the job's step.
            group = JobGroup("", own) if (own := own_job(host)) is not None else None
        if group and not controllers:
            return _read_job(host, group, CGROUPS, ("memory.current", "memory.max"), "")
        if group and "memory" in controllers.split(","):
            files = ("memory.usage_in_bytes", "memory.limit_in_bytes")
            return _read_job(host, group, f"{CGROUPS}/memory", files, "total_")
    return None


def _read_job(host: Host, group: JobGroup, mount: str, files: tuple[str, str], prefix: str) -> JobMemory:
    folder = mount + group.folder
    job_id = group.job_id or own_job(host)
    used, limit = (host.number(f"{folder}/{name}") for name in files)
    stat = dict(line.split() for line in host.read_or(f"{folder}/memory.stat").splitlines())
    # The kernel takes the cache of files back before it kills a process.
    cache = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return JobMemory(
        name=f"job_{job_id}" if job_id else group.name,
        used=None if used is None else max(0, used - cache) // 2**20,
        limit=None if limit is None or limit >= _NO_LIMIT else limit // 2**20,
        stalled=_stalled(host, f"{folder}/memory.pressure"),
    )


def judge(view: View[PressureFacts], config: NodeConfig) -> Iterator[Finding]:
    """Judge the node, and the job if there is one."""
    stalled, job = view.facts.stalled, view.facts.job
    most = config.memory.max_stalled_share
    if stalled is None:
        text = "the kernel does not measure pressure: psi=1 on its command line"
        yield _finding("", Outcome.UNKNOWN, text, source=PSI)
    else:
        text = _waiting(stalled, most)
        yield _finding(
            "", Outcome.FAIL if text else Outcome.PASS, text, value=f"{stalled:.0%} of a minute",
            limit=f"{most:.0%}", source=PSI,
        )  # fmt: skip
    if job is not None and not (job.share is None and job.stalled is None):
        text = _nearly_full(job, config.memory.max_job_share) or _waiting(job.stalled or 0.0, most)
        yield _finding(
            job.name, Outcome.FAIL if text else Outcome.PASS, text, value=f"{job.used} MiB",
            limit=f"{config.memory.max_job_share:.0%} of {job.limit} MiB" if job.limit else f"{most:.0%}",
            source="memory cgroup",
        )  # fmt: skip


def _nearly_full(job: JobMemory, most: float) -> str:
    if job.share is None or job.share <= most:
        return ""
    return f"uses {job.share:.0%} of its {job.limit} MiB, beyond which the kernel kills its processes"


def _waiting(stalled: float, most: float) -> str:
    return f"processes only waited for memory for {stalled:.0%} of a minute" if stalled > most else ""


def _finding(
    subject: str, outcome: Outcome, text: str, *, source: str, value: str = "", limit: str = ""
) -> Finding:
    return Finding(
        check="memory.pressure",
        outcome=outcome,
        subject=subject,
        text=text,
        value=value,
        limit=limit,
        source=source,
        blame=Party.JOB,
        suggestion=Suggestion.MONITOR if outcome is Outcome.FAIL else Suggestion.NONE,
    )


# A moment's: what stalled a minute ago says nothing of now.
SOURCE = Source(name="pressure", facts=PressureFacts, gather=gather, fresh_s=0.0)

CHECKS: tuple[AnyCheck, ...] = (
    Check(
        name="memory.pressure",
        source=SOURCE,
        judge=judge,
        warns_training=True,
        written_by=Writer.USER,
        contexts=EVERYWHERE - {CheckContext.PROLOG, CheckContext.EPILOG},
        probe=Probe.NODE,
        hangs=True,
        explain=(
            "Whether memory runs out: all processes wait for it for more than memory.max_stalled_share of a "
            "minute (PSI, of the node and of the job's cgroup), or the job uses more than "
            "memory.max_job_share of its limit. It is the job's own doing and no fault of the node; a "
            "process that is killed soon after is explained by it. Give the job more memory (--mem), or "
            "look for what grows."
        ),
    ),
)
