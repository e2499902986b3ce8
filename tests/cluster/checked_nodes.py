"""A real cluster whose nodes are looked at every few seconds, with faults that are lines in files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from slurm_robust.sandbox import Sandbox
from tests.cluster.installed_hooks import fill
from tests.waiting import wait_for

FAULTS = "/run/srobust-faults"  # each node has its own /run
STATE = "/run/srobust-state"
LOG = "/run/srobust-events.jsonl"
INTERVAL_S = 5
PATIENCE_S = 60.0
# Both checks of the site are this program: bad, hanging or good as the file with the check's name says.
CHECK = f"""#!/bin/sh
read -r fault < {FAULTS}-$1 2>/dev/null
case $fault in
    hang) sleep 600 ;;
    '') echo "$1 works" ;;
    *) echo "$1 $fault"; exit 2 ;;
esac
"""
# The core is looked at closely only: when a job suspected the node, and in quarantine.
CONFIG = f"""
drain: {{mode: act, max_share: 1.0, max_per_hour: 100, most_per_day: 100, pass_runs: 2}}
hooks: {{prolog_s: 8, epilog_s: 15, periodic_s: 15, slurm_s: 4}}
paths: {{state: {STATE}, log: {LOG}, syslog: false}}
site_checks:
  - {{name: fan, command: [HERE/check, fan], contexts: [periodic, deep], suggestion: replace}}
  - {{name: core, command: [HERE/check, core], contexts: [deep], timeout_s: 60, suggestion: reset}}
checks:
  "*": {{suggestion: monitor}}
  site.fan: {{suggestion: replace}}
  site.core: {{suggestion: reset}}
"""


def install(folder: Path) -> None:
    """The hooks as an installation has them, with a configuration in ``folder``."""
    fill(folder, CONFIG, check=CHECK)


def configure(folder: Path, **drain: object) -> None:
    """Write the configuration, with other values in its section ``drain``."""
    text = CONFIG.replace("HERE", str(folder))
    for key, value in drain.items():
        text, count = re.subn(rf"\b{key}: [^,}}]+", f"{key}: {value}", text)
        assert count == 1, key
    beside = folder / "config.new"
    beside.write_text(text)
    beside.replace(folder / "config.yaml")


def slurm_conf(folder: Path) -> tuple[str, ...]:
    """Lines of slurm.conf that name the hooks."""
    return (
        f"Epilog={folder}/epilog.sh",
        f"HealthCheckProgram={folder}/healthcheck.sh",
        f"HealthCheckInterval={INTERVAL_S}",
        "HealthCheckNodeState=ANY",
    )


class CheckedNodes:
    """The nodes of a sandbox with these hooks."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.names = sandbox.config.node_names

    def root(self, node: str, script: str) -> str:
        """Run a script as root on a node."""
        return self.sandbox.exec(["sh", "-c", script], node=node, user="root", timeout_s=60.0).stdout

    def clean(self) -> None:
        """No faults, no memory of any, all nodes in service."""
        for node in self.names:
            self.root(node, f"rm -rf {FAULTS}-* {STATE} {LOG}; : > {LOG}")
        self.sandbox.exec(["scontrol", "update", "nodename=ALL", "state=resume"], user="root", check=False)
        self.sandbox.wait_idle()

    def hurt(self, node: str, part: str, how: str = "is broken") -> None:
        """Plant a fault."""
        self.root(node, f"echo '{how}' > {FAULTS}-{part}")

    def heal(self, node: str, part: str) -> None:
        """Take it away."""
        self.root(node, f"rm -f {FAULTS}-{part}")

    def states(self) -> dict[str, tuple[str, str]]:
        """State and reason of every node, in sinfo's words."""
        done = self.sandbox.exec(["sinfo", "-h", "-N", "-o", "%N|%T|%E"], user="root", timeout_s=30.0)
        lines = (line.split("|", 2) for line in done.stdout.splitlines())
        return {name: (state.strip(), reason.strip()) for name, state, reason in lines}

    def drained(self) -> dict[str, str]:
        """Reasons of the nodes that are drained."""
        return {n: reason for n, (state, reason) in self.states().items() if state.startswith("drain")}

    def wait_drained(self, *nodes: str, reason: str | None = None) -> None:
        """Wait until exactly these nodes are drained (with this reason), and no job is there any more."""
        expected = set(nodes)

        def as_expected() -> bool:
            drained, states = self.drained(), self.states()
            rest = {states[node][0] for node in drained}  # draining: a job ends still; *: does not respond
            are = set(drained) == expected and rest == {"drained"}
            return are and (reason is None or set(drained.values()) == {reason})

        try:
            wait_for(as_expected, PATIENCE_S, f"{nodes} drained")
        except AssertionError as error:
            seen = {node: self.events(node)[-8:] for node in nodes}
            raise AssertionError(f"{error}; {self.states()}; {json.dumps(seen, indent=1)}") from None

    def events(self, node: str, *kinds: str) -> list[dict[str, Any]]:
        """Events in a node's own log."""
        lines = self.root(node, f"cat {LOG} 2>/dev/null || true").splitlines()
        events = [json.loads(line) for line in lines]
        return [event for event in events if not kinds or event["event"] in kinds]

    def runs(self, node: str) -> int:
        """How many periodic runs there have been."""
        return sum(event["hook"] == "periodic" for event in self.events(node, "run"))
