"""Hazards of the site: slurm.conf as slurmctld runs it, and slurmctld's clock."""

from __future__ import annotations

import re

from slurm_robust.config.job import Timings
from slurm_robust.doctor.facts import REQUEUE_DELAY_SINCE, Facts, known
from slurm_robust.doctor.rule import bad, note
from slurm_robust.hooks.times import HookTimes, is_near, meets_prologs, said
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import LEAVING_S
from slurm_robust.policy.patience import MARGIN_S
from slurm_robust.slurm.records import SlurmVersion
from slurm_robust.slurm.values import NEVER_S, PROLOG_AT_ALLOCATION, parse_number

OLDEST = SlurmVersion(major=22, minor=5)
_LONG_S = 120
_DELAY_S = 30
_EPILOG_S = 10.0
_BATCH_REQUEUES = 5
_CLOCK_S = 2.0
_CREDENTIAL_S = 150.0


def leaving_s(timings: Timings) -> float:
    """Return the longest time in which a job that is ordered to leave does so."""
    return timings.stop_grace_s + min(timings.kill_wait_s, LEAVING_S) + MARGIN_S + timings.shutdown_s


def _kill_wait(facts: Facts) -> str:
    have, least = facts.number("KillWait"), leaving_s(facts.config.timings)
    if have >= least:
        return ""
    return f"KillWait is {have} s, and this job may need {least:.0f} s to leave its nodes"


def _unkillable_step(facts: Facts) -> str:
    have, least = facts.number("UnkillableStepTimeout"), facts.config.timings.kill_wait_s
    if not facts.gpus or have >= least:
        return ""
    return (
        f"UnkillableStepTimeout is {have} s, and a worker with much memory registered for its GPU may take "
        f"{least:.0f} s to die at the job's end"
    )


def _unkillable_messages(facts: Facts) -> str:
    have, message = facts.number("UnkillableStepTimeout"), facts.number("MessageTimeout")
    return f"UnkillableStepTimeout is {have} s, MessageTimeout {message} s" if have < 5 * message else ""


def _expedited(facts: Facts) -> str:
    if facts.release < REQUEUE_DELAY_SINCE:
        return ""
    allowed = "enable_expedited_requeue" in facts.words("SlurmctldParameters")
    return "" if allowed else "SlurmctldParameters lacks enable_expedited_requeue"


def _job_requeue(facts: Facts) -> str:
    """Judge a site; a job that is known has a rule of its own."""
    if facts.job is not None or facts.options is not None:
        return ""
    return "JobRequeue is 0" if facts.number("JobRequeue") == 0 else ""


def _prolog_endless(facts: Facts) -> str:
    for hook in ("Prolog", "Epilog"):
        limit = facts.hook_limit(hook)
        if facts.setting(hook) and (limit is None or limit >= NEVER_S):
            return f"the {hook} has no time limit"
    return ""


def _hook_times(facts: Facts) -> dict[str, HookTimes]:
    return known(facts.hook_times or None, "runs of prologs in an event log that this user may read")


def _prolog_near(facts: Facts) -> str:
    for hook, times in _hook_times(facts).items():
        limit = facts.hook_limit(hook.capitalize())
        if is_near(times, limit):
            return f"{said(hook, times)}, and Slurm's limit is {limit} s"
    return ""


def _batch_start(facts: Facts) -> str:
    times = known(_hook_times(facts).get("prolog"), "runs of prologs")
    limit = parse_number(facts.setting("BatchStartTimeout"))
    if not meets_prologs(facts.words("PrologFlags")) or not is_near(times, limit):
        return ""
    return f"{said('prolog', times)}, and BatchStartTimeout is {limit} s"


def _preemption(facts: Facts) -> str:
    if not facts.preempts:
        return ""
    if facts.preemption is not None:
        found = f"of {facts.decides} {facts.preemption.name} " if facts.preemption.mode else ""
        return f"PreemptMode {found}is CANCEL" if facts.mode == "CANCEL" else ""
    return "PreemptMode is CANCEL" if "cancel" in facts.words("PreemptMode") else ""


def _private_memory(facts: Facts) -> str:
    plugin = facts.setting("JobContainerType") or facts.setting("NamespaceType")
    if not facts.config.checkpoint.memory or plugin.rpartition("/")[2] in ("", "none"):
        return ""
    return f"{plugin} gives each run of a job a /dev/shm of its own, unless its Dirs leave that out"


