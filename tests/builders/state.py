"""States of a job."""

from msgspec import structs

from slurm_robust.model.state import JobState
from slurm_robust.model.world import World

_OF_THE_WORLD = frozenset(field.name for field in structs.fields(World))


def job_state(**fields: object) -> JobState:
    """Return a job of one world; each field goes to the job or to its world, whichever has it."""
    return changed(JobState(), **fields)


def changed(state: JobState, **fields: object) -> JobState:
    """Return ``state`` with other ``fields``, each of the job or of its world."""
    world = structs.replace(state.world, **{k: v for k, v in fields.items() if k in _OF_THE_WORLD})
    job = {k: v for k, v in fields.items() if k not in _OF_THE_WORLD}
    return structs.replace(state, **{"worlds": {**state.worlds, state.focus: world}, **job})
