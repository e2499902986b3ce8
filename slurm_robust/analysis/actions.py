"""What a decision does, in a few words for tables and stories. Pure."""

from __future__ import annotations

from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.util.hostlist import fold


def in_short(decided: ev.Decided) -> str:
    """The actions of one decision: ``evict n3, n5 takes its slot, restart``."""
    evicted = [a.node for a in decided.actions if isinstance(a, inc.Evict)]
    standbys = [a.standby for a in decided.actions if isinstance(a, inc.Replace)]
    words = [f"evict {fold(evicted)}"] if evicted else []
    moved = [a.node for a in decided.actions if isinstance(a, inc.Replace) and a.node not in evicted]
    words += [f"{fold(moved)} {'stands' if len(moved) == 1 else 'stand'} by"] if moved else []
    if standbys:
        words.append(
            f"{fold(standbys)} takes its slot" if len(standbys) == 1 else f"{fold(standbys)} take their slots"
        )
    words += [word for action in decided.actions if (word := _action(action))]
    text = ", ".join(words)
    return text if decided.carried_out else f"observed only: {text}"


def _action(action: inc.Action) -> str:
    match action:
        case inc.Swap(first=first, second=second):
            return f"{first} and {second} exchange their slots"
        case inc.StartAgents(nodes=nodes):
            return f"start agents again on {fold(nodes)}"
        case inc.Restart():
            return "restart"
        case inc.Requeue(exclude=exclude):
            return f"requeue without {fold(exclude)}" if exclude else "requeue"
        case inc.Replay():
            return "replay the training in small groups"
        case inc.Diagnose(bitwise=bitwise):
            return "test the nodes" + (", also bitwise" if bitwise else "")
        case inc.GiveUp(code=code):
            return f"give up (exit code {code})"
        case inc.Finish():
            return "finish"
    return ""
