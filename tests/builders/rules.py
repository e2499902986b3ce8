"""What a policy may do: no tests of nodes, but for what a test names."""

from __future__ import annotations

from slurm_robust.config.job import DetectConfig, JobConfig
from slurm_robust.policy import Rules


def rules(*, diagnose: bool = False, quick_test_s: float = 0.0, **sections: object) -> Rules:
    """Return the rules of a configuration with these ``sections``, in which no node is tested."""
    detect = DetectConfig(diagnose=diagnose, quick_test_s=quick_test_s)
    return Rules(config=JobConfig(detect=detect, **sections))  # type: ignore[arg-type]
