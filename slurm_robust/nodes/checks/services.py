"""Checks of the daemons that jobs need."""

from __future__ import annotations

import os
import struct
import time
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion, Writer
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import NOT_LIVE, AnyCheck, Check, Probe, Source, View
from slurm_robust.nodes.checks import processes
from slurm_robust.nodes.checks.processes import ProcessFacts
from slurm_robust.nodes.unixsockets import connections

# How programs and units call themselves, if the two differ.
_UNITS = {"munged": ("munge",), "nv-hostengine": ("nvidia-dcgm", "dcgm"), "nvidia-fabricmanager": ()}
_PROGRAMS = {"nvidia-fabricmanager": "nv-fabricmanager"}
# Without these no job runs as it should; others only make the node harder to look after.
_VITAL = frozenset(("munged", "slurmd", "nvidia-fabricmanager"))

# munge's protocol (m_msg.c of munge 0.5): magic, version, type, retry, length of the body.
_HEAD = struct.Struct("!IBBBI")
_MAGIC, _VERSION, _ENCODE, _ENCODED = 0x00606D4B, 4, 2, 3
# Default cipher, MAC and compression, no realm, default life, for any user and group, nothing to carry.
_REQUEST = struct.pack("!BBBBIIII", 1, 1, 1, 0, 0, 2**32 - 1, 2**32 - 1, 0)


FLOOD = 64
"""So many connections of ordinary users keep munged from taking another one, if it works at all."""


class MungeFacts(Record):
    """What munged did when it was asked for a credential."""

    state: Literal["absent", "works", "silent", "unclear"]
    detail: str = ""
    took_s: float = 0.0
    taken: bool = False
    """Whether a silent one has taken our connection."""

    holders: dict[int, int] = {}
    """How many connections a silent one holds of each ordinary user, by uid."""

    unnamed: int = 0
    """How many it holds whose owner the kernel does not tell."""

    known: bool = True
    """False if the kernel says nothing of all that."""

    @property
    def is_held(self) -> bool:
        """Whether ordinary users keep it busy: it takes connections, and waits for theirs to say something.

        A munged that hangs, or was stopped, takes none.
        """
        return self._is_busy(sum(self.holders.values()))

    @property
    def may_be_held(self) -> bool:
        """Whether that is so, or is not known."""
        return not self.known or self._is_busy(sum(self.holders.values()) + self.unnamed)

    def _is_busy(self, connections: int) -> bool:
        return connections > 0 and (self.taken or connections >= FLOOD)


def gather_munge(host: Host, config: NodeConfig) -> MungeFacts:
    """Ask as every Slurm command does: that the process is there does not mean that it works."""
    socket_path = host.path(config.services.munge_socket)
    if not socket_path.exists():
        return MungeFacts(state="absent")
    # Takes milliseconds to import, and this runs in a child process.
    import socket

    begun = time.monotonic()
    with socket.socket(socket.AF_UNIX) as munged:
        munged.settimeout(config.services.munge_s)
        try:
            munged.connect(str(socket_path))
            munged.sendall(_HEAD.pack(_MAGIC, _VERSION, _ENCODE, 0, len(_REQUEST)) + _REQUEST)
            answer = munged.recv(4096)
        except ConnectionRefusedError as error:
            return MungeFacts(state="silent", detail=error.strerror or "")  # No process listens.
        except (TimeoutError, ConnectionError, BlockingIOError) as error:
            return _silent(str(socket_path), os.fstat(munged.fileno()).st_ino, error.strerror, config)
    return _understood(answer, time.monotonic() - begun)


def _silent(path: str, own: int, detail: str | None, config: NodeConfig) -> MungeFacts:
    """Return who is connected while munged does not answer the connection ``own`` (an inode)."""
    try:
        found = connections(path)
    except OSError:
        return MungeFacts(state="silent", detail=detail or "no answer", known=False)
    owners = [uid for inode, uid in found.accepted.items() if inode != own]
    # Also the user nobody and the like, who are no ordinary users elsewhere.
    users = Counter(uid for uid in owners if uid is not None and uid >= config.memory.min_user_uid)
    return MungeFacts(
        state="silent",
        detail=detail or "no answer",
        taken=own in found.accepted and own not in found.pending,
        holders=dict(users),
        unnamed=owners.count(None),
    )


