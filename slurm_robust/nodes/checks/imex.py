"""IMEX: the daemon over which processes on several nodes share memory of GPUs (NVLink from node to node).

Words and output are those of NVIDIA's IMEX guide (*IMEX Service Command Service*, 2025), of DCGM's header for
its fields ``DCGM_FI_IMEX_DAEMON_STATUS`` and ``DCGM_FI_IMEX_DOMAIN_STATUS`` (4.3), and of outputs in AWS's
guide for P6e (drivers 570). Not tried on such a machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion, Writer
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import (
    ENVIRON,
    SETTLED_S,
    AnyCheck,
    Check,
    CheckContext,
    Probe,
    Source,
    View,
    judged,
)
from slurm_robust.nodes.counters import HOUR_S, lasts

NAME = "gpu.imex"
PROGRAM = "/usr/bin/nvidia-imex-ctl"
SERVICES = tuple(
    f"/sys/fs/cgroup/{place}system.slice/nvidia-imex.service/cgroup.procs" for place in ("", "systemd/")
)
"""Its processes, in version 2 and 1. If none runs, it is not asked: some sites start it by job."""

READY, UP = "READY", "UP"

_OWN = frozenset(("INITIALIZING", "STARTING_AUTH_SERVER", "INIT_GPU", "SHUTTING_DOWN"))
"""States in which the daemon waits for no other node; in all others the cause may be on another node."""

_ANSWER_S, _DOMAIN_S = 2.0, 4.0
# As text: re compiles them when they are first needed.
_WORD = r"(?m)^[A-Z][A-Z_]{3,30}$"
_DOMAIN = r"(?m)^Domain State: *([A-Z_ ]{2,30})$"
_NODE = r"(?m)^Node #\d+ +- [ *]*(\S+) +- +([A-Z_]+)"


class ImexFacts(Record):
    """What the daemon of this node says."""

    runs: bool = False
    """Whether there is a service, and a program to ask it."""

    state: str = ""
    """The daemon's state; empty if it gave no answer."""

    domain: str = ""
    """The state of all nodes of the domain; empty if it was not told in time."""

    unready: tuple[str, ...] = ()
    """Addresses of nodes of the domain that are not ready, with their state; a few."""


def gather(host: Host, config: NodeConfig) -> ImexFacts:
    """Ask the daemon, then those of its domain. An answer that does not come is no fact."""
    if not any(map(host.read_or, SERVICES)) or not host.path(PROGRAM).exists():
        return ImexFacts()
    states = re.findall(_WORD, _answer(host, "-q", _ANSWER_S))
    said = _answer(host, "-N", _DOMAIN_S) if states[-1:] == [READY] else ""
    domain = re.findall(_DOMAIN, said)
    nodes = [f"{address} {state}" for address, state in re.findall(_NODE, said) if state != READY]
    return ImexFacts(
        runs=True,
        state=states[-1] if states else "",
        domain=domain[-1].strip() if domain else "",
        unready=tuple(nodes[:4]),
    )


def _answer(host: Host, option: str, limit_s: float) -> str:
    """Return its output; "" if it does not come in time. Raises ``OSError`` if it cannot be run."""
    # Slow to import, and most nodes have no such program.
    from slurm_robust.util.program import run_program

    found = run_program(
        [str(host.path(PROGRAM)), option],
        limit_s=limit_s,
        max_bytes=2**16,
        env=ENVIRON,
        own_session=False,  # sources are killed with their group
    )
    return "" if found.code is None else found.output.decode(errors="replace")


def judge(view: View[ImexFacts], config: NodeConfig) -> Iterator[Finding]:
    """Judge the daemon and its domain as ready, unless all runs of 15 minutes saw something else."""
    facts = view.facts
    if not facts.runs:
        return
    about = partial(judged, NAME, limit=f"{READY}, domain {UP}", source=PROGRAM)
    value = f"{facts.state or 'no answer'}, domain {facts.domain or 'not told'}"
    is_ready = facts.state == READY
    if is_ready and facts.domain in ("", UP):
        yield about("", value=value)
        return
    lasting = lasts(view, lambda old: old.runs and _is_amiss(old, facts))
    if lasting < SETTLED_S or not facts.state:
        text = "nvidia-imex does not answer" if not facts.state else "IMEX is being initialised"
        young = Finding(check=NAME, outcome=Outcome.UNKNOWN, text=text, value=value, source=PROGRAM)
        yield about("", value=value) if is_ready else young
        return
    word = f"domain is {facts.domain}" if is_ready else f"is {facts.state}"
    bad = f"IMEX {word} for {int(lasting) // 60} minutes: CUDA allocations across nodes will fail; "
    is_own = facts.state in _OWN
    bad += "restart nvidia-imex" if is_own else f"see to {', '.join(facts.unready) or 'the other nodes'}"
    suggestion = Suggestion.RESET if is_own else Suggestion.MONITOR
    yield about(bad, value=value, suggestion=suggestion, blame=Party.SITE if is_own else Party.FABRIC)


def _is_amiss(old: ImexFacts, now: ImexFacts) -> bool:
    """Return whether it was not ready then either, by its own doing or that of others as now."""
    if now.state == READY:
        return old.state == READY and old.domain not in ("", UP)
    return old.state not in ("", READY) and (old.state in _OWN) == (now.state in _OWN)


SOURCE = Source(
    "imex", ImexFacts, gather, timeout_s=_ANSWER_S + _DOMAIN_S + 1, fresh_s=60.0, history_s=HOUR_S
)

CHECKS: tuple[AnyCheck, ...] = (
    Check(
        NAME,
        SOURCE,
        judge,
        "Where the service nvidia-imex runs, it is READY and its domain UP (nvidia-imex-ctl -q and -N). A "
        "daemon that is stuck on its way there for 15 minutes must be restarted, and its log read "
        "(/var/log/nvidia-imex.log). One that waits for peers, or a domain that is DEGRADED, is reported: "
        "the node named may be the only one with a fault, and jobs of one node still run.",
        written_by=Writer.DRIVER,
        contexts=frozenset((CheckContext.PERIODIC, CheckContext.DEEP, CheckContext.PERSON)),
        probe=Probe.NODE,
    ),
)
