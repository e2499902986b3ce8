from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.kernel.host import Host
from slurm_robust.kernel.mountinfo import Declared, automatic, declared, holding, is_below, mounted, parse
from tests.unit.nodes.host_files import plant

MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda2 ro,discard
30 27 254:3 / /scratch rw,noatime shared:2 master:3 - xfs /dev/nvme0n1p1 rw,attr2
31 27 0:45 / /home rw,relatime shared:9 - autofs systemd-1 rw,fd=42
32 31 0:46 / /home/alice\040b rw shared:9 - nfs4 nas:/home/alice\040b rw,vers=4.2
33 27 0:47 / /software ro,relatime - nfs nas:/software rw
34 27 0:48 / /run/user/7 rw - fuse.sshfs alice@x: rw,user_id=7,group_id=7
35 27 7:0 / /snap/core ro - squashfs /dev/loop0 ro
a line that is none
"""

FSTAB = """
# /etc/fstab
UUID=1 /          ext4  errors=remount-ro 0 1
UUID=2 none       swap  sw 0 0
UUID=3 /scratch/  xfs   defaults,nofail 0 0
nas:/software /software nfs ro,nofail
nas:/old /old     nfs   noauto
nas:/home /home   nfs4  x-systemd.automount
/a\\040b /bind    none  bind
proc /proc        proc  defaults
half a
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return plant(tmp_path, {"/proc/self/mountinfo": MOUNTINFO, "/etc/fstab": FSTAB})


def test_the_table_of_mounts_is_read_as_the_kernel_writes_it(host: Host) -> None:
    found = {entry.path: entry for entry in mounted(host)}
    assert list(found) == [
        "/proc", "/", "/scratch", "/home", "/home/alice b", "/software", "/run/user/7", "/snap/core",
    ]  # fmt: skip
    assert [path for path, entry in found.items() if entry.readonly] == ["/", "/software", "/snap/core"]
    assert [path for path, entry in found.items() if entry.is_on_disk] == ["/", "/scratch"]
    networks = [path for path, entry in found.items() if entry.is_network]
    assert networks == ["/home/alice b", "/software", "/run/user/7"]
    assert [entry.owner for entry in found.values() if entry.is_network] == [0, 0, 7]
    assert found["/home/alice b"].source == "nas:/home/alice b"
    assert automatic(mounted(host)) == {"/home", "/home/alice b"}


def test_fstab_declares_what_is_there_after_a_boot(host: Host, tmp_path: Path) -> None:
    assert declared(host) == {
        "/": Declared(kind="ext4"),
        "/scratch": Declared(kind="xfs", optional=True),
        "/software": Declared(kind="nfs", readonly=True),
        "/bind": Declared(kind="none"),
    }
    assert declared(Host(tmp_path / "empty")) == {}


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/", "/"),
        ("/scratch", "/scratch"),
        ("/scratch/a", "/scratch"),
        ("/scratchy", "/"),
        ("/home/bob", "/home"),
        ("/home/alice b/x", "/home/alice b"),
    ],
)
def test_a_path_lies_in_the_longest_mount(path: str, mount: str, host: Host) -> None:
    holder = holding(path, mounted(host))
    assert holder is not None
    assert holder.path == mount


def test_of_two_mounts_at_one_place_the_later_one_counts(tmp_path: Path) -> None:
    lines = "1 0 0:1 / /a rw - autofs x rw\n2 0 0:2 / /a rw - nfs y rw"
    holder = holding("/a/b", mounted(plant(tmp_path, {"/proc/self/mountinfo": lines})))
    assert holder is not None
    assert holder.kind == "nfs"
    assert holding("/b", []) is None


def test_the_real_machine_has_a_root_mount() -> None:
    assert [entry for entry in mounted(Host()) if entry.path == "/"]
    assert is_below("/a", "/")


@given(
    st.lists(
        st.sampled_from(["1", "0:1", "/", "/a b", "rw", "-", "nfs", "x", "user_id=²", "user_id=7", "\\777"])
    )
)
def test_lines_of_any_kind_are_read_or_left_out(words: list[str]) -> None:
    entry = parse(" ".join(words))
    assert entry is None or (entry.kind and entry.owner in (0, 7))
