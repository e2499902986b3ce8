"""What findings of several checks mean together. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from slurm_robust.model.findings import Finding, Outcome, Suggestion

LINKS_UP = "NVLinks up"
"""In findings of ``gpu.nvlink`` about links that are down."""

POST_RX = "post-RX-detect"
"""In findings of ``kernel.gpu`` about a driver that cannot tell which links have a peer."""


def together(findings: Sequence[Finding]) -> list[Finding]:
    """The same findings, some of them graver for what others say.

    Links that are down while the driver fails to detect peers stay down: only a reboot helps, no reset.
    """
    failed = [found for found in findings if found.outcome is Outcome.FAIL]
    stuck = any(found.check == "kernel.gpu" and POST_RX in found.text for found in failed)
    down = [found for found in failed if found.check == "gpu.nvlink" and LINKS_UP in found.text]
    if not (stuck and down):
        return list(findings)
    graver = {id(found) for found in down if found.suggestion.weight < Suggestion.REBOOT.weight}
    return [
        replace(
            found,
            text=f"{found.text}; the driver cannot detect them ({POST_RX}), reboot",
            suggestion=Suggestion.REBOOT,
        )
        if id(found) in graver
        else found
        for found in findings
    ]
