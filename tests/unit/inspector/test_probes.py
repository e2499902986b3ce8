"""One part of a machine, probed again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.inspector.probes import KernelNews, ProbeRunner
from slurm_robust.model.findings import Suggestion
from slurm_robust.nodes.check import Probe
from slurm_robust.util.isolate import call
from tests.unit.inspector.faulty_machine import XID, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def run_by(machine: Machine, probe: Probe) -> ProbeRunner:
    return ProbeRunner(probe, call, machine.host, machine.config)


def test_an_xid_in_the_kernel_log_is_seen(machine: Machine) -> None:
    kernel = run_by(machine, Probe.KERNEL)
    assert kernel.run().failed == ()
    machine.says(XID)
    (found,) = kernel.run().failed
    assert (found.check, found.subject, found.suggestion) == ("kernel.xid", "0000:9b:00", Suggestion.REBOOT)


def test_news_are_only_what_a_check_knows(machine: Machine) -> None:
    machine.says(XID)
    news = KernelNews(machine.host)
    assert not news.came(), "it was said before"
    machine.says("usb 1-1: new device")
    assert not news.came()
    machine.says(XID)
    assert news.came()
    assert not news.came()


def test_a_kernel_log_that_cannot_be_read_is_noted_and_no_alert(machine: Machine) -> None:
    machine.host.path("/dev/kmsg").unlink()
    found = run_by(machine, Probe.KERNEL).run()
    assert found.failed == ()
    assert found.notes == ("inspection: kernel log not read: /dev/kmsg: No such file or directory",)
    assert not KernelNews(machine.host).came()


def test_losses_of_a_link_are_counted_from_run_to_run(machine: Machine) -> None:
    network = run_by(machine, Probe.NETWORK)
    counts = []
    for lost in (0, 0, 1, 1, 2):
        machine.flaps(lost)
        counts.append([(f.count, f.suggestion.value) for f in network.run().failed])
    assert counts == [[], [], [(1, "monitor")], [(1, "monitor")], [(2, "reset")]]


def test_a_link_that_goes_down_is_seen(machine: Machine) -> None:
    network = run_by(machine, Probe.NETWORK)
    assert network.run().failed == ()
    machine.goes_down()
    found = {(found.check, found.subject) for found in network.run().failed}
    assert found == {("infiniband.state", "mlx5_0/1"), ("infiniband.flaps", "mlx5_0/1")}


def test_what_the_links_have_carried_is_reported_with_each_run(machine: Machine) -> None:
    network = run_by(machine, Probe.NETWORK)
    assert network.run().nbytes is None
    for nbytes in (0, 4000):
        machine.carries(nbytes)
        assert network.run().nbytes == nbytes
    assert run_by(machine, Probe.NODE).run().nbytes is None


def test_the_rules_of_the_site_hold(machine: Machine) -> None:
    machine.says(XID)
    machine.config.write_text("checks: {kernel.xid: {suggestion: monitor}}\n")
    assert run_by(machine, Probe.KERNEL).run().failed == ()


def test_a_failure_that_the_site_wants_confirmed_is_so_in_the_next_run(machine: Machine) -> None:
    machine.says(XID)
    machine.config.write_text("checks: {kernel.xid: {confirm: 2}}\n")
    kernel = run_by(machine, Probe.KERNEL)
    assert kernel.run().failed == ()
    assert [found.check for found in kernel.run().failed] == ["kernel.xid"]


def test_a_configuration_that_cannot_be_used_is_noted_once_it_is_read(machine: Machine) -> None:
    machine.config.write_text("checks: 7\n")
    found = run_by(machine, Probe.KERNEL).run()
    assert found.well
    assert found.notes[0].startswith("inspection: default limits are used: ")


def test_a_probe_writes_neither_state_nor_log(machine: Machine) -> None:
    machine.config.write_text(f"paths: {{state: {machine.root}/state, log: {machine.root}/log}}\n")
    for probe in Probe:
        run_by(machine, probe).run()
    assert not (machine.root / "state").exists()
    assert not (machine.root / "log").exists()
