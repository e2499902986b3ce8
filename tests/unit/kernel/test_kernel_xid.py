"""XIDs and SXids: what keeps jobs away, for how long, and what ends it."""

from __future__ import annotations

import pytest

from slurm_robust.config.node import GpuLimits, KernelLimits, NodeConfig
from slurm_robust.kernel.events import MARK
from slurm_robust.model.findings import Outcome, Party, Suggestion
from tests.unit.nodes.kernel_logs import failed, happened, judged, view

GPUS = ("0000:1b:00.0", "0000:9b:00.0")
XID = "NVRM: Xid (PCI:0000:9b:00): "
OTHER = "NVRM: Xid (PCI:0000:1b:00): "
LOST = XID + "79, GPU has fallen off the bus."
DBE = XID + "48, An uncorrectable double bit error"
LOADED = "nvidia-nvlink: Nvlink Core is being initialized, major device number 237"
RECOVERED = XID + "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): "


def test_a_lost_gpu_is_named_by_index_with_its_evidence() -> None:
    (finding,) = failed("kernel.xid", view((5.0, LOST), gpus=GPUS))
    assert finding.subject == "gpu1"
    assert finding.text == "XID 79, GPU fell off the bus (0000:9b:00)"
    assert finding.suggestion is Suggestion.REBOOT
    assert finding.value == "XID 79 at 2023-11-14T22:13:25Z"
    assert (finding.limit, finding.source) == ("none since the last reboot", f"/dev/kmsg: {LOST}")


def test_a_gpu_that_the_driver_does_not_know_is_named_by_its_address() -> None:
    (finding,) = failed("kernel.xid", view((5.0, LOST), gpus=GPUS[:1]))
    assert finding.subject == "0000:9b:00"


def test_the_worst_speaks_for_a_gpu_and_each_gpu_for_itself() -> None:
    lines = [(1.0, DBE), (2.0, LOST), (3.0, XID + "63, Row remapper"), (9_999.0, OTHER + "119, GSP")]
    first, second = failed("kernel.xid", view(*lines, gpus=GPUS, now=10_000))
    assert (first.subject, first.text) == (
        "gpu0",
        "XID 119, GPU system processor does not answer (0000:1b:00)",
    )
    assert second.text == "XID 79, GPU fell off the bus (0000:9b:00); also 48"


def test_the_fault_is_named_before_the_remedy_that_the_driver_wants() -> None:
    wants = XID + "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    (finding,) = failed("kernel.xid", view((1.0, DBE), (2.0, wants), gpus=GPUS))
    assert finding.text == "XID 48, uncorrectable memory error (0000:9b:00); also 154"
    (alone,) = failed("kernel.xid", view((2.0, wants), gpus=GPUS))
    assert (alone.text[:38], alone.suggestion) == ("XID 154, the driver asks for a reset (", Suggestion.RESET)


@pytest.mark.parametrize(("age", "fails"), [(3599.0, True), (3601.0, False)])
def test_what_calls_for_nothing_counts_within_the_window(age: float, fails: bool) -> None:
    seen = view((10_000.0 - age, XID + "94, pid=1, name=x, Contained memory error"), gpus=GPUS)
    assert bool(failed("kernel.xid", seen)) is fails


def test_the_window_is_the_sites() -> None:
    config = NodeConfig(gpu=GpuLimits(xid_window_s=60.0))
    line = (9_900.0, XID + "94, Contained")
    assert failed("kernel.xid", view(line, gpus=GPUS))
    assert not failed("kernel.xid", view(line, gpus=GPUS, config=config), config)


def test_what_calls_for_a_reset_counts_for_as_long_as_the_node_runs() -> None:
    assert failed("kernel.xid", view((1.0, DBE), gpus=GPUS, now=30 * 86400.0))


@pytest.mark.parametrize("end", [LOADED, RECOVERED, MARK + "0000:9b:00", MARK + "0000:9b:00.0", MARK + "all"])
def test_a_reset_ends_it(end: str) -> None:
    (finding,) = judged("kernel.xid", view((1.0, DBE), (2.0, end), gpus=GPUS))
    assert finding.outcome is Outcome.PASS
    assert failed("kernel.xid", view((1.0, DBE), (2.0, end), (3.0, DBE), gpus=GPUS))