def _requeue_exit(facts: Facts) -> str:
    code = int(ExitCode.DO_NOT_REQUEUE)
    for key in ("RequeueExit", "RequeueExitHold"):
        if has_code(facts.setting(key), code):
            return f"{key} has {code}"
    return ""


def has_code(text: str, code: int) -> bool:
    """Return whether a list such as ``1-9,18`` has the code."""
    for part in re.findall(r"\d+(?:-\d+)?", text):
        first, _, last = part.partition("-")
        if int(first) <= code <= int(last or first):
            return True
    return False


def _epilog_messages(facts: Facts) -> str:
    nodes = facts.nodes or 0
    spread_s = facts.number("EpilogMsgTime") * 1e-6 * nodes
    if nodes <= 64 or spread_s <= _EPILOG_S:
        return ""
    return f"EpilogMsgTime spreads the epilogs' messages of {nodes} nodes over {spread_s:.0f} s"


def _clock(facts: Facts) -> str:
    ahead = facts.clock_s or 0.0
    if abs(ahead) <= _CLOCK_S:
        return ""
    return f"this host's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} slurmctld's"


_MANUAL = "slurm.conf(5)"
_MEASURED = "measured on Slurm"

TIMES = (
    bad(
        name="slurm.kill_wait",
        needs=("slurm",),
        why="Slurm kills a job that it ends this long after SIGTERM, before the job has stopped its workers "
        "and recorded what they left",
        fix="the administrator sets KillWait to at least that, or lower timings.stop_grace_s and "
        "timings.shutdown_s",
        source=f"{_MANUAL} KillWait",
        judge=_kill_wait,
    ),
    bad(
        name="slurm.unkillable_step_timeout",
        needs=("slurm", "gpus"),
        why="slurmd drains its node then ('Kill task failed')",
        fix="the administrator sets UnkillableStepTimeout to timings.kill_wait_s (180 by default) or more",
        source=f"{_MANUAL} UnkillableStepTimeout; sgl-project/sglang#32829 (26 s for 243 GB)",
        judge=_unkillable_step,
    ),
)
"""``srobust run`` warns of these, too."""

