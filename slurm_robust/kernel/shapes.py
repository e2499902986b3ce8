"""What lines of the kernel's log speak of a node in trouble, besides the codes of NVIDIA's driver (XIDs).

Many of the kernel's own messages begin with the name of a process, which is any 15 bytes that its user
likes (``NAME[77]: segfault at …``, ``NAME invoked oom-killer: …``, ``NAME: page allocation failure …``), and
some end with the name of a file. So each pattern is matched from the beginning, goes beyond those 15 bytes in
the kernel's words, and has no gap behind them that the rest of such a message could fill. Devices that users
can mount are left out: their image in a loop device may well be damaged.
"""

from __future__ import annotations

import re
from functools import cache

from slurm_robust.kernel.jobgroups import JOB_FOLDER
from slurm_robust.model.findings import Party, Suggestion, Writer
from slurm_robust.model.record import Record


class Shape(Record, kw_only=False):
    """One kind of message."""

    name: str
    check: str
    begins: tuple[str, ...]
    """The message begins with one of these, which is quick to tell for thousands of messages."""

    pattern: str
    """``{DISK}`` and ``{PCI}`` in it name the subject."""

    text: str
    suggestion: Suggestion = Suggestion.MONITOR
    blame: Party = Party.NODE
    lasting: bool = False
    """It counts until the next boot, else within the window."""

    often: int = 1
    """Fewer than that are only worth attention."""

    corrected: bool = False
    """It counts against the limit of errors that were corrected."""

    written_by: Writer = Writer.KERNEL
    """The least of those who can bring it about."""

    @property
    def regex(self) -> str:
        """The pattern with its subject as a group."""
        return self.pattern.replace("{DISK}", _DISK).replace("{PCI}", _PCI)


_DISK = r"((?!loop|zram|ram|sr\d|fd\d)[A-Za-z][\w.-]{0,31})"
_PCI = r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)"
_HARDWARE = r"(?:mce: )?\[Hardware Error\]: "
_CPU = _HARDWARE + r"CPU \d+: Machine Check"
# "memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0", or the place alone.
_MODULE = r"(?:\w[\w ()/,.-]{0,80} )?on \S"
_DIED = r" \[#\d+\]"  # how many times; then how the kernel was built (SMP, PREEMPT …)
_TRAP = r"(?:general protection fault|invalid opcode|divide error|stack segment|double fault|int3|Oops)"

POST_RX = "nvidia-post-rx"
"""Alone it means little; with NVLinks that are down it is a driver that only a reboot frees."""

_REBOOT = Suggestion.REBOOT
_REPLACE = Suggestion.REPLACE

_HARDWARE_ERROR = ("mce: ", "[Hardware Error]: ")
_FIRMWARE = ("{",)
_DISK_LAYER = ("blk_update_request: ", "print_req_error: ", "I/O error, ", "critical ", "Buffer I/O ")

_MACHINE_CHECKS = (
    Shape(
        "uncorrected",
        "kernel.mce",
        (*_HARDWARE_ERROR, "EDAC MC", "Memory failure: "),
        # Bit 61 of a bank's status says that the error was not corrected.
        rf"{_CPU} Exception: |{_CPU}: \d+ Bank \d+: [2367abef][0-9a-f]{{15}}|{_HARDWARE}Uncorrected"
        rf"|mce: Uncorrected hardware|EDAC MC\d+: \d+ UE {_MODULE}|Memory failure: 0x",
        "hardware error that could not be corrected",
        _REBOOT,
        lasting=True,
    ),
    Shape(
        "recovered",
        "kernel.mce",
        _FIRMWARE,
        r"\{\d+\}\[Hardware Error\]: event severity: recoverable",
        "hardware error that firmware calls recoverable",
    ),
    *(
        Shape(name, "kernel.mce", begins, pattern, "hardware errors, corrected", corrected=True)
        for name, begins, pattern in (
            ("corrected-events", _HARDWARE_ERROR, _HARDWARE + "Machine check events logged"),
            ("corrected-bank", _HARDWARE_ERROR, rf"{_CPU}: \d+ Bank \d+: [014589cd][0-9a-f]{{15}}"),
            ("corrected-amd", _HARDWARE_ERROR, _HARDWARE + "Corrected error"),
            ("corrected-edac", ("EDAC MC",), rf"EDAC MC\d+: \d+ CE {_MODULE}"),
            ("corrected-firmware", _FIRMWARE, r"\{\d+\}\[Hardware Error\]: event severity: corrected"),
        )
    ),
)

