"""When the training counts as hanging, slow or wrong, and how the nodes are inspected meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_robust.config.errors import InvalidValue
from slurm_robust.config.ranges import at_least, positive


@dataclass(frozen=True)
class DetectConfig:
    """What is noticed while the training runs, and from when on it counts. Times are in seconds."""

    hang: bool = True
    """Notice that the training hangs."""

    hang_factor: float = 3.0
    """No step for so many times the training's own 99th percentile of step times is a hang."""

    hang_floor_s: float = 14.0
    """But never earlier than this, in seconds. With the look that finds it, it is told within 15."""

    first_step_s: float = 1800.0
    """From the launch until the first step, where the job's past does not say how long that takes."""

    silence_s: float = 600.0
    """The links of all nodes have carried nothing for so long, and no step was made: a hint at a hang."""

    phase_s: float = 1800.0
    """A phase that the script has announced (evaluation, checkpoint), where the job's past does not say."""

    slow_factor: float = 1.5
    """Step times of so many times the training's own median, over a minute or more, are a decline."""

    slow_looks: int = 3
    """A decline in which so many looks at the stacks name nobody ends with tests of all nodes; 0: never."""

    spike_factor: float = 5.0
    """A loss or gradient norm of so many times its rolling median is a jump."""

    spike_warmup_steps: int = 100
    """Steps at the beginning of the training in which jumps do not count."""

    non_finite: bool = True
    """A loss or gradient norm that is no finite number ends the generation."""

    inspect: bool = True
    """Inspect the nodes while the training runs: kernel log, GPUs, network, memory, disks, clock."""

    kernel_s: float = 1.0
    """Most seconds from a line in the kernel's log until it is judged."""

    gpu_s: float = 4.0
    """Seconds between two looks at the GPUs; their events are seen at once."""

    network_s: float = 10.0
    """Seconds between two looks at the network's ports."""

    node_s: float = 30.0
    """Seconds between two looks at everything else."""

    network_alerts: int = 2
    """So many alerts of the network of a node within ``network_window_s`` evict it."""

    network_window_s: float = 300.0
    """Within how many seconds alerts of the network are counted together."""

    stacks_s: float = 5.0
    """How long taking the stacks of all ranks may take."""

    diagnose: bool = True
    """After an end that nothing explains, test the nodes before training goes on."""

    diagnose_s: float = 300.0
    """How long all tests of one diagnosis may take together."""

    log_rules: tuple[str, ...] = ()
    """The site's own rules for logs: YAML files, or folders of them; they win over the built-in ones."""

    def __post_init__(self) -> None:
        """Refuse factors that would count every step, and times that are not positive."""
        for name in ("hang_factor", "slow_factor", "spike_factor"):
            at_least(self, name, 1)
        for name in ("slow_looks", "spike_warmup_steps", "network_alerts"):
            at_least(self, name, 0)
        for name in (
            "hang_floor_s",
            "first_step_s",
            "silence_s",
            "phase_s",
            "kernel_s",
            "gpu_s",
            "network_s",
            "node_s",
            "network_window_s",
            "stacks_s",
            "diagnose_s",
        ):
            positive(self, name)
        if "" in self.log_rules:
            raise InvalidValue(("log_rules",), "log_rules has an empty name", "give files or folders")
