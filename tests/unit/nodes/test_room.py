"""File systems of a node that have no room left. Sizes are those of the machine that tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.kernel.host import Host
from slurm_robust.kernel.mountinfo import without_room

MORE_THAN_ANY = 2**62
TABLE = """\
22 1 253:1 / / rw,relatime - ext4 /dev/vda1 rw
23 22 0:20 / /tmp rw,nosuid - tmpfs tmpfs rw,size=65536k
24 22 0:21 / /proc rw - proc proc rw
25 22 0:40 / /home rw - nfs4 server:/home rw
26 25 0:41 / /home/here rw - ext4 /dev/vdb1 rw
27 22 7:1 / /opt ro - squashfs /dev/loop1 ro
28 22 253:2 / /data ro - xfs /dev/vdc1 ro
29 22 0:42 / /scratch rw - ext4 /dev/vdd1 rw
30 29 0:43 / /scratch rw - lustre server:/scratch rw
"""


@pytest.fixture
def node(tmp_path: Path) -> Host:
    for folder in ("proc/self", "tmp/cache", "home/here", "opt", "data", "scratch"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(TABLE)
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["/tmp/cache/block"], ("/tmp",)),
        (["/var/log/x"], ("/",)),
        (["/home/here/x"], ("/home/here",)),
        (["/tmp/a", "/var", "/tmp/b"], ("/tmp", "/")),
        (["/home/x"], ()),  # others have the same
        (["/scratch/x"], ()),  # the later mount hides the disk
        (["/proc/self/comm"], ()),
        (["/opt/x", "/data/x"], ()),  # nothing is ever written there
        ([], ()),
    ],
)
def test_only_what_the_node_has_for_itself_and_is_written_counts(
    node: Host, paths: list[str], found: tuple[str, ...]
) -> None:
    assert without_room(node, paths, least_b=MORE_THAN_ANY) == found
    assert without_room(node, paths, least_b=0) == ()


def test_what_cannot_be_asked_is_not_full(node: Host) -> None:
    (node.root / "tmp/cache").rmdir()
    (node.root / "tmp").rmdir()
    assert without_room(node, ["/tmp/x"], least_b=MORE_THAN_ANY) == ()
    (node.root / "proc/self/mountinfo").unlink()
    assert without_room(node, ["/var"], least_b=MORE_THAN_ANY) == ()
