"""One part of a machine, looked at again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.agent.inspection.lanes import KERNEL, NETWORK, NODE, KernelNews
from slurm_robust.agent.inspection.looker import Looker
from slurm_robust.health.isolate import call
from slurm_robust.model.findings import Suggestion
from tests.unit.agent.inspection.machine import XID, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def looker(machine: Machine, only: tuple[str, ...]) -> Looker:
    return Looker(only, call, machine.host, machine.config)


def test_an_xid_in_the_kernel_log_is_seen(machine: Machine) -> None:
    kernel = looker(machine, KERNEL)
    assert kernel.look().failed == ()
    machine.says(XID)
    (found,) = kernel.look().failed
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
    found = looker(machine, KERNEL).look()
    assert found.failed == ()
    assert found.notes == ("inspection: kernel log not read: /dev/kmsg: No such file or directory",)
    assert not KernelNews(machine.host).came()


def test_losses_of_a_link_are_counted_from_look_to_look(machine: Machine) -> None:
    network = looker(machine, NETWORK)
    counts = []
    for lost in (0, 0, 1, 1, 2):
        machine.flaps(lost)
        counts.append([(f.count, f.suggestion.value) for f in network.look().failed])
    assert counts == [[], [], [(1, "monitor")], [(1, "monitor")], [(2, "reset")]]


def test_a_link_that_goes_down_is_seen(machine: Machine) -> None:
    network = looker(machine, NETWORK)
    assert network.look().failed == ()
    machine.goes_down()
    found = {(found.check, found.subject) for found in network.look().failed}
    assert found == {("infiniband.state", "mlx5_0/1"), ("infiniband.flaps", "mlx5_0/1")}


def test_what_the_links_have_carried_is_told_with_each_look(machine: Machine) -> None:
    network = looker(machine, NETWORK)
    assert network.look().nbytes is None
    for nbytes in (0, 4000):
        machine.carries(nbytes)
        assert network.look().nbytes == nbytes
    assert looker(machine, NODE).look().nbytes is None


def test_the_rules_of_the_site_hold(machine: Machine) -> None:
    machine.says(XID)
    machine.config.write_text("checks: {kernel.xid: {suggestion: monitor}}\n")
    assert looker(machine, KERNEL).look().failed == ()


def test_a_failure_that_the_site_wants_confirmed_is_so_at_the_next_look(machine: Machine) -> None:
    machine.says(XID)
    machine.config.write_text("checks: {kernel.xid: {confirm: 2}}\n")
    kernel = looker(machine, KERNEL)
    assert kernel.look().failed == ()
    assert [found.check for found in kernel.look().failed] == ["kernel.xid"]


def test_a_configuration_that_cannot_be_used_is_noted_once_it_is_read(machine: Machine) -> None:
    machine.config.write_text("checks: 7\n")
    found = looker(machine, KERNEL).look()
    assert found.well
    assert found.notes[0].startswith("inspection: default limits are used: ")


def test_nothing_is_written(machine: Machine) -> None:
    machine.config.write_text(f"paths: {{state: {machine.root}/state, log: {machine.root}/log}}\n")
    for only in (KERNEL, NETWORK, NODE):
        looker(machine, only).look()
    assert not (machine.root / "state").exists()
    assert not (machine.root / "log").exists()
