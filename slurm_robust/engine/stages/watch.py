"""What stages ask after each input: is training still productive?"""

from __future__ import annotations

from msgspec import structs

from slurm_robust.analysis.logs import blames_peer, classify_exit, root_exit
from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.questions import SaveAlerts
from slurm_robust.engine.transitions import (
    ToDeciding,
    ToObserving,
    ToStopping,
    ToUnreachable,
    Transition,
)
from slurm_robust.model.incident import Fault, NodeExit, Symptom
from slurm_robust.model.world import OpenIncident
from slurm_robust.policy import finishing
from slurm_robust.policy.finishing import LastExits
from slurm_robust.policy.silence import TOGETHER, Silence
from slurm_robust.util.hostlist import fold

TAKEN_S = 4.0
"""The agent of a host from which this controller has taken over is waited for so long: others agree that the
host is dead.
"""
BACK_S = 8.0
"""The same if an agent listens there: the network may be back, and the agent looks for its controller."""


def find_fault(core: Core, agents: dict[str, str], since: float, now: Now) -> Fault | None:
    """Return the first reason to stop the generation, or None while all is well.

    ``agents``: the agent (its id) that each slot's node had when the generation began; ``since``:
    monotonic time from which silence counts for nodes not heard of yet.
    """
    state = core.state
    if core.departure.undecided(now):
        return None  # Slurm may be ending the run: that is no fault of any node
    if ended := core.starts.ends(state.world.slots, now).agents:
        detail = "; ".join(f"the agent on {node} ended ({message})" for node, message in ended.items())
        silent_s = max(core.fleet.silence(node, now.mono, since) for node in ended)
        return Fault(symptom=Symptom.AGENTS_LOST, detail=detail, detect_s=silent_s)
    exits = core.exits(now)
    root = root_exit(exits, core.log_rules)
    if root is not None and not (last := last_exits(core, now)).is_done and not last.waits:
        error = root.exit.error
        user = error is not None and error.file and not blames_peer(root.exit, core.log_rules)
        symptom = Symptom.USER_EXCEPTION if user else Symptom.WORKER_EXIT
        detail = f"{root.exit.describe()} on {root.node} (generation {state.world.generation})"
        return Fault(symptom=symptom, detail=detail, detect_s=root.exit.age_s)
    if (fault := _silence(core, since, now)) is not None:
        return fault
    for node, heartbeat in core.fleet.heartbeats(state.world.slots).items():
        if heartbeat.agent != agents.get(node, heartbeat.agent):
            detail = f"{node} has a new agent: the old one and its workers are gone"
            return Fault(symptom=Symptom.NODE_LOST, detail=detail, detect_s=0.0)
        if heartbeat.fatal:
            return Fault(symptom=Symptom.LAUNCH_FAILED, detail=f"{node}: {heartbeat.fatal}", detect_s=0.0)
    return None


def _silence(core: Core, since: float, now: Now) -> Fault | None:
    """Return the fault of silent nodes of the placement: one node, the network between them, or the step."""
    ends = core.starts.ends(core.world.slots, now)
    ended = ends.steps
    silent_s = max((core.fleet.silence(node, now.mono, since) for node in ended), default=0.0)
    # Agents may outlive their srun, and training with them: only their silence, or Slurm's word on each of
    # them, shows that they have not.
    if ends.killed or silent_s > core.config.timings.node_dead_s:
        detail = f"the step of the agents on {fold(ended)} ended ({next(iter(ended.values()))})"
        return Fault(symptom=Symptom.AGENTS_LOST, detail=detail, detect_s=silent_s)
    found = unexplained_silence(core, since, now)
    silent = [node for node in core.world.slots if found is not None and node in found.nodes]
    if found is None or not silent:
        return None
    if deaths := core.fleet.deaths(silent):
        longest = max(now.mono - dead_since for _, dead_since in deaths.values())
        detail = "; ".join(why for why, _ in deaths.values())
        return Fault(symptom=Symptom.NODE_LOST, detail=detail, detect_s=longest)
    longest = max(core.fleet.silence(node, now.mono, since) for node in silent)
    if found.cause:
        return Fault(symptom=Symptom.UNREACHABLE, detail=found.cause, detect_s=longest)
    detail = f"{fold(silent)} has not responded for {longest:.1f} s"
    return Fault(symptom=Symptom.NODE_LOST, detail=detail, detect_s=longest)


def unexplained_silence(core: Core, since: float, now: Now) -> Silence | None:
    """Return the silence of nodes, but for agents that are known to have ended."""
    nodes = (*core.world.slots, *core.state.spares)
    return core.witnesses.silence(now, since, core.starts.ends(nodes, now).silent)


def is_taken_host_lost(core: Core, node: str, waited_s: float, now: Now) -> bool:
    """Return whether ``node``, silent for ``waited_s``, is the dead host from which this controller took
    over.

    Only if there is a standby for it: without one the host returns sooner than a requeue would run.
    """
    is_taken = node == core.state.taken_from and core.fleet.heartbeat(node) is None
    limit_s = BACK_S if core.witnesses.finds_agent(node, now) else TAKEN_S
    return is_taken and waited_s > limit_s and bool(standbys_heard(core, now))


