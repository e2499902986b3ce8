from __future__ import annotations

from typing import Any

import pytest

from slurm_robust.config.job import (
    CheckpointConfig,
    CompanionConfig,
    DetectConfig,
    JobConfig,
    Limits,
    SlurmConfig,
    Timings,
)
from slurm_robust.policy.protections import lost_node, protections, told

ALL = (
    "protected: restarts, hangs, faults of nodes, spare nodes, requeue, takeover of the controller, "
    "saves with Checkpointer in memory, saves with Checkpointer on a second node"
)


def lacking(slots: int = 4, spares: int = 1, **settings: Any) -> dict[str, str]:
    found = protections(JobConfig(**settings), slots, spares)
    return {one.name: one.lacking for one in found if one.lacking}


def test_a_usual_job_has_them_all() -> None:
    assert told(protections(JobConfig(), 4, 1)) == ALL


@pytest.mark.parametrize(
    ("config", "requeues", "text"),
    [
        (JobConfig(), True, "costs a requeue"),
        (JobConfig(), False, "ends the job: Slurm may not requeue it (sbatch --requeue)"),
        (JobConfig(slurm=SlurmConfig(requeue=False)), True, "ends the job: slurm.requeue is false"),
        (JobConfig(mode="observe"), True, "is not answered: mode is observe"),
        (
            JobConfig(companions=CompanionConfig(partition=True)),
            True,
            "costs the wait for another one from outside the allocation; if none comes, it costs a requeue",
        ),
    ],
)
def test_what_a_lost_node_does_without_a_standby(config: JobConfig, requeues: bool, text: str) -> None:
    assert lost_node(config, requeues=requeues) == text


def test_a_job_that_slurm_may_not_requeue_lacks_that() -> None:
    (lacks,) = (one for one in protections(JobConfig(), 4, 1, requeues=False) if one.lacking)
    assert lacks.name == "requeue"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"limits": Limits(total=0)}, {"restarts": "limits allow none"}),
        ({"limits": Limits(per_day=0)}, {"restarts": "limits allow none"}),
        ({"limits": Limits(per_hour=0)}, {"restarts": "limits allow none"}),
        ({"detect": DetectConfig(hang=False)}, {"hangs": "detect.hang is false"}),
        ({"detect": DetectConfig(inspect=False)}, {"faults of nodes": "detect.inspect is false"}),
        ({"spares": 0}, {"spare nodes": "spares is 0: a lost node costs a requeue"}),
        (
            {"spares": 0, "slurm": SlurmConfig(requeue=False)},
            {
                "spare nodes": "spares is 0: a lost node ends the job: slurm.requeue is false",
                "requeue": "slurm.requeue is false",
            },
        ),
        ({"spares": 0, "companions": CompanionConfig(partition=True)}, {}),
        ({"spares": 0, "companions": CompanionConfig(reservation="srobust_spares")}, {}),
        ({"slurm": SlurmConfig(requeue=False)}, {"requeue": "slurm.requeue is false"}),
        ({"timings": Timings(takeover_s=None)}, {"takeover of the controller": "timings.takeover_s is null"}),
        (
            {"checkpoint": CheckpointConfig(memory=False)},
            {
                "saves with Checkpointer in memory": "checkpoint.memory is false",
                "saves with Checkpointer on a second node": "checkpoint.memory is false",
            },
        ),
        (
            {"checkpoint": CheckpointConfig(peers=False)},
            {"saves with Checkpointer on a second node": "checkpoint.peers is false"},
        ),
    ],
)
def test_what_is_off_is_named_with_its_key(settings: dict[str, Any], expected: dict[str, str]) -> None:
    assert lacking(spares=settings.pop("spares", 1), **settings) == expected


def test_one_node_has_nobody_else() -> None:
    assert lacking(slots=1, spares=0).keys() == {
        "spare nodes",
        "takeover of the controller",
        "saves with Checkpointer on a second node",
    }
    assert lacking(slots=1, spares=1) == {"saves with Checkpointer on a second node": "training on one node"}


def test_observe_mode_does_nothing_and_still_saves() -> None:
    found = protections(JobConfig(mode="observe"), 4, 1)
    assert [one.name for one in found if not one.lacking] == [
        "saves with Checkpointer in memory",
        "saves with Checkpointer on a second node",
    ]
    assert told(found).startswith(
        "protected: saves with Checkpointer in memory, saves with Checkpointer on a second node; not: "
        "restarts ("
    )


def test_a_job_without_any_protection_says_so() -> None:
    config = JobConfig(mode="observe", checkpoint=CheckpointConfig(memory=False))
    assert told(protections(config, 4, 1)).startswith(
        "protected: nothing; not: restarts (mode is observe), hangs"
    )