_LOCKUPS = (
    Shape(
        "soft-lockup",
        "kernel.lockup",
        ("watchdog: ", "NMI watchdog: ", "BUG: "),
        r"(?:(?:NMI )?watchdog: )?BUG: soft lockup - CPU#\d+ stuck for",
        "CPU stuck in the kernel",
        _REBOOT,
        often=3,  # the kernel repeats it while it lasts; a single one happens when huge processes end
    ),
    Shape(
        "hard-lockup",
        "kernel.lockup",
        ("watchdog: ", "NMI watchdog: "),
        r"(?:NMI )?watchdog: Watchdog detected hard LOCKUP on cpu",
        "CPU stuck with interrupts off",
        _REBOOT,
    ),
    Shape(
        "rcu-stall",
        "kernel.lockup",
        ("rcu: ", "INFO: "),
        r"(?:rcu: )?INFO: rcu\w* (?:self-)?detected (?:expedited )?stall",
        "CPUs do not get on (RCU stall)",
        _REBOOT,
        often=3,
    ),
    Shape(
        "hung-task",
        "kernel.lockup",
        ("INFO: task ",),
        r"INFO: task .{1,15}:\d+ blocked (?:in I/O wait )?for more than \d+ seconds",
        "process waits for I/O or a lock for minutes",
        written_by=Writer.USER,
    ),
    Shape(
        "workqueue",
        "kernel.lockup",
        ("BUG: ",),
        r"BUG: workqueue lockup",
        "kernel work does not get on",
    ),
)

_MEMORY = (
    Shape(
        "out-of-memory",
        "kernel.oom",
        ("Out of memory: ",),
        r"Out of memory: Kill(?:ed)? process \d+",
        "process killed because the node ran out of memory",
        blame=Party.JOB,
        written_by=Writer.USER,
    ),
    Shape(
        "out-of-memory-group",
        "kernel.oom",
        ("oom-kill:",),
        rf"oom-kill:constraint=CONSTRAINT_MEMCG,(?!(?:(?!,task=).)*{JOB_FOLDER})",
        "process killed at the memory limit of a service or login",
        blame=Party.SITE,
        written_by=Writer.USER,
    ),
)

_PANICS = (
    Shape(
        "oops",
        "kernel.panic",
        (
            *("Kernel panic", "BUG: ", "Unable to handle", "Oops: ", "Internal error: ", "kernel BUG "),
            *("general protection", "invalid opcode", "divide error", "stack segment", "double fault"),
        ),
        r"Kernel panic - not syncing|BUG: (?:unable to handle|kernel NULL pointer)|Unable to handle kernel"
        rf"|(?:Oops: )?{_TRAP}(?:, [\w ,-]{{1,120}})?: [0-9a-f]{{4,16}}{_DIED} [A-Z]{{3}}"
        rf"|Oops: \w[\w ,/-]{{0,80}}, sig: \d+{_DIED}"
        rf"|Internal error: \w[\w ,./-]{{0,80}}: [0-9a-f]{{1,16}}{_DIED} [A-Z]{{3}}"
        r"|kernel BUG at \S{1,200}(?::\d+!| \[verbose debug info)",
        "kernel crashed in part (oops)",
        _REBOOT,
        lasting=True,
    ),
    Shape(
        "corruption",
        "kernel.panic",
        ("BUG: Bad page", "list_add ", "list_del "),
        r"BUG: Bad page (?:state|map) in process|list_(?:add|del) corruption[.,] ",
        "kernel memory is corrupt",
        _REBOOT,
        lasting=True,
    ),
    Shape(
        "kernel-bug",
        "kernel.panic",
        ("BUG: Bad rss", "BUG: scheduling"),
        r"BUG: Bad rss-counter|BUG: scheduling while atomic",
        "bug in the kernel",
    ),
)

