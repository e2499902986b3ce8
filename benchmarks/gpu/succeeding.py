"""What the next generation's worker does first: a context, as much memory as before, one kernel."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

_PATIENCE_S = 60.0


def main() -> None:
    """Say in ``--said`` when each was there; a real training would end at its first failed allocation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", required=True, help="cpu or cuda")
    parser.add_argument("--device-gb", type=float, required=True)
    parser.add_argument("--said", type=Path, required=True)
    options = parser.parse_args()
    begun = time.monotonic()
    device = torch.device(options.device)
    held = [torch.ones(1, device=device)]
    said: dict[str, object] = {"context_s": time.monotonic() - begun}
    if device.type == "cuda":
        said["free_gb_at_first"] = torch.cuda.mem_get_info()[0] / 1e9
    failed = 0
    while len(held) <= int(options.device_gb / 0.4) and time.monotonic() - begun < _PATIENCE_S:
        try:
            held.append(torch.ones(10**8, device=device))
        except torch.OutOfMemoryError:
            failed += 1
            torch.cuda.empty_cache()
            time.sleep(0.05)
    said["allocated_s"] = time.monotonic() - begun
    float((held[0] + 1).sum())
    said |= {"first_kernel_s": time.monotonic() - begun, "failed_allocations": failed}
    options.said.write_text(json.dumps(said))


if __name__ == "__main__":
    main()
