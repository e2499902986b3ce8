"""How soon ``srobust-node watch`` sees a fault, beside what ByteRobust reports (arXiv 2509.16293, table 3).

One node of a sandbox with stand-in GPUs and a link of its own; each fault is planted at a random moment, and
the clock stops when the node's event log has it.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import yaml

from benchmarks import common
from benchmarks.samples import Summary
from slurm_robust.sandbox import Sandbox
from tests.cluster import network_link

REPS = 5
SEEN_S = 60.0
NODE, GPU = "n1", 3
# The time of the paper's inspection, seconds; ours has to be at most half of it.
PAPER = {"GPU lost": 10.0, "GPU driver hangs": 10.0, "link down": 30.0, "kernel fault": 2.0}
AIM = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write build/bench/detection.json."""
    options = common.parser(__doc__, REPS).parse_args(argv)
    machine = common.machine()
    with common.boot("detection", nodes=1, gpus_per_node=8) as sandbox, watched(sandbox) as node:
        samples = {name: [node.seen_after(name, n) for n in range(options.reps)] for name in PAPER}
    summaries = {name: Summary.of(seconds) for name, seconds in samples.items()}
    facts = {"machine": machine, "samples": samples, "paper": PAPER}
    path = common.write("detection", {**facts, "summary": {n: asdict(s) for n, s in summaries.items()}})
    title = f"Seconds until a fault is in the event log: median (range), n={options.reps}"
    table = common.table(title, "", "watch", "paper", "watch / paper", f"aim ≤ {AIM}")
    for name, found in summaries.items():
        ratio = found.median / PAPER[name]
        met = "met" if ratio <= AIM else "MISSED"
        table.add_row(name, found.text(2), f"{PAPER[name]:g}", f"{ratio:.2f}", met)
    common.console().print(table)
    print(f"written to {path}", file=sys.stderr)
    return 0


class Node:
    """The watched node: what breaks it, what mends it, and what it says."""

    def __init__(self, sandbox: Sandbox, log: Path) -> None:
        self._sandbox = sandbox
        self._log = log
        self._random = random.Random(1)
        self._bus = 0x10

    def seen_after(self, fault: str, number: int) -> float:
        """Seconds from the fault until the log tells of a failure of its check."""
        check, plant, mend = self._fault(fault)
        time.sleep(self._random.uniform(0.0, 3.0))  # any moment between two looks
        before = len(self.events())
        begun = time.monotonic()
        plant()
        took = self._wait(lambda: self._tells(check, before), begun, f"{fault} was not seen")
        mend()
        before = len(self.events())
        # The next fault begins with a node that is well again, and is known to be.
        self._wait(lambda: self._well(check, before), time.monotonic(), f"{fault} did not end")
        return took

    def events(self) -> list[dict[str, object]]:
        """What the node has written so far."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [json.loads(line) for line in lines]

    def _fault(self, name: str) -> tuple[str, Callable[[], object], Callable[[], object]]:
        gpus = self._sandbox.gpus(NODE)
        self._bus += 1
        address = f"0000:{self._bus:02x}:00"
        xid = f"NVRM: Xid (PCI:{address}): 79, pid=1, name=python, GPU has fallen off the bus."
        return {
            "GPU lost": ("gpu.lost", lambda: gpus.set(GPU, lost=True), gpus.reset),
            "GPU driver hangs": ("gpu.lost", lambda: gpus.driver(hang=True), gpus.reset),
            "link down": ("ethernet.state", lambda: self._link("down"), lambda: self._link("up")),
            "kernel fault": (
                "kernel.xid",
                lambda: self._kernel(xid),
                lambda: self._kernel(f"slurm-robust: reset {address}"),
            ),
        }[name]

    def _link(self, state: str) -> None:
        network_link.far_end(self._sandbox, NODE, state)

    def _kernel(self, text: str) -> None:
        Path("/dev/kmsg").write_text(f"<3>{text}\n")

    def _tells(self, check: str, before: int) -> bool:
        return any(check in _failing(event) for event in self.events()[before:])

    def _well(self, check: str, before: int) -> bool:
        runs = [event for event in self.events()[before:] if event["event"] == "run"]
        return bool(runs) and check not in _failing(runs[-1])

    def _wait(self, condition: Callable[[], bool], begun: float, words: str) -> float:
        common.wait_for(condition, SEEN_S, words, every_s=0.005)
        return time.monotonic() - begun


def _failing(event: dict[str, object]) -> set[str]:
    found = [*event.get("causes", ()), *event.get("warnings", ())]  # type: ignore[misc]
    return {finding["check"] for finding in found}


@contextmanager
def watched(sandbox: Sandbox) -> Iterator[Node]:
    """A node with a link of its own, and the watch running on it since it has seen everything once."""
    folder = common.OUT / f"detection-{sandbox.folder.name}"
    folder.mkdir(parents=True)
    log = folder / "events.jsonl"
    config = {
        "paths": {"state": "/run/state", "log": str(log), "runtime": "/run/watch", "syslog": False},
        "network": {"ethernet": [network_link.LINK]},
        "kernel": {"injected": True},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    words = ["srobust-node", "watch", "--config", str(folder / "config.yaml")]
    program = Path(sys.executable).with_name(words[0])
    network_link.add(sandbox, NODE)
    start = f"setsid {program} {' '.join(words[1:])} > {folder}/output 2>&1 < /dev/null &"
    try:
        sandbox.exec(["sh", "-c", start], node=NODE, user="root")
        node = Node(sandbox, log)
        common.wait_for(lambda: bool(node.events()), SEEN_S, f"the watch does not start: see {folder}")
        yield node
        shutil.rmtree(folder)  # after a failure it is worth a look
    finally:
        sandbox.exec(["pkill", "-f", "srobust-node watch"], node=NODE, user="root", check=False)


if __name__ == "__main__":
    sys.exit(main())
