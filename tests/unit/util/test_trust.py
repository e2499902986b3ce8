"""What root runs must be root's alone, on every step of the way there."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.util.trust import distrust, distrust_folder
from tests.users import as_root

pytestmark = as_root
ALICE = 1234


@pytest.fixture
def program(tmp_path: Path) -> Path:
    made = tmp_path / "opt" / "program"
    made.parent.mkdir()
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    return made


def test_what_is_roots_all_the_way_is_trusted(program: Path, tmp_path: Path) -> None:
    assert distrust(str(program)) == ""
    assert distrust("/bin/sh") == ""  # a link, in a folder that may be one
    (tmp_path / "farm").symlink_to("opt")
    (tmp_path / "link").symlink_to("farm/../opt/./program")
    assert distrust(str(tmp_path / "link")) == ""


def test_a_link_of_a_user_is_seen_wherever_it_is_on_the_way(program: Path, tmp_path: Path) -> None:
    """It leads to what is root's now; tomorrow it may lead elsewhere."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, ALICE, ALICE)
    (home / "theirs").symlink_to(program)
    assert distrust(str(home / "theirs")) == f"{home} does not belong to root, but to uid {ALICE}"
    (tmp_path / "ours").symlink_to(home / "theirs")
    (tmp_path / "first").symlink_to("ours")
    assert os.path.realpath(tmp_path / "first") == str(program)
    assert "does not belong to root" in distrust(str(tmp_path / "first"))
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o1777)
    (shared / "link").symlink_to(program)
    assert distrust(str(shared / "link")) == ""
    os.chown(shared / "link", ALICE, ALICE, follow_symlinks=False)
    assert distrust(str(shared / "link")) == f"{shared / 'link'} does not belong to root, but to uid {ALICE}"


def test_modes_count_and_other_owners_only_where_they_are_named(program: Path) -> None:
    os.chown(program, ALICE, 0)
    assert "does not belong to root" in distrust(str(program))
    assert distrust(str(program), {0, ALICE}) == ""
    os.chown(program, 0, ALICE)
    program.chmod(0o775)
    assert distrust(str(program)) == f"{program} can be written by group gid {ALICE}"
    program.chmod(0o755)
    program.parent.chmod(0o757)
    assert distrust(str(program)) == f"{program.parent} can be written by others"


@pytest.mark.parametrize(
    ("group", "members", "owners", "trusted"),
    [
        (0, "", (0,), True),
        (0, "root", (0,), True),
        (0, "root,bob", (0,), False),  # the group of root has another member
        (ALICE, "", (0, ALICE), True),  # a group of her own, and an umask of 002
        (ALICE, "", (0,), False),
        (1235, "", (0, ALICE), False),  # nobody knows this group
        (1300, "", (0, ALICE), False),  # has the name of none of them: may be anybody's first group
    ],
)
def test_a_group_counts_as_others_unless_it_is_an_owners_alone(
    program: Path, tmp_path: Path, group: int, members: str, owners: tuple[int, ...], trusted: bool
) -> None:
    os.chown(program, 0, group)
    program.chmod(0o775)
    said = on_own_users(tmp_path, members, program, owners)
    assert (said == "") == trusted
    if not trusted:
        assert f"{program} can be written by group" in said


def test_an_access_list_opens_even_a_group_of_ones_own(program: Path, tmp_path: Path) -> None:
    program.chmod(0o775)
    entries = [(1, 7, -1), (2, 7, ALICE), (4, 7, -1), (16, 7, -1), (32, 5, -1)]  # acl(5), its user is Alice
    packed = b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(program, "system.posix_acl_access", struct.pack("<I", 2) + packed)
    except OSError:
        pytest.skip("no access lists on this file system")
    assert "can be written by group root" in on_own_users(tmp_path, "", program, (0,))


def on_own_users(folder: Path, members: str, program: Path, owners: tuple[int, ...]) -> str:
    """What is said of the program where /etc/passwd and /etc/group are others."""
    etc = folder / "etc"
    etc.mkdir()
    (etc / "passwd").write_text("root:x:0:0::/root:/bin/sh\nalice:x:1234:1234::/:/bin/sh\n")
    (etc / "group").write_text(f"root:x:0:{members}\nalice:x:1234:alice\nproject:x:1300:\n")
    mounts = "".join(f"mount --bind {etc}/{name} /etc/{name} && " for name in ("passwd", "group"))
    code = f"from slurm_robust.util.trust import distrust; print(distrust({str(program)!r}, {owners}))"
    command = ["unshare", "--mount", "sh", "-c", f'{mounts} exec "$@"', "sh", sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_what_cannot_be_followed_is_not_trusted(tmp_path: Path) -> None:
    assert "No such file" in distrust(str(tmp_path / "none"))
    (tmp_path / "circle").symlink_to("circle")
    assert "too many links" in distrust(str(tmp_path / "circle"))


def test_one_module_of_a_user_among_many_is_seen(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "package" / "inner"
    package.mkdir(parents=True)
    for number in range(20):
        (package / f"m{number}.py").write_text("")
    root = str(tmp_path / "site-packages")
    assert distrust_folder(root) == ""
    assert distrust_folder(str(tmp_path / "none")) == ""
    os.chown(package / "m7.py", ALICE, 0)
    assert distrust_folder(root) == f"{package / 'm7.py'} does not belong to root, but to uid {ALICE}"
    assert distrust_folder(str(tmp_path)) == ""  # as Python's own folder, whose packages are not imported
    (package / "m7.py").unlink()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, ALICE, ALICE)
    (package.parent / "linked").symlink_to(theirs)
    assert distrust_folder(root) == f"{theirs} does not belong to root, but to uid {ALICE}"
