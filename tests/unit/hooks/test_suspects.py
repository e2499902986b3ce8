"""The record of a suspect that a job leaves: what counts, and every trick that must not."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config.node import NodeConfig, Suspects
from slurm_robust.hooks.suspects import (
    MAX_BYTES,
    READ_S,
    EndedJob,
    Ignored,
    job_of,
    judge,
    places,
    read_suspect,
)
from slurm_robust.model.findings import Suspect
from tests.unit.hooks.test_hook import Machine
from tests.users import as_root
from tests.waiting import wait_for

ALICE, BOB = 23001, 23002
NOW = 1_800_000_000.0
JOB = EndedJob(job_id=7, uid=ALICE, gid=ALICE, user="alice", work_dir="/home/alice")
GOOD: dict[str, object] = {"node": "n1", "job_id": 7, "t": NOW - 60, "reason": "silent for 3 s"}


def content(**changes: object) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


# -- what is in the file (pure) -----------------------------------------------------------------------------


def test_a_suspect_of_this_node_and_job_counts() -> None:
    data = content(symptom="node lost", evidence=["exit 9 of rank 3", "last heartbeat 3 s ago"])
    assert judge(data, JOB, "n1", NOW) == Suspect(
        job_id=7,
        node="n1",
        t=NOW - 60,
        reason="silent for 3 s",
        symptom="node lost",
        evidence=("exit 9 of rank 3", "last heartbeat 3 s ago"),
    )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (content(node="n2"), "another node"),
        (content(node="../n1"), "another node"),
        (content(job_id=8), "another job"),
        (content(t=NOW + 301), "not from the time"),
        (content(t=-1.0), "not from the time"),
        (content(t=1e300), "not from the time"),
        (content(job_id="7"), "not the record of a suspect"),
        (content(job_id=2**80), "another job"),
        (content(extra=1), "not the record of a suspect"),
        (content(evidence="x"), "not the record of a suspect"),
        (content(evidence=[["x"]]), "not the record of a suspect"),
        (b"[" * 30000 + b"]" * 30000, "not the record of a suspect"),
        (b'{"evidence":' * 5000, "not the record of a suspect"),
        (b'{"node":"n1"}', "not the record of a suspect"),
        (content()[:-1], "not the record of a suspect"),
        (content() + content(), "not the record of a suspect"),
        (b"\xff\xfe" + content(), "not the record of a suspect"),
        (content().replace(b"silent", b"\xc3\x28"), "not the record of a suspect"),
        (content() + b"\0\0\0", "not the record of a suspect"),
        (b"\0" * 100, "not the record of a suspect"),
        (b'{"t": NaN}', "not the record of a suspect"),
    ],
)
def test_a_suspect_file_that_is_wrong_in_any_way_does_not_count(data: bytes, why: str) -> None:
    found = judge(data, JOB, "n1", NOW)
    assert isinstance(found, Ignored)
    assert why.replace("another job", "of another job") in found.why


@pytest.mark.parametrize(("t", "counts"), [(NOW - 3601, False), (NOW - 3599, True), (NOW + 299, True)])
def test_a_suspect_must_be_from_this_run_of_the_job_if_slurm_tells_its_beginning(
    t: float, counts: bool
) -> None:
    job = EndedJob(**{**_fields(JOB), "started": NOW - 3300})
    assert isinstance(judge(content(t=t), job, "n1", NOW), Suspect) is counts


def test_texts_are_clean_and_bounded() -> None:
    evil = "\x1b]0;owned\x07 $(reboot) `id` \"x' | a\nb\r\0 é " + "x" * 5000
    found = judge(content(reason=evil, symptom=evil, evidence=[evil] * 1000), JOB, "n1", NOW)
    assert isinstance(found, Suspect)
    texts = (found.reason, found.symptom, *found.evidence)
    assert len(found.evidence) == 20
    assert all(len(text) <= 500 for text in texts)
    assert not {c for text in texts for c in text if not " " <= c <= "~" or c in "\"'`$|\\"}


@given(st.binary(max_size=300))
def test_no_bytes_do_any_harm(data: bytes) -> None:
    assert isinstance(judge(data, JOB, "n1", NOW), Suspect | Ignored)


# -- where the file is ---------------------------------------------------------------------------------------


def _fields(job: EndedJob) -> dict[str, object]:
    return {name: getattr(job, name) for name in job.__struct_fields__}


@pytest.mark.parametrize(
    ("template", "work_dir", "expected"),
    [
        ("{work_dir}/srobust-jobs", "/home/alice", ("/home/alice/srobust-jobs",)),
        ("/scratch/{user}/{uid}/{job_id}", "", (f"/scratch/alice/{ALICE}/7",)),
        ("{work_dir}/x", "/home/{user}{uid}{0.__class__}", ("/home/{user}{uid}{0.__class__}/x",)),
        ("{work_dir}/x", "/home/../etc", ("/home/../etc/x",)),  # as the user: no more than the user may
        ("{work_dir}/x", "relative", ()),
        ("{work_dir}/x", "", ()),
        ("{nothing}/x", "/home/alice", ()),
        ("/a\0b", "/home/alice", ()),
    ],
)
def test_places_where_a_job_may_have_its_folder(
    template: str, work_dir: str, expected: tuple[str, ...]
) -> None:
    assert places((template,), EndedJob(**{**_fields(JOB), "work_dir": work_dir})) == expected


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, True),
        ({"SLURM_JOB_ID": ""}, False),
        ({"SLURM_JOB_ID": "7;id"}, False),
        ({"SLURM_JOB_UID": "0"}, False),
        ({"SLURM_JOB_UID": "-1"}, False),
        ({"SLURM_JOB_GID": "x"}, True),
    ],
)
def test_only_jobs_of_ordinary_users_have_suspects(changes: dict[str, str], known: bool) -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(ALICE), "SLURM_JOB_GID": str(ALICE), **changes}
    job = job_of(environ)
    assert (job is not None) is known
    assert job is None or job.gid == ALICE


# -- the way to the file, as root with real users ----------------------------------------------------------


class Home:
    """Alice's working directory, with her job's folder in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path / "srobust-jobs" / "7" / "suspects"
        self.folder.mkdir(parents=True)
        self.file = self.folder / "n1.json"
        for folder in (path, *path.rglob("*")):
            own(folder)

    def put(self, data: bytes = b"", owner: int = ALICE) -> None:
        self.file.write_bytes(data or content(t=time.time() - 5))
        own(self.file, owner)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_UID": str(ALICE),
            "SLURM_JOB_GID": str(ALICE),
            "SLURM_JOB_USER": "alice",
            "SLURM_JOB_WORK_DIR": str(self.path),
        }

    def read(self, node: str = "n1", **suspects: object) -> Suspect | Ignored | None:
        config = NodeConfig(suspects=Suspects(**suspects))  # type: ignore[arg-type]  # checked by the record
        return read_suspect(config, self.environ, node, time.time())