_STORAGE = (
    Shape(
        "file-system",
        "kernel.filesystem",
        ("EXT4-fs ", "XFS (", "BTRFS: error "),
        r"EXT4-fs error \(device {DISK}\)|EXT4-fs \({DISK}\): Remounting filesystem read-only"
        r"|XFS \({DISK}\): (?:Internal error |Corruption (?:of in-memory data|detected|warning)"
        r"|Metadata (?:corruption|CRC error) detected|log I/O error |xfs_do_force_shutdown\("
        r"|(?:[\w /.-]{0,60} )?(?:has been shut down|[Ss]hutting down filesystem))"
        r"|BTRFS: error \(device {DISK}",
        "file system is damaged or was made read-only",
        _REBOOT,
        lasting=True,
    ),
    Shape(
        "file-system-btrfs",
        "kernel.filesystem",
        ("BTRFS error ", "BTRFS critical "),
        r"BTRFS (?:error|critical) \(device {DISK}",
        "file system reports errors",
    ),
    Shape(
        "disk-lost",
        "kernel.filesystem",
        ("nvme nvme",),
        r"nvme {DISK}: (?:Removing after probe failure|Device not ready; aborting|Disabling device after)",
        "disk was given up",
        _REPLACE,
        lasting=True,
    ),
    Shape(
        "medium-error",
        "kernel.filesystem",
        _DISK_LAYER,
        r"(?:blk_update_request: |print_req_error: )?critical medium error, dev {DISK}",
        "disk cannot read or write sectors",
        _REPLACE,
        often=10,
    ),
    Shape(
        "io-error",
        "kernel.filesystem",
        _DISK_LAYER,
        r"(?:blk_update_request: |print_req_error: )?I/O error, dev {DISK}, sector \d"
        r"|Buffer I/O error on dev(?:ice)? {DISK}, logical block \d",
        "I/O errors",
    ),
    Shape(
        "disk-reset",
        "kernel.filesystem",
        ("nvme nvme", "ata"),
        r"nvme {DISK}: (?:I/O (?:tag )?\d+[\w ()/]{0,60} timeout|controller is down; will reset)"
        r"|{DISK}: (?:hard resetting link|failed command: |exception Emask )",
        "disk was reset",
    ),
)

_PCIE = tuple(
    Shape(
        name,
        "kernel.pcie",
        ("pcieport ",),
        rf"pcieport \S{{5,20}} AER: (?:Multiple )?Uncorrect(?:ed|able) \({word}\) error.{{0,40}}? {{PCI}}",
        text,
        suggestion,
    )
    for name, word, text, suggestion in (
        ("pcie-fatal", "Fatal", "fatal PCIe error", _REBOOT),
        ("pcie-error", "Non-Fatal", "PCIe error that was not corrected", Suggestion.MONITOR),
    )
)

OF_GPUS = "kernel.gpu"
"""The check of what drivers of GPUs say without a code. A reset of the GPU or its driver ends it."""

_AMD = ("amdgpu ",)
# Linux, drivers/gpu/drm/amd/amdgpu: the device, its driver, the number of an event of RAS, and the place.
_AMD_HEAD = (
    r"amdgpu {PCI}: (?:amdgpu: )?(?:\[drm[^\]]{0,40}\] (?:\*ERROR\* )?)?"
    r"(?:\{\d+\} ?)?(?:socket: \d+, die: \d+,? )?"
)
_AMD_RESET = rf"{_AMD_HEAD}GPU reset ?(?:\(\d+\) ?)?succeeded"
_ERROR = r"(?:[1-9]\d{0,18} (?:new )?)?uncorrectable hardware errors?"

# Bit 61 of a status of ACA says, as for a processor's bank, that the error was not corrected.
_ACA = rf"{_AMD_HEAD}\[Hardware Error\]: "
_ACA_STATUS = rf"{_ACA}(?:aca )?entry\[\d+\]\.STATUS=0x"