def _understood(answer: bytes, took_s: float) -> MungeFacts:
    """Return what the answer says. Version, type and error number decide; other versions may say more."""
    if not answer:
        return MungeFacts(state="silent", detail="closed the connection")
    if len(answer) < _HEAD.size + 1:
        return MungeFacts(state="unclear", detail="short answer")
    magic, version, kind, _, _ = _HEAD.unpack_from(answer)
    if (magic, version, kind) != (_MAGIC, _VERSION, _ENCODED):
        return MungeFacts(state="unclear", detail="answer in another version of the protocol")
    if error := answer[_HEAD.size]:
        return MungeFacts(state="unclear", detail=f"error {error}")
    return MungeFacts(state="works", took_s=took_s)


# munged itself is waited for no longer than munge_s: what takes longer than that is not munged's doing.
MUNGE_SOURCE = Source(name="munge", facts=MungeFacts, gather=gather_munge, timeout_s=30.0)


def judge_running(view: View[ProcessFacts], config: NodeConfig) -> Iterator[Finding]:
    """Yield one finding for each daemon that is named as required, or that systemd starts at boot."""
    limits = config.services
    if not view.facts.daemons:
        # Root sees its own at least; others may see only their own (/proc mounted with hidepid).
        yield Finding(check="services.running", outcome=Outcome.UNKNOWN, text="no daemon can be seen")
        return
    for name in dict.fromkeys((*limits.required, *limits.optional)):
        is_started = not view.facts.units.isdisjoint((name, *_UNITS.get(name, ())))
        if name not in limits.required and not is_started:
            continue
        runs = _PROGRAMS.get(name, name)[: processes.COMM] in view.facts.daemons
        is_vital = name in _VITAL or name in limits.required
        yield Finding(
            check="services.running",
            outcome=Outcome.PASS if runs else Outcome.FAIL,
            subject=name,
            text="" if runs else "does not run: start it and read its log",
            value="runs" if runs else "no such process",
            limit="runs (services.required)" if name in limits.required else "runs (enabled in systemd)",
            source="/proc/*/stat",
            blame=Party.SITE,
            suggestion=Suggestion.NONE if runs else Suggestion.RESET if is_vital else Suggestion.MONITOR,
        )


def judge_munge(view: View[MungeFacts], config: NodeConfig) -> Iterator[Finding]:
    """Judge whether munged makes credentials; nothing if it has no socket."""
    facts = view.facts
    if facts.state == "absent":
        return
    outcome = {"works": Outcome.PASS, "silent": Outcome.FAIL, "unclear": Outcome.UNKNOWN}[facts.state]
    text = {"works": "", "silent": f"munged makes no credential ({facts.detail}): restart it"}
    if facts.state == "silent" and facts.may_be_held:
        outcome = Outcome.UNKNOWN
        text["silent"] = (
            f"munged makes no credential ({facts.detail}), and the kernel does not tell whose connections it "
            "holds: end those of users (ss -xp), else restart it"
        )
    if facts.is_held:
        text["silent"] = f"munged waits for connections of {_holders(facts)}: end their processes (ss -xp)"
    yield Finding(
        check="services.munge",
        outcome=outcome,
        subject="munged",
        text=text.get(facts.state, f"munged: {facts.detail}"),
        value=f"credential in {facts.took_s * 1000:.0f} ms" if facts.state == "works" else facts.detail,
        limit=f"within {config.services.munge_s:g} s",
        source=config.services.munge_socket,
        blame=Party.JOB if facts.is_held else Party.SITE,
        suggestion=Suggestion.RESET if outcome is Outcome.FAIL else Suggestion.NONE,
    )


def _holders(facts: MungeFacts) -> str:
    most = sorted(facts.holders.items(), key=lambda holder: -holder[1])[:3]
    return ", ".join(f"uid {uid} ({count})" for uid, count in most)


CHECKS: tuple[AnyCheck, ...] = (
    Check(
        name="services.running",
        source=processes.SOURCE,
        judge=judge_running,
        written_by=Writer.ROOT,
        contexts=NOT_LIVE,
        probe=Probe.NODE,
        explain=(
            "Daemons that systemd starts at boot (of services.optional), and those that services.required "
            "names, as processes of root or a system user. Without munged, slurmd and, on nodes with "
            "NVSwitches, the fabric manager no job runs; others are worth a look. Start it again and read "
            "its log."
        ),
    ),
    Check(
        name="services.munge",
        source=MUNGE_SOURCE,
        judge=judge_munge,
        written_by=Writer.USER,
        contexts=NOT_LIVE,
        probe=Probe.NODE,
        explain=(
            "munged is asked for a credential, as every Slurm command does. One that runs but does not "
            "answer makes all of them hang: restart it; when it comes again, look at its entropy, its "
            "threads and the clock. While it waits for connections of ordinary users, who can keep it busy, "
            "nothing is known of it: end their processes."
        ),
    ),
)
