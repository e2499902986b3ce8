"""The rungs of the recovery ladder, cheapest first (design, section 5).

Each is a function of the fault, of the rules and of the job's past; it returns a verdict, or None to pass the
fault on to the next rung. A new rung is a new function and its place in :data:`LADDER`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slurm_robust.model.findings import Outcome, Writer
from slurm_robust.model.incident import (
    Blame,
    Cause,
    Diagnosis,
    Fault,
    FaultKind,
    Remedy,
    Signature,
    StackLocation,
    Symptom,
    TestResult,
    Verdict,
)
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Localisation
from slurm_robust.model.state import JobState
from slurm_robust.policy.repeats import crash_place, crashes_here
from slurm_robust.policy.restore import failed_to_restore, restore_failure
from slurm_robust.policy.rules import HOUR_S, Rules, convict
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import named_ranks, some_of

STUCK = "its workers cannot be killed"
MAX_PORTS = 5
"""Ports that are tried one after the other."""

_GPU_OOM = "gpu_oom"
_LAST_LINES = 5
_NUMBERS_WRONG = (Symptom.NON_FINITE, Symptom.SPIKE)
_BY_STACKS = (Symptom.HANG, Symptom.SLOW)


class Unexplained(Record):
    """A failure by its outward sign."""

    signature: Signature
    """What it is recognised by."""
    reason: str
    """The reason, for people."""


def unexplained(fault: Fault) -> Unexplained:
    """Return a verdict by the outward sign: the cause is unknown."""
    if fault.symptom in (*_NUMBERS_WRONG, *_BY_STACKS):
        found = fault.localisation
        why = f"; {found.reason}" if found is not None and found.reason else ""
        return Unexplained(signature=_by_symptom(fault.symptom), reason=fault.detail + why)
    if fault.root is None:
        is_said = fault.symptom is Symptom.LAUNCH_FAILED and fault.detail
        return Unexplained(
            signature=Signature(kind=FaultKind.SILENT_END),
            reason=fault.detail if is_said else "the workers ended without an exit that explains it",
        )
    exit = fault.root.exit
    what = exit.describe().partition(": ")[2]
    reason = f"{exit.describe()} on {fault.root.node}, the cause is unknown"
    return Unexplained(signature=Signature(kind=FaultKind.EXIT, key=what), reason=reason)


def _by_symptom(symptom: Symptom) -> Signature:
    return Signature(kind=FaultKind.SYMPTOM, key=symptom.value)


def against(fault: Fault, node: str) -> tuple[str, ...]:
    """Return what was seen and found out about one node, a line each, for the person who repairs it."""
    lines = [fault.named[node]] if node in fault.named else []
    lines += [f"unable: {fault.unable[node]}"] if node in fault.unable else []
    lines += [STUCK] if node in fault.stuck else []
    lines += [f"its agent ended: {fault.ended[node]}"] if node in fault.ended else []
    lines += ["does not respond"] if node in fault.lost else []
    lines += [fault.unstarted[node]] if node in fault.unstarted else []
    for found in filter(None, (fault.diagnosis, fault.replayed)):
        lines += [_format_result(r) for r in found.results if r.node == node and r.outcome is Outcome.FAIL]
    for ended in fault.exits:
        if ended.node == node and ended.exit.failed:
            lines += [ended.exit.describe(), *ended.exit.tail[-_LAST_LINES:]]
    return tuple(lines)


def _format_result(result: TestResult) -> str:
    measured = f" ({result.value}, limit {result.limit})" if result.value and result.limit else ""
    return f"test {result.test}: {result.text}{measured}"


def no_answer(found: Diagnosis) -> str:
    """Say why tests or a replay that were asked for have shown nothing; "" if they have shown something."""
    if found.results or found.suspects:
        return ""
    parts = (f"{test}: {why}" for test, why in found.left_out.items() if why != found.reason)
    return "; ".join((found.reason or "nothing came", *parts))


def nodes_named(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rungs 1 and 2 that what was observed names the nodes by itself."""
    everywhere = bool(fault.unable) and not fault.lost and set(fault.unable) >= set(fault.alive)
    unable = {} if everywhere else fault.unable
    # What a worker held makes it slow to die. If that goes on for ever on one node only, the node is at
    # fault.
    unable = unable | (dict.fromkeys(fault.stuck, STUCK) if len(fault.stuck) == 1 else {})
    silent = [node for node in fault.lost if node not in fault.step_ended and node not in fault.ended]
    ended = [node for node in fault.lost if node in fault.ended]
    why = {node: f"{node} does not respond" for node in silent}
    if not silent:  # else the loss of another node may be why its agent ended
        why = {node: f"the agent on {node} ended again ({fault.ended[node]})" for node in ended}
    why |= {node: f"{node}: {text}" for node, text in (fault.named | unable).items() if node not in why}
    if not why:
        return None
    return convict(
        why, rules, rung=2 if fault.symptom is Symptom.NETWORK else 1, reason="; ".join(why.values())
    )


