"""What each XID means: the one table of node checks, inspection and log rules. Pure.

Source: NVIDIA's Xid catalog for Ampere and newer, in a copy of autumn 2026 with codes up to 172
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Codes that it calls unused are left
out, except 61 of older GPUs, and so is ROBUST_CHANNEL_ before mnemonics. The third column is the catalog's
immediate action, empty if it names none. The meanings are ours.

Imported when a node has an XID to judge, which most never have.
"""

from __future__ import annotations

from enum import Enum

from slurm_robust.model.findings import Party, Suggestion
from slurm_robust.model.record import Record


class Topic(str, Enum):
    """What an XID is about."""

    MEMORY = "memory"
    GONE = "gone"
    NVLINK = "nvlink"
    DRIVER = "driver"
    """The GPU's processors, their firmware, the driver."""

    PROGRAM = "program"
    """A program's own mistake causes it; only many occasions speak against the GPU."""

    END = "end"
    """It follows other errors, and the end of every program that is killed."""

    POWER = "power"
    TEST = "test"
    RECOVERY = "recovery"
    """What the driver wants to be done (154)."""

    UNKNOWN = "unknown"


class XidRule(Record):
    """What one XID means."""

    code: int
    mnemonic: str
    meaning: str
    suggestion: Suggestion
    topic: Topic = Topic.UNKNOWN
    action: str = ""
    """The catalog's immediate action."""

    @property
    def blame(self) -> Party:
        """Where the cause lies, by what the code tells."""
        return Party.JOB if self.topic in (Topic.PROGRAM, Topic.END) else Party.NODE

    @property
    def lasting(self) -> bool:
        """It counts until the reset or the reboot that it calls for, else within a window."""
        return self.suggestion.keeps_jobs_away

    @property
    def kind(self) -> str:
        """For log rules: its topic, and after a hyphen ``watch`` or ``none`` if it keeps no job away, or
        ``ignore`` if the catalog says so.
        """
        suffix = _SUFFIXES.get(self.suggestion, "")
        return self.topic.value + (_IGNORE if suffix == "-watch" and self.action == "IGNORE" else suffix)


_SUFFIXES = {Suggestion.MONITOR: "-watch", Suggestion.NONE: "-none"}
_IGNORE = "-ignore"


# The step from the catalog's action to what becomes of the node; all other actions are for a person to read.
_SUGGESTIONS = {
    "RESTART_APP": Suggestion.NONE,
    "RESET_GPU": Suggestion.RESET,
    "RESTART_BM": Suggestion.REBOOT,
    "RESTART_VM": Suggestion.REBOOT,
}

# What is judged otherwise than by that step.
_OTHERWISE = {
    43: Suggestion.NONE,  # the program's fault by the catalog's own words
    44: Suggestion.NONE,
    45: Suggestion.NONE,
    48: Suggestion.RESET,
    61: Suggestion.RESET,  # older GPUs: the microcontroller stands
    64: Suggestion.REPLACE,  # no reset repairs these two
    157: Suggestion.REPLACE,
    74: Suggestion.RESET,
    94: Suggestion.MONITOR,  # memory, not the program: reset the GPU when convenient
    106: Suggestion.NONE,
    107: Suggestion.NONE,
    **dict.fromkeys(range(144, 151), Suggestion.RESET),  # if the line calls it fatal
    162: Suggestion.NONE,  # it works again
    171: Suggestion.RESET,
    172: Suggestion.RESET,
}

