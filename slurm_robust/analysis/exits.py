"""Which of several failed workers failed first by cause.

When one rank dies, the others fail too: their collectives break. Clocks alone do not tell who was
first, because a rank killed by a signal is seen within a millisecond while an exception needs tens
of milliseconds to unwind. So exits are ordered by what they say first, and by time second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.incident import NodeExit

# What a rank says when another one has gone: gloo's and NCCL's words for a lost peer, and the
# stores'. Each was seen in a real log or stands in the libraries' sources.
_PEER = re.compile(
    r"connection (was )?(closed|reset|refused) by (remote )?peer"
    r"|connection (closed|reset|refused)"
    r"|connectFullMesh failed"
    r"|broken pipe"
    r"|timed out waiting \d+ms"
    r"|remote process exited|ncclRemoteError|ncclSystemError|unhandled system error"
    r"|NCCL communicator was aborted"
    r"|watchdog caught collective operation timeout"
    r"|socket ?timeout|recvValue failed|sendBytes failed|failed to recv"
    r"|Rank \d+ successfully reached monitoredBarrier",
    re.IGNORECASE,
)


def blames_peer(exit: WorkerExit) -> bool:
    """Whether this worker failed because another one, or the network to it, had gone."""
    if exit.error is not None:
        return bool(_PEER.search(exit.error.message))
    return exit.signal is None and any(_PEER.search(line) for line in exit.tail[-5:])


def root_exit(exits: Iterable[NodeExit]) -> NodeExit | None:
    """The failed exit that explains the others; None when no worker failed.

    A worker killed by a signal or stopped by an exception of its own comes before those that
    complain about a peer; among equals the earliest one (largest ``age_s``) wins.
    """
    failed = [e for e in exits if e.exit.failed]
    if not failed:
        return None
    return min(failed, key=lambda e: (blames_peer(e.exit), -e.exit.age_s, e.exit.rank))
