"""NVIDIA's messages in the kernel log, XIDs of GPUs and SXids of NVSwitches, and what they mean. Pure.

A user chooses names of processes, which the driver puts into its lines (15 characters at most). So the codes
are read from the beginning of a line, before any name, and phrases that decide are taken from its end.

What each code means is in :mod:`.catalog`; what a line says beyond its code is here.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from slurm_robust.kernel.kmsg import KernelEvent
from slurm_robust.kernel.recovery import Recovery, recovery
from slurm_robust.model.findings import Suggestion

if TYPE_CHECKING:
    from slurm_robust.kernel.catalog import XidRule


class XidSeverity(str, Enum):
    """What a line says beyond its code; which values there are depends on the code."""

    PLAIN = ""
    FATAL = "fatal"
    NON_FATAL = "non-fatal"
    IGNORED = "to be ignored"
    """Only bits of an NVLink error that NVIDIA says to ignore, or that follow another error."""

    ELSEWHERE = "fatal elsewhere"
    """A link that went down because of the device at its other end, or on purpose."""

    NONE = "none"
    RESET = "reset"
    REBOOT = "reboot"
    RECOVER_IMEX = "recover the IMEX domain"
    UNKNOWN = "unknown"


XID, SXID = "xid", "sxid"

STOPPED = 43
"""A channel of a program that has failed otherwise."""

FELL_OFF = 79
RECOVERY_ACTION = 154
LINK_ERRORS = range(144, 151)
"""NVLink 5: the line says how severe it is."""

# Strings and not compiled: most nodes never log such a line, and hooks must start fast.
_ADDRESS = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?"
_XID = rf"(?s)NVRM: Xid \((?:PCI:)?{_ADDRESS}(?: GPU-I:\d+)?\): (\d{{1,5}})\b,? ?(.*)"
_SXID = rf"(?si)nvidia-nvswitch\d*: SXid \((?:PCI:)?{_ADDRESS}\): (\d{{1,6}}), (Fatal|Non-fatal)\b"
_FELL_OFF = rf"(?s)NVRM: (?:The NVIDIA GPU |GPU (?:at )?(?:PCI:)?){_ADDRESS}.{{0,200}}?fallen off the bus"
_BEGUN = rf"NVRM: The NVIDIA GPU {_ADDRESS}"
FELL_OFF_END = "NVRM: fallen off the bus"
"""How the last message begins if the driver tells in several that a GPU fell off the bus."""

_PROCESS = r"(?s)pid='?(\d{1,10}|<unknown>)'?(?:,(?: name=(.{0,20}?),)?| |$)"
_PLAIN = r"[^\w.:+-]"
_CAUSE = r"(?s).*caused by previous Xid (\d{1,5})\s*$"
_RECOVERY = r"(?si).*GPU recovery action changed from 0x[0-9a-f]+ \(.*?\) to 0x([0-9a-f]{1,8})\b"
# Unit and severity, then the lane, the instance and the link: "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x…".
_LINK_SEVERITY = (
    r"(?si).*\s(Fatal|Non-?fatal)\b[\s*?]{0,20}XC-?\d+\s+i-?\d+\s+Link\b[^(]{0,12}(?:\((0x[0-9a-f]{1,8})\b)?"
)
# Sub-codes of 149, bits 20 to 25 of its first word, for which the catalog says to investigate the peer device
# (21, 32 to 37), or to ignore the line (38: a user's doing, 40: follows from something else on the host).
_ELSEWHERE = (21, *range(32, 39), 40)
_NETIR = 149
_REGISTERS = r"(?si).*\((0x[0-9a-f]+(?:, ?0x[0-9a-f]+)+)\)"
# NVIDIA's workflow for XID 74 ignores bits 0, 23 and 30 of the first word; 1 and 20 follow other errors.
_HARMLESS_LINK_BITS = 1 << 0 | 1 << 1 | 1 << 20 | 1 << 23 | 1 << 30

# What may stand before the driver's text in logs that are not the kernel's own records.
_BEFORE = r"(?s).{0,120}?(?=NVRM: |nvidia-nvswitch\d*: SXid)"


def without_prefix(line: str) -> str:
    """Return the kernel's text in a line of dmesg, journalctl or syslog.

    Not for decisions about a node: users can write such lines.
    """
    before = re.match(_BEFORE, line)
    return line[before.end() :] if before else line


def parse(text: str) -> KernelEvent | None:
    """Return the XID of a kernel message, without its time; None if it is another message."""
    found = re.match(_XID, text)
    if found is None:
        gone = re.match(_FELL_OFF, text)
        return KernelEvent(shape=XID, subject=gone[1].lower(), code=FELL_OFF) if gone else None
    code, rest = int(found[2]), found[3]
    process = re.match(_PROCESS, rest)
    cause = re.match(_CAUSE, rest)
    names_one = process is not None and process[1].isdecimal()
    return KernelEvent(
        shape=XID,
        subject=found[1].lower(),
        code=code,
        severity=_severity(code, rest).value,
        pids=(int(process[1]),) if process and names_one and int(process[1]) else (),
        process=re.sub(_PLAIN, "", process[2] or "")[:15] if process and names_one else "",
        cause=int(cause[1]) if cause else 0,
    )


def parse_address(text: str) -> str:
    """Return the GPU of the first of several messages that tell one thing; empty for any other message."""
    found = re.match(_BEGUN, text)
    return found[1].lower() if found else ""


def _severity(code: int, text: str) -> XidSeverity:
    if code == RECOVERY_ACTION:
        action = re.match(_RECOVERY, text)
        return _needed(recovery(int(action[1], 16))) if action else XidSeverity.PLAIN
    if code == 74:
        registers = re.match(_REGISTERS, text)
        first, *others = (int(word, 16) for word in registers[1].split(",")) if registers else (0,)
        harmless = first and not first & ~_HARMLESS_LINK_BITS and not any(others)
        return XidSeverity.IGNORED if harmless else XidSeverity.PLAIN
    if code in LINK_ERRORS:
        named = re.match(_LINK_SEVERITY, text)
        if named:
            return _link_severity(code, named[1], int(named[2] or "0", 16))
    return XidSeverity.PLAIN


def _needed(wanted: Recovery) -> XidSeverity:
    """Return the severity of what the driver wants: all kinds of reset are one."""
    same = wanted.value in (Recovery.NONE.value, Recovery.RECOVER_IMEX.value, Recovery.UNKNOWN.value)
    return XidSeverity(wanted.value if same else wanted.suggestion.value)


def _link_severity(code: int, word: str, info: int) -> XidSeverity:
    if word.lower().startswith("non"):
        return XidSeverity.NON_FATAL
    return XidSeverity.ELSEWHERE if code == _NETIR and info >> 20 & 0x3F in _ELSEWHERE else XidSeverity.FATAL


def parse_switch(text: str) -> KernelEvent | None:
    """Return the SXid of a kernel message that says how severe it is; None for anything else."""
    found = re.match(_SXID, text)
    if found is None:
        return None
    severity = XidSeverity.FATAL if found[3].lower() == "fatal" else XidSeverity.NON_FATAL
    return KernelEvent(shape=SXID, subject=found[1].lower(), code=int(found[2]), severity=severity.value)


def rule(code: int, severity: str = XidSeverity.PLAIN.value) -> XidRule:
    """Return what an XID means for the node. An unknown code is worth attention and no more."""
    severity = XidSeverity(severity)
    # Here: most nodes never have an XID to judge.
    from slurm_robust.kernel import catalog

    known = catalog.RULES.get(code)
    if known is None:
        return catalog.unknown(code)
    if code == RECOVERY_ACTION:
        return _recovery(known, severity)
    if code in LINK_ERRORS and severity is XidSeverity.FATAL:
        return replace(known, meaning=f"fatal {known.meaning}")
    if code in LINK_ERRORS or severity in (XidSeverity.NON_FATAL, XidSeverity.IGNORED):
        meaning = ", ".join(filter(None, (known.meaning, severity.value)))
        return replace(known, meaning=meaning, suggestion=Suggestion.MONITOR)
    return known


def _recovery(known: XidRule, severity: XidSeverity) -> XidRule:
    """Return the rule for XID 154: the driver itself says what the GPU needs."""
    if severity is XidSeverity.PLAIN:
        return known
    wanted = Recovery(severity.value)
    asks = {
        XidSeverity.NONE: "the GPU needs nothing any more",
        XidSeverity.UNKNOWN: "the driver asks for something unknown: read its line",
        XidSeverity.RECOVER_IMEX: "the driver asks to recover the IMEX domain",
    }.get(severity, f"the driver asks for a {wanted.value}")
    return replace(known, meaning=asks, suggestion=wanted.suggestion)
