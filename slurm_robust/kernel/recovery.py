"""What NVIDIA's driver itself wants to be done with a GPU, as NVML and XID 154 tell it. Pure.

The numbers are those of ``NVML_GPU_RECOVERY_ACTION_*`` (nvml.h of CUDA 13; older pynvml lack some).
"""

from __future__ import annotations

from enum import Enum

from slurm_robust.model.findings import Suggestion


class Recovery(str, Enum):
    """What the driver itself wants to be done with a GPU."""

    NONE = "none"
    RESET = "reset"
    REBOOT = "reboot"
    DRAIN_P2P = "drain P2P"
    DRAIN_AND_RESET = "drain and reset"
    RECOVER_IMEX = "recover the IMEX domain"
    UNKNOWN = "unknown"

    @property
    def suggestion(self) -> Suggestion:
        """What follows for the node; an action that is not known here is for a person to read."""
        return _SUGGESTIONS[self]


_NUMBERS = {
    0: Recovery.NONE,
    1: Recovery.RESET,
    2: Recovery.REBOOT,
    3: Recovery.DRAIN_P2P,
    4: Recovery.DRAIN_AND_RESET,
    5: Recovery.RECOVER_IMEX,
    6: Recovery.RESET,
    7: Recovery.REBOOT,
}
_SUGGESTIONS = {
    Recovery.NONE: Suggestion.NONE,
    Recovery.RESET: Suggestion.RESET,
    Recovery.DRAIN_P2P: Suggestion.RESET,
    Recovery.DRAIN_AND_RESET: Suggestion.RESET,
    # The IMEX service's, on all nodes of the domain: no reset of this GPU helps, and jobs of one node run.
    Recovery.RECOVER_IMEX: Suggestion.MONITOR,
    Recovery.REBOOT: Suggestion.REBOOT,
    Recovery.UNKNOWN: Suggestion.MONITOR,
}


def recovery(number: int) -> Recovery:
    """Return the action by the driver's number."""
    return _NUMBERS.get(number, Recovery.UNKNOWN)