def test_a_reset_of_one_gpu_ends_nothing_for_another() -> None:
    seen = view((1.0, OTHER + "48, x"), (2.0, RECOVERED), (3.0, MARK + "0000:9b:00"), gpus=GPUS)
    (finding,) = failed("kernel.xid", seen)
    assert finding.subject == "gpu0"


def test_root_can_mark_a_reset_without_being_the_kernel_but_report_nothing() -> None:
    assert not failed("kernel.xid", view((1.0, LOST), facility=1, gpus=GPUS))
    exercise = NodeConfig(kernel=KernelLimits(injected=True))
    assert failed("kernel.xid", view((1.0, LOST), facility=1, gpus=GPUS, config=exercise), exercise)


def test_what_a_full_log_forgot_is_remembered_until_a_reset() -> None:
    past = [happened((1.0, DBE), now=2.0)]
    assert failed("kernel.xid", view(gpus=GPUS, earlier=past))
    assert not failed("kernel.xid", view((5.0, LOADED), gpus=GPUS, earlier=past))
    assert not failed("kernel.xid", view(gpus=GPUS, earlier=past, earlier_boot="another"))


@pytest.mark.parametrize(("programs", "fails"), [(1, False), (2, False), (3, True)])
def test_faults_of_programs_count_only_when_many_meet_them_on_one_gpu(programs: int, fails: bool) -> None:
    lines = [
        (8_000.0 + 100 * pid, XID + f"{31 if pid % 2 else 13}, pid={pid}, name=train, Ch 1")
        for pid in range(1, 1 + programs)
    ]
    lines += [
        (9_500.0, OTHER + "31, pid=77, name=train, Ch 1"),
        (9_500.0, XID + "31, pid=1, name=train, Ch 2"),
    ]
    found = failed("kernel.xid", view(*lines, gpus=GPUS))
    assert bool(found) is fails
    if fails:
        assert (found[0].suggestion, found[0].subject) == (Suggestion.MONITOR, "gpu1")
        assert found[0].text == "XID 13, 31 in 3 programs (0000:9b:00): test the GPU"
    assert not failed("kernel.xid", view(*lines, gpus=GPUS, now=20_000.0))


def test_a_log_that_cannot_be_read_says_nothing() -> None:
    (finding,) = judged("kernel.xid", view(gpus=GPUS, error="/dev/kmsg: Operation not permitted"))
    assert finding.outcome is Outcome.UNKNOWN
    assert finding.text == "kernel log not read: /dev/kmsg: Operation not permitted"


def test_a_node_without_the_driver_has_no_finding() -> None:
    assert judged("kernel.xid", view()) == []
    assert judged("kernel.xid", view(error="no")) == []
    assert judged("kernel.sxid", view()) == []


def test_fatal_errors_of_a_switch_last_and_others_do_not() -> None:
    fatal, other = (1.0, SWITCH + "20034, Fatal, Link 48 LTSSM"), (2.0, SWITCH + "12028, Non-fatal, Link 32")
    (finding,) = failed("kernel.sxid", view(fatal, other))
    assert (finding.subject, finding.suggestion) == ("nvswitch 0000:c4:00", Suggestion.RESET)
    assert finding.text == "SXid 20034, fatal NVSwitch error"
    assert [finding.outcome for finding in judged("kernel.sxid", view(other))] == [Outcome.PASS]
    (recent,) = failed("kernel.sxid", view((9_000.0, other[1])))
    assert (recent.suggestion, recent.blame) == (Suggestion.MONITOR, Party.NODE)


def test_a_flood_stays_small() -> None:
    lines = [(float(at), XID + f"13, pid={at}, name=x, Ch {at} {'y' * 500}") for at in range(5_000)]
    lines += [(1.0, f"EXT4-fs error (device sd{number}): x") for number in range(5_000)]
    found = happened(*lines, now=5_000.0)
    assert len(found.events) <= 96
    assert all(len(event.line) <= 160 and len(event.pids) <= 8 for event in found.events)
