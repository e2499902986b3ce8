"""Ranks and hosts that a message names as those that did not come, or have gone. Pure.

The one place that reads names: a message of one rank about another one points at the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

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
        rf"\bNode failure on {_HOST}",
    )
]
_NUMBER = re.compile(r"\d+")


def ranks_in(text: str) -> tuple[int, ...]:
    """The ranks that a line names, in order; () without any."""
    if not _HINT.search(text):
        return ()
    found = (match for pattern in _RANKS for match in pattern.finditer(text))
    return tuple(dict.fromkeys(int(number) for match in found for number in _NUMBER.findall(match["ranks"])))


def ranks_of(texts: Iterable[str]) -> tuple[int, ...]:
    """The ranks that most of the lines which name any agree on, in order."""
    counts = Counter(rank for text in texts for rank in ranks_in(text))
    most = max(counts.values(), default=0)
    return tuple(rank for rank, count in counts.items() if count == most)


def in_another_collective(text: str) -> str | None:
    """The rank that c10d compares the printing one with; of several ranks most name the one that differs."""
    found = _OTHER_COLLECTIVE.search(text)
    return found[1] if found else None


def hosts_in(text: str) -> tuple[str, ...]:
    """Addresses and names of hosts that a line names as gone or silent, in order; () without any."""
    found = (match["host"].strip("[]") for pattern in _HOSTS for match in pattern.finditer(text))
    return tuple(dict.fromkeys(found))