# code | mnemonic | immediate action | topic | meaning
_TABLE = """\
8 | FIFO_ERROR_IDLE_TIMEOUT | RESTART_APP | program | GPU stopped processing
11 | GR_ERROR_MISSING_HW | RESTART_APP | program | invalid push buffer
13 | GR_EXCEPTION | RESTART_APP | program | a kernel's illegal access or instruction
14 | FAKE_ERROR | IGNORE | driver | error that a program has injected
25 | GR_ILLEGAL_NOTIFY | RESTART_APP | program | invalid push buffer
31 | MMU_ERR_FLT | RESTART_APP | program | access to memory that is not mapped
32 | PBDMA_ERROR | RESTART_APP | program | invalid push buffer
37 | FECS_ERR_UNIMP_FIRMWARE_METHOD | IGNORE | driver | error in the driver's firmware
38 | FECS_ERR_WATCHDOG_TIMEOUT | IGNORE | driver | error in the driver's firmware
39 | CE0_ERROR | RESTART_APP | program | copy engine exception
40 | CE1_ERROR | RESTART_APP | program | copy engine exception
41 | CE2_ERROR | RESTART_APP | program | copy engine exception
43 | RESETCHANNEL_VERIF_ERROR | IGNORE | program | a program's channel was reset
44 | GR_FAULT_DURING_CTXSW | IGNORE | program | fault during a context switch
45 | PREEMPTIVE_REMOVAL | WORKFLOW_XID_45 | end | channels removed after an earlier error or a kill
46 | GPU_TIMEOUT_ERROR | RESET_GPU | driver | GPU stopped processing
48 | GPU_ECC_DBE | WORKFLOW_XID_48 | memory | uncorrectable memory error
54 | PWR_REDUCED_CLOCKING | CHECK_MECHANICALS | driver | auxiliary power is not connected
60 | SEC2_ERROR | RESTART_APP | program | video processor exception
61 | PMU_BREAKPOINT | CONTACT_SUPPORT | driver | microcontroller breakpoint
62 | PMU_HALT_ERROR | RESET_GPU | driver | microcontroller halted
63 | INFOROM_DRAM_RETIREMENT_EVENT | IGNORE | memory | memory row will be remapped at the next reset
64 | INFOROM_DRAM_RETIREMENT_FAILURE | RESET_GPU | memory | memory row could not be remapped
66 | FECS_ERR_REG_ACCESS_VIOLATION | IGNORE | driver | illegal access by the driver
67 | FECS_ERR_VERIF_VIOLATION | IGNORE | driver | illegal access by the driver
68 | NVDEC0_ERROR | RESTART_APP | program | video decoder exception
69 | GR_CLASS_ERROR | RESTART_APP | program | invalid graphics class or method
70 | CE3_ERROR | RESTART_APP | program | copy engine exception
71 | CE4_ERROR | RESTART_APP | program | copy engine exception
72 | CE5_ERROR | RESTART_APP | program | copy engine exception
74 | NVLINK_ERROR | WORKFLOW_NVLINK_ERR | nvlink | NVLink error
75 | CE6_ERROR | RESTART_APP | program | copy engine exception
76 | CE7_ERROR | RESTART_APP | program | copy engine exception
77 | CE8_ERROR | RESTART_APP | program | copy engine exception
78 | VGPU_START_ERROR | UPDATE_SWFW | driver | vGPU could not be started
79 | GPU_HAS_FALLEN_OFF_THE_BUS | RESTART_BM | gone | GPU fell off the bus
80 | PBDMA_PUSHBUFFER_CRC_MISMATCH | RESTART_APP | program | corrupt data was sent to the GPU
82 | NVJPG0_ERROR | RESTART_APP | program | image decoder exception
83 | NVDEC1_ERROR | RESTART_APP | program | video decoder exception
84 | NVDEC2_ERROR | RESTART_APP | program | video decoder exception
85 | CE9_ERROR | RESTART_APP | program | copy engine exception
86 | OFA0_ERROR | RESTART_APP | program | optical flow engine exception
88 | NVDEC3_ERROR | RESTART_APP | program | video decoder exception
89 | NVDEC4_ERROR | RESTART_APP | program | video decoder exception
92 | EXCESSIVE_SBE_INTERRUPTS | IGNORE | memory | many corrected memory errors
93 | INFOROM_ERASE_LIMIT_EXCEEDED | IGNORE | driver | InfoROM is written too often
94 | CONTAINED_ERROR | RESTART_APP | memory | memory error that took only the program that met it
95 | UNCONTAINED_ERROR | RESET_GPU | memory | memory error that may have reached other programs
96 | NVDEC5_ERROR | RESTART_APP | program | video decoder exception
97 | NVDEC6_ERROR | RESTART_APP | program | video decoder exception
98 | NVDEC7_ERROR | RESTART_APP | program | video decoder exception
99 | NVJPG1_ERROR | RESTART_APP | program | image decoder exception
100 | NVJPG2_ERROR | RESTART_APP | program | image decoder exception
101 | NVJPG3_ERROR | RESTART_APP | program | image decoder exception
102 | NVJPG4_ERROR | RESTART_APP | program | image decoder exception
103 | NVJPG5_ERROR | RESTART_APP | program | image decoder exception
104 | NVJPG6_ERROR | RESTART_APP | program | image decoder exception
105 | NVJPG7_ERROR | RESTART_APP | program | image decoder exception
106 | SMBPBI_TEST_MESSAGE | IGNORE | test | test message
107 | SMBPBI_TEST_MESSAGE_SILENT | IGNORE | test | test message
109 | CTXSW_TIMEOUT_ERROR | RESET_GPU | driver | context switch timed out
110 | SEC_FAULT_ERROR | RESET_GPU | driver | security fault
119 | GSP_RPC_TIMEOUT | RESET_GPU | driver | GPU system processor does not answer
120 | GSP_ERROR | RESET_GPU | driver | GPU system processor failed
121 | C2C_ERROR | IGNORE | nvlink | corrected error of the link between GPU and CPU
126 | CE10_ERROR | RESTART_APP | program | copy engine exception
127 | CE11_ERROR | RESTART_APP | program | copy engine exception
128 | CE12_ERROR | RESTART_APP | program | copy engine exception
129 | CE13_ERROR | RESTART_APP | program | copy engine exception
130 | CE14_ERROR | RESTART_APP | program | copy engine exception
131 | CE15_ERROR | RESTART_APP | program | copy engine exception
132 | CE16_ERROR | RESTART_APP | program | copy engine exception
133 | CE17_ERROR | RESTART_APP | program | copy engine exception
134 | CE18_ERROR | RESTART_APP | program | copy engine exception
135 | CE19_ERROR | RESTART_APP | program | copy engine exception
136 | ALI_TRAINING_FAIL | RESET_GPU | nvlink | NVLink could not be trained
137 | NVLINK_PRIV_ERR | IGNORE | nvlink | NVLink privilege error
139 | OFA1_ERROR | RESTART_APP | program | optical flow engine exception
140 | UNRECOVERABLE_ECC_ERROR_ESCAPE | RESET_GPU | memory | unrecovered ECC error
141 | FAST_PATH_ERROR | IGNORE | driver | CUDA fast path error
142 | NVENC3_ERROR | CONTACT_SUPPORT | driver | video encoder error
143 | GPU_INIT_ERROR | RESET_GPU | driver | GPU could not be initialised
144 | NVLINK_SAW_ERROR | WORKFLOW_NVLINK5_ERR | nvlink | NVLink error (SAW)
145 | NVLINK_RLW_ERROR | WORKFLOW_NVLINK5_ERR | nvlink | NVLink error (RLW)
146 | NVLINK_TLW_ERROR | WORKFLOW_NVLINK5_ERR | nvlink | NVLink error (TLW)
147 | NVLINK_TREX_ERROR | WORKFLOW_NVLINK5_ERR | nvlink | NVLink error (TREX)
148 | NVLINK_NVLPW_CTRL_ERROR | WORKFLOW_NVLINK5_ERR | nvlink | NVLink error (NVLPW)
149 | NVLINK_NETIR_ERROR | WORKFLOW_NVLINK5_ERR | nvlink | NVLink error (NETIR)
150 | NVLINK_MSE_ERROR | WORKFLOW_NVLINK5_ERR | nvlink | NVLink error (MSE)
151 | KEY_ROTATION_ERROR | RESTART_VM | driver | key rotation failed
152 | DLA_SMMU_ERROR | IGNORE | driver | deep learning accelerator: memory error
153 | DLA_TIMEOUT | IGNORE | driver | deep learning accelerator: timeout
154 | GPU_RECOVERY_ACTION_CHANGED | XID_154 | recovery | the driver changed what the GPU needs
155 | NVLINK_SW_DEFINED_ERROR | RESET_GPU | nvlink | NVLink down by software
156 | RESOURCE_RETIREMENT_EVENT | RESET_GPU | memory | a part of the GPU was retired
157 | RESOURCE_RETIREMENT_FAILURE | IGNORE | memory | a part of the GPU could not be retired
158 | GPU_FATAL_TIMEOUT | RESET_GPU | driver | fatal timeout
159 | CHI_NON_DATA_ERROR | CHECK_UVM | driver | CHI non-data error on the link to the CPU
160 | CHANNEL_RETIREMENT_EVENT | IGNORE | memory | memory channel will be retired
161 | CHANNEL_RETIREMENT_FAILURE | IGNORE | memory | memory channel could not be retired
162 | PSHC_REENGAGED | | power | power smoothing reengaged
163 | PSHC_DISENGAGED | | power | power smoothing disengaged
164 | PSHC_LOW_LIFETIME | | power | power smoothing is nearly worn out
165 | PSHC_ZERO_LIFETIME | | power | power smoothing is worn out: lifetime exhausted
166 | NVLINK_SECURE_CRYPTO_ERR | | driver | traffic before the link was configured for encryption
167 | PCIE_FATAL_TIMEOUT | | driver | fatal PCIe timeout
168 | REDUCED_GPU_MEMORY_CAPACITY | | memory | errors in the write-protected region: less memory
169 | SEC2_HALT_ERROR | | driver | microcontroller halted (SEC2)
170 | NVLINK_SECURE_OTHER | | driver | NVLink interrupt in confidential computing
171 | UNCORRECTABLE_DRAM_ERROR | | memory | uncorrectable error in GPU memory
172 | UNCORRECTABLE_SRAM_ERROR | | memory | uncorrectable error in on-chip memory
"""


def _rule(row: str) -> XidRule:
    code, mnemonic, action, topic, meaning = (cell.strip() for cell in row.split("|"))
    suggestion = _OTHERWISE.get(int(code), _SUGGESTIONS.get(action, Suggestion.MONITOR))
    return XidRule(
        code=int(code),
        mnemonic=mnemonic,
        meaning=meaning,
        suggestion=suggestion,
        topic=Topic(topic),
        action=action,
    )


RULES: dict[int, XidRule] = {rule.code: rule for rule in map(_rule, _TABLE.splitlines())}

KINDS = frozenset(topic.value + suffix for topic in Topic for suffix in ("", _IGNORE, *_SUFFIXES.values()))
"""All that :attr:`XidRule.kind` may be."""


def unknown(code: int) -> XidRule:
    """Return the rule of a code that is not in the table: it is worth attention and no more."""
    return XidRule(
        code=code, mnemonic="UNKNOWN", meaning="unknown: not in the catalog", suggestion=Suggestion.MONITOR
    )
