"""Who could put another folder in the place of the job's is found before anything is read from there."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from slurm_robust.agent.__main__ import CannotBegin, read_spec
from slurm_robust.config import plan as plan_file
from slurm_robust.jobdir import owner
from slurm_robust.jobdir.owner import PathOwner, judge
from slurm_robust.model.errors import ExitCode, PreflightError
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.run import preflight
from slurm_robust.wire.keys import KeysError, create_keys, load_client
from tests.builders import specs
from tests.builders.plans import plan
from tests.users import as_root, run_as

ME, OTHER = 65533, 65534
DIRECTORY = stat.S_IFDIR


@pytest.mark.parametrize(
    ("owner", "mode", "is_private", "text"),
    [
        (ME, 0o755, False, None),
        (0, 0o755, False, None),
        (ME, 0o700, False, None),
        (ME, 0o2775, True, None),  # an umask of 002 and a group of one's own
        (ME, 0o1775, False, None),
        (0, 0o1777, False, None),  # as /tmp
        (0, 0o3775, False, None),
        (ME, 0o775, False, "group"),
        (0, 0o2775, False, "group"),  # a project's folder
        (ME, 0o777, True, "everybody"),
        (0, 0o757, False, "everybody"),
        (OTHER, 0o755, False, "belongs to"),
        (OTHER, 0o1777, False, "belongs to"),  # its owner may rename whatever is in it
        (OTHER, 0o700, False, "belongs to"),
    ],
)
def test_who_could_exchange_the_folder(owner: int, mode: int, is_private: bool, text: str | None) -> None:
    folder = PathOwner(
        path=Path("/p/f"), owner=owner, mode=DIRECTORY | mode, group=4242, is_private=is_private
    )
    found = judge(folder, ME)
    assert (found is None) == (text is None)
    if found is not None and text is not None:
        assert text in found.text
        assert "/p/f" in found.text
        assert "--job-dir" in found.fix
        assert ("chmod +t /p/f" in found.fix) == (owner == ME)  # else it is not in this user's hands
        assert found.is_chosen == (text == "group")
        assert not judge(msgspec.structs.replace(folder, is_job=True), ME).is_chosen  # type: ignore[union-attr]
        assert ("every owner that this node cannot tell" in found.text) == (owner == OTHER)


def test_a_link_is_as_good_as_its_owner() -> None:
    link = PathOwner(path=Path("/p/l"), owner=ME, mode=stat.S_IFLNK | 0o777)
    assert judge(link, ME) is None
    assert judge(msgspec.structs.replace(link, owner=OTHER), ME) is not None


def test_folders_are_checked_from_the_jobs_to_that_of_its_submission(tmp_path: Path) -> None:
    submitted = tmp_path / "project" / "mine"
    job = submitted / "srobust-jobs" / "7"
    assert [f.path for f in owner.folders(job, submitted)] == []
    submitted.mkdir(parents=True)
    owner.make(job)
    assert [f.path for f in owner.folders(job, submitted)] == [job, job.parent, submitted]
    elsewhere = tmp_path / "scratch" / "jobs" / "7"
    owner.make(elsewhere)
    assert [f.path for f in owner.folders(elsewhere, submitted)] == [elsewhere, *elsewhere.parents[:2]]


def test_the_target_of_a_link_is_checked_too(tmp_path: Path) -> None:
    submitted, scratch = tmp_path / "submitted", tmp_path / "scratch" / "jobs"
    submitted.mkdir()
    scratch.mkdir(parents=True)
    (submitted / "srobust-jobs").symlink_to(scratch)
    job = submitted / "srobust-jobs" / "7"
    owner.make(job)
    found = {f.path: stat.S_ISLNK(f.mode) for f in owner.folders(job, submitted)}
    assert found[job.parent] is True
    assert found[scratch / "7"] is found[scratch] is found[scratch.parent] is False


@pytest.mark.parametrize(("umask", "mode"), [(0, 0o755), (0o002, 0o755), (0o027, 0o750), (0o077, 0o700)])
def test_what_is_made_is_closed_whatever_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        owner.make(tmp_path / "a" / "srobust-jobs" / "7")
    finally:
        os.umask(before)
    made = [tmp_path / "a", tmp_path / "a/srobust-jobs", tmp_path / "a/srobust-jobs/7"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [mode, mode, 0o700]


def strangers_group() -> int:
    """One in which others may be: only root can give a folder to it."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another group")
    return 4242


