"""NVIDIA's messages in the kernel log, XIDs of GPUs and SXids of NVSwitches, and what they mean. Pure.

A user chooses names of processes, which the driver puts into its lines (15 characters at most). So the codes
are read from the beginning of a line, before any name, and phrases that decide are taken from its end.

The codes, names and first actions are those of NVIDIA's Xid catalog for Ampere and newer
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html); the texts are ours, and so is the step
from the catalog's action to what becomes of the node (docs/kernel-checks.md).

Some are judged more sternly: row remapping that failed (64) and a resource that could not be retired (157)
are reasons to replace the GPU, since no reset repairs them; a halted microcontroller (61, older GPUs) and an
NVLink that is down (74, 144 to 150 if fatal) take a reset.
"""

from __future__ import annotations

import re
from enum import Enum

from msgspec.structs import replace

from slurm_robust.model.findings import Party, Suggestion
from slurm_robust.model.record import Record


class XidRule(Record):
    """What one XID means."""

    code: int
    mnemonic: str
    meaning: str
    suggestion: Suggestion
    blame: Party = Party.NODE
    lasting: bool = False
    """It counts until the reset or the reboot that it calls for, else within a window."""

    application: bool = False
    """A program's own mistake causes it; only many programs in a row speak against the GPU."""


def _rule(code: int, mnemonic: str, meaning: str, suggestion: Suggestion = Suggestion.MONITOR) -> XidRule:
    application = suggestion is Suggestion.NONE
    return XidRule(
        code=code,
        mnemonic=mnemonic,
        meaning=meaning,
        suggestion=suggestion,
        blame=Party.JOB if application else Party.NODE,
        lasting=suggestion.keeps_jobs_away,
        application=application,
    )


_PROGRAM = Suggestion.NONE
_RESET = Suggestion.RESET
_REBOOT = Suggestion.REBOOT
_REPLACE = Suggestion.REPLACE

