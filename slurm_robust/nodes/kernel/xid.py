"""NVIDIA's messages in the kernel log: XIDs of GPUs and SXids of NVSwitches. Pure.

A user chooses names of processes, which the driver puts into its lines (15 characters at most). So the codes
are read from the beginning of a line, before any name, and phrases that decide are taken from its end.
"""

from __future__ import annotations

import re
from enum import Enum

from msgspec.structs import replace

from slurm_robust.model.findings import Suggestion
from slurm_robust.model.record import Record
from slurm_robust.nodes.kernel.xidtable import RULES, XidRule


class Severity(str, Enum):
    """What a line says beyond its code; which values there are depends on the code."""

    PLAIN = ""
    FATAL = "fatal"
    NON_FATAL = "non-fatal"
    IGNORED = "to be ignored"
    """Only bits of an NVLink error that NVIDIA says to ignore, or that follow another error."""

    NONE = "none"
    RESET = "reset"
    REBOOT = "reboot"


class Xid(Record):
    """One line of the driver. ``address`` is the GPU's PCI address as ``0000:9b:00``, without function.

    ``pid`` is 0 where the line names no process. ``cause``: the earlier XID that this one follows, or 0.
    """

    address: str
    code: int
    severity: Severity = Severity.PLAIN
    pid: int = 0
    cause: int = 0
    instance: str = ""
    detail: str = ""


class SXid(Record):
    """One line of an NVSwitch's driver."""

    address: str
    code: int
    fatal: bool
    detail: str = ""


FELL_OFF = 79
RECOVERY_ACTION = 154
LINK_ERRORS = range(144, 151)
"""NVLink 5: the line says how severe it is."""

# Strings and not compiled: most nodes never log such a line, and hooks must start fast.
_ADDRESS = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?"
_XID = rf"(?s)NVRM: Xid \((?:PCI:)?{_ADDRESS}(?: (GPU-I:\d+))?\): (\d{{1,5}})\b,? ?(.*)"
_SXID = rf"(?si)nvidia-nvswitch\d*: SXid \((?:PCI:)?{_ADDRESS}\): (\d{{1,6}}), (Fatal|Non-fatal)\b,? ?(.*)"
_FELL_OFF = rf"(?s)NVRM: (?:The NVIDIA GPU |GPU (?:at )?(?:PCI:)?){_ADDRESS}.{{0,200}}?fallen off the bus"
_PROCESS = r"(?s)pid='?(\d+|<unknown>)'?,(?: name=.{0,20}?,)? ?"
_CAUSE = r"(?s).*caused by previous Xid (\d{1,5})\s*$"
_RECOVERY = r"(?s).*GPU recovery action changed from 0x[0-9a-f]+ \(.*?\) to 0x([0-9a-f]+)\b"
_RECOVERIES = {
    0: Severity.NONE,
    1: Severity.RESET,
    2: Severity.REBOOT,
    3: Severity.RESET,  # drain peer-to-peer traffic
    4: Severity.RESET,  # drain and reset
}
# Unit and severity, then the lane, the instance and the link: "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x…".
_LINK_SEVERITY = r"(?si).*\s(Fatal|Non-?fatal)\b.{0,3} XC\d+ i\d+ Link"
_REGISTERS = r"(?si).*\((0x[0-9a-f]+(?:, ?0x[0-9a-f]+)+)\)"
# NVIDIA's workflow for XID 74 ignores bits 0, 23 and 30 of the first word; 1 and 20 follow other errors.
_HARMLESS_LINK_BITS = 1 << 0 | 1 << 1 | 1 << 20 | 1 << 23 | 1 << 30

# What may stand before the driver's text in logs that are not the kernel's own records.
_BEFORE = r"(?s).{0,120}?(?=NVRM: |nvidia-nvswitch\d*: SXid)"


def without_prefix(line: str) -> str:
    """The kernel's text in a line of dmesg, journalctl or syslog.

    Not for decisions about a node: users can write such lines.
    """
    before = re.match(_BEFORE, line)
    return line[before.end() :] if before else line


def parse(text: str) -> Xid | None:
    """The XID of a kernel message; None if it is another message."""
    found = re.match(_XID, text)
    if found is None:
        gone = re.match(_FELL_OFF, text)
        return Xid(address=gone[1].lower(), code=FELL_OFF, detail="fallen off the bus") if gone else None
    code, rest = int(found[3]), found[4]
    process = re.match(_PROCESS, rest)
    cause = re.match(_CAUSE, rest)
    return Xid(
        address=found[1].lower(),
        code=code,
        severity=_severity(code, rest),
        pid=int(process[1]) if process and process[1].isdecimal() else 0,
        cause=int(cause[1]) if cause else 0,
        instance=found[2] or "",
        detail=rest[process.end() :] if process else rest,
    )


def _severity(code: int, text: str) -> Severity:
    if code == RECOVERY_ACTION:
        action = re.match(_RECOVERY, text)
        return _RECOVERIES.get(int(action[1], 16), Severity.PLAIN) if action else Severity.PLAIN
    if code == 74:
        registers = re.match(_REGISTERS, text)
        first, *others = (int(word, 16) for word in registers[1].split(",")) if registers else (0,)
        harmless = first and not first & ~_HARMLESS_LINK_BITS and not any(others)
        return Severity.IGNORED if harmless else Severity.PLAIN
    if code in LINK_ERRORS:
        named = re.match(_LINK_SEVERITY, text)
        if named:
            return Severity.NON_FATAL if named[1].lower().startswith("non") else Severity.FATAL
    return Severity.PLAIN


def parse_switch(text: str) -> SXid | None:
    """The SXid of a kernel message that says how severe it is; None for anything else."""
    found = re.match(_SXID, text)
    if found is None:
        return None
    return SXid(
        address=found[1].lower(), code=int(found[2]), fatal=found[3].lower() == "fatal", detail=found[4]
    )


def rule(code: int, severity: Severity = Severity.PLAIN) -> XidRule:
    """What an XID means for the node. One that is not in the table is worth attention and no more."""
    known = RULES.get(code)
    if known is None:
        return XidRule(
            code=code, mnemonic="UNKNOWN", meaning="not in the catalog", suggestion=Suggestion.MONITOR
        )
    if code == RECOVERY_ACTION:
        return _recovery(known, severity)
    if severity in (Severity.NON_FATAL, Severity.IGNORED) or (
        code in LINK_ERRORS and severity is Severity.PLAIN
    ):
        meaning = ", ".join(filter(None, (known.meaning.removeprefix("fatal "), severity.value)))
        return replace(known, meaning=meaning, suggestion=Suggestion.MONITOR, lasting=False)
    return known


def _recovery(known: XidRule, severity: Severity) -> XidRule:
    """XID 154: the driver itself says what the GPU needs."""
    if severity is Severity.NONE:
        return replace(known, meaning="the GPU needs nothing any more", suggestion=Suggestion.NONE)
    if severity is Severity.PLAIN:
        return known
    needed = Suggestion(severity.value)
    return replace(known, meaning=f"the driver asks for a {needed.value}", suggestion=needed, lasting=True)