def test_what_was_left_open_is_closed_and_others_can_go_on_there(tmp_path: Path) -> None:
    root = tmp_path / "srobust-jobs"
    (root / "7").mkdir(parents=True)
    root.chmod(0o2775)
    (root / "7").chmod(0o775)
    assert (
        preflight.check_place(JobDirectory(root / "7"), {"SLURM_SUBMIT_DIR": str(tmp_path)}, later_run=False)
        == ()
    )
    assert stat.S_IMODE(root.stat().st_mode) == 0o3775
    assert stat.S_IMODE((root / "7").stat().st_mode) == 0o700


def test_a_later_run_of_an_accepted_job_is_only_warned(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path / "srobust-jobs" / "7")
    environ = {"SLURM_SUBMIT_DIR": str(tmp_path)}
    tmp_path.chmod(0o777)
    with pytest.raises(PreflightError, match="everybody may write") as error:
        preflight.check_place(job, environ, later_run=False)
    assert error.value.exit_code == ExitCode.JOB_DIR
    assert f"chmod +t {tmp_path}" in error.value.fix
    (warning,) = preflight.check_place(job, environ, later_run=True)
    assert "everybody may write" in warning


def test_a_group_that_may_write_is_warned_of(tmp_path: Path) -> None:
    """As with an umask of 002 in a project's folder, whose group can exchange the script as well."""
    submitted = tmp_path / "mine"
    submitted.mkdir()
    os.chown(submitted, -1, strangers_group())
    submitted.chmod(0o2775)
    job = JobDirectory(submitted / "srobust-jobs" / "7")
    (warning,) = preflight.check_place(job, {"SLURM_SUBMIT_DIR": str(submitted)}, later_run=False)
    assert f"may write to {submitted} (mode 2775)" in warning
    assert f"chmod +t {submitted}" in warning
    submitted.chmod(0o2777)
    with pytest.raises(PreflightError, match="everybody may write"):
        preflight.check_place(job, {"SLURM_SUBMIT_DIR": str(submitted)}, later_run=False)


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_that_the_user_names_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    named = tmp_path / "shared"
    (named / "7").mkdir(parents=True)
    os.chown(named, -1, strangers_group())
    named.chmod(mode)
    (named / "7").chmod(0o775)
    try:
        (told,) = preflight.check_place(JobDirectory(named / "7"), {}, later_run=False)
    except PreflightError as error:
        told = f"{error}: {error.fix}"
    assert f"chmod +t {named}" in told
    assert stat.S_IMODE(named.stat().st_mode) == mode
    assert stat.S_IMODE((named / "7").stat().st_mode) == 0o700


# -- two users -----------------------------------------------------------------------------------------


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder where all may make folders, with nothing above it that keeps others out."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


def spec(run_id: str = "7-x", command: str = "train.py") -> JobSpec:
    return specs.job_spec(run_id=run_id, command=(command,))


def start(job: JobDirectory, submitted: Path) -> str:
    """What ``srobust run`` does with the folder."""
    environ = {"SLURM_SUBMIT_DIR": str(submitted)}
    preflight.check_place(job, environ, later_run=False)
    preflight.open_directory(job)
    plan_file.save_plan(job, plan())
    job.spec.write_bytes(msgspec.json.encode(spec()))
    return "begun"


