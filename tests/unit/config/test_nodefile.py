"""The node's configuration is understood or refused with its place; the compiled copy is not trusted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from slurm_robust.cli.config import is_node_file
from slurm_robust.cli.main import main
from slurm_robust.config import nodefile
from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.node import NodeConfig
from slurm_robust.config.nodefile import load
from tests.users import NOBODY, as_root, run_as

AGED_S = 10


class Site:
    """A folder like /etc/slurm-robust whose files are not brand-new."""

    def __init__(self, folder: Path) -> None:
        self.main = folder / "etc" / "config.yaml"
        self.compiled = folder / "run" / "config.msgpack"
        (self.main.parent / "conf.d").mkdir(parents=True)

    def write(self, text: str, name: str = "config.yaml") -> Path:
        path = self.main.parent / name
        path.write_text(text)
        age = path.stat().st_mtime - AGED_S
        os.utime(path, (age, age))
        return path

    def load(self) -> NodeConfig:
        return load(self.main, self.compiled)

    def refused(self, text: str) -> str:
        self.write(text)
        with pytest.raises(InvalidSettings) as caught:
            self.load()
        return "\n".join(caught.value.problems)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_file_that_was_named_must_be_there(site: Site) -> None:
    with pytest.raises(InvalidSettings, match="there is no such file"):
        site.load()


def test_a_file_of_comments_is_the_defaults(site: Site) -> None:
    site.write("# nothing\n\ngpu:\n  # count: 8\n")
    assert site.load() == NodeConfig()


def test_drop_ins_win_in_their_order_mappings_merge_and_lists_replace(site: Site) -> None:
    site.write("gpu: {count: 8, min_nvlinks: 18}\nservices: {required: [munged, slurmd]}\n")
    site.write("gpu: {count: 4}\nservices: {required: [slurmd]}\n", "conf.d/10-first.yaml")
    site.write("gpu: {count: 6}\n", "conf.d/20-second.yaml")
    site.write("gpu: {count: 1}\n", "conf.d/README")
    site.write("gpu: {count: 1}\n", "conf.d/.hidden.yaml")
    config = site.load()
    assert (config.gpu.count, config.gpu.min_nvlinks) == (6, 18)
    assert config.services.required == ("slurmd",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu:\n  cuont: 8\n", ["config.yaml, line 2: unknown key gpu.cuont; did you mean gpu.count?"]),
        ("max_share: 0.2\n", ["line 1: unknown key max_share; did you mean max_share (under drain:)?"]),
        ("zzz: 1\n", ["unknown key zzz; known keys here: hooks"]),
        ("gpu: {count: many}\n", ["gpu.count must be an integer of 0 or more, or null", "the string 'many'"]),
        ("drain: {mode: on}\n", ["drain.mode must be one of observe, act, got true", 'mode: "observe"']),
        ("gpu: 8\n", ["line 1: gpu must be a mapping"]),
        ("- a\n", ["line 1: must be a mapping of keys to values"]),
        ("gpu:\n  count: 1\n  count: 2\n", ["line 3: gpu.count is set twice", "line 2", "fix: keep one"]),
        ("gpu: {count: 1\n", ["not valid YAML"]),
        ("gpu: {count: !!python/object:os.system 1}\n", ["not valid YAML"]),
        (
            "gpu: {count: 2026-13-45}\n",
            ["config.yaml, line 1, column 14: not valid YAML: '2026-13-45' is not a timestamp: month"],
        ),
        (
            "checks:\n  gpu.*: {confirm: x}\n",
            ["line 2: checks.gpu.*.confirm must be an integer of 1 or more"],
        ),
        ("checks: {gpu: 3}\n", ["checks.gpu must be a mapping"]),
        ("checks: {gpu: {confirm: 0}}\n", ["checks.gpu.confirm must be an integer of 1 or more"]),
        ("site_checks: 3\n", ["site_checks must be a list"]),
        ("site_checks:\n- {command: [/bin/true]}\n", ["line 2: site_checks[0] needs the key name"]),
        ("hooks: {periodic_s: 60}\n", ["line 1: hooks.periodic_s is 60", "kills", "below 60"]),
        ("hooks: {prolog_s: 0}\n", ["hooks.prolog_s must be a number of seconds above 0"]),
        ("hooks:\n  slurm_s: 15\n", ["slurm_s (15) is above prolog_s (10)", "hooks.slurm_s (", "line 2)"]),
        ("hooks: {slurm_bin: bin}\n", ["hooks.slurm_bin is 'bin', but hooks have no PATH"]),
        ("watch: {gpu_s: 0.5}\n", ["watch.gpu_s must be a number of seconds of 1 or more"]),
        ("drain: {max_share: 10}\n", ["drain.max_share must be a share from 0 to 1 (0.1 is ten percent)"]),
        ("drain: {pass_runs: 0}\n", ["drain.pass_runs must be an integer of 1 or more"]),
        (f"gpu: {{count: {10**30}}}\n", ["gpu.count must be an integer of 0 or more"]),
        ("gpu: {max_temperature_c: -1}\n", ["gpu.max_temperature_c must be a number of 0 or more"]),
        ("gpu: {max_temperature_c: .nan}\n", ["gpu.max_temperature_c must be a number of 0 or more"]),
        (
            "gpu: {xid_window_s: .inf}\n",
            ["gpu.xid_window_s must be a number of 0 or more, got the number inf"],
        ),
        ("network: {max_symbol_errors_per_hour: -1}\n", ["must be an integer of 0 or more"]),
        ("storage: {answer_s: 8.5}\n", ["storage.answer_s must be a number of seconds above 0, at most 8"]),
        ("storage: {mounts: [home]}\n", ["storage.mounts[0] must be an absolute path"]),
        ("storage: {min_free_mb: {tmp: 1}}\n", ["storage.min_free_mb.tmp must be an absolute path"]),
        ("storage: {min_free_mb: {/tmp: x}}\n", ["storage.min_free_mb./tmp must be an integer of 0 or more"]),
        ("memory: {min_user_uid: 0}\n", ["memory.min_user_uid must be an integer of 1 or more"]),
        ("clock: {max_offset_s: 0}\n", ["clock.max_offset_s must be a number of seconds of 0.001 or more"]),
        ("kernel: {window_s: .5}\n", ["kernel.window_s must be a number of seconds of 1 or more"]),
        ("services: {munge_s: 0.01}\n", ["services.munge_s must be a number of seconds of 0.05 or more"]),
        ("services: {munge_socket: munge}\n", ["services.munge_socket must be an absolute path"]),
        ("paths: {state: var}\n", ["paths.state must be an absolute path"]),
        ("suspects: {job_dirs: ['{jobid}']}\n", ["line 1: suspects.job_dirs[0]: '{jobid}'", "{job_id}"]),
        ("checks: {x: {contexts: [prologue]}}\n", ["checks.x.contexts[0] must be one of prolog"]),
        (
            "metrics: {textfile_dir: textfiles}\n",
            ["metrics.textfile_dir is 'textfiles', but hooks start anywhere", "write an absolute path"],
        ),
        ("site_checks: [{name: a}]\n", ["line 1: site_checks[0].name", "neither command nor python"]),
        ("site_checks: [{name: a, command: [/a], python: 'a:b'}]\n", ["both command and python"]),
        ("site_checks: [{name: a/b, command: [/a]}]\n", ["site_checks[0].name is 'a/b'", "use letters"]),
        (
            "site_checks: [{name: a, command: [true.sh]}]\n",
            ["command is 'true.sh'", "write an absolute path"],
        ),
        ("site_checks: [{name: a, python: os.path}]\n", ["python is 'os.path'", "write module:function"]),
        (
            "site_checks: [{name: a, command: [/a], timeout_s: 0}]\n",
            ["timeout_s must be a number of seconds"],
        ),
        (
            "site_checks:\n- {name: a, command: [/a]}\n- {name: a, command: [/b]}\n",
            ["line 3: site_checks[1].name: two checks have the name 'a'"],
        ),
    ],
)
def test_an_error_is_reported_with_its_place_and_the_fix(site: Site, text: str, said: list[str]) -> None:
    message = site.refused(text)
    assert [part for part in said if part not in message] == []


@pytest.mark.parametrize(
    "text",
    ["hooks: {periodic_s: 59.9}", "drain: {max_share: 1}", "drain: {max_share: 0}", "hooks: {slurm_s: 10}"],
)
def test_values_at_the_border_are_good(site: Site, text: str) -> None:
    site.write(text)
    assert site.load() != NodeConfig()


def test_all_problems_of_all_files_are_reported_together(site: Site) -> None:
    site.write("gpu: {count: x}\nnope: 1\n", "conf.d/10.yaml")
    message = site.refused("drain: {mode: maybe}\n")
    assert [message.count(word) for word in ("drain.mode", "gpu.count", "nope", "10.yaml")] == [1, 1, 1, 2]


def test_a_wrong_value_is_reported_although_a_drop_in_replaces_it(site: Site) -> None:
    site.write("gpu: {count: 8}\n", "conf.d/10.yaml")
    assert "config.yaml, line 1: gpu.count must be" in site.refused("gpu: {count: x}\n")


def test_a_drop_in_without_keys_says_nothing(site: Site) -> None:
    site.write("gpu: {count: 8}\nsite_checks: [{name: a, command: [/bin/true]}]\n")
    site.write("gpu:\nsite_checks:\nchecks:\n", "conf.d/10.yaml")
    assert site.load().gpu.count == 8
    assert site.load().site_checks[0].name == "a"


def test_anchors_and_merge_keys_are_yaml_too(site: Site) -> None:
    site.write("checks:\n  a: &quiet {enabled: false, confirm: 2}\n  b: {<<: *quiet, confirm: 3}\n")
    rules = site.load().checks
    assert (rules["b"].enabled, rules["b"].confirm) == (False, 3)
    assert "line 2: checks.b.enabled must be" in site.refused(
        "checks:\n  a: &quiet {enabled: 7}\n  b: {<<: *quiet}\n"
    )


@as_root
def test_a_second_load_takes_the_compiled_copy_without_yaml(site: Site) -> None:
    site.write("gpu: {count: 8}\n")
    assert site.load().gpu.count == 8
    code = (
        "import sys; from pathlib import Path; from slurm_robust.config.nodefile import load\n"
        f"assert load(Path({str(site.main)!r}), Path({str(site.compiled)!r})).gpu.count == 8\n"
        "assert not {'yaml', 'subprocess', 'slurm_robust.config.reader'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@as_root
@pytest.mark.parametrize("change", ["main", "new drop-in", "same size and time"])
def test_a_changed_file_makes_the_copy_worthless(site: Site, change: str) -> None:
    before = site.write("gpu: {count: 8}\n")
    assert site.load().gpu.count == 8
    assert site.compiled.exists()
    if change == "main":
        site.write("gpu: {count: 16}\n")
    elif change == "new drop-in":
        site.write("gpu: {count: 16}\n", "conf.d/10.yaml")
    else:
        found = before.stat()
        beside = before.with_name("new")
        beside.write_text("gpu: {count: 6}\n")
        os.utime(beside, ns=(found.st_atime_ns, found.st_mtime_ns))
        beside.rename(before)
    assert site.load().gpu.count in (16, 6)


@as_root
@pytest.mark.parametrize("harm", ["others write", "other owner", "link", "torn", "noise", "fifo", "old"])
def test_an_odd_copy_is_not_used(site: Site, harm: str) -> None:
    site.write("gpu: {count: 8}\n")
    site.load()
    good = msgspec.msgpack.decode(site.compiled.read_bytes())
    good[2]["gpu"]["count"] = 1
    site.compiled.write_bytes(msgspec.msgpack.encode(good))
    assert site.load().gpu.count == 1, "the copy is what is read"
    if harm == "others write":
        site.compiled.chmod(0o666)
    elif harm == "other owner":
        os.chown(site.compiled, 12345, 0)
    elif harm == "link":
        site.compiled.rename(site.compiled.with_name("real"))
        site.compiled.symlink_to("real")
    elif harm == "torn":
        site.compiled.write_bytes(site.compiled.read_bytes()[:-3])
    elif harm == "noise":
        site.compiled.write_bytes(os.urandom(100))
    elif harm == "fifo":
        site.compiled.unlink()
        os.mkfifo(site.compiled)
    else:
        good[0] = nodefile.FORMAT + 1
        site.compiled.write_bytes(msgspec.msgpack.encode(good))
    assert site.load().gpu.count == 8


@as_root
def test_a_file_that_was_just_written_is_not_compiled(site: Site) -> None:
    """Its next version could have the same time, size and inode."""
    site.main.write_text("gpu: {count: 8}\n")
    assert site.load().gpu.count == 8
    assert not site.compiled.exists()


@as_root
def test_the_copy_is_as_private_as_the_files(site: Site) -> None:
    site.write("gpu: {count: 8}\n").chmod(0o600)
    site.load()
    assert site.compiled.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def usual(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The site at the paths that hooks read, with a compiled copy."""
    monkeypatch.setattr(nodefile, "FILE", site.main)
    monkeypatch.setattr(nodefile, "COMPILED", site.compiled)
    site.write("gpu: {count: 8}\n")
    site.write("gpu: {count: 6}\n", "conf.d/10.yaml")
    assert load(site.main).gpu.count == 6
    assert site.compiled.exists()
    return site


