"""Kernel logs as people report them, read as a whole: root and consequence, pairs, the node, and noise."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.analysis.logs import classify
from slurm_robust.inspector.gpuevents import XidEvent, findings_of
from slurm_robust.kernel import xid
from slurm_robust.kernel.owners import owners
from slurm_robust.model.findings import Finding, Suggestion
from slurm_robust.model.incident import Remedy
from tests.unit.nodes.host_files import plant
from tests.unit.nodes.kernel_logs import failed, happened, view

DATA = Path(__file__).resolve().parents[2] / "data" / "kernel_reports"
NONE, MONITOR, RESET = Suggestion.NONE, Suggestion.MONITOR, Suggestion.RESET
REBOOT, REPLACE = Suggestion.REBOOT, Suggestion.REPLACE
A, B = "NVRM: Xid (PCI:0000:5d:00): ", "NVRM: Xid (PCI:0000:6e:00): "
RLW = "145, RLW_RXPIPE Fatal   XC0 i0 Link 03 (0x0403a0c6 0x00000008)"
PEER = "149, NETIR_LINK_DOWN Link Fatal XC0 i0 Link 1 (0x02100011)"
REFUSED = "NVRM: nvCheckOkFailedNoLog: Check failed: Reset required [NV_ERR_RESET_REQUIRED] (0x5E)"
POST_RX = "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!"
POWER = "Power Smoothing HW Circuitry capability"
ASKS = "154, GPU recovery action changed from"


def lines(text: str) -> list[tuple[float, str]]:
    found = re.findall(r"(?m)^\[ *([\d.]+)\] (.*)$", text)
    return [(float(at), line) for at, line in found]


def said(*log: tuple[float, str], after_s: float = 60.0) -> dict[str, Finding]:
    now = max((at for at, _ in log), default=0.0) + after_s
    seen = view(*log, now=now, gpus=())
    return {found.subject: found for check in ("kernel.xid", "kernel.gpu") for found in failed(check, seen)}


def report(name: str) -> dict[str, Finding]:
    return said(*lines((DATA / f"{name}.txt").read_text()))


@pytest.mark.parametrize("code", range(1, 201))
def test_one_table_answers_for_check_inspection_and_log_rules(code: int) -> None:
    line = f"{A}{code}, pid=7, name=python, text"
    (event,) = happened((1.0, line), now=2.0).events
    rule = xid.rule(event.code, xid.XidSeverity(event.severity))
    live = findings_of([XidEvent(at=1.0, index=0, uuid="", code=code)])
    away = rule.suggestion.keeps_jobs_away
    assert [found.suggestion for found in live] == ([rule.suggestion] if away else [])
    for text in (line, f"health check: Xid {code} on GPU 5"):
        verdict = classify(text, "kernel")
        assert (verdict.action is Remedy.EVICT) is away, verdict
        assert (verdict.action is Remedy.ROLLBACK_OR_FIX) is (rule.topic.value == "program"), verdict


@pytest.mark.parametrize("code", [1, 7, 173, 199, 9999])
def test_an_unknown_code_is_called_unknown_and_evicts_nobody(code: int) -> None:
    (found,) = said((1.0, f"{A}{code}, a code that no catalog has")).values()
    assert (found.suggestion, "unknown" in found.text) == (MONITOR, True)


NEW = [
    (137, [MONITOR]),
    (139, [NONE, MONITOR]),
    (144, [MONITOR]),
    (145, [MONITOR]),
    (146, [MONITOR, RESET]),
    (149, [MONITOR, RESET]),
    (149, [MONITOR, RESET]),
    (159, [MONITOR]),
    (160, [MONITOR]),
    (161, [MONITOR]),
    (165, [MONITOR]),
    (168, [MONITOR, REPLACE]),
    (169, [MONITOR, RESET]),
    (172, [RESET]),
    (199, [MONITOR]),
]


@pytest.mark.parametrize("number", range(len(NEW)))
def test_new_codes_are_judged_by_their_lines(number: int) -> None:
    code, acceptable = NEW[number]
    line = lines((DATA / "xid-137-to-172.txt").read_text())[number]
    assert f": {code}, " in line[1]
    found = said(line)
    assert [each.suggestion for each in found.values()] == [] or NONE not in acceptable
    assert all(each.suggestion in acceptable for each in found.values())
    assert found or NONE in acceptable
    evicts = classify(line[1], "kernel").action is Remedy.EVICT
    assert evicts is any(each.suggestion.keeps_jobs_away for each in found.values())


def test_fatal_link_errors_on_two_gpus_are_the_nodes() -> None:
    found = report("xid145-fabric")
    assert found["NVLink"].suggestion is REBOOT
    assert "0000:5d:00, 0000:6e:00" in found["NVLink"].text
    assert all("45" not in each.text.replace("145", "") for each in found.values())


@pytest.mark.parametrize(
    ("log", "node"),
    [
        ([(1.0, A + RLW), (2.0, B + RLW)], True),
        ([(1.0, A + RLW), (2.0, A + RLW.replace("03", "04"))], False),
        ([(1.0, A + RLW), (2.0, B + RLW.replace("Fatal", "Nonfatal"))], False),
        (
            [
                (1.0, A + "150, MSE Fatal XC0 i0 Link -1 (0x0)"),
                (2.0, B + "144, SAW Fatal XC0 i0 Link 1 (0x0)"),
            ],
            True,
        ),
        ([(1.0, A + RLW), (5_000.0, B + RLW)], False),
        (
            [(1.0, A + RLW), (2.0, A + ASKS + " 0x1 (GPU Reset Required) to 0x0 (None)"), (3.0, B + RLW)],
            False,
        ),
        (
            [
                (2.0, B + RLW),
                (1.0, A + "147, TREX Fatal XC1 i1 Link 2 (0x1)"),
                (3.0, A + "45, pid=1, name=x"),
            ],
            True,
        ),
        # The device at the other end: a tray of the rack that boots must not take all others with it.
        ([(float(at), f"NVRM: Xid (PCI:000{at}:01:00): {PEER}") for at in range(4)], False),
        ([(1.0, A + "145"), (2.0, B + "145")], False),
        ([(1.0, A + "145, pid=1, name=Fatal XC0 i0 Li, text"), (2.0, B + "145, Fatal")], False),
    ],
)
def test_the_whole_node_only_when_two_gpus_lost_their_links(log: list[tuple[float, str]], node: bool) -> None:
    assert ("NVLink" in said(*log)) is node


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ([(1.0, A + f"163, {POWER} disengaged"), (2.0, A + f"162, {POWER} reengaged")], NONE),
        ([(1.0, A + f"162, {POWER} reengaged"), (2.0, A + f"163, {POWER} disengaged")], MONITOR),
        ([(1.0, A + f"163, {POWER} disengaged"), (2.0, B + f"162, {POWER} reengaged")], MONITOR),
        ([(1.0, A + ASKS + " 0x0 (None) to 0x2 (Node Reboot Required)")], REBOOT),
        ([(1.0, A + ASKS + " 0x0 (None) to 0x5 (Recover IMEX Domain)")], MONITOR),
        ([(1.0, A + ASKS + " 0x0 (None) to 0x1f (Something new)")], MONITOR),
        ([(1.0, A + ASKS + " 0x0 (None) to 0x6 (Bus Reset)")], RESET),
        ([(1.0, A + ASKS + " 0x0 (None) to 0x7 (System Reboot)")], REBOOT),
        ([(1.0, A + "154, in words of tomorrow")], MONITOR),
        ([(1.0, A + ASKS + " 0x0 (None) to 0x1 (GPU Reset Required)"),
          (2.0, A + ASKS + " 0x1 (GPU Reset Required) to 0x0 (None)")], NONE),
        ([(1.0, A + "45, pid=1, name=x, Ch 1 caused by previous Xid 79")], NONE),
        ([(1.0, A + "94, pid=1, name=x, x"), (2.0, A + "43, pid=1"), (3.0, A + "45, pid=1")], MONITOR),
        ([(3.0, A + "48, DBE"), (1.0, A + "45, pid=1, name=x"), (4.0, A + "63, row")], RESET),
        ([(1.0, "NVRM: The NVIDIA GPU 0000:5d:00.0 (PCI ID: 10de:26b5)"),
          (1.0, "NVRM: installed in this system has"),
          (1.0, "NVRM: fallen off the bus and is not responding to commands.")], REBOOT),
        ([(1.0, "NVRM: The NVIDIA GPU 0000:5d:00.0 (PCI ID: 10de:26b5)"),
          (9.0, "NVRM: fallen off the bus and is not responding to commands.")], NONE),
        ([(1.0, "amdgpu 0000:63:00.0: amdgpu: ring sdma0 timeout, signaled seq=1")], MONITOR),
        ([(1.0, "amdgpu 0000:63:00.0: amdgpu: 1 uncorrectable hardware errors detected in gfx block"),
          (2.0, "amdgpu 0000:63:00.0: amdgpu: GPU reset(1) succeeded!")], NONE),
        ([(1.0, "amdgpu 0000:63:00.0: amdgpu: 1 uncorrectable hardware errors detected in gfx block"),
          (2.0, "amdgpu 0000:64:00.0: amdgpu: GPU reset(1) succeeded!")], RESET),
        ([(1.0, REFUSED)], RESET),
        ([(1.0, POST_RX)], MONITOR),
    ],
)  # fmt: skip
def test_lines_are_read_together(log: list[tuple[float, str]], expected: Suggestion) -> None:
    worst = max(
        (found.suggestion for found in said(*log).values()), key=lambda each: each.weight, default=NONE
    )
    assert worst is expected


def test_reports_of_what_means_nothing() -> None:
    assert report("xid45") == report("xid163-162") == {}
    assert classify((DATA / "xid163-162.txt").read_text(), "kernel").action is Remedy.NONE
    found = report("xid154")
    assert {subject: each.suggestion for subject, each in found.items()} == {
        "0018:01:00": REBOOT,
        "0019:01:00": MONITOR,
    }
    repeated = [
        (93_000 + at / 90, f"{A}95, pid=50100, name=python3, Uncontained: LTC TAG") for at in range(400)
    ]
    (one,) = said(*repeated).values()
    assert (one.suggestion, "400 lines" in one.value) == (RESET, True)


def test_amd_gpus_are_told_from_processors() -> None:
    found = report("amd-mi300x")
    assert {subject: each.suggestion for subject, each in found.items() if subject} == {
        "0000:63:00.0": REBOOT,
        "0000:93:00.0": MONITOR,
    }
    log = lines((DATA / "amd-mi300x.txt").read_text())
    assert not failed("kernel.mce", view(*log, now=9_000.0))


def test_a_process_is_named_with_its_rank_while_it_lives(tmp_path: Path) -> None:
    host = plant(
        tmp_path,
        {
            "proc/7/stat": "7 (python3) S " + " ".join(["0"] * 18) + " 100 0",
            "proc/7/environ": "SLURM_JOB_ID=4711\0RANK=5\0SLURM_PROCID=1\0",
            "proc/8/stat": "8 (other) S " + " ".join(["0"] * 18) + " 100 0",
            "proc/9/stat": "9 (python3) S " + " ".join(["0"] * 18) + " 99900 0",
            "proc/9/environ": "RANK=1\0",
        },
    )
    log = happened(*((10.0, f"{A}94, pid={pid}, name=python3, Contained") for pid in (7, 8, 9)), now=20.0)
    assert owners(host, log.events, 1_700_000_000.0) == {"7": "python3 of job 4711, rank 5"}
    seen = view(
        (10.0, f"{A}94, pid=7, name=python3, Contained"), now=20.0, gpus=(), owners={"7": "python3, rank 5"}
    )
    assert failed("kernel.xid", seen)[0].text.endswith("; python3, rank 5 (pid 7)")
    seen = view((10.0, f"{A}94, pid=7, name=py;$(x) 3, Contained"), now=20.0, gpus=())
    assert failed("kernel.xid", seen)[0].text.endswith("; pyx3 (pid 7)")


def healthy(count: int, jobs: int) -> list[tuple[float, str]]:
    """The log of a well cluster's node: jobs that end or crash in all their processes, and other messages."""
    chance = random.Random(7)
    found = []
    for number in range(count):
        at = 60.0 * number / count
        job = number * jobs // count
        code = chance.choice((45, 45, 45, 45, 43, 13, 31))
        gpu = chance.randrange(8)
        found.append(
            (at, f"NVRM: Xid (PCI:0000:{gpu:02x}:00): {code}, pid={job * 100 + gpu}, name=python3, Ch 1")
        )
    return found


