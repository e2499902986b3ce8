"""Is training still productive? What every stage with living workers asks after each input."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.analysis.exits import blames_peer, root_exit
from slurm_robust.analysis.logs import classify_exit
from slurm_robust.controller.core import Core
from slurm_robust.controller.effects import Now, SaveAlerts
from slurm_robust.controller.transitions import (
    ToDeciding,
    ToObserving,
    ToStopping,
    ToUnreachable,
    Transition,
    Trouble,
    Why,
)
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.incident import GenerationFailed, NodeExit, Symptom
from slurm_robust.policy.silence import Silence, judge
from slurm_robust.util.hostlist import fold

# Agents notice within about 3 s that their controller is gone and look for the next one.
RECONNECT_S = 8.0


# Whether slurmctld answers is asked again after this time.
SLURM_FRESH_S = 30.0
# Heartbeats between the last words of nodes that fall silent together.
TOGETHER = 1.5


def silence_now(core: Core, now: Now, since: float) -> Silence | None:
    """Who is silent and whose silence it is; ``since``: from then on for nodes that were never heard."""
    timings, state, fleet = core.config.timings, core.state, core.fleet
    silent_s = {node: fleet.silence(node, now.mono, since) for node in state.slots}
    apart_s = TOGETHER * timings.heartbeat_s
    # A standby that fell silent before the others did so for another reason.
    longest_s = max(timings.node_dead_s, *silent_s.values()) + apart_s
    standbys = {n: fleet.silence(n, now.mono, since) for n in state.spares if n in fleet.views}
    asked, answers = core.slurm_answers or (-SLURM_FRESH_S, None)
    return judge(
        silent_s | {node: silence for node, silence in standbys.items() if silence < longest_s},
        state.own_node,
        dead_s=timings.node_dead_s,
        apart_s=apart_s,
        switches=core.switches,
        slurm_answers=answers if now.mono - asked < SLURM_FRESH_S else None,
    )


def find_trouble(core: Core, agents: dict[str, str], since: float, now: Now) -> Trouble | None:
    """The first reason to stop the generation, or None while all is well.

    ``agents``: the agent (its id) that each slot's node had when the generation began; ``since``:
    monotonic time from which silence counts for nodes not heard of yet.
    """
    state = core.state
    if ended := core.starts.ended(core, state.slots):
        detail = "; ".join(f"the agent on {node} ended ({words})" for node, words in ended.items())
        silent_s = max(core.fleet.silence(node, now.mono, since) for node in ended)
        return Trouble(symptom=Symptom.AGENTS_LOST, detail=detail, detect_s=silent_s)
    exits = core.fleet.exits(state.slots, state.generation, now.mono)
    root = root_exit(exits, core.log_rules)
    if root is not None:
        error = root.exit.error
        user = error is not None and error.file and not blames_peer(root.exit, core.log_rules)
        symptom = Symptom.USER_EXCEPTION if user else Symptom.WORKER_EXIT
        detail = f"{root.exit.describe()} on {root.node} (generation {state.generation})"
        return Trouble(symptom=symptom, detail=detail, detect_s=root.exit.age_s)
    if (trouble := _silence(core, since, now)) is not None:
        return trouble
    for node in state.slots:
        heartbeat = core.fleet.heartbeat(node)
        if heartbeat is not None and heartbeat.agent != agents.get(node, heartbeat.agent):
            detail = f"{node} has a new agent: the old one and its workers are gone"
            return Trouble(symptom=Symptom.NODE_LOST, detail=detail, detect_s=0.0)
        if heartbeat is not None and heartbeat.fatal:
            return Trouble(symptom=Symptom.LAUNCH_FAILED, detail=f"{node}: {heartbeat.fatal}", detect_s=0.0)
    return None


def _silence(core: Core, since: float, now: Now) -> Trouble | None:
    """Trouble of nodes of the placement that are silent: of one, or of the network between."""
    found = silence_now(core, now, since)
    silent = [node for node in core.state.slots if found is not None and node in found.nodes]
    if found is None or not silent:
        return None
    longest = max(core.fleet.silence(node, now.mono, since) for node in silent)
    if found.cause:
        return Trouble(symptom=Symptom.UNREACHABLE, detail=found.cause, detect_s=longest)
    detail = f"{fold(silent)} gives no sign of life for {longest:.1f} s"
    return Trouble(symptom=Symptom.NODE_LOST, detail=detail, detect_s=longest)


def standbys_heard(core: Core, now: Now) -> list[str]:
    """Standbys that were heard a moment ago."""
    limit, views = core.config.timings.node_dead_s, core.fleet.views
    return [n for n in core.state.spares if n in views and now.mono - views[n].heard <= limit]


def leave(core: Core, agents: dict[str, str], why: Why, now: Now) -> Transition:
    """Training is not productive any more: write it down, and stop it or, in observe mode, look on."""
    trouble, incident = why.trouble, core.state.incident
    core.watch_progress(now, force=True)
    if incident is None or incident.symptom is not trouble.symptom:
        core.open_incident(trouble.symptom, trouble.detail, trouble.detect_s, now)
    seen = {node: view.heartbeat.alerts for node, view in core.fleet.views.items() if view.heartbeat.alerts}
    if seen and core.state.incident is not None:
        core.emit(SaveAlerts(number=core.state.incident.number, alerts=seen, t=now.wall))
    if core.config.mode == "observe":
        return ToObserving(agents=agents, why=why)
    if trouble.symptom is Symptom.UNREACHABLE:
        return ToUnreachable(agents=agents, why=why)
    return ToStopping(reason=trouble.detail, why=why)


def has_new_step(core: Core, now: Now) -> bool:
    """Whether all ranks have completed a step since the incident began."""
    state = core.state
    records = core.fleet.progress(state.slots, state.generation, now.mono)
    before = state.incident.step if state.incident is not None else -1
    return len(records) == state.placement.world_size and min(r.step for r in records) > before


def failure(
    core: Core,
    why: Why | None,
    exits: tuple[NodeExit, ...],
    lost: tuple[str, ...],
    unable: dict[str, str],
    stuck: tuple[str, ...] = (),
) -> GenerationFailed:
    """All that is known of the end of this generation, for the policy."""
    state = core.state
    trouble = why.trouble if why is not None else None
    root = root_exit(exits, core.log_rules)
    return GenerationFailed(
        generation=state.generation,
        root=root,
        exits=exits,
        lost=lost,
        unable=unable,
        stuck=stuck,
        alive=tuple(n for n in state.slots if n not in lost),
        restore=state.restored,
        ended=core.starts.ended(core, lost),
        oom=core.starts.out_of_memory(lost),
        symptom=trouble.symptom if trouble else None,
        detail=trouble.detail if trouble else "",
        named=trouble.named if trouble else {},
        cause=classify_exit(root.exit, core.log_rules) if root is not None else None,
        localisation=why.localisation if why is not None else None,
    )


def conclude(core: Core, failed: GenerationFailed, now: Now, *, waited: bool = False) -> Transition:
    """Ask the policy, unless nodes fell silent together and may come back: then wait first, once."""
    failed = with_cause(core, failed, now)
    if failed.unreachable and not waited and len(standbys_heard(core, now)) < len(failed.lost):
        return ToUnreachable(failed=failed)
    return ToDeciding(failed=failed)


def with_cause(core: Core, failed: GenerationFailed, now: Now) -> GenerationFailed:
    """``failed`` with what the silence of all lost nodes has in common, if that is anything."""
    silence = silence_now(core, now, core.started)
    if silence is None or not failed.lost or not set(failed.lost) <= set(silence.nodes):
        return failed
    if set(failed.lost) <= failed.ended.keys():
        return failed  # of each of them it is known why
    return structs.replace(failed, unreachable=silence.cause)


def all_done(core: Core, now: Now) -> bool:
    """Whether every rank of the generation has ended with code 0."""
    state = core.state
    exits = core.fleet.exits(state.slots, state.generation, now.mono)
    return len({e.exit.rank for e in exits if not e.exit.failed}) == state.placement.world_size


def current_agents(core: Core) -> dict[str, str]:
    """Id of the agent of each slot's node as known now."""
    heartbeats = {node: core.fleet.heartbeat(node) for node in core.state.slots}
    return {node: heartbeat.agent for node, heartbeat in heartbeats.items() if heartbeat is not None}


def last_words(exit: WorkerExit) -> str:
    """The last lines of a failed rank for the job's own output."""
    lines = exit.tail or (exit.error.traceback.splitlines()[-12:] if exit.error else ())
    return "\n".join(f"  rank {exit.rank} | {line}" for line in lines)