def own(path: Path, uid: int = ALICE) -> None:
    os.chown(path, uid, uid, follow_symlinks=False)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    # pytest's own folders are root's only; alice must be able to walk to hers.
    opened = [p for p in tmp_path.parents if p.stat().st_uid == os.geteuid() and not p.stat().st_mode & 0o001]
    for folder in opened:
        folder.chmod(0o711)
    tmp_path.chmod(0o711)
    (tmp_path / "alice").mkdir(mode=0o700)
    yield Home(tmp_path / "alice")
    for folder in opened:
        folder.chmod(0o700)


@as_root
@pytest.mark.slow
@pytest.mark.parametrize("fan", ["500", "0"])
def test_an_epilog_acquits_a_suspect_that_passes_and_drains_one_that_fails(home: Home, fan: str) -> None:
    home.put(content(t=time.time() - 5, symptom="node lost"))
    machine = Machine(home.path.parent)
    machine.configure("drain: {mode: act}", epilog_s=8)
    (machine.slurm / "answers").touch()
    machine.fan.write_text(fan)
    assert machine.run("epilog", env={"SLURMD_NODENAME": "n1", **home.environ}) == 0
    events = {event["event"]: event for event in machine.events}
    if fan == "0":
        assert events.keys() == {"drained", "run", "owner_told"}
        return
    assert events.keys() == {"acquitted", "run", "owner_told"}
    acquitted = events["acquitted"]
    assert (acquitted["job"], acquitted["uid"]) == (7, ALICE)
    assert (acquitted["suspected"], acquitted["symptom"]) == ("silent for 3 s", "node lost")


@as_root
def test_a_suspect_file_is_read_as_the_user_from_a_folder_that_is_the_users_only(home: Home) -> None:
    assert home.read() is None
    home.put()
    home.folder.chmod(0o700)
    home.file.chmod(0o600)
    found = home.read()
    assert isinstance(found, Suspect)
    assert found.reason == "silent for 3 s"
    assert home.read(enabled=False) is None


def secret(home: Home) -> Path:
    """A file of root's, with a content that would count."""
    path = home.path.parent / "secret.json"
    path.write_bytes(content(t=time.time()))
    path.chmod(0o644)
    return path


def link_to_a_file(home: Home) -> None:
    home.file.symlink_to(secret(home))


def link_to_the_own_file(home: Home) -> None:
    home.put()
    home.file.rename(home.path / "n1.json")
    home.file.symlink_to(home.path / "n1.json")


def link_to_a_folder(home: Home) -> None:
    home.put()
    home.folder.rename(home.path / "elsewhere")
    home.folder.symlink_to(home.path / "elsewhere")


def link_to_another_jobs_folder(home: Home) -> None:
    home.put()
    home.folder.parent.rename(home.path / "8")
    home.folder.parent.symlink_to(home.path / "8")


def pipe(home: Home) -> None:
    os.mkfifo(home.file)
    own(home.file)


