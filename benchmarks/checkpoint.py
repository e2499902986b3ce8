"""What a checkpoint costs (waiting steps, restore, copy to a peer, storage), beside the alternatives."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from benchmarks import checkpoint_blocking, checkpoint_peer, checkpoint_restore, common, contenders
from benchmarks.checkpoint_report import Part
from benchmarks.checkpoint_runs import touch_memory
from benchmarks.scratch import cleanly

# A training with its gradients, what contenders keep of it, and what they stage in between.
MEMORY_OF_STATE = 6


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all parts in turn; 0 when every aim was met."""
    options = _parse(argv)
    console, machine = common.console(), common.machine()
    if problem := contenders.install_nvrx():
        console.print(f"[yellow]NVRx cannot be installed:[/] {problem}")
    touch_memory(MEMORY_OF_STATE * max(*options.sizes, options.size) * 10**6)
    parts: dict[str, Part] = {}
    try:
        for name, measure in _parts(options, console).items():
            parts[name] = measure()
            parts[name].show(console)
    finally:
        # Also what was measured until something failed: it took minutes.
        facts = {name: part.as_facts() for name, part in parts.items()}
        path = common.write("checkpoint", {"machine": machine, "parts": facts})
        console.print(f"every sample is in {path}")
    aims = [aim for part in parts.values() for aim in part.aims]
    console.print(f"{sum(aim.met for aim in aims)} of {len(aims)} aims met")
    return 0 if all(aim.met for aim in aims) else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.parser(__doc__, reps=5)
    sizes = "100,500,1000"
    parser.add_argument(
        "--sizes",
        type=_sizes,
        default=sizes,
        metavar="MB,...",
        help=f"states for blocking (default: {sizes})",
    )
    parser.add_argument(
        "--size", type=int, default=1000, metavar="MB", help="state for the rest (default: 1000)"
    )
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts: {','.join(PARTS)} (default: all)")
    parser.add_argument("--contender", default="", help="part of the name of those measured beside ours")
    parser.add_argument("--no-sandbox", action="store_true", help="peer copies over loopback, without root")
    options = parser.parse_args(argv)
    options.only = options.only.split(",")
    if unknown := [name for name in options.only if name not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are: {', '.join(PARTS)}")
    return options


def _sizes(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


PARTS = ("blocking", "restore", "peer", "storage", "gpu")


def _parts(options: argparse.Namespace, console: Console) -> dict[str, Callable[[], Part]]:
    o = options
    found: dict[str, Callable[[], Part]] = {
        "blocking": lambda: checkpoint_blocking.measure(o.sizes, o.reps, o.contender, console),
        "restore": lambda: checkpoint_restore.from_memory(o.size, o.reps, console),
        "peer": lambda: checkpoint_peer.measure(o.size, o.reps, console, sandboxed=not o.no_sandbox),
        "storage": lambda: checkpoint_restore.storage(o.size, o.reps, console),
        "gpu": lambda: checkpoint_blocking.on_gpu(o.size, o.reps, console),
    }
    return {name: found[name] for name in o.only}


if __name__ == "__main__":
    sys.exit(cleanly(main))