RULES: dict[int, XidRule] = {
    rule.code: rule
    for rule in (
        _rule(13, "GR_EXCEPTION", "a kernel's illegal access or instruction", _PROGRAM),
        _rule(31, "MMU_ERR_FLT", "access to memory that is not mapped", _PROGRAM),
        _rule(32, "PBDMA_ERROR", "invalid push buffer", _PROGRAM),
        _rule(38, "FECS_ERR_WATCHDOG_TIMEOUT", "error in the driver's firmware"),
        _rule(39, "CE0_ERROR", "copy engine exception", _PROGRAM),
        _rule(43, "RESETCHANNEL_VERIF_ERROR", "a program's channel was reset", _PROGRAM),
        _rule(44, "GR_FAULT_DURING_CTXSW", "fault during a context switch", _PROGRAM),
        _rule(45, "PREEMPTIVE_REMOVAL", "channels removed after an earlier error or a kill", _PROGRAM),
        _rule(46, "GPU_TIMEOUT_ERROR", "GPU stopped processing", _RESET),
        _rule(48, "GPU_ECC_DBE", "uncorrectable memory error", _RESET),
        _rule(61, "PMU_BREAKPOINT", "microcontroller breakpoint", _RESET),
        _rule(62, "PMU_HALT_ERROR", "microcontroller halted", _RESET),
        _rule(63, "INFOROM_DRAM_RETIREMENT_EVENT", "memory row will be remapped at the next reset"),
        _rule(64, "INFOROM_DRAM_RETIREMENT_FAILURE", "memory row could not be remapped", _REPLACE),
        _rule(68, "NVDEC0_ERROR", "video decoder exception", _PROGRAM),
        _rule(69, "GR_CLASS_ERROR", "invalid graphics class or method", _PROGRAM),
        _rule(74, "NVLINK_ERROR", "NVLink error", _RESET),
        _rule(79, "GPU_HAS_FALLEN_OFF_THE_BUS", "GPU fell off the bus", _REBOOT),
        _rule(92, "EXCESSIVE_SBE_INTERRUPTS", "many corrected memory errors"),
        _rule(93, "INFOROM_ERASE_LIMIT_EXCEEDED", "InfoROM is written too often"),
        _rule(94, "CONTAINED_ERROR", "memory error that took only the program that met it"),
        _rule(95, "UNCONTAINED_ERROR", "memory error that may have reached other programs", _RESET),
        _rule(96, "NVDEC5_ERROR", "video decoder exception", _PROGRAM),
        _rule(97, "NVDEC6_ERROR", "video decoder exception", _PROGRAM),
        _rule(109, "CTXSW_TIMEOUT_ERROR", "context switch timed out", _RESET),
        _rule(110, "SEC_FAULT_ERROR", "security fault", _RESET),
        _rule(119, "GSP_RPC_TIMEOUT", "GPU system processor does not answer", _RESET),
        _rule(120, "GSP_ERROR", "GPU system processor failed", _RESET),
        _rule(121, "C2C_ERROR", "corrected error of the link between GPU and CPU"),
        _rule(136, "ALI_TRAINING_FAIL", "NVLink could not be trained", _RESET),
        _rule(137, "NVLINK_PRIV_ERR", "NVLink privilege error"),
        _rule(140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "unrecovered ECC error", _RESET),
        _rule(141, "FAST_PATH_ERROR", "CUDA fast path error"),
        _rule(143, "GPU_INIT_ERROR", "GPU could not be initialised", _RESET),
        _rule(144, "NVLINK_SAW_ERROR", "fatal NVLink error (SAW)", _RESET),
        _rule(145, "NVLINK_RLW_ERROR", "fatal NVLink error (RLW)", _RESET),
        _rule(146, "NVLINK_TLW_ERROR", "fatal NVLink error (TLW)", _RESET),
        _rule(147, "NVLINK_TREX_ERROR", "NVLink error (TREX)"),
        _rule(148, "NVLINK_NVLPW_CTRL_ERROR", "NVLink error (NVLPW)"),
        _rule(149, "NVLINK_NETIR_ERROR", "NVLink error (NETIR)"),
        _rule(150, "NVLINK_MSE_ERROR", "fatal NVLink error (MSE)", _RESET),
        _rule(151, "KEY_ROTATION_ERROR", "key rotation failed", _REBOOT),
        _rule(154, "GPU_RECOVERY_ACTION_CHANGED", "the driver changed what the GPU needs"),
        _rule(155, "NVLINK_SW_DEFINED_ERROR", "NVLink down by software", _RESET),
        _rule(156, "RESOURCE_RETIREMENT_EVENT", "a part of the GPU was retired", _RESET),
        _rule(157, "RESOURCE_RETIREMENT_FAILURE", "a part of the GPU could not be retired", _REPLACE),
        _rule(158, "GPU_FATAL_TIMEOUT", "fatal timeout", _RESET),
        _rule(160, "CHANNEL_RETIREMENT_EVENT", "memory channel will be retired"),
        _rule(167, "PCIE_FATAL_TIMEOUT", "fatal PCIe timeout", _REBOOT),
        _rule(171, "UNCORRECTABLE_DRAM_ERROR", "uncorrectable error in GPU memory", _RESET),
        _rule(172, "UNCORRECTABLE_SRAM_ERROR", "uncorrectable error in on-chip memory", _RESET),
    )
}


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
    """One line of the driver."""

    address: str
    """The GPU's PCI address as ``0000:9b:00``, without function."""

    code: int
    severity: Severity = Severity.PLAIN
    pid: int = 0
    """0 where the line names no process."""

    cause: int = 0
    """The earlier XID that this one follows, or 0."""


class SXid(Record):
    """One line of an NVSwitch's driver."""

    address: str
    code: int
    fatal: bool


FELL_OFF = 79
RECOVERY_ACTION = 154
LINK_ERRORS = range(144, 151)
"""NVLink 5: the line says how severe it is."""

# Strings and not compiled: most nodes never log such a line, and hooks must start fast.
_ADDRESS = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?"
_XID = rf"(?s)NVRM: Xid \((?:PCI:)?{_ADDRESS}(?: GPU-I:\d+)?\): (\d{{1,5}})\b,? ?(.*)"
_SXID = rf"(?si)nvidia-nvswitch\d*: SXid \((?:PCI:)?{_ADDRESS}\): (\d{{1,6}}), (Fatal|Non-fatal)\b"
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
        return Xid(address=gone[1].lower(), code=FELL_OFF) if gone else None
    code, rest = int(found[2]), found[3]
    process = re.match(_PROCESS, rest)
    cause = re.match(_CAUSE, rest)
    return Xid(
        address=found[1].lower(),
        code=code,
        severity=_severity(code, rest),
        pid=int(process[1]) if process and process[1].isdecimal() else 0,
        cause=int(cause[1]) if cause else 0,
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
    return SXid(address=found[1].lower(), code=int(found[2]), fatal=found[3].lower() == "fatal")


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
