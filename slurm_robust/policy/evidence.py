"""What each kind of evidence says: rungs that read one of them, and those that say what is still missing."""

from __future__ import annotations

from slurm_robust.model.classification import Fault, Remedy
from slurm_robust.model.diagnosis import Diagnosis, TestResult
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Blame, GenerationFailed, Symptom, Verdict
from slurm_robust.model.record import Record
from slurm_robust.model.state import JobState
from slurm_robust.policy.rules import Rules
from slurm_robust.util.text import some_of

NODE_SIGNATURE = "node "
STUCK = "its workers cannot be killed"
NOT_FREE = "GPU memory not free yet"
_GPU_OOM = "gpu_oom"
SLOW_TO_DIE = "workers slow to die"
AGENT_ENDED = "agent ended on "
_IS_FULL = " is full"
_LAST_LINES = 5
_NUMBERS_WRONG = (Symptom.NON_FINITE, Symptom.SPIKE)
_BY_STACKS = (Symptom.HANG, Symptom.SLOW)


class Unexplained(Record):
    """A failure by its outward sign: ``signature`` to recognise it, ``reason`` for people."""

    signature: str
    reason: str


def unexplained(failed: GenerationFailed) -> Unexplained:
    """The outward sign, where nothing names a culprit."""
    if failed.symptom in (*_NUMBERS_WRONG, *_BY_STACKS):
        found = failed.localisation
        why = f"; {found.reason}" if found is not None and found.reason else ""
        return Unexplained(signature=failed.symptom.value, reason=failed.detail + why)
    if failed.root is None:
        return Unexplained(
            signature="silent end", reason="the workers ended without an exit that explains it"
        )
    exit = failed.root.exit
    what = exit.describe().partition(": ")[2]
    reason = f"{exit.describe()} on {failed.root.node}, nothing names a culprit"
    return Unexplained(signature=what, reason=reason)


def against(failed: GenerationFailed, node: str) -> tuple[str, ...]:
    """What was seen and found out about one node, a line each, for the person who repairs it."""
    lines = [failed.named[node]] if node in failed.named else []
    lines += [f"unable: {failed.unable[node]}"] if node in failed.unable else []
    lines += [STUCK] if node in failed.stuck else []
    lines += [f"its agent ended: {failed.ended[node]}"] if node in failed.ended else []
    lines += ["no sign of life"] if node in failed.lost else []
    lines += [failed.unstarted[node]] if node in failed.unstarted else []
    for found in filter(None, (failed.diagnosis, failed.replayed)):
        lines += [_in_words(r) for r in found.results if r.node == node and r.outcome is Outcome.FAIL]
    for ended in failed.exits:
        if ended.node == node and ended.exit.failed:
            lines += [ended.exit.describe(), *ended.exit.tail[-_LAST_LINES:]]
    return tuple(lines)


def _in_words(result: TestResult) -> str:
    measured = f" ({result.value}, limit {result.limit})" if result.value and result.limit else ""
    return f"test {result.test}: {result.text}{measured}"


def no_answer(found: Diagnosis) -> str:
    """Why tests or a replay that were asked for have shown nothing; "" if they have shown something."""
    if found.results or found.suspects:
        return ""
    parts = (f"{test}: {why}" for test, why in found.left_out.items() if why != found.reason)
    return "; ".join((found.reason or "nothing came", *parts))