def unstarted(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rung 1 that this node's agent did not come, though started again; agents of others did."""
    if not fault.unstarted:
        return None
    reason = "; ".join(f"{node}: {text}" for node, text in fault.unstarted.items())
    return convict(fault.unstarted, rules, rung=1, reason=reason, confidence=0.5)


def log_named(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rung 1 that the output of the first rank to fail says that its node's hardware is broken."""
    root, cause = fault.root, fault.cause
    if root is None or cause is None:
        return None
    if (cause.blame, cause.action) != (Cause.INFRASTRUCTURE, Remedy.EVICT) or cause.suspects:
        return None  # what names another host or rank speaks of that one, not of the node that prints it
    reason = f"rank {root.exit.rank} on {root.node}: {cause.symptom}: {cause.line}"
    return convict((root.node,), rules, rung=1, reason=reason, confidence=0.8)


def out_of_memory(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rung 3 that the kernel killed for want of memory: the job's own limit or its own doing."""
    killed = {f"rank {e.exit.rank} on {e.node}": e.exit.oom for e in fault.exits if e.exit.oom}
    killed |= {f"all of the job's processes on {node}": message for node, message in fault.oom.items()}
    if not killed or fault.named or set(fault.lost) - set(fault.oom):
        return None
    what, message = next(iter(killed.items()))
    return Verdict(
        rung=3,
        blame=Blame.CODE,
        signature=Signature(kind=FaultKind.OUT_OF_MEMORY),
        reason=f"{what}: {message}: ask for more memory (sbatch --mem), or lower what a rank holds (batch, "
        "loader workers)",
        confidence=0.9,
        allowed=min(1, rules.limits.per_signature),
    )


def full_disk(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rung 1 that the first rank to fail found its node's own file system full, and no other's was.

    Once per job: what fills the disk of one node after the other, or of all, is the job.
    """
    root = fault.root
    if root is None or not (full := root.exit.no_room):
        return None
    alike = {e.node for e in fault.exits if e.exit.no_room}
    if len(alike) > 1 and alike.issuperset(state.world.slots):
        return Verdict(
            rung=1,
            blame=Blame.CODE,
            signature=Signature(kind=FaultKind.DISK_FULL),
            reason=f"no room left in {full} of all nodes: the job fills it itself, or its "
            "earlier runs did: remove what they left, and write less there",
            confidence=0.7,
            allowed=min(1, rules.limits.per_signature),
        )
    if alike - {root.node} or any(a.signature.kind is FaultKind.DISK_FULL for a in state.world.attempts):
        return None
    reason = f"rank {root.exit.rank} on {root.node}: no room left in the node's own {full}"
    return convict((root.node,), rules, rung=1, reason=reason, confidence=0.7, kind=FaultKind.DISK_FULL)


def tests_named(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rungs 5 and 8 nodes that failed a test, or a replay, while training was suspended."""
    found = ((8, fault.replayed), (5, fault.diagnosis))
    rung, diagnosis = next(((n, d) for n, d in found if d is not None and d.suspects), (0, None))
    if diagnosis is None:
        return None
    reason = f"{unexplained(fault).reason}; tests: {diagnosis.reason}"
    return convict(diagnosis.suspects, rules, rung=rung, reason=reason, confidence=0.9)


def slow_to_die(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rung 6 that killed workers of several nodes are still there, which is no fault.

    Tests would find their memory taken and blame innocent nodes. Only the bounds of all restarts hold.
    """
    if not fault.stuck:
        return None
    return Verdict(
        rung=6,
        blame=Blame.NOBODY,
        signature=Signature(kind=FaultKind.SLOW_TO_DIE),
        reason=f"{unexplained(fault).reason}; killed workers remain on {some_of(sorted(fault.stuck))}",
        confidence=0.5,
        allowed=rules.limits.per_day,
    )


def port_taken(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rung 6 that a process of another user listened on the port that rank 0 had to bind by itself.

    The next launch has another port. If the program logs nothing, only a failed bind tells of it, so after a
    few ports it is judged like any other end.
    """
    found = next((e for e in fault.exits if e.exit.failed and e.exit.taken), None)
    before = sum(attempt.signature.kind is FaultKind.PORT_TAKEN for attempt in state.world.without_progress)
    # A rank binds its port before its first step. A process that listens there later causes no later end.
    if found is None or before >= MAX_PORTS or state.world.steps_here >= 0:
        return None
    return Verdict(
        rung=6,
        blame=Blame.NOBODY,
        signature=Signature(kind=FaultKind.PORT_TAKEN),
        reason=f"{found.exit.describe()} on {found.node}, where {found.exit.taken}, its MASTER_PORT",
        confidence=0.8,
        allowed=MAX_PORTS,
    )


def gpu_memory_not_free(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rung 6 that a rank after killed ones ran out of GPU memory before its first step, once.

    What these held may not have been free yet; their driver gives it back after their end.
    """
    is_oom = fault.cause is not None and fault.cause.symptom == _GPU_OOM
    if not is_oom or fault.root is None or state.world.generation < 2 or state.world.steps_here >= 0:
        return None
    if any(attempt.signature.kind is FaultKind.GPU_NOT_FREE for attempt in state.world.without_progress):
        return None
    return Verdict(
        rung=6,
        blame=Blame.NOBODY,
        signature=Signature(kind=FaultKind.GPU_NOT_FREE),
        reason=f"{fault.root.exit.describe()} on {fault.root.node}, before the first step: the GPU may not "
        "have been free of the workers before",
        confidence=0.5,
        allowed=min(1, rules.limits.per_signature),
    )


_CERTAIN = ("EntryMismatch",)
"""Exceptions of our own that the script raises again after each restart: it and the checkpoint do not fit."""


def wrong_code(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rung 3 that the first rank to fail raised an exception in code that can be named."""
    if fault.root is None or fault.root.exit.error is None or not fault.root.exit.error.file:
        return None
    if fault.blames_peer:
        return None  # whoever failed first was not heard
    rank, error = fault.root.exit.rank, fault.root.exit.error
    place = f"{error.type} at {error.file}:{error.line}"
    is_certain = error.type.rpartition(".")[2] in _CERTAIN
    return Verdict(
        rung=3,
        blame=Blame.CODE,
        signature=Signature(kind=FaultKind.EXCEPTION, key=place),
        reason=f"rank {rank} raised {place}: {error.message or 'without a message'}",
        confidence=1.0 if is_certain else 0.8,
        allowed=0 if is_certain else min(1, rules.limits.per_signature),
    )


# -- rung 4 ------------------------------------------------------------------------------------------
# A rank that stands still, or is slow, may have a bad node or bad code, and one sample cannot show which. The
# question is whether the fault stays with the node or moves with the rank. So a restart in place answers the
# first hang, a move of the ranks to another node the second one, and only what is seen then convicts: the
# same on another node is the code's, other ranks on the same node are the node's. A process that is stopped,
# dead or held in the kernel speaks against its node immediately.

SAME_STEP = 1
"""Ranks that hang at the same step may differ in whether they have reported the earlier step."""

SAME_SLOWDOWN_S = HOUR_S
"""Slow code is slow on another node soon. What is slow later is another node, as slow nodes wait alike."""


def stacks_named(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rung 4 by the stacks of all ranks, which place a hang or a slowdown.

    Silence convicts neither a node nor the code: where that would follow, the nodes are tested.
    """
    found, place = fault.localisation, place_of(fault, state)
    if found is None or place is None:
        return None
    reason = f"{fault.detail}; {found.reason}"
    signature = Signature(kind=FaultKind.RANKS, key=f"{place.symptom.value} of {named_ranks(place.ranks)}")
    moved = moved_with_ranks(place, state)
    stays, others = _stays_with(place, state)
    if found.silent and (moved or others):
        return None
    if moved is not None and not others:
        return Verdict(
            rung=4,
            blame=Blame.CODE,
            signature=signature,
            reason=f"{reason}; it was the same on {fold(moved.nodes)}, so it moves with the rank: the "
            "code is at fault",
            confidence=0.9,
            allowed=0,
        )
    here = [p for p in state.world.places if p.symptom is place.symptom and set(p.nodes) == set(place.nodes)]
    if found.halted or others:
        nodes, why = place.nodes, ""
        if others and set(stays) == set(nodes):
            why = f"; it was the same with {named_ranks(others)}, so it stays with the node"
        elif others and not found.halted:
            nodes = stays
            why = (
                f"; it was the same with {named_ranks(others)}, and {fold(stays)} is what both have in common"
            )
        return convict(
            _most_suspect_first(nodes, found, state),
            rules,
            rung=4,
            reason=reason + why,
            confidence=found.confidence,
            unproven=not (found.halted or found.exact),
        )
    # A restart in place does not make a slow node faster.
    is_to_move = bool(here) or place.symptom is Symptom.SLOW
    return Verdict(
        rung=4,
        blame=Blame.NOBODY,
        signature=signature,
        reason=reason,
        suspects=place.nodes if is_to_move else (),
        confidence=0.5,
        allowed=rules.limits.per_signature,
    )


def _stays_with(place: StackLocation, state: JobState) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the nodes with which the fault stays, and the ranks that had it there before; empty for none.

    If two groups have no rank in common, these are the nodes that both have.
    """
    for before in state.world.places:
        is_alike = before.symptom is place.symptom and before.silent is place.silent
        if not is_alike or before.ranks == place.ranks:
            continue
        if set(before.nodes) == set(place.nodes):
            return place.nodes, before.ranks
        common = tuple(node for node in place.nodes if node in before.nodes)
        if common and not set(before.ranks) & set(place.ranks):
            return common, before.ranks
    return (), ()


def _most_suspect_first(nodes: Iterable[str], found: Localisation, state: JobState) -> list[str]:
    """Sort a group: first nodes whose own ranks differ from most, then nodes that were suspected before."""
    odd = {state.world.placement.node_of(rank) for rank in found.outliers}
    before = [node for place in state.world.places for node in place.nodes]
    return sorted(nodes, key=lambda node: (node not in odd, -before.count(node)))


def place_of(fault: Fault, state: JobState) -> StackLocation | None:
    """Return the place of what ended the generation, by the stacks or by the crash; None if it has none."""
    found, symptom = fault.localisation, fault.symptom
    if found is None or symptom is None or not found.ranks:
        return crash_place(fault, state)
    return place(symptom, found, state)


def place(symptom: Symptom, found: Localisation, state: JobState) -> StackLocation:
    """Return the place of a fault that stacks name ranks for; the step is the newest that is done."""
    nodes = dict.fromkeys(state.world.placement.node_of(rank) for rank in found.ranks)
    step = max(state.world.steps_here, state.world.restored_step)
    return StackLocation(
        symptom=symptom,
        step=step,
        ranks=found.ranks,
        nodes=tuple(nodes),
        stack=found.stack,
        silent=found.silent,
        t=state.world.incident.begun if state.world.incident is not None else 0.0,
    )


def moved_with_ranks(place: StackLocation, state: JobState) -> StackLocation | None:
    """Return the same fault on other nodes before, None if none was.

    A hang is the same at the same step, a slowdown within :data:`SAME_SLOWDOWN_S`. One that stayed with its
    node says nothing of the ranks.
    """
    for before in state.world.places:
        is_alike = before.ranks == place.ranks or before.stack == place.stack != ""
        is_alike = is_alike and before.silent is place.silent and not _stays_with(before, state)[1]
        if place.symptom is Symptom.SLOW:
            is_here = _apart_s(before, place, state) <= SAME_SLOWDOWN_S
        else:
            is_here = abs(before.step - place.step) <= SAME_STEP
        is_elsewhere = before.symptom is place.symptom and not set(before.nodes) & set(place.nodes)
        if is_alike and is_here and is_elsewhere:
            return before
    return None


def _apart_s(before: StackLocation, after: StackLocation, state: JobState) -> float:
    """Return how much later the second was, by the clock or, before its incident begins, by the steps."""
    if before.t and after.t:
        return abs(after.t - before.t)
    return abs(after.step - before.step) * state.world.pace.p50_s


# -- the other rungs ---------------------------------------------------------------------------------


def worth_tests(samples: int, rules: Rules, state: JobState) -> bool:
    """Return whether tests end a slowdown for which ``samples`` found no straggler: once in a job.

    It takes minutes, and training that is slow by its own work or by what all share goes on as before.
    """
    was_tested = any(attempt.signature == _by_symptom(Symptom.SLOW) for attempt in state.world.attempts)
    return rules.detect.diagnose and 0 < rules.detect.slow_samples <= samples and not was_tested


def must_be_tested(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rung 5 that nothing explains the fault, and that it is more than a single crash.

    The answer to a first crash is a restart in place, which takes seconds while tests take minutes. Nodes are
    tested if a fault comes again without a new step in between, also as something else after an eviction, and
    if a restart would only repeat it: wrong numbers, and a hang that stacks do not place.
    """
    if fault.diagnosis is not None or not rules.detect.diagnose:
        return None
    found = unexplained(fault)
    again = any(a.signature == found.signature or a.blame is Blame.NODE for a in state.world.without_progress)
    if not again and fault.symptom not in (*_NUMBERS_WRONG, *_BY_STACKS):
        return None
    return Verdict(
        rung=5,
        blame=Blame.NOBODY,
        signature=found.signature,
        reason=found.reason,
        confidence=0.3,
        allowed=rules.limits.per_signature,
    )


def agents_gone(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge that silent agents ended with their step, or that all of several fell silent together.

    One cause that takes all nodes is not the nodes' fault, so none of them is evicted.
    """
    ended = {node: why for node, why in fault.step_ended.items() if node in fault.lost}
    silent = [node for node in fault.lost if node not in fault.ended]
    if ended and not fault.named and set(fault.lost) <= ended.keys() | fault.ended.keys():
        reason = f"the step of the agents on {fold(ended)} ended ({next(iter(ended.values()))})"
    elif not fault.alive and len(fault.lost) > 1 and len(silent) != 1:
        reason = f"all {len(fault.lost)} agents fell silent together"
    else:
        return None
    return Verdict(
        rung=1,
        blame=Blame.NOBODY,
        signature=Signature(kind=FaultKind.AGENTS_LOST),
        reason=f"{reason}, so no node is blamed",
        confidence=0.7,
        allowed=rules.limits.per_signature,
    )


def agent_ended(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge that agents ended, says Slurm, while their nodes answer: the first time no node is at fault."""
    signature = Signature.of_nodes(FaultKind.AGENT_ENDED, fault.lost)
    once = not any(attempt.signature == signature for attempt in state.world.attempts)
    if not fault.lost or not set(fault.lost) <= fault.ended.keys() or not once:
        return None
    return Verdict(
        rung=1,
        blame=Blame.NOBODY,
        signature=signature,
        reason="; ".join(f"the agent on {node} ended ({fault.ended[node]})" for node in fault.lost),
        confidence=0.6,
        allowed=rules.limits.per_signature,
    )


def slurm_refuses(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge that Slurm starts no agent: no other node or try helps, and its message says what does."""
    if not fault.refused:
        return None
    nodes = fold(fault.refused)
    return Verdict(
        rung=1,
        blame=Blame.NOBODY,
        signature=Signature(kind=FaultKind.AGENTS_REFUSED),
        reason=f"no agent starts on {nodes}: {next(iter(fault.refused.values()))}",
        allowed=0,
    )


def unreachable(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge that many nodes fell silent together, or are lent no more: no node is at fault."""
    if not fault.unreachable or not fault.lost:
        return None
    return Verdict(
        rung=2,
        blame=Blame.NOBODY,
        signature=Signature(kind=FaultKind.UNREACHABLE),
        reason=fault.unreachable,
        confidence=0.7,
        allowed=rules.limits.per_signature,
    )


def nobody_can_start(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge that no node can start a worker, so it is not the nodes: the environment or the code."""
    if not fault.unable:
        return None
    node, text = next(iter(fault.unable.items()))
    return Verdict(
        rung=3,
        blame=Blame.CODE,
        signature=Signature(kind=FaultKind.NO_WORKER_STARTS),
        reason=f"no node can start a worker; {node} says: {text}",
        allowed=0,
    )


def restore_failed(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rung 6 that a copy for the restore is missing or damaged; what is left decides.

    A copy that fails is removed by its reader, so the next choice is another one.
    """
    bad = [e for e in fault.exits if failed_to_restore(e.exit)]
    if not bad or fault.restore is None:
        return None
    exit, node = bad[0].exit, bad[0].node
    error = exit.error
    assert error is not None
    kind = error.type.rpartition(".")[2]
    return Verdict(
        rung=6,
        blame=Blame.NOBODY,
        signature=restore_failure(fault.restore),
        reason=f"restore failed: rank {exit.rank} on {node}: {kind}: {error.message}",
        confidence=0.9,
        allowed=rules.limits.per_signature,
    )


def transient(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Judge on rung 6 that nothing speaks against a node or the code: the same again in place."""
    found = unexplained(fault)
    tested = f"; tests: {fault.diagnosis.reason}" if fault.diagnosis is not None else ""
    again = any(attempt.signature == found.signature for attempt in state.world.without_progress)
    if again and fault.diagnosis is not None and fault.symptom in _NUMBERS_WRONG:
        tested += "; it came back after a restart, so look at the data and the code of that step first"
    return Verdict(
        rung=6,
        blame=Blame.NOBODY,
        signature=found.signature,
        reason=found.reason + tested,
        confidence=0.5,
        allowed=rules.limits.per_signature,
    )


Rung = Callable[[Fault, Rules, JobState], Verdict | None]
LADDER: tuple[Rung, ...] = (
    slurm_refuses,
    out_of_memory,
    agents_gone,
    agent_ended,
    unreachable,
    nodes_named,
    unstarted,
    nobody_can_start,
    restore_failed,
    log_named,
    full_disk,
    tests_named,
    port_taken,
    gpu_memory_not_free,
    crashes_here,
    wrong_code,
    stacks_named,
    slow_to_die,
    must_be_tested,
    transient,
)

WRITTEN_BY: dict[Rung, Writer] = {
    nodes_named: Writer.OWNER,
    unstarted: Writer.ROOT,
    log_named: Writer.OWNER,
    full_disk: Writer.USER,
    tests_named: Writer.OWNER,
    stacks_named: Writer.OWNER,
    crashes_here: Writer.OWNER,
}
"""Rungs that blame nodes, with the least privileged writer who can bring that about.

A rung of the owner takes a node from the job whose own processes have said so, and leads root to a test of
it, never to a drain. What other users of a node can write takes a node from a job once at most.
"""