def standbys_heard(core: Core, now: Now) -> list[str]:
    """Return the standbys that were heard too lately to be among nodes that fall silent together."""
    timings = core.config.timings
    limit_s = max(timings.heartbeat_s, timings.node_dead_s - TOGETHER * timings.heartbeat_s)
    return core.fleet.heard(core.state.spares, limit_s, now.mono)


def silent_nodes(core: Core, now: Now) -> tuple[str, ...]:
    """Return the nodes of the allocation whose agents do not answer.

    Not the controller's own, which is alive.
    """
    dead_s, fleet = core.config.timings.node_dead_s, core.fleet
    others = (node for node in core.state.held if node != core.state.own_node)
    return tuple(node for node in others if fleet.is_silent(node, dead_s, now.mono, core.started))


def leave(core: Core, agents: dict[str, str], fault: Fault, now: Now) -> Transition:
    """Write down that training is not productive any more, and stop it; in observe mode, only watch."""
    incident = core.world.incident
    core.steps.write(now, force=True)
    if incident is None or incident.symptom is not fault.symptom or _is_another(core, incident, fault):
        core.incidents.open(fault, now)
    seen = {node: known.alerts for node, known in core.fleet.heartbeats().items() if known.alerts}
    if seen and core.world.incident is not None:
        core.ask(SaveAlerts(number=core.world.incident.number, alerts=seen, t=now.wall), now)
    if core.config.mode == "observe":
        return ToObserving(agents=agents, fault=fault)
    if fault.symptom is Symptom.UNREACHABLE:
        return ToUnreachable(agents=agents, fault=fault)
    return ToStopping(reason=fault.detail, fault=fault)


def _is_another(core: Core, incident: OpenIncident, fault: Fault) -> bool:
    """Return whether a loss of the same kind came after a restart: the lost node or agent is another one."""
    is_loss = fault.symptom in (Symptom.NODE_LOST, Symptom.AGENTS_LOST)
    return is_loss and core.world.generation > max(incident.last_sign_in, incident.generation)


def ended_with(
    core: Core,
    fault: Fault | None,
    exits: tuple[NodeExit, ...],
    lost: tuple[str, ...],
    unable: dict[str, str],
    stuck: tuple[str, ...] = (),
    *,
    now: Now,
) -> Fault:
    """Return ``fault`` with all that is known of the end of this generation, for the policy."""
    state, ends = core.state, core.starts.ends(lost, now)
    root = root_exit(exits, core.log_rules)
    return structs.replace(
        fault or Fault(),
        generation=state.world.generation,
        root=root,
        exits=exits,
        lost=lost,
        unable=unable,
        stuck=stuck,
        alive=tuple(n for n in state.world.slots if n not in lost),
        restore=state.world.restored,
        all_restored=_all_restored(core, now),
        ended=ends.agents,
        step_ended=core.starts.ends((*lost, *state.spares), now).steps,
        oom=ends.oom,
        cause=classify_exit(root.exit, core.log_rules) if root is not None else None,
        blames_peer=root is not None and blames_peer(root.exit, core.log_rules),
    )


def _all_restored(core: Core, now: Now) -> bool:
    restored = {record.rank for record in core.progress(now) if record.restored}
    return len(restored) == core.world.placement.world_size


def conclude(core: Core, fault: Fault, now: Now, *, waited: bool = False) -> Transition:
    """Ask the policy, unless nodes fell silent together and may come back: then wait first, once."""
    fault = with_cause(core, fault, now)
    if fault.unreachable and not waited and len(standbys_heard(core, now)) < len(fault.lost):
        return ToUnreachable(fault=fault, ended=True)
    return ToDeciding(fault=fault)


def with_cause(core: Core, fault: Fault, now: Now) -> Fault:
    """Return ``fault`` with what the silence of all lost nodes has in common, if anything."""
    silence = unexplained_silence(core, core.started, now)
    unexplained = set(fault.lost) - fault.step_ended.keys() - fault.ended.keys()
    if silence is None or not unexplained or not unexplained <= set(silence.nodes):
        return fault
    return structs.replace(fault, unreachable=silence.cause)


def last_exits(core: Core, now: Now) -> LastExits:
    """Return what the exits of this generation say of the end of the training run."""
    return finishing.judge(core.exits(now), core.progress(now), core.world.placement.world_size)


def all_done(core: Core, now: Now) -> bool:
    """Return whether every rank of the generation has ended, with code 0 or after its work."""
    return last_exits(core, now).is_done


def current_agents(core: Core) -> dict[str, str]:
    """Return the id of the agent of each slot's node as known now."""
    return {node: heartbeat.agent for node, heartbeat in core.fleet.heartbeats(core.world.slots).items()}