RULES = (
    bad(
        name="slurm.release",
        needs=("slurm",),
        why="nothing here was tested with releases before 22.05",
        fix="use a cluster with a later release",
        source="docs/installing.md, supported releases",
        judge=lambda facts: f"Slurm is {facts.release}" if facts.release < OLDEST else "",
    ),
    *TIMES,
    note(
        name="slurm.unkillable_messages",
        needs=("slurm",),
        why="a timeout of less than five messages drains nodes that are not at fault",
        fix="the administrator sets UnkillableStepTimeout to at least 5 x MessageTimeout",
        source=f"{_MANUAL} UnkillableStepTimeout, NOTE",
        judge=_unkillable_messages,
    ),
    bad(
        name="slurm.slurmd_never_down",
        needs=("slurm",),
        why="Slurm never gives up a dead node: a job that leaves it, also at its end, stays COMPLETING",
        fix="the administrator sets SlurmdTimeout to 60 to 120 s, or runs a tool that sets dead nodes DOWN",
        source=f"{_MANUAL} SlurmdTimeout",
        judge=lambda facts: "SlurmdTimeout is 0" if facts.number("SlurmdTimeout") == 0 else "",
    ),
    note(
        name="slurm.slurmd_timeout",
        needs=("slurm",),
        why="Slurm keeps a job that has lost its batch host for this long, and a requeue waits this long "
        "for a dead node if jobs may not shrink (disable_job_shrink); a node that an exclusive job gave back "
        "may idle for two thirds of it after each later one",
        fix="the administrator lowers SlurmdTimeout to 60 to 120 s; with spares, training goes on meanwhile",
        source=f"{_MANUAL} SlurmdTimeout; {_MEASURED} 22.05: DOWN 8 to 20 s after it",
        judge=lambda facts: (
            f"SlurmdTimeout is {have} s" if (have := facts.number("SlurmdTimeout")) > _LONG_S else ""
        ),
    ),
    note(
        name="slurm.requeue_delay",
        needs=("slurm",),
        why="srobust shortens that for requeues of its own (slurm.start_now), not for those that Slurm makes "
        "when a node dies",
        fix="the administrator sets SchedulerParameters=requeue_delay=0 (from 25.11 on) or "
        "AuthInfo=cred_expire=5",
        source=f"{_MANUAL} requeue_delay, cred_expire; {_MEASURED} 22.05: 121 s, 5.8 s with cred_expire=5",
        judge=lambda facts: (
            f"Slurm lets a requeued job wait for {delay + 1} s"
            if (delay := facts.requeue_delay_s) > _DELAY_S
            else ""
        ),
    ),
    note(
        name="slurm.expedited_requeue",
        needs=("slurm",),
        why="a requeue takes seconds that 'sbatch --requeue=expedite' would save",
        fix="the administrator adds enable_expedited_requeue to SlurmctldParameters",
        source=f"{_MANUAL} enable_expedited_requeue; {_MEASURED} 26.05: 0.2 to 0.7 s instead of 6",
        judge=_expedited,
    ),
    note(
        name="slurm.max_batch_requeue",
        needs=("slurm",),
        why="after this many failed prologs in a row Slurm holds the job until an administrator releases it",
        fix="the administrator sets MaxBatchRequeue to 5 or more",
        source=f"{_MANUAL} MaxBatchRequeue (from 23.02 on)",
        judge=lambda facts: (
            f"MaxBatchRequeue is {have}"
            if (have := facts.number("MaxBatchRequeue")) < _BATCH_REQUEUES
            else ""
        ),
    ),
    note(
        name="slurm.job_requeue",
        needs=("slurm",),
        why="a job that does not ask for --requeue cannot leave a broken allocation",
        fix="submit with --requeue",
        source=f"{_MANUAL} JobRequeue",
        judge=_job_requeue,
    ),
    bad(
        name="slurm.nohold_on_prolog_fail",
        needs=("slurm",),
        why="a job whose prolog fails on a bad node is requeued and held until a person releases it",
        fix="the administrator adds nohold_on_prolog_fail to SchedulerParameters",
        source=f"{_MANUAL} Prolog; {_MEASURED} 22.05",
        judge=lambda facts: (
            "there is a Prolog, and SchedulerParameters lacks nohold_on_prolog_fail"
            if facts.setting("Prolog") and "nohold_on_prolog_fail" not in facts.words("SchedulerParameters")
            else ""
        ),
    ),
    note(
        name="slurm.prolog_flags",
        needs=("slurm",),
        why="the prolog of a node runs with the first step there, after the batch script has begun: a bad "
        "node ends a run instead of being passed over",
        fix="the administrator adds Alloc to PrologFlags",
        source=f"{_MANUAL} PrologFlags; {_MEASURED} 22.05",
        judge=lambda facts: (
            "there is a Prolog, and PrologFlags lacks Alloc"
            if facts.setting("Prolog") and not facts.words("PrologFlags") & PROLOG_AT_ALLOCATION
            else ""
        ),
    ),
    note(
        name="slurm.prolog_beside",
        needs=("slurm",),
        why="steps wait for prologs that still run, within timings.agent_start_s",
        fix="the administrator removes NoHold from PrologFlags, or keeps prologs shorter than that time",
        source=f"{_MANUAL} PrologFlags NoHold",
        judge=lambda facts: (
            "PrologFlags has NoHold"
            if facts.setting("Prolog") and "nohold" in facts.words("PrologFlags")
            else ""
        ),
    ),
    bad(
        name="slurm.prolog_timeout",
        needs=("slurm",),
        why="one that hangs keeps its node, and the job that is to start there, for ever",
        fix="the administrator sets PrologEpilogTimeout in slurm.conf",
        source=f"{_MANUAL} PrologEpilogTimeout; {_MEASURED} 22.05",
        judge=_prolog_endless,
    ),
    bad(
        name="slurm.prolog_near_timeout",
        needs=("slurm",),
        why="Slurm ends a prolog or an epilog at its limit and drains the node; it requeues the prolog's job",
        fix="the administrator raises PrologEpilogTimeout (PrologTimeout or EpilogTimeout where it is set), "
        "or sees by took_s in the event log what is slow",
        source=f"{_MANUAL} PrologEpilogTimeout; docs/hooks.md",
        judge=_prolog_near,
    ),
    note(
        name="slurm.batch_start_timeout",
        needs=("slurm",),
        why="Slurm may take a batch job whose launch waits for its prolog longer than that for missing, and "
        "srun give up a step that waits for prologs of other nodes",
        fix="the administrator raises BatchStartTimeout, or adds DeferBatch to PrologFlags",
        source=f"{_MANUAL} BatchStartTimeout, PrologFlags DeferBatch; docs/hooks.md",
        judge=_batch_start,
    ),
    note(
        name="slurm.return_to_service",
        needs=("slurm",),
        why="a node that was DOWN for a moment stays so until a person resumes it, and spares run short",
        fix="the administrator sets ReturnToService=1",
        source=f"{_MANUAL} ReturnToService; {_MEASURED} 22.05",
        judge=lambda facts: "ReturnToService is 0" if facts.number("ReturnToService") == 0 else "",
    ),
    note(
        name="slurm.health_check",
        needs=("slurm",),
        why="bad nodes are found by the jobs that get them",
        fix="the administrator runs srobust admin install, or another HealthCheckProgram",
        source=f"{_MANUAL} HealthCheckProgram",
        judge=lambda facts: (
            ""
            if facts.setting("HealthCheckProgram") and facts.number("HealthCheckInterval")
            else "no HealthCheckProgram runs"
        ),
    ),
    note(
        name="slurm.preemption",
        needs=("slurm",),
        why="a preempted job is cancelled instead of requeued, unless its partition or QOS says otherwise",
        fix="use a partition or QOS that is not preempted, or whose PreemptMode is REQUEUE",
        source=f"{_MANUAL} PreemptMode",
        judge=_preemption,
    ),
    note(
        name="slurm.private_memory",
        needs=("slurm",),
        why="snapshots in memory end with the run: after a requeue training goes on from storage",
        fix="set checkpoint.local_directory to a folder on the nodes' disks that is not private, or lower "
        "checkpoint.every_s",
        source=f"job_container.conf(5), namespace.yaml(5); {_MEASURED} 22.05",
        judge=_private_memory,
    ),
    bad(
        name="slurm.memory_polled",
        needs=("slurm",),
        why="snapshots are memory that ranks and agent share: it counts once for each of them, and Slurm "
        "kills the job for memory that it does not use",
        fix="the administrator adds UsePss, or limits memory by ConstrainRAMSpace in cgroup.conf instead",
        source=f"{_MANUAL} JobAcctGatherParams",
        judge=lambda facts: (
            "JobAcctGatherParams has OverMemoryKill without UsePss"
            if "overmemorykill" in (have := facts.words("JobAcctGatherParams"))
            and not have & {"usepss", "noshared"}
            else ""
        ),
    ),
    bad(
        name="slurm.requeue_exit",
        needs=("slurm",),
        why="a job that has given up is requeued, or held, and fails again in the same way",
        fix="the administrator removes 93 from it",
        source=f"{_MANUAL} RequeueExit; docs/exit-codes.md",
        judge=_requeue_exit,
    ),
    note(
        name="slurm.epilog_messages",
        needs=("slurm", "nodes"),
        why="a requeued job cannot start before its last epilog was reported",
        fix="the administrator lowers EpilogMsgTime",
        source=f"{_MANUAL} EpilogMsgTime",
        judge=_epilog_messages,
    ),
    note(
        name="slurm.complete_wait",
        needs=("slurm",),
        why="Slurm does not schedule a requeued job for this long while any job is COMPLETING",
        fix="the administrator sets CompleteWait=0",
        source=f"{_MANUAL} CompleteWait",
        judge=lambda facts: f"CompleteWait is {have} s" if (have := facts.number("CompleteWait")) else "",
    ),
    note(
        name="slurm.power_saving",
        needs=("slurm",),
        why="a requeued job that gets such a node waits until it has booted",
        fix="keep spares in the allocation (--spares), or the administrator lists nodes in SuspendExcNodes",
        source=f"{_MANUAL} SuspendTime, ResumeTimeout",
        judge=lambda facts: (
            f"nodes that are idle for {seconds[0]} s are powered down"
            if facts.setting("SuspendProgram")
            and (seconds := re.match(r"\d+", facts.setting("SuspendTime"))) is not None
            else ""
        ),
    ),
    note(
        name="clock.offset",
        needs=("clock_s",),
        why="times in the logs of different nodes cannot be compared",
        fix="the administrator runs chronyd or its like on all hosts",
        source="docs/node-checks.md, clock.offset",
        judge=_clock,
    ),
    bad(
        name="clock.credentials",
        needs=("clock_s",),
        why="munge refuses credentials that are 300 s off, and so nothing can be asked of Slurm",
        fix="the administrator runs chronyd or its like on all hosts",
        source="munged(8), time-to-live",
        judge=lambda facts: _clock(facts) if abs(facts.clock_s or 0.0) > _CREDENTIAL_S else "",
    ),
)
