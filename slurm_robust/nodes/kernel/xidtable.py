"""What NVIDIA's XIDs mean for a node.

The codes, names and first actions are those of NVIDIA's Xid catalog for Ampere and newer
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html); the texts are ours, and so is the step
from the catalog's action to what becomes of the node:

==================================  =================================================================
catalog                             here
==================================  =================================================================
restart the application             the job's business: a program that faults says nothing of the node
reset the GPU                       reset; counts until a reset of the GPU, the driver or the node
restart bare metal or the VM        reboot; counts until then
ignore, contact support, no action  monitor, within the window
==================================  =================================================================

Some are judged more sternly: row remapping that failed (64) and a resource that could not be retired (157)
are reasons to replace the GPU, since no reset mends them; a halted microcontroller (61, older GPUs) and an
NVLink that is down (74, 144 to 150 if fatal) take a reset.
"""

from __future__ import annotations

from slurm_robust.model.findings import Party, Suggestion
from slurm_robust.model.record import Record


class XidRule(Record):
    """One XID. ``lasting``: it counts until the reset or the reboot that it calls for, else within a window.

    ``application``: a program's own mistake causes it; only many programs in a row speak against the GPU.
    """

    code: int
    mnemonic: str
    meaning: str
    suggestion: Suggestion
    blame: Party = Party.NODE
    lasting: bool = False
    application: bool = False


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