@as_root
@pytest.mark.parametrize(
    ("name", "mode", "uid"),
    [
        ("config.yaml", 0o666, 0),
        ("config.yaml", 0o600, 1000),
        ("conf.d/10.yaml", 0o646, 0),
        ("conf.d", 0o777, 0),
        (".", 0o777, 0),
        (".", 0o755, 1000),
    ],
)
def test_root_takes_no_commands_from_files_that_others_could_change(
    usual: Site, capsys: pytest.CaptureFixture[str], name: str, mode: int, uid: int
) -> None:
    path = usual.main.parent / name
    os.chown(path, uid, 0)
    path.chmod(mode)
    with pytest.raises(InvalidSettings, match=f"{path}.* and the file names commands that root runs"):
        load(usual.main)
    files = [str(file) for file in nodefile.files(usual.main)]
    assert main(["config", "check", *files]) == 78
    assert "the file names commands that root runs" in capsys.readouterr().err


@as_root
def test_a_draft_is_good_and_the_command_says_that_hooks_would_refuse_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = tmp_path / "draft.yaml"
    draft.write_text("gpu: {count: 8}\n")
    draft.chmod(0o666)
    assert main(["config", "check", str(draft)]) == 0
    assert "good, 1 section of a node's configuration, but hooks would refuse" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["config.yaml", "conf.d", "conf.d/z.yaml", "."])
