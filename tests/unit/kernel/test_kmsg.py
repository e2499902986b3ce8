"""The kernel's log: what a record is, and that reading it neither waits nor grows without bound."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.kernel.host import Host
from slurm_robust.kernel.kmsg import KERNEL, KernelLog, boot_time, parse

RECORDS = b"""\
6,339,5140900,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module
7,340,5690716,-;udevd[80]: starting version 181
 SUBSYSTEM=acpi
 DEVICE=+acpi:PNP0A03:00
4,341,6690716,-,caller=T77;NVRM: The NVIDIA GPU 0000:9b:00.0\\x0aNVRM: fallen off\\x09
30,342,7000000,-;systemd[1]: started
4,343,7000001,+;Xid (PCI:0000:9b:00): 79
"""


@pytest.fixture
def machine(tmp_path: Path) -> Host:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_bytes(RECORDS)
    return Host(tmp_path)


def test_records_have_number_time_level_and_writer(machine: Host) -> None:
    with KernelLog(machine) as log:
        first, device, several, daemon = log.read()
    assert (first.sequence, first.uptime_s, first.level, first.facility) == (339, 5.1409, 6, KERNEL)
    assert device.text == "udevd[80]: starting version 181"
    assert several.text == "NVRM: The NVIDIA GPU 0000:9b:00.0 NVRM: fallen off "
    assert daemon.facility != KERNEL


def test_only_what_is_wanted_is_returned_and_all_counts_as_read(machine: Host) -> None:
    with KernelLog(machine) as log:
        assert [record.sequence for record in log.read((b"NVRM", b"never"))] == [339, 341]
        assert log.sequence >= 341
        assert log.read() == []


def test_a_log_is_followed_from_a_record_on(machine: Host) -> None:
    with KernelLog(machine, 341) as log:
        assert [record.sequence for record in log.read()] == [342]
        with machine.path("/dev/kmsg").open("ab") as file:
            file.write(b"6,344,8000000,-;new\n6,345,8000001,-;half of a l")
        assert [record.text for record in log.read()] == ["new"]
        with machine.path("/dev/kmsg").open("ab") as file:
            file.write(b"ine\n")
        assert [record.text for record in log.read()] == ["half of a line"]


def test_reading_ends_at_its_limit_and_says_so(machine: Host) -> None:
    line = b"6,%d,1,-;" + b"x" * 100 + b"\n"
    machine.path("/dev/kmsg").write_bytes(b"".join(line % number for number in range(5000)))
    with KernelLog(machine) as log:
        some = log.read(max_bytes=100_000)
        assert log.cut
        assert 0 < len(some) < 5000
        rest = log.read()
        assert not log.cut
    assert [record.sequence for record in some + rest] == list(range(5000))


def test_a_file_without_lines_takes_no_memory(machine: Host) -> None:
    machine.path("/dev/kmsg").write_bytes(b"6" * 2**21)
    with KernelLog(machine) as log:
        assert log.read() == []


@pytest.mark.parametrize(
    "line", [b"", b"text", b"6;text", b"6,1,2;text", b"x,1,2,-;text", b"6,1,-2,-;text", b"6,1,2,+;part"]
)
def test_lines_that_are_not_records_are_skipped(line: bytes) -> None:
    assert parse(line) is None


@given(st.binary(max_size=300))
def test_no_content_breaks_parsing(text: bytes) -> None:
    record = parse(b"6,1,2,-;" + text)
    assert record is not None
    assert record.text.isascii()
    assert record.text.isprintable() or record.text == ""
    parse(text)


def test_a_log_that_is_not_there_or_forbidden_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        KernelLog(Host(tmp_path))


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel log of this machine is not ours")
def test_the_log_of_this_machine_is_read_without_waiting() -> None:
    with KernelLog(Host()) as log:
        records = log.read()
        assert log.read(max_s=0.0) == [] or not log.cut
    numbers = [record.sequence for record in records]
    assert numbers == sorted(numbers)
    assert all(boot_time(Host()) + record.uptime_s < time.time() + 60 for record in records)