def mkdir(mode: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        path.chmod(mode)

    return make


@as_root
@pytest.mark.parametrize(
    "trap",
    [
        pytest.param(mkdir(0o777), id="a folder open to all"),
        pytest.param(mkdir(0o1777), id="sticky, and still the owner's"),
        pytest.param(mkdir(0o755), id="a folder"),
        pytest.param(lambda path: path.symlink_to("/var/tmp"), id="a link"),
    ],
)
@pytest.mark.parametrize("name", ["srobust-jobs", "srobust-jobs/7"])
def test_a_strangers_folder_is_refused(scratch: Path, trap: Callable[[Path], None], name: str) -> None:
    if "/" in name:
        (scratch / "srobust-jobs").mkdir()
        (scratch / "srobust-jobs").chmod(0o1777)
    run_as(OTHER, lambda: trap(scratch / name))
    job = JobDirectory(scratch / "srobust-jobs" / "7")
    assert "belongs to" in run_as(ME, lambda: start(job, scratch))
    assert not (scratch / name / "keys").exists()


@as_root
def test_in_a_sticky_folder_of_all_nobody_exchanges_the_folder(scratch: Path) -> None:
    job = JobDirectory(scratch / "srobust-jobs" / "7")
    assert run_as(ME, lambda: start(job, scratch)) == "begun"
    aside = scratch / "aside"
    assert "Permission" in run_as(OTHER, lambda: os.rename(job.path, aside))
    assert "not permitted" in run_as(OTHER, lambda: os.rename(job.path.parent, aside))


@as_root
def test_what_stands_in_a_strangers_folder_is_not_run(scratch: Path) -> None:
    """As if the folder could be exchanged all the same, with links to the real keys."""
    job = JobDirectory(scratch / "srobust-jobs" / "7")
    assert run_as(ME, lambda: start(job, scratch)) == "begun"
    was = job.path.rename(scratch / "was")

    def forge() -> None:
        job.path.mkdir(mode=0o755)
        for name in ("keys", "epochs"):
            (job.path / name).symlink_to(was / name)
        job.spec.write_bytes(msgspec.json.encode(spec(command="evil.py")))
        (job.path / "plan.json").write_bytes(msgspec.json.encode(plan()))

    job.path.parent.chmod(0o777)
    assert run_as(OTHER, forge) == "None"
    assert f"belongs to uid {OTHER}" in run_as(ME, lambda: read_spec(job, "7-x"))
    assert f"belongs to uid {OTHER}" in run_as(ME, lambda: plan_file.load_plan(job, "7-x"))
    # In a folder of this user, but the files of somebody else, or links to them.
    shutil.copytree(job.path, scratch / "theirs", symlinks=True)
    for name in ("job.json", "plan.json"):
        os.chown(scratch / "theirs" / name, OTHER, OTHER)
    os.chown(scratch / "theirs", ME, ME)
    theirs = JobDirectory(scratch / "theirs")
    assert f"belongs to uid {OTHER}" in run_as(ME, lambda: read_spec(theirs))
    assert f"belongs to uid {OTHER}" in run_as(ME, lambda: plan_file.load_plan(theirs))


def traps() -> list[tuple[str, Callable[[Path], None]]]:
    return [
        ("a link", lambda path: path.symlink_to("/etc/hostname")),
        ("not a plain file", os.mkfifo),
        ("not a plain file", Path.mkdir),
    ]


@pytest.mark.parametrize(("text", "trap"), traps())
def test_a_link_or_a_pipe_is_no_file_of_the_job(
    tmp_path: Path, text: str, trap: Callable[[Path], None]
) -> None:
    job = JobDirectory(tmp_path / "7")
    preflight.open_directory(job)
    trap(job.spec)
    trap(job.path / "plan.json")
    (job.keys / "agent.json").unlink()
    trap(job.keys / "agent.json")
    with pytest.raises(CannotBegin, match=text):
        read_spec(job)
    with pytest.raises(PreflightError, match=text):
        plan_file.load_plan(job)
    with pytest.raises(KeysError, match=text):
        load_client(job.keys)


def test_the_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path / "7")
    preflight.open_directory(job)
    plan_file.save_plan(job, plan(run_id="7-other"))
    job.spec.write_bytes(msgspec.json.encode(spec("7-other")))
    assert read_spec(job, "7-other") == read_spec(job) == spec("7-other")
    assert plan_file.load_plan(job, "7-other") == plan_file.load_plan(job)
    with pytest.raises(CannotBegin, match="7-other"):
        read_spec(job, "7-mine")
    with pytest.raises(PreflightError, match="7-other"):
        plan_file.load_plan(job, "7-mine")


@as_root
def test_keys_of_a_stranger_are_refused_and_root_uses_everybodys(scratch: Path) -> None:
    keys = scratch / "keys"
    assert run_as(ME, lambda: create_keys(keys)) == "None"
    assert load_client(keys) is not None
    for path in keys.iterdir():
        os.chown(path, OTHER, OTHER)
    os.chown(keys, OTHER, OTHER)
    keys.chmod(0o755)
    for path in keys.iterdir():
        path.chmod(0o644)
    assert "belongs to uid" in run_as(ME, lambda: load_client(keys))