def nodes_named(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Rungs 1 and 2: what was observed names the nodes by itself."""
    everywhere = bool(failed.unable) and not failed.lost and set(failed.unable) >= set(failed.alive)
    unable = {} if everywhere else failed.unable
    # A worker is slow to die by what it held. Where that goes on for ever on one node only, it is the node.
    unable = unable | (dict.fromkeys(failed.stuck, STUCK) if len(failed.stuck) == 1 else {})
    why = {node: _lost(failed, node) for node in failed.lost}
    why |= {node: f"{node}: {text}" for node, text in (failed.named | unable).items() if node not in why}
    if not why:
        return None
    return Verdict(
        rung=2 if failed.symptom is Symptom.NETWORK else 1,
        blame=Blame.NODE,
        signature=NODE_SIGNATURE + ",".join(sorted(why)),
        reason="; ".join(why.values()),
        suspects=tuple(why),
        allowed=rules.limits.per_signature,
    )


def _lost(failed: GenerationFailed, node: str) -> str:
    ended = failed.ended.get(node)
    return f"the agent on {node} ended again ({ended})" if ended else f"{node} gives no sign of life"


def unstarted(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Rung 1: agents of other nodes came, and this one's did not although it was started again."""
    if not failed.unstarted:
        return None
    return Verdict(
        rung=1,
        blame=Blame.NODE,
        signature=NODE_SIGNATURE + ",".join(sorted(failed.unstarted)),
        reason="; ".join(f"{node}: {text}" for node, text in failed.unstarted.items()),
        suspects=tuple(failed.unstarted),
        confidence=0.5,
        allowed=rules.limits.per_signature,
    )


def log_named(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Rung 1: the output of the rank that failed first says that its node's hardware is broken."""
    root, cause = failed.root, failed.cause
    if root is None or cause is None:
        return None
    if (cause.blame, cause.action) != (Fault.INFRASTRUCTURE, Remedy.EVICT):
        return None
    return Verdict(
        rung=1,
        blame=Blame.NODE,
        signature=NODE_SIGNATURE + root.node,
        reason=f"rank {root.exit.rank} on {root.node}: {cause.symptom}: {cause.line}",
        suspects=(root.node,),
        confidence=0.8,
        allowed=rules.limits.per_signature,
    )


def out_of_memory(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Rung 3: the kernel killed for want of memory, which is the job's own limit or its own doing."""
    killed = {f"rank {e.exit.rank} on {e.node}": e.exit.oom for e in failed.exits if e.exit.oom}
    killed |= {f"all of the job's processes on {node}": words for node, words in failed.oom.items()}
    if not killed or failed.named or set(failed.lost) - set(failed.oom):
        return None
    what, words = next(iter(killed.items()))
    return Verdict(
        rung=3,
        blame=Blame.CODE,
        signature="out of memory",
        reason=f"{what}: {words}: ask for more memory (sbatch --mem), or lower what a rank holds (batch, "
        "loader workers)",
        confidence=0.9,
        allowed=min(1, rules.limits.per_signature),
    )


def full_disk(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Rung 1: the rank that failed first found its node's own file system full, and no other node's was.

    Once per job: what fills the disk of one node after the other is the job.
    """
    root = failed.root
    if root is None or root.exit.error is None or not root.exit.error.full:
        return None
    alike = {e.node for e in failed.exits if e.exit.error is not None and e.exit.error.full}
    if alike - {root.node} or any(a.signature.endswith(_IS_FULL) for a in state.attempts):
        return None
    return Verdict(
        rung=1,
        blame=Blame.NODE,
        signature=NODE_SIGNATURE + root.node + _IS_FULL,
        reason=f"rank {root.exit.rank} on {root.node}: no room left in the node's own {root.exit.error.full}",
        suspects=(root.node,),
        confidence=0.7,
        allowed=rules.limits.per_signature,
    )


def tests_named(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Rungs 5 and 8: nodes that failed a test, or a replay, while training was suspended."""
    found = ((8, failed.replayed), (5, failed.diagnosis))
    rung, diagnosis = next(((n, d) for n, d in found if d is not None and d.suspects), (0, None))
    if diagnosis is None:
        return None
    return Verdict(
        rung=rung,
        blame=Blame.NODE,
        signature=NODE_SIGNATURE + ",".join(sorted(diagnosis.suspects)),
        reason=f"{unexplained(failed).reason}; tests: {diagnosis.reason}",
        suspects=diagnosis.suspects,
        confidence=0.9,
        allowed=rules.limits.per_signature,
    )


def slow_to_die(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Rung 6: killed workers of several nodes are still there, which is nobody's fault.

    Tests would find their memory taken and blame the innocent. Only the bounds of all restarts hold.
    """
    if not failed.stuck:
        return None
    return Verdict(
        rung=6,
        blame=Blame.NOBODY,
        signature=SLOW_TO_DIE,
        reason=f"{unexplained(failed).reason}; killed workers remain on {some_of(sorted(failed.stuck))}",
        confidence=0.5,
        allowed=rules.limits.total,
    )


def gpu_memory_not_free(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Rung 6: a rank that follows killed ones ran out of GPU memory before its first step, once.

    What these held may not have been free yet; their driver gives it back after their end.
    """
    is_oom = failed.cause is not None and failed.cause.symptom == _GPU_OOM
    if not is_oom or failed.root is None or state.generation < 2 or state.steps_here >= 0:
        return None
    if any(attempt.signature == NOT_FREE for attempt in state.in_vain):
        return None
    return Verdict(
        rung=6,
        blame=Blame.NOBODY,
        signature=NOT_FREE,
        reason=f"{failed.root.exit.describe()} on {failed.root.node}, before the first step: the GPU may not "
        "have been free of the workers before",
        confidence=0.5,
        allowed=min(1, rules.limits.per_signature),
    )


def wrong_code(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Rung 3: the first rank to fail raised an exception in code that can be named."""
    if failed.root is None or failed.root.exit.error is None or not failed.root.exit.error.file:
        return None
    rank, error = failed.root.exit.rank, failed.root.exit.error
    place = f"{error.type} at {error.file}:{error.line}"
    return Verdict(
        rung=3,
        blame=Blame.CODE,
        signature=place,
        reason=f"rank {rank} raised {place}: {error.message}",
        confidence=0.8,
        allowed=min(1, rules.limits.per_signature),
    )


def worth_tests(looks: int, rules: Rules, state: JobState) -> bool:
    """Whether a decline for which so many looks found no culprit is to be ended by tests: once in a job.

    It takes minutes, and training that is slow by its own work or by what all share goes on as before.
    """
    was_tested = any(attempt.signature == Symptom.SLOW.value for attempt in state.attempts)
    return rules.diagnose and 0 < rules.slow_looks <= looks and not was_tested


def must_be_tested(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Rung 5: nothing explains it, and it is more than a single crash.

    A first crash is answered by a restart in place, which takes seconds where tests take minutes. What comes
    again without a new step in between, also as something else after an eviction, is tested for, and so is
    what a restart would only repeat: wrong numbers, and a hang that stacks do not place.
    """
    if failed.diagnosis is not None or not rules.diagnose:
        return None
    found = unexplained(failed)
    before = {attempt.signature for attempt in state.in_vain}
    again = found.signature in before or any(signature.startswith(NODE_SIGNATURE) for signature in before)
    if not again and failed.symptom not in (*_NUMBERS_WRONG, *_BY_STACKS):
        return None
    return Verdict(
        rung=5,
        blame=Blame.NOBODY,
        signature=found.signature,
        reason=found.reason,
        confidence=0.3,
        allowed=rules.limits.per_signature,
    )