@pytest.mark.slow
def test_ends_of_jobs_drain_nobody_however_many_lines_they_log() -> None:
    log = healthy(100_000, jobs=40)
    begun = time.process_time()
    assert said(*log) == {}
    assert time.process_time() - begun < 10.0
    hours = [(at + 600.0 * burst, line) for burst in range(40) for at, line in healthy(60, jobs=1)]
    assert not any(found.suggestion.keeps_jobs_away for found in said(*hours).values())


NOISE = st.sampled_from(
    [
        *(f"{gpu}{code}, pid=1, name=python3, Ch 2" for gpu in (A, B) for code in (13, 31, 43, 45)),
        *(f"{gpu}45, caused by previous Xid {code}" for gpu in (A, B) for code in (79, 145)),
        *(f"{gpu}{code}, {POWER}" for gpu in (A, B) for code in (162, 163)),
        A + "145, RLW_REMAP Nonfatal XC0 i0 Link 02 (0x1, 0x2)",
        "NVRM: installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "amdgpu 0000:63:00.0: amdgpu: GPU reset begin!",
        "amdgpu 0000:63:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0x98000800003e0000",
    ]
)  # fmt: skip


@given(st.lists(st.tuples(NOISE, st.integers(0, 200), st.floats(0, 1e5)), max_size=30))
def test_noise_in_any_order_and_cut_anywhere_drains_nobody(log: list[tuple[str, int, float]]) -> None:
    found = said(*((at, text[: len(text) - cut if cut < len(text) else len(text)]) for text, cut, at in log))
    assert not any(each.suggestion.keeps_jobs_away for each in found.values())
