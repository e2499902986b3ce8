"""What findings of several checks mean together. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from slurm_robust.kernel.shapes import POST_RX, SHAPES
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.nodes.gpus.links import LINK_STATE, NVLINK


def together(findings: Sequence[Finding]) -> list[Finding]:
    """The same findings, some of them graver for what others say.

    Links that are down while the driver fails to detect peers stay down: only a reboot helps, no reset.
    """
    failed = [found for found in findings if found.outcome is Outcome.FAIL]
    undetected = SHAPES[POST_RX]
    stuck = any(found.check == undetected.check and found.text == undetected.text for found in failed)
    down = [found for found in failed if found.check == NVLINK and found.source.startswith(LINK_STATE)]
    if not (stuck and down):
        return list(findings)
    graver = {id(found) for found in down if found.suggestion.weight < Suggestion.REBOOT.weight}
    return [
        replace(
            found,
            text=f"{found.text}; the driver cannot detect them (post-RX-detect), reboot",
            suggestion=Suggestion.REBOOT,
        )
        if id(found) in graver
        else found
        for found in findings
    ]