@pytest.mark.parametrize("target", ["/not/mounted", "itself"])
def test_a_link_that_leads_nowhere_does_not_mean_no_settings(site: Site, place: str, target: str) -> None:
    path = site.main.parent / place
    if path.is_dir():
        (site.main.parent / "conf.d").rmdir()
        path = site.main.parent if place == "." else path
        if place == ".":
            path.rmdir()
    path.symlink_to(path.name if target == "itself" else target)
    with pytest.raises(InvalidSettings, match=f"{path}.* cannot be read"):
        nodefile.load_compiled(site.main, site.compiled)


@as_root
@pytest.mark.parametrize("kind", ["fifo", "device", "huge", "folder", "deep", "closed"])
@pytest.mark.parametrize("command", [["config", "check"], ["config", "show", "--config"]])
def test_what_is_no_plain_file_of_a_fair_size_is_refused_at_once(
    tmp_path: Path, kind: str, command: list[str]
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "x.yaml"
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "folder":
            path.mkdir()
        else:
            path.write_bytes({"huge": b"a" * 60_000_000, "deep": b"[" * 20_000}.get(kind, b"nodes: 4\n"))
            path.chmod(0o600 if kind == "closed" else 0o644)
        begun = time.monotonic()
        said = run_as(NOBODY, lambda: str(main([*command, str(path)])))
        assert said == ("78" if kind == "deep" else "66")
        assert time.monotonic() - begun < 60


def test_a_file_that_cannot_be_read_is_an_error_with_its_reason(site: Site) -> None:
    site.main.mkdir()
    with pytest.raises(InvalidSettings, match="cannot be read"):
        site.load()


@as_root
@pytest.mark.parametrize("closed", ["", "conf.d"])
def test_a_folder_that_cannot_be_read_is_an_error_and_does_not_mean_no_settings(closed: str) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)  # nothing above it keeps others out
        site = Site(Path(folder))
        site.write("drain: {mode: act}\n")
        site.write("gpu: {count: 6}\n", "conf.d/10.yaml")
        (site.main.parent / closed).chmod(0o700)
        said = run_as(NOBODY, site.load)
        assert said.startswith("InvalidSettings")
        assert "cannot be read: Permission denied" in said


