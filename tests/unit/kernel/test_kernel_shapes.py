"""All other messages of the kernel: which are known, and from how many on they keep jobs away."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.config.node import KernelLimits, NodeConfig, StorageLimits
from slurm_robust.kernel.events import BEGINS, MARK, KernelFacts, summarise
from slurm_robust.kernel.kmsg import parse
from slurm_robust.kernel.shapes import SHAPES, recognise
from slurm_robust.model.findings import Outcome, Party, Suggestion
from slurm_robust.nodes.checks import kernel
from slurm_robust.nodes.checks.kernel import gather
from slurm_robust.nodes.checks.processes import COMM
from tests.unit.nodes.host_files import plant
from tests.unit.nodes.kernel_logs import BOOT, failed, judged, view

UNCORRECTED = "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 9: bc00000000010092"
SOFT = "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:4242]"
EVENTS = "mce: [Hardware Error]: Machine check events logged"

KNOWN = [
    (UNCORRECTED, "uncorrected", ""),
    ("mce: [Hardware Error]: CPU 0: Machine Check Exception: 5 Bank 7: be00000000800400", "uncorrected", ""),
    ("[Hardware Error]: Uncorrected, software restartable error.", "uncorrected", ""),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0", "uncorrected", ""),
    ("Memory failure: 0x1234: recovery action for dirty LRU page: Recovered", "uncorrected", ""),
    ("{1}[Hardware Error]: event severity: recoverable", "recovered", ""),
    ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 9: 9c00000000010092", "corrected-bank", ""),
    (EVENTS, "corrected-events", ""),
    ("[Hardware Error]: Corrected error, no action required.", "corrected-amd", ""),
    ("EDAC MC1: 3 CE memory read error on DIMM", "corrected-edac", ""),
    ("{12}[Hardware Error]: event severity: corrected", "corrected-firmware", ""),
    (SOFT, "soft-lockup", ""),
    ("NMI watchdog: BUG: soft lockup - CPU#1 stuck for 23s! [a b:1]", "soft-lockup", ""),
    ("watchdog: Watchdog detected hard LOCKUP on cpu 7", "hard-lockup", ""),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", "rcu-stall", ""),
    ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", "rcu-stall", ""),
    ("rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 3-.... }", "rcu-stall", ""),
    ("INFO: task kworker/3:1:77 blocked for more than 120 seconds.", "hung-task", ""),
    ("INFO: task a:77 blocked in I/O wait for more than 120 seconds.", "hung-task", ""),
    ("BUG: workqueue lockup - pool cpus=3 node=0", "workqueue", ""),
    ("Out of memory: Killed process 4242 (python3) total-vm:1kB", "out-of-memory", ""),
    ("Out of memory: Kill process 4242 (python3) score 900", "out-of-memory", ""),
    (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/system.slice/munge.service,task=munged",
        "out-of-memory-group",
        "",
    ),
    ("Kernel panic - not syncing: Fatal exception", "oops", ""),
    ("BUG: unable to handle page fault for address: ffff8", "oops", ""),
    ("BUG: kernel NULL pointer dereference, address: 0000000000000008", "oops", ""),
    ("Oops: 0002 [#1] SMP NOPTI", "oops", ""),
    ("Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP", "oops", ""),
    ("general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP", "oops", ""),
    ("general protection fault: 0000 [#2] SMP", "oops", ""),
    ("kernel BUG at mm/slub.c:4023!", "oops", ""),
    ("Unable to handle kernel paging request at virtual address ffff", "oops", ""),
    ("Internal error: Oops: 96000004 [#1] SMP", "oops", ""),
    ("BUG: Bad page state in process python3  pfn:1234", "corruption", ""),
    ("list_del corruption. prev->next should be ffff", "corruption", ""),
    ("BUG: Bad rss-counter state mm:0000 type:MM_ANONPAGES val:1", "kernel-bug", ""),
    ("EXT4-fs error (device sda1): ext4_lookup:1611: inode #2", "file-system", "sda1"),
    ("EXT4-fs (dm-0): Remounting filesystem read-only", "file-system", "dm-0"),
    ("XFS (nvme0n1p2): Corruption detected. Unmount and run xfs_repair", "file-system", "nvme0n1p2"),
    ("XFS (sdb1): Metadata CRC error detected at xfs_agf_read_verify", "file-system", "sdb1"),
    ("XFS (sdb1): xfs_do_force_shutdown(0x8) called from line 1", "file-system", "sdb1"),
    ("XFS (sdb1): Log I/O Error Detected.  Shutting down filesystem", "file-system", "sdb1"),
    ("XFS (sdb1): Filesystem has been shut down due to log error (0x2).", "file-system", "sdb1"),
    ("BTRFS: error (device sda2) in btrfs_commit_transaction:2297: errno=-5", "file-system", "sda2"),
    ("BTRFS error (device sda2): bdev /dev/sda2 errs: wr 1", "file-system-btrfs", "sda2"),
    ("BTRFS critical (device sda2: state EA): corrupt leaf", "file-system-btrfs", "sda2"),
    ("nvme nvme3: Removing after probe failure status: -19", "disk-lost", "nvme3"),
    ("nvme nvme3: Device not ready; aborting reset, CSTS=0x1", "disk-lost", "nvme3"),
    ("blk_update_request: critical medium error, dev sda, sector 7", "medium-error", "sda"),
    ("critical medium error, dev sda, sector 7 op 0x0:(READ)", "medium-error", "sda"),
    ("I/O error, dev nvme0n1, sector 7 op 0x0:(READ) flags 0x0", "io-error", "nvme0n1"),
    ("blk_update_request: I/O error, dev sda, sector 7", "io-error", "sda"),
    ("Buffer I/O error on dev dm-3, logical block 7, async page read", "io-error", "dm-3"),
    ("nvme nvme0: I/O 123 QID 4 timeout, aborting", "disk-reset", "nvme0"),
    ("nvme nvme0: I/O tag 123 (107b) opcode 0x2 (I/O Cmd) QID 4 timeout, aborting", "disk-reset", "nvme0"),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff", "disk-reset", "nvme0"),
    ("ata1.00: failed command: READ FPDMA QUEUED", "disk-reset", "ata1.00"),
    ("ata1: hard resetting link", "disk-reset", "ata1"),
    (
        "pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
        "pcie-fatal",
        "0000:01:00.0",
    ),
    (
        "pcieport 0000:00:03.0: AER: Multiple Uncorrected (Non-Fatal) error received: 0000:01:00.0",
        "pcie-error",
        "0000:01:00.0",
    ),
]

AMD = "amdgpu 0000:63:00.0: "
GPU = "0000:63:00.0"
KNOWN += [
    (
        f"{AMD}{{1}}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
        "amdgpu-uncorrected",
        GPU,
    ),
    (
        f"{AMD}amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
        "amdgpu-uncorrected",
        GPU,
    ),
    (
        f"{AMD}amdgpu: {{2}}socket: 0, die: 1, 1 new uncorrectable hardware errors detected in gfx block",
        "amdgpu-uncorrected",
        GPU,
    ),
    (f"{AMD}amdgpu: 3 uncorrectable hardware errors detected in umc block", "amdgpu-uncorrected", GPU),
    (f"{AMD}{{7}}[Hardware Error]: aca entry[00].STATUS=0xbe00000000080100", "amdgpu-uncorrected", GPU),
    (f"{AMD}{{1}}[Hardware Error]: Accelerator Check Architecture events logged", "amdgpu-corrected", GPU),
    (f"{AMD}{{1}}[Hardware Error]: aca entry[00].STATUS=0x98000800003e0000", "amdgpu-corrected", GPU),
    (f"{AMD}amdgpu: GPU reset(2) failed", "amdgpu-reset-failed", GPU),
    (f"{AMD}GPU reset end with ret = -22", "amdgpu-reset-failed", GPU),
    (f"{AMD}amdgpu: device lost from bus!", "amdgpu-reset-failed", GPU),
    (f"{AMD}amdgpu: RAS records:130 exceed threshold:128", "amdgpu-worn-out", GPU),
    (f"{AMD}amdgpu: ring sdma0 timeout, signaled seq=1, emitted seq=2", "amdgpu-hang", GPU),
    (f"{AMD}ring gfx_0.0.0 timeout, signaled seq=57638, emitted seq=57641", "amdgpu-hang", GPU),
    ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=1", "amdgpu-hang", ""),
    ("amdgpu: qcm fence wait loop timeout expired", "amdgpu-hang", ""),
    (f"{AMD}amdgpu: Failed to send message 0x26, response 0x0", "amdgpu-hang", GPU),
    (f"{AMD}amdgpu: XGMI: Set topology failure on device", "amdgpu-link", GPU),
    (
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x0000005E)",
        "nvidia-reset-required",
        "",
    ),
    ("NVRM: GPU0 RmInitAdapter: NV_ERR_RESET_REQUIRED", "nvidia-reset-required", ""),
    *(
        (f"NVRM: {text}", "nvidia-post-rx", "")
        for text in (
            "knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
            "knvlinkDiscoverPostRxDetLinks_GB100: Getting peer17 postRxDetLinkMask failed!",
            "knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
            "GPU3 knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
        )
    ),
]
KNOWN += [
    (
        "EDAC MC0: 1 UE on mc#0csrow#2channel#1 (csrow:2 channel:1 page:0x3f offset:0x0 grain:64)",
        "uncorrected",
        "",
    ),
    ("EDAC MC0: 1 UE Multi-bit ECC on unknown memory (page:0x1 offset:0x0 grain:1)", "uncorrected", ""),
    ("mce: Uncorrected hardware memory error in user-access at 3f2e7e4c0", "uncorrected", ""),
    ("Oops: 0000 [#1] PREEMPT SMP PTI", "oops", ""),
    ("Oops: Oops: 0002 [#3] SMP NOPTI", "oops", ""),
    ("Oops: int3: 0000 [#1] SMP", "oops", ""),
    ("Oops: Kernel access of bad area, sig: 11 [#1]", "oops", ""),
    ("invalid opcode: 0000 [#1] SMP NOPTI", "oops", ""),
    ("divide error: 0000 [#1] PREEMPT SMP", "oops", ""),
    ("double fault: 0000 [#1] SMP", "oops", ""),
    ("Internal error: Oops - BUG: 0 [#1] PREEMPT SMP", "oops", ""),
    ("Internal error: synchronous external abort: 0000000096000410 [#1] SMP", "oops", ""),
    ("kernel BUG at drivers/net/ethernet/mellanox/mlx5/core/cmd.c:1!", "oops", ""),
    ("kernel BUG at foo+0x12/0x40 [verbose debug info unavailable]", "oops", ""),
    ("BUG: Bad page map in process python3  pte:8000 pmd:1", "corruption", ""),
    ("list_add corruption. next->prev should be prev (ffff), but was 0.", "corruption", ""),
    ("list_del corruption, ffff->next is LIST_POISON1 (dead000000000100)", "corruption", ""),
    (
        "XFS (sdb1): Internal error xfs_trans_cancel at line 957 of file fs/xfs/xfs_trans.c",
        "file-system",
        "sdb1",
    ),
    ("XFS (sdb1): Corruption of in-memory data detected.  Shutting down filesystem", "file-system", "sdb1"),
    ("XFS (sdb1): log I/O error -5", "file-system", "sdb1"),
    ("INFO: task my program:77 blocked for more than 120 seconds.", "hung-task", ""),
    ("nvme nvme0: I/O 5 (I/O Cmd) QID 4 timeout, reset controller", "disk-reset", "nvme0"),
]

HARMLESS = [
    "amdgpu 0000:63:00.0: amdgpu: GPU reset begin!",
    "amdgpu 0000:63:00.0: amdgpu: GPU reset(1) succeeded!",
    "amdgpu 0000:63:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:63:00.0: amdgpu: 14 new correctable hardware errors detected in umc block",
    "amdgpu 0000:63:00.0: amdgpu: ring gfx_0.0.0 uses VM inv eng 0 on hub 0",
    "amdgpu 0000:63:00.0: Ring gfx_0.0.0 reset failed",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64",
    "mce: CPU supports 32 MCE banks",
    "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
    "rcu: Hierarchical RCU implementation.",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode",
    "XFS (sdb1): Mounting V5 Filesystem",
    "XFS (sdb1): Ending clean mount",
    "nvme nvme0: pci function 0000:01:00.0",
    "ata1: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
    "pcieport 0000:00:03.0: AER: enabled with IRQ 26",
    "pcieport 0000:00:03.0: AER: Corrected error received: 0000:01:00.0",
    "EXT4-fs error (device loop3): an image of a user",
    "I/O error, dev sr0, sector 0",
    "I/O error, dev loop0, sector 0",
    "Buffer I/O error on dev fd0, logical block 0",
    "NVRM: NV_ERR_RE[7]: segfault at 0 ip 0 sp 0 error 6 in NVRM: NV_ERR_RESET_REQUIRED[55d0a8b3f000+1000]",
    "NVRM: GPU0 abcd: page allocation failure: order:4, cpuset=x: NV_ERR_RESET_REQUIRED,mems_allowed=0",
    "traps: python3[77] general protection fault ip:7f sp:7f error:0 in libc.so",
    "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/slurm/uid_1000/job_7,task_memcg=/slurm/uid_1000/job_7/step_0",
    "Memory cgroup out of memory: Killed process 4242 (python3)",
    "python3[77]: Oops: 0002 [#1] SMP",
    "WARNING: CPU: 1 PID: 7 at kernel/foo.c:1 foo+0x1/0x2",
]


@pytest.mark.parametrize(("text", "name", "subject"), KNOWN)
def test_a_message_is_recognised_with_its_device(text: str, name: str, subject: str) -> None:
    found = recognise(text)
    assert found is not None
    assert (found[0].name, found[1]) == (name, subject)
    assert text.encode().startswith(BEGINS)


def test_every_shape_has_an_example_and_a_check() -> None:
    assert {name for _, name, _ in KNOWN} == SHAPES.keys()
    assert {shape.check for shape in SHAPES.values()} <= {check.name for check in kernel.CHECKS}


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_harmless_or_the_users_is_nothing(text: str) -> None:
    assert recognise(text) is None


@given(st.text(max_size=100), st.sampled_from(KNOWN))
def test_no_text_breaks_the_recognition_of_kernel_reports(text: str, known: tuple[str, str, str]) -> None:
    recognise(text)
    recognise(known[0][: len(known[0]) // 2] + text)


SEGFAULT = "at 0 ip 000055d0a8b3f139 sp 00007ffd3c0b2b90 error 6 in {file}[55d0a8b3f000+1000]"

OF_A_PROCESS = [
    "{name}[77]: segfault " + SEGFAULT,
    "{name}[77]: segfault " + SEGFAULT + " likely on CPU 3 (core 1, socket 0)",
    "{name}[7]: segfault (11) at 0 nip 0 lr 0 code 1 in {file}[10000+1000]",
    "{name}[77]: unhandled signal 11 code 0x1 at 0x0000000000000000 in {file}[10000+1000]",
    "{name}[77]: unhandled exception: DABT (lower EL), ESR 0x0, level 0 translation fault in {file}[1+1]",
    "{name}[77] general protection fault ip:7f sp:7f error:0 in {file}[55d0a8b3f000+1000]",
    "{name}[77] trap invalid opcode ip:7f sp:7f error:0 in {file}[55d0a8b3f000+1000]",
    "traps: {name}[77] general protection fault ip:7f sp:7f error:0 in {file}[55d0a8b3f000+1000]",
    "{name}[77] bad frame in rt_sigreturn frame:0000 ip:7f sp:7f orax:ffff in {file}[55d0a8b3f000+1000]",
    "{name}[77] vsyscall attempted with vsyscall=none ip:ffffffffff600000 cs:33 sp:7f ax:60 si:0 di:0",
    "{name}: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL), cpuset={file},mems_allowed=0",
    "{name}: page allocation stalls for 10008ms, order:0, mode:0x14200ca, nodemask=(null)",
    "{name}: vmalloc error: size 4096, failed to allocate pages, mode:0xcc2,cpuset={file},mems_allowed=0",
    "{name} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "{name}: attempt to access beyond end of device\\x0aloop0: rw=0, sector=8, nr_sectors = 8 limit=0",
    "{name}: sending ioctl 5310 to a partition!",
    "{name}: entered promiscuous mode",
    "{name} (77): Attempt to set a LOCK_MAND lock via flock(2). This support has been removed",
    "{name} (77): /proc/77/oom_adj is deprecated, please use /proc/77/oom_score_adj instead.",
    "{name} (77) used greatest stack depth: 11256 bytes left",
    "{name}/77: potentially unexpected fatal signal 11.",
    "{name} uses obsolete (PF_INET,SOCK_PACKET)",
]
"""What the kernel says of a process; it begins with its name, and may end with that of a file or a group."""

MESSAGES = st.one_of(
    st.sampled_from([text for text, _, _ in KNOWN]),
    st.sampled_from([*SHAPES]).flatmap(lambda name: st.from_regex(re.compile(SHAPES[name].regex, re.ASCII))),
    st.just("NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=x, GPU has fallen off the bus."),
    st.just("NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."),
    st.just("nvidia-nvswitch3: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48"),
    st.just(MARK + "all"),
)


@st.composite
def words_of_a_user(draw: st.DrawFn) -> tuple[str, str]:
    """A name of a process and one of a file: the best are the parts of a message that would count."""
    message = draw(MESSAGES | st.text())
    cut = draw(st.integers(0, len(message)))
    name = draw(st.just(message[:COMM]) | st.just(message[:cut][:COMM]) | st.text(max_size=COMM))
    file = draw(st.just(message[len(name) :]) | st.just(message[cut:]) | st.text(max_size=200))
    return name.encode()[:COMM].decode(errors="ignore"), file[:255]


@given(words_of_a_user(), st.sampled_from(OF_A_PROCESS), st.sampled_from([4, 6]))
@settings(max_examples=150, deadline=None)
def test_no_name_of_a_process_or_file_makes_a_message_that_counts(
    words: tuple[str, str], line: str, level: int
) -> None:
    name, file = words
    record = parse(f"{level},1,1,-;{line.format(name=name, file=file)}".encode())
    assert record is not None
    assert recognise(record.text) is None
    assert summarise([record], BOOT, BOOT, lambda shape: 3600.0) == KernelFacts(boot_at=BOOT)


@pytest.mark.parametrize(
    "name",
    [
        *("EDAC MC0: 1 UE ", "EDAC MC0: 1 UE", "EDAC MC0: 1 CE ", "kernel BUG at x", "kernel BUG at "),
        *(
            "Oops: 0 [#1]",
            "Oops: 0002 [#1]",
            "Oops: ",
            "divide error, x",
            "divide error: 0",
            "I/O error, dev",
        ),
        *("I/O error, dev ", "Internal error:", "XFS (sda1): ", "INFO: task x", "nvme a: I/O 1"),
    ],
)
def test_names_that_look_like_the_beginning_of_one_do_not_count(name: str) -> None:
    files = ("libc.so.6", "[#1] SMP", "x: 0000 [#1] SMP", "has been shut down", "a on b")
    lines = [line.format(name=name, file=file) for line in OF_A_PROCESS for file in files]
    assert [line for line in lines if recognise(line)] == []


@pytest.mark.parametrize(
    ("check", "text", "suggestion"),
    [
        ("kernel.mce", UNCORRECTED, Suggestion.REBOOT),
        ("kernel.panic", "Oops: 0002 [#1] SMP", Suggestion.REBOOT),
        ("kernel.filesystem", "EXT4-fs error (device sda1): x", Suggestion.REBOOT),
        ("kernel.filesystem", "nvme nvme3: Removing after probe failure status: -19", Suggestion.REPLACE),
    ],
)
def test_damage_lasts_until_the_node_boots(check: str, text: str, suggestion: Suggestion) -> None:
    (finding,) = failed(check, view((100.0, text), now=30 * 86400.0))
    assert finding.suggestion is suggestion
    assert finding.source == f"/dev/kmsg: {text}"


@pytest.mark.parametrize(
    ("check", "text", "suggestion", "blame"),
    [
        ("kernel.lockup", "watchdog: Watchdog detected hard LOCKUP on cpu 7", Suggestion.REBOOT, Party.NODE),
        (
            "kernel.lockup",
            "INFO: task a:1 blocked for more than 120 seconds.",
            Suggestion.MONITOR,
            Party.NODE,
        ),
        ("kernel.oom", "Out of memory: Killed process 1 (x)", Suggestion.MONITOR, Party.JOB),
        ("kernel.filesystem", "I/O error, dev sda, sector 7", Suggestion.MONITOR, Party.NODE),
        (
            "kernel.pcie",
            "pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
            Suggestion.REBOOT,
            Party.NODE,
        ),
    ],
)
def test_passing_kernel_reports_count_within_the_window(
    check: str, text: str, suggestion: Suggestion, blame: Party
) -> None:
    (finding,) = failed(check, view((10_000.0 - 3599.0, text)))
    assert (finding.suggestion, finding.blame) == (suggestion, blame)
    assert [finding.outcome for finding in judged(check, view((10_000.0 - 3601.0, text)))] == [Outcome.PASS]


@pytest.mark.parametrize(("times", "suggestion"), [(1, "monitor"), (2, "monitor"), (3, "reboot")])
def test_a_cpu_that_stays_stuck_is_another_thing_than_one_that_was(times: int, suggestion: str) -> None:
    (finding,) = failed("kernel.lockup", view(*[(9_000.0 + 23 * number, SOFT) for number in range(times)]))
    assert finding.suggestion.value == suggestion
    assert finding.value.startswith(f"{times} messages")


def test_old_lockups_do_not_add_up_with_new_ones() -> None:
    lines = [(10.0, SOFT), (20.0, SOFT), (9_999.0, SOFT)]
    (finding,) = failed("kernel.lockup", view(*lines))
    assert finding.suggestion is Suggestion.MONITOR


@pytest.mark.parametrize(("times", "fails"), [(10, False), (11, True)])
def test_corrected_errors_have_a_limit(times: int, fails: bool) -> None:
    lines = [(9_000.0 + number, EVENTS) for number in range(times)]
    found = failed("kernel.mce", view(*lines))
    assert bool(found) is fails
    assert all(finding.suggestion is Suggestion.MONITOR for finding in found)


def test_limits_and_windows_are_the_sites() -> None:
    config = NodeConfig(
        kernel=KernelLimits(window_s=7200.0, max_corrected_mce_per_hour=1),
        storage=StorageLimits(io_errors_window_s=5.0),
    )
    lines = [(9_000.0 + number, EVENTS) for number in range(2)]
    assert not failed("kernel.mce", view(*lines, config=config), config)
    assert failed("kernel.mce", view(*lines, (9_100.0, EVENTS), config=config), config)
    disk = "I/O error, dev sda, sector 7"
    assert not failed("kernel.filesystem", view((9_994.0, disk), config=config), config)


def test_each_disk_speaks_for_itself_and_the_worst_for_a_disk() -> None:
    lines = [(9_999.0, "I/O error, dev sda, sector 7"), (9_999.0, "I/O error, dev sdb, sector 7")]
    lines += [(9_999.0, "critical medium error, dev sda, sector 7")] * 10
    found = {finding.subject: finding.suggestion for finding in failed("kernel.filesystem", view(*lines))}
    assert found == {"sda": Suggestion.REPLACE, "sdb": Suggestion.MONITOR}


@pytest.mark.parametrize(
    ("tainted", "mce", "panic"), [(0, 0, 0), (16, 1, 0), (128, 0, 1), (4097, 0, 0), (None, 0, 0)]
)
def test_the_kernel_remembers_what_its_log_forgot(tainted: int | None, mce: int, panic: int) -> None:
    seen = view(tainted=tainted)
    assert (len(failed("kernel.mce", seen)), len(failed("kernel.panic", seen))) == (mce, panic)


@pytest.mark.parametrize(("before", "fails"), [(3599.0, True), (3601.0, False), (-10.0, True)])
def test_a_crash_that_led_to_this_boot_is_reported(before: float, fails: bool) -> None:
    found = failed("kernel.panic", view(crashed_at=BOOT - before))
    assert bool(found) is fails
    assert all(finding.suggestion is Suggestion.MONITOR for finding in found)


@pytest.mark.parametrize(
    "check", [check.name for check in kernel.CHECKS if not check.name.endswith(("xid", "gpu"))]
)
def test_a_log_that_cannot_be_read_is_unknown(check: str) -> None:
    for seen in (view(error="no"), view(cut=True)):
        assert [finding.outcome for finding in judged(check, seen)] == [Outcome.UNKNOWN]


LOG = f"""\
4,1,1000000,-;{UNCORRECTED}
4,2,2000000,-;NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=x, GPU has fallen off the bus.
6,3,3000000,-;EXT4-fs (sda1): mounted
"""


def test_a_machine_is_read(tmp_path: Path) -> None:
    host = plant(
        tmp_path,
        {
            "/dev/kmsg": LOG,
            "/proc/uptime": "3600.00 7000.0\n",
            "/proc/sys/kernel/tainted": "4113\n",
            "/proc/driver/nvidia/gpus/0000:9b:00.0/information": "Model: NVIDIA H100\n",
            "/sys/fs/pstore/dmesg-erst-7": "Oops",
            "/var/crash/_usr_bin_python3.0.crash": "of a program",
        },
    )
    os.utime(host.path("/sys/fs/pstore/dmesg-erst-7"), (BOOT, BOOT))
    facts = gather(host, NodeConfig())
    assert [event.shape for event in facts.events] == ["uncorrected", "xid"]
    assert facts.events[0].last_at == pytest.approx(facts.boot_at + 1.0)
    assert facts.events[1].recent == 1
    assert (facts.tainted, facts.gpus, facts.error) == (4113, ("0000:9b:00.0",), "")
    assert facts.crashed_at == (BOOT if os.getuid() == 0 else 0.0)


def test_a_machine_without_anything_is_read(tmp_path: Path) -> None:
    facts = gather(plant(tmp_path, {"/proc/uptime": "1.0 1.0"}), NodeConfig())
    assert facts.error == "/dev/kmsg: No such file or directory"
    assert (facts.gpus, facts.tainted, facts.crashed_at, facts.events) == (None, None, 0.0, ())
