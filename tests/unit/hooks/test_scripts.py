"""The scripts that Slurm calls: as they stand, with a stand-in for srobust-node and programs of a site."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from slurm_robust.admin.items import WATCH, Layout, scripts, unit

SCRIPTS = Path(__file__).resolve().parents[3] / "prolog_epilog"
HOOKS = {"prolog.sh": "prolog", "epilog.sh": "epilog", "healthcheck.sh": "periodic"}
FOLDERS = ("plain", "with two  blanks", "an administrator's", 'a "$HOME" & 5% `id`; \\ #')
RECORDS = {"prolog_slurmctld.sh": "prolog_slurmctld", "epilog_slurmctld.sh": "epilog_slurmctld"}


class Installed:
    """The scripts in a folder of their own; what runs writes a line."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.etc, self.said = folder / "libexec", folder / "etc", folder / "said"
        self.folder.mkdir()
        for path in SCRIPTS.glob("*.sh"):
            text = re.sub(r"^SROBUST_NODE=.*$", f"SROBUST_NODE={folder}/node", path.read_text(), flags=re.M)
            text = re.sub(r"^DROP_INS=.*$", f"DROP_INS={self.etc}", text, flags=re.M)
            text = re.sub(r"^DROP_IN_S=.*$", "DROP_IN_S=1", text, flags=re.M)
            (self.folder / path.name).write_text(text)
            (self.folder / path.name).chmod(0o755)
        self.program(folder / "node", "exit 0")

    def program(self, path: Path, body: str, mode: int = 0o755) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >> {self.said}\n{body}\n')
        path.chmod(mode)

    def run(self, script: str) -> int:
        """As slurmd does it: by a link, without an environment."""
        link = self.folder.parent / "50-srobust.sh"
        link.unlink(missing_ok=True)
        link.symlink_to(self.folder / script)
        self.said.unlink(missing_ok=True)
        done = subprocess.run([link], env={}, cwd="/", capture_output=True, timeout=60, check=False)
        self.errors = done.stderr.decode()
        return done.returncode

    @property
    def ran(self) -> list[str]:
        return self.said.read_text().splitlines() if self.said.exists() else []


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


@pytest.mark.parametrize("script", [*HOOKS, *RECORDS])
def test_a_script_calls_its_hook(installed: Installed, script: str) -> None:
    assert installed.run(script) == 0
    assert installed.ran == [f"node {(HOOKS | RECORDS)[script]}"]
    assert installed.errors == ""


@pytest.mark.parametrize(
    "folder", ["plain", "with two  blanks", "an administrator's", 'a "$HOME" & `id`; \\ #']
)
@pytest.mark.parametrize("script", [*HOOKS, *RECORDS])
def test_an_installation_runs_from_a_folder_of_any_name(tmp_path: Path, script: str, folder: str) -> None:
    prefix = tmp_path / folder
    layout = Layout(node_command=f"{prefix}/bin/srobust-node", prefix=str(prefix))
    program = Path(layout.node_command)
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "$*" > {shlex.quote(str(tmp_path))}/said\n')
    program.chmod(0o755)
    Path(layout.libexec).mkdir(parents=True)
    for name, text in scripts(layout).items():
        (Path(layout.libexec) / name).write_text(text)
        (Path(layout.libexec) / name).chmod(0o755)
    link = tmp_path / "50-slurm-robust"
    link.symlink_to(Path(layout.libexec) / script)
    done = subprocess.run([link], env={}, cwd="/", capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "said").read_text() == f"{(HOOKS | RECORDS)[script]}\n"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
@pytest.mark.parametrize("folder", FOLDERS)
def test_systemd_takes_a_unit_that_names_a_folder_of_any_name(tmp_path: Path, folder: str) -> None:
    prefix = str(tmp_path / folder)
    layout = Layout(node_command=f"{prefix}/bin/srobust-node", prefix=prefix)
    for name in ("slurm-robust.service", WATCH):
        (tmp_path / name).write_text(unit(name, layout))
        words = ["systemd-analyze", "verify", "--man=no", tmp_path / name]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        # Of a plain name it tells, at most, that no such program is there.
        assert re.fullmatch(r"(.*: Command .* is not executable: No such file or directory\n)?", done.stderr)


def test_a_unit_has_one_word_for_a_folder_of_any_name() -> None:
    layout = Layout(node_command='/opt/5% of $HOME "\\/srobust-node')
    [line] = [line for line in unit(WATCH, layout).splitlines() if line.startswith("ExecStart=")]
    # What systemd does with it: quotes, then specifiers and variables (systemd.service(5), "Command lines").
    words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line.partition("=")[2])]
    assert words == ["/bin/sh", "-c", 'exec "$0" "$@"', layout.node_command, "watch"]


@pytest.mark.parametrize("script", [*HOOKS, *RECORDS])
@pytest.mark.parametrize("code", [1, 2, 64, 126])
def test_only_a_prolog_that_says_so_fails(installed: Installed, script: str, code: int) -> None:
    installed.program(installed.folder.parent / "node", f"exit {code}")
    refused = (script, code) == ("prolog.sh", 1)
    assert installed.run(script) == int(refused)
    assert (installed.errors == "") is refused


@pytest.mark.parametrize("script", [*HOOKS, *RECORDS])
def test_what_is_not_installed_fails_nothing(installed: Installed, script: str) -> None:
    if shutil.which("srobust-node", path="/usr/bin:/usr/local/bin"):
        pytest.skip("there is one in the usual places")
    (installed.folder.parent / "node").unlink()
    assert installed.run(script) == 0
    assert "ended with 127" in installed.errors


@pytest.mark.parametrize("script", HOOKS)
def test_programs_of_the_site_run_around_ours(installed: Installed, script: str) -> None:
    folder = installed.etc / f"{HOOKS[script]}.d"
    for name in ("90-late", "10-early", "site", "20-old.bak", "30-odd~"):
        installed.program(folder / name, "exit 0")
    installed.program(folder / "40-not-executable", "exit 0", mode=0o644)
    assert installed.run(script) == 0
    assert installed.ran == ["10-early ", f"node {HOOKS[script]}", "90-late ", "site "]


def test_a_program_of_the_site_decides_as_it_would_without_us(installed: Installed) -> None:
    installed.program(installed.etc / "prolog.d" / "10-theirs", "exit 3")
    assert installed.run("prolog.sh") == 3
    assert installed.ran == ["10-theirs "]
    assert "10-theirs ended with 3" in installed.errors


def test_no_later_program_runs_where_ours_refuses(installed: Installed) -> None:
    installed.program(installed.folder.parent / "node", "exit 1")
    installed.program(installed.etc / "prolog.d" / "90-late", "exit 0")
    assert installed.run("prolog.sh") == 1
    assert installed.ran == ["node prolog"]


@pytest.mark.slow
def test_a_program_of_the_site_that_hangs_is_ended(installed: Installed) -> None:
    installed.program(installed.etc / "epilog.d" / "90-hangs", "exec sleep 1000")
    begun = time.monotonic()
    assert installed.run("epilog.sh") == 124
    assert time.monotonic() - begun < 60