_GPUS = (
    Shape(
        "amdgpu-reset-failed",
        OF_GPUS,
        _AMD,
        rf"{_AMD_HEAD}(?:GPU reset ?(?:\(\d+\) ?)?failed|GPU reset end with ret = -\d|GPU recovery failed"
        r"|device lost from bus|PCIe link is lost)",
        "driver could not reset the GPU, or lost it",
        _REBOOT,
        lasting=True,
    ),
    Shape(
        "amdgpu-worn-out",
        OF_GPUS,
        _AMD,
        rf"{_AMD_HEAD}(?:RAS records:\d+ exceeds? threshold|GPU reported bad pages exceed"
        r"|GPU is in bad status)",
        "more bad memory pages than the GPU may have",
        _REPLACE,
        lasting=True,
    ),
    Shape(
        "amdgpu-uncorrected",
        OF_GPUS,
        _AMD,
        rf"{_AMD_HEAD}{_ERROR}(?: ?\(ERREVENT_ATHUB_INTERRUPT\)| detected\b)"
        rf"|{_ACA_STATUS}[2367abef][0-9a-f]{{15}}"
        rf"|{_AMD_HEAD}poison is consumed by client \d+, kick off gpu reset",
        "hardware error of the GPU that could not be corrected",
        Suggestion.RESET,
        lasting=True,
    ),
    Shape(
        "amdgpu-corrected",
        OF_GPUS,
        _AMD,
        rf"{_ACA_STATUS}[014589cd][0-9a-f]{{15}}|{_ACA}Accelerator Check Architecture events",
        "hardware errors of the GPU, corrected or deferred",
    ),
    Shape(
        "amdgpu-link",
        OF_GPUS,
        _AMD,
        rf"{_AMD_HEAD}XGMI: .{{0,80}}(?:[Ff]ail|error)|{_AMD_HEAD}(?:XGMI|WAFL) PCS \w{{1,40}} detected",
        "link between GPUs (XGMI) reports errors",
    ),
    Shape(
        "amdgpu-hang",
        OF_GPUS,
        (*_AMD, "amdgpu: ", "[drm:amdgpu"),
        rf"{_AMD_HEAD}ring \S{{1,40}} timeout"
        r"|\[drm:amdgpu_job_timedout \[amdgpu\]\] \*ERROR\* ring \S{1,40} timeout"
        r"|amdgpu: qcm fence wait loop timeout|amdgpu: The cp might be in an unrecoverable state"
        rf"|{_AMD_HEAD}(?:MES failed to respon(?:d|se)|Failed to send message 0x|SMU: I'm not done with)",
        "GPU hung, or its firmware does not answer",
    ),
    # Returned from the driver's own calls: no new context is given, and there is no XID.
    Shape(
        "nvidia-reset-required",
        OF_GPUS,
        ("NVRM: ",),
        # A function of the driver, as a process may be called "NVRM: x", with 15 characters at most.
        r"NVRM: (?:GPU\d+ )?\w{10,100}: [^\n]{0,300}\bNV_ERR_RESET_REQUIRED\b",
        "driver refuses new programs until the GPU is reset (NV_ERR_RESET_REQUIRED)",
        Suggestion.RESET,
        lasting=True,
    ),
    # kernel_nvlink.c and kernel_nvlink_gh100.c of NVIDIA's open kernel modules.
    Shape(
        POST_RX,
        OF_GPUS,
        ("NVRM: ",),
        r"NVRM: (?:GPU\d+ )?knvlink\w{1,60}: (?:Getting peer\w{0,4}(?:'s)? postRxDetLinkMask failed"
        r"|Failed to update (?:Post )?Rx Detect Link mask)",
        "driver cannot tell which NVLinks have a peer (post-RX-detect)",
    ),
)

SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (*_MACHINE_CHECKS, *_LOCKUPS, *_MEMORY, *_PANICS, *_STORAGE, *_PCIE, *_GPUS)
}

BEGINS = tuple(sorted({begin for shape in SHAPES.values() for begin in shape.begins}))
"""How the messages begin that :func:`recognise` may know."""


@cache
def _compiled(name: str) -> re.Pattern[str]:
    # On demand: compiling all takes longer than reading the log of a node that is well.
    return re.compile(SHAPES[name].regex)


def reset_of(text: str) -> str:
    """Return the GPU that AMD's driver has reset, by a message of it; empty for any other message."""
    found = re.match(_AMD_RESET.replace("{PCI}", _PCI), text)
    return found[1] if found else ""


def recognise(text: str) -> tuple[Shape, str] | None:
    """Return what a message is, and the device it names (empty: none); None if it means nothing."""
    for shape in SHAPES.values():
        if text.startswith(shape.begins) and (found := _compiled(shape.name).match(text)):
            return shape, next(filter(None, found.groups()), "")
    return None
