"""What holds for all checks of the kernel, memory, processes, clock, services and snapshots."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.config.node import NodeConfig, ServiceLimits
from slurm_robust.kernel import xid
from slurm_robust.kernel.catalog import RULES
from slurm_robust.kernel.events import summarise
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.kmsg import KernelLog, boot_time
from slurm_robust.kernel.shapes import SHAPES
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.nodes.check import AnyCheck, CheckContext, View
from slurm_robust.nodes.checks import clock, kernel, memory, processes, services, snapshots
from slurm_robust.nodes.checks.clock import ClockFacts
from slurm_robust.nodes.checks.memory import Controller, MemoryFacts
from slurm_robust.nodes.checks.processes import ProcessFacts
from slurm_robust.nodes.checks.services import MungeFacts
from slurm_robust.nodes.checks.snapshots import SnapshotFacts, SnapshotFolder
from slurm_robust.nodes.runner import baseline_facts, inspect
from tests.unit.kernel.test_kernel_shapes import KNOWN
from tests.unit.nodes.host_files import plant, view
from tests.unit.nodes.kernel_logs import BOOT
from tests.unit.nodes.kernel_logs import view as log_view

CHECKS: tuple[AnyCheck, ...] = (
    *memory.CHECKS,
    *processes.CHECKS,
    *clock.CHECKS,
    *kernel.CHECKS,
    *services.CHECKS,
    *snapshots.CHECKS,
)
CONFIG = NodeConfig(services=ServiceLimits(required=("munged",)))

EVERYTHING_WRONG = {
    "memory": view(
        MemoryFacts(
            total=100, available=1, shm_total=100, shm_free=0, controllers={"mc0": Controller(uncorrected=2)}
        ),
        baseline=MemoryFacts(total=1000, available=1),
        job_gone=True,
    ),
    "processes": view(
        ProcessFacts(
            count=9,
            daemons=("systemd",),
            cpus=1,
            load=(99.0, 99.0, 99.0),
            waiting=dict.fromkeys(range(99), 1),
            zombies=999,
            users={1000: 1},
        ),
        (100.0, ProcessFacts(count=9, cpus=1, load=(0, 0, 0), waiting=dict.fromkeys(range(99), 1))),
        job_gone=True,
    ),
    "clock": view(ClockFacts(synchronised=True, offset_s=9.0, error_s=0.0, bound_s=9.0)),
    "munge": view(MungeFacts(state="silent", detail="no answer")),
    "snapshots": view(
        SnapshotFacts(
            folders=(SnapshotFolder(name="x", uid=1, job_id=7, mib=1, written_at=0.0),), jobs=frozenset()
        )
    ),
    "kernel": log_view(
        *[(9_999.0, text) for text, _, _ in KNOWN for _ in range(11)],
        *[(9_999.0, f"NVRM: Xid (PCI:0000:{code:02x}:00): {code}, x") for code in RULES if code < 80],
        (9_999.0, "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 48"),
        gpus=("0000:4f:00.0",),
        tainted=255,
        crashed_at=BOOT,
    ),
}

# A clock that is off is one that is kept right: its other check passes.
FAILING = [check for check in CHECKS if check.name != "clock.sync"]


def findings(check: AnyCheck) -> list[Finding]:
    seen: View[object] = EVERYTHING_WRONG[check.source.name]  # type: ignore[assignment]
    return list(check.judge(seen, CONFIG))


def test_names_are_unique_and_one_check_speaks_when_a_source_hangs() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    speakers = Counter(check.source.name for check in CHECKS if check.hangs)
    silent = {"munge"}  # it bounds its own question: what takes longer is not the doing of munged
    assert speakers == dict.fromkeys({check.source.name for check in CHECKS} - silent, 1)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_explains_itself_in_a_few_sentences(check: AnyCheck) -> None:
    assert 80 < len(check.explain) < 600
    assert check.explain.endswith(".")
    assert "  " not in check.explain


@pytest.mark.parametrize("check", FAILING, ids=lambda check: check.name)
def test_a_failure_comes_with_its_evidence(check: AnyCheck) -> None:
    failed = [finding for finding in findings(check) if finding.outcome is Outcome.FAIL]
    assert failed
    for finding in failed:
        assert finding.check == check.name
        assert finding.value
        assert finding.limit
        assert finding.source
        assert finding.suggestion is not Suggestion.NONE
        assert 5 < len(finding.text) < 120
        for words in (finding.text, finding.subject, finding.value, finding.limit, finding.source):
            assert words.isascii()
            assert words.isprintable()


def test_each_subject_has_one_finding() -> None:
    for check in CHECKS:
        subjects = Counter(
            finding.subject for finding in findings(check) if finding.outcome is not Outcome.UNKNOWN
        )
        assert set(subjects.values()) <= {1}, check.name


def test_judging_twice_says_the_same() -> None:
    for check in CHECKS:
        assert findings(check) == findings(check)


def test_all_run_on_this_machine_within_the_budget() -> None:
    report = inspect(NodeConfig(), CheckContext.PERSON, memory=None, now=BOOT, budget_s=30.0, checks=CHECKS)
    assert report.errors == {}
    assert {finding.check for finding in report.findings} >= {
        "memory.size",
        "processes.zombies",
        "clock.sync",
    }


def test_the_size_of_the_memory_is_part_of_a_baseline() -> None:
    facts, _ = baseline_facts(NodeConfig(), Host(), 30.0, memory.CHECKS)
    assert isinstance(facts["memory"], MemoryFacts)


def test_a_log_that_is_followed_tells_of_a_lost_gpu_at_once(tmp_path: Path) -> None:
    host = plant(
        tmp_path, {"/dev/kmsg": "6,1,1000000,-;NVRM: Xid (PCI:0000:9b:00): 48, old", "/proc/uptime": "9 9"}
    )
    with KernelLog(host, 1) as log:
        assert log.read() == []
        with host.path("/dev/kmsg").open("a") as file:
            file.write("4,2,2000000,-;NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n")
        new = log.read()
    boot_at = boot_time(host)
    happened = summarise(new, boot_at, boot_at + 3.0, lambda shape: 60.0)
    facts = structs.replace(happened, gpus=("0000:9b:00.0",))
    (found,) = kernel.judge_xid(View(facts=facts, at=boot_at + 3.0), CONFIG)
    assert (found.subject, found.text[:6]) == ("gpu0", "XID 79")


def test_a_hook_imports_nothing_slow_with_them() -> None:
    modules = [f"slurm_robust.nodes.checks.{name}" for name in ("clock", "kernel", "services", "snapshots")]
    slow = ("torch", "rich", "yaml", "zmq", "psutil", "pynvml", "ctypes", "socket", "slurm_robust.slurm")
    code = f"import {', '.join(modules)}, sys; print([name for name in {slow!r} if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.strip() == "[]"


def test_every_code_and_shape_has_a_text_for_people() -> None:
    assert all(rule.meaning and rule.meaning.isascii() for rule in RULES.values())
    assert all(shape.text and shape.text.isascii() for shape in SHAPES.values())
    assert xid.rule(12345).meaning == "unknown: not in the catalog"


def test_a_copy_of_a_machine_is_judged_like_the_machine(tmp_path: Path) -> None:
    host = plant(
        tmp_path,
        {
            "/dev/kmsg": "4,1,1000000,-;BUG: unable to handle page fault for address: ffff8",
            "/proc/uptime": "3600.0 7000.0",
            "/proc/loadavg": "0 0 0 1/1 1",
            "/proc/meminfo": "MemTotal: 1024000 kB\nMemAvailable: 1000000 kB",
        },
    )
    report = inspect(
        NodeConfig(),
        CheckContext.PERSON,
        host=host,
        memory=None,
        now=boot_time(host) + 3600.0,
        budget_s=30.0,
        checks=CHECKS,
    )
    assert [
        (found.check, found.suggestion.value) for found in report.findings if found.outcome is Outcome.FAIL
    ] == [("kernel.panic", "reboot")]