def device(home: Home) -> None:
    os.mknod(home.file, 0o666 | 0o020000, os.makedev(1, 5))  # /dev/zero
    own(home.file)


def a_socket(home: Home) -> None:
    before = os.getcwd()
    with socket.socket(socket.AF_UNIX) as listening:
        # By a short name, because that of a socket has room for 108 bytes.
        os.chdir(home.folder)
        listening.bind(home.file.name)
        os.chdir(before)
    own(home.file)


def a_folder(home: Home) -> None:
    home.file.mkdir()
    own(home.file)


def huge(home: Home) -> None:
    home.put(content(t=time.time(), reason="x" * MAX_BYTES))


def huge_with_holes(home: Home) -> None:
    home.put()
    os.truncate(home.file, 2**40)


def of_root(home: Home) -> None:
    home.put(owner=0)


def of_another_user(home: Home) -> None:
    home.put(owner=BOB)


def second_name_of_another_users_file(home: Home) -> None:
    other = home.path.parent / "bobs.json"
    other.write_bytes(content(t=time.time()))
    own(other, BOB)
    os.link(other, home.file)


def second_name_of_the_own_file(home: Home) -> None:
    home.put()
    os.link(home.file, home.path / "again.json")


def in_another_users_folder(home: Home) -> None:
    home.put()
    own(home.folder, BOB)


def unreadable(home: Home) -> None:
    home.put()
    home.file.chmod(0o000)


def in_a_closed_folder(home: Home) -> None:
    home.put()
    home.folder.chmod(0o000)


def empty(home: Home) -> None:
    home.file.touch()
    own(home.file)


def about_another_node(home: Home) -> None:
    home.put(content(t=time.time(), node="n2"))


def of_another_job(home: Home) -> None:
    home.put(content(t=time.time(), job_id=8))


TRICKS: list[Callable[[Home], None]] = [
    *(link_to_a_file, link_to_the_own_file, link_to_a_folder, link_to_another_jobs_folder),
    *(pipe, device, a_socket, a_folder, huge, huge_with_holes, empty, unreadable, in_a_closed_folder),
    *(of_root, of_another_user, second_name_of_another_users_file, second_name_of_the_own_file),
    *(in_another_users_folder, about_another_node, of_another_job),
]


@as_root
@pytest.mark.parametrize(
    ("trick", "words"),
    [
        (link_to_a_file, "n1.json below {} cannot be read: it is a link, which is not followed"),
        (link_to_another_jobs_folder, "7 below {} cannot be read: it is not a folder, or a link, which"),
    ],
)
def test_the_link_that_is_not_followed_is_named(
    home: Home, trick: Callable[[Home], None], words: str
) -> None:
    trick(home)
    found = home.read()
    assert isinstance(found, Ignored)
    assert found.why.startswith(words.format(home.path / "srobust-jobs"))


@as_root
@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.__name__)
def test_tricks_with_the_list_of_suspects_count_for_nothing(
    home: Home, trick: Callable[[Home], None]
) -> None:
    trick(home)
    begun = time.monotonic()
    found = home.read()
    assert isinstance(found, Ignored)
    assert found.why
    assert "silent" not in found.why
    assert time.monotonic() - begun < READ_S


@as_root
def test_thousands_of_files_beside_a_suspect_file_cost_nothing(home: Home) -> None:
    for i in range(3000):
        (home.folder / f"n{i + 2}.json").touch()
    home.put()
    assert isinstance(home.read(), Suspect)


@as_root
@pytest.mark.parametrize(
    "node", ["../../../../etc/passwd", "n1/../n1", "", ".", "..", "n1\0", "n" * 300, "-n1"]
)
def test_a_node_name_is_never_a_path(home: Home, node: str) -> None:
    home.put()
    assert home.read(node) is None


@as_root
def test_what_the_user_cannot_read_is_not_read_either(home: Home) -> None:
    """A working directory of root's with everything in place: the child has no more rights than alice."""
    home.put()
    os.chown(home.path, 0, 0)
    home.path.chmod(0o700)
    found = home.read()
    assert isinstance(found, Ignored)
    assert "Permission denied" in found.why


@as_root
def test_the_first_of_the_sites_places_counts(home: Home) -> None:
    home.put()
    found = home.read(job_dirs=("/nowhere/{user}", "{work_dir}/srobust-jobs"))
    assert isinstance(found, Suspect)


@as_root
def test_a_file_that_grows_while_it_is_read_does_not_count(home: Home) -> None:
    """Found by its size at both ends; a writer of the real thing renames it into place."""
    home.put()
    pid = os.fork()
    if pid == 0:
        while True:  # a user who writes as fast as possible, until killed
            with home.file.open("ab") as file:
                file.write(b" ")
    found: list[Suspect | Ignored | None] = []
    try:
        wait_for(lambda: found.append(home.read()) or isinstance(found[-1], Ignored))
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert all(isinstance(f, Ignored) or (f and f.reason == "silent for 3 s") for f in found)