def test_aliases_of_aliases_are_refused_at_once(site: Site) -> None:
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    text = f"a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n{levels}"
    begun = time.monotonic()
    assert "more than 10000 values" in site.refused(text)
    assert time.monotonic() - begun < 60


def test_a_huge_file_is_refused_for_its_size(site: Site) -> None:
    assert "config.yaml cannot be read: it is larger than 128 KiB" in site.refused("a" * 60_000_000)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(site: Site) -> None:
    site.write("drain: {mode: act}\n")
    os.mkfifo(site.main.parent / "conf.d" / "90.yaml")
    with pytest.raises(InvalidSettings, match=r"90\.yaml cannot be read: it is not a regular file"):
        site.load()


@pytest.mark.parametrize(
    ("text", "is_node"),
    [
        ("gpu: {count: 8}\n", True),
        ("drian: {}\nhooks: {}\n", True),
        ("nodes: 4\n", False),
        ("limits: {per_hour: 1}\n", False),
        ("", False),
        ("[1", False),
    ],
)
def test_a_file_for_nodes_is_distinguished_from_one_for_jobs(text: str, is_node: bool) -> None:
    assert is_node_file(text.encode()) == is_node


def test_the_command_checks_files_of_both_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node, job = tmp_path / "node.yaml", tmp_path / "job.yaml"
    node.write_text("gpu: {count: 8}\n")
    job.write_text("nodes: 4\n")
    assert main(["config", "check", str(node), str(job)]) == 0
    node.write_text("gpu: {count: x}\n")
    assert main(["config", "check", str(node)]) == 78
    told = capsys.readouterr()
    assert "1 section of a node's configuration" in told.out
    assert "gpu.count must be an integer" in told.err
