"""Ranks and hosts that a message names as those that did not come, or have gone. Pure.

The one place that reads names: a message of one rank about another one points at the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from slurm_robust.analysis.logs.text import Line
from slurm_robust.util.hostlist import expand

_LIST = r"\[?\(?(?P<ranks>\d{1,7}(?:\s*(?:,|and)\s*\d{1,7}){0,400})"

# torch's checkpoints and stores, gloo's monitoredBarrier(), c10d's desync report and set-up of NCCL,
# Horovod's stall inspector, JAX's coordination service, vLLM's workers.
_RANKS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"CheckpointException\W{{0,3}}ranks:\s?dict_keys\({_LIST}",
        rf"(?:missing|absent|silent|lost|dead|failed|hung|stuck|unresponsive|lagging|late)[_ ]ranks?"
        rf"\W{{1,4}}{_LIST}",
        rf"(?:wait(?:ing|ed)?|timed out|no (?:answer|response|heartbeat|reply)|not heard) (?:for|on|from)"
        rf"(?: \w+)? ranks?\W{{1,3}}{_LIST}",
        rf"\branks?(?:\(s\))? {_LIST}\]? failed to pass monitoredBarrier",
        rf"\branks? {_LIST}\]? (?:are|is) the (?:lagging|dead|missing)",
        rf"\branks?(?:\(s\))?[ :]{{1,2}}{_LIST}\]?\)? (?:has |have |is |are |was |were )?(?:been )?"
        r"(?:died|dead|exited|crashed|missing|lost|silent|unresponsive|hung|stuck|not responding|unreachable"
        r"|did(?: not|n't) (?:join|respond|reach|enter|report|arrive)"
        r"|never (?:joined|arrived|reached|entered)"
        r"|(?:has|have) not (?:joined|reached|entered|arrived|reported))",
        r"\[(?P<ranks>\d{1,7})\] (?:finished collective #\d+, but didn't join|joined but didn't finish)",
        r"retrieving ncclUniqueId from \[(?P<ranks>\d{1,7})\]",
        r"possible application crash on rank (?P<ranks>\d{1,7})",
        r"/job:\w{1,40}/(?:replica:\d+/)?task:(?P<ranks>\d{1,7})",
        r"^(?P<ranks>\d{1,7}): \[(?:allreduce|allgather|broadcast|alltoall|reducescatter|barrier)\b",
        r"\bVllmWorker-(?P<ranks>\d{1,5}) died",
    )
]
_OTHER_COLLECTIVE = re.compile(r"collectives? on ranks?\..{0,2000}\bbut Rank (\d{1,9}) is running", re.DOTALL)

_HINT = re.compile(r"rank|ncclUniqueId|task:|VllmWorker|collective|: \[", re.IGNORECASE)

_HOST = r"(?P<host>(?:\d{1,3}\.){3}\d{1,3}|\[[0-9a-f:]{4,40}\]|[a-z][\w-]{0,62}(?:\.[a-z][\w-]{0,62}){0,6})"
_HOSTS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\bnode (?:ip|name|address)\W{{1,3}}{_HOST}",
        rf"\band (?:address|ip): {_HOST}",
        rf"\bcompletion from peer {_HOST}",
        rf"\bclosed by (?:remote )?peer \[?{_HOST}",
        rf"\bRead error \[{_HOST}",
        rf"\b(?:connect(?:ion)? to|trying to connect to) \(?\[?{_HOST}[\]<:, ]",
        rf"\bCall to (?:recv|send)\w* (?:from|to) {_HOST}<",
    )
]

# Hosts that have failed as a whole, as Slurm and Ray tell it; Slurm's may be lists of hosts.
_HOSTLIST = r"(?P<hosts>[a-z][\w.-]{0,62}(?:\[[\d,-]{1,400}\][\w.-]{0,62})?(?:,[a-z][\w.\[\],-]{0,400})?)"
_GONE = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\bNode failure on {_HOSTLIST}",
        rf"\bon (?:failed|DOWN|dead) nodes? {_HOSTLIST}",
        rf"\bdue to failure of nodes? {_HOSTLIST}",
        rf"(?<!\w)Nodes? (?!(?:failure|ip|name|address|id|is|was|has|with|the)\b){_HOSTLIST} "
        r"(?:now )?(?:is |has |was |have |are )?"
        r"(?:DOWN|not responding|unexpectedly rebooted|failed|been lost|lost)\b",
        r"\bnode with .{0,80}(?:address|ip): (?P<hosts>[\w.-]{3,63})\b.{0,80}\bmarked dead",
    )
]
_NUMBER = re.compile(r"\d+")

# Whose error a line tells: torch's label in front of it, and what torch's checkpoints print above the
# tracebacks of other ranks. torchrun's own label, [default3], has the rank on its node.
_LABEL = re.compile(r"\[rank ?(\d{1,7})\]:", re.IGNORECASE)
_ABOVE = re.compile(
    r"\((?:RANK|rank) (?P<ranks>\d{1,7})\)|\bTraceback (?:of|from|on) rank (?P<others>\d{1,7})"
)
_HEAD = "Traceback (most recent call last)"
_SPAN = 100
"""The most lines of a traceback that another rank prints."""

# NCCL's lines begin with HOST:PID:TID, messages of slurmstepd with its host.
_OWN_HOST = re.compile(
    r"(?:^|[\s\]])([a-z0-9][\w.-]{0,62}):\d{1,8}:\d{1,8} \[\d{1,3}\] |\bslurmstepd-([\w-]{1,63}):"
)
_HOST_HINTS = (" NCCL ", "slurmstepd-")


# What c10d's watchdog and its flight recorder tell of a process group: "last enqueued work: 5514".
_ENQUEUED = re.compile(r"\bLast enqueued (?:NCCL )?work: (\d{1,12})", re.IGNORECASE)
_GROUP = re.compile(r"\bPG (?:ID|GUID) (\w{1,40})")


def enqueued(lines: Iterable[Line]) -> dict[str, int]:
    """Return the number of the last collective that a rank has begun, by process group."""
    found = ((line.text, _ENQUEUED.search(line.text)) for line in lines if "nqueued" in line.text)
    groups = ((_GROUP.search(text), number) for text, number in found if number)
    return {group[1] if group else "": int(number[1]) for group, number in groups}


def ranks_in(text: str) -> tuple[int, ...]:
    """Return the ranks that a line names, in order; () without any."""
    if not _HINT.search(text):
        return ()
    found = (match for pattern in _RANKS for match in pattern.finditer(text))
    return tuple(dict.fromkeys(int(number) for match in found for number in _NUMBER.findall(match["ranks"])))


def ranks_of(texts: Iterable[str]) -> tuple[int, ...]:
    """Return the ranks that most of the lines which name any agree on, in order."""
    counts = Counter(rank for text in texts for rank in ranks_in(text))
    most = max(counts.values(), default=0)
    return tuple(rank for rank, count in counts.items() if count == most)


def in_another_collective(text: str) -> str | None:
    """Return the rank that c10d compares the printing one with; most of several name the one that differs."""
    found = _OTHER_COLLECTIVE.search(text)
    return found[1] if found else None


def told_of(lines: Sequence[Line], at: int) -> tuple[int, ...]:
    """Return the ranks whose error the line tells, by its label or by what stands above; () for none."""
    label = _LABEL.match(lines[at].text.lstrip())
    for index in range(at, max(-1, at - _SPAN), -1):
        text = lines[index].text
        if found := _ABOVE.search(text):
            return (int(found["ranks"] or found["others"]),)
        if "CheckpointException" in text and (ranks := ranks_in(text)):
            return ranks
        if _HEAD in text:
            break
    return (int(label[1]),) if label else ()


def own_host(text: str) -> str:
    """Return the host that wrote a log, if its lines tell it; else empty."""
    for hint in _HOST_HINTS:
        at = text.find(hint)
        begin = max(0, text.rfind("\n", 0, at))
        if at >= 0 and (found := _OWN_HOST.search(text, begin, at + 80)):
            return found[1] or found[2]
    return ""


def hosts_gone(text: str) -> tuple[str, ...]:
    """Return the hosts of which a line says that they have failed as a whole, in order; () without any."""
    found = (match["hosts"] for pattern in _GONE for match in pattern.finditer(text))
    return tuple(dict.fromkeys(host for hosts in found for host in _expanded(hosts)))


def _expanded(hosts: str) -> tuple[str, ...]:
    try:
        return expand(hosts.rstrip(".,"))
    except ValueError:
        return ()


def hosts_in(text: str) -> tuple[str, ...]:
    """Return addresses and names of hosts that a line names as gone or silent, in order; () without any."""
    found = (match["host"].strip("[]") for pattern in _HOSTS for match in pattern.finditer(text))
    return tuple(dict.fromkeys((*hosts_gone(text), *found)))
