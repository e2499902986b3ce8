"""What a script creates below its copy is where it would be without one, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from slurm_robust.model.job import CommandKind
from slurm_robust.worker.creations import Creations
from tests.unit.worker.copied_code import Code
from tests.users import NOBODY, as_root, run_as

PRELUDE = """
import os, pathlib, shutil, sys
from slurm_robust.model.release import CodeRoot
from slurm_robust.worker.copied import CopiedCode
from slurm_robust.worker.creations import Creations
place, origin = sys.argv[1:]
here = pathlib.Path(place, "project")
roots = (CodeRoot(path=origin, folder="project"),)
copy = CopiedCode(release=os.path.basename(place), place=place, roots=roots)
Creations(copy).begin()
"""


class Scripts:
    """Runs scripts in processes of their own, in the copy of one release."""

    def __init__(self, code: Code) -> None:
        code.write(
            {
                "script.py": "",
                "log.txt": "before\n",
                "own.yaml": "before\n",
                "sub/a.py": "",
                ".gitignore": "data",
                "data/x": "1",
            }
        )
        self.code = code
        self.copy = code.release()

    def __call__(self, script: str, first: str = "") -> str:
        program = f"{first}\n{PRELUDE}{textwrap.dedent(script)}"
        command = [sys.executable, "-c", program, self.copy.place, str(self.code.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def origin(self, name: str) -> Path:
        return self.code.folder / name

    def in_copy(self, name: str) -> Path:
        return Path(self.copy.place, "project", name)


@pytest.fixture
def script(tmp_path: Path) -> Scripts:
    return Scripts(Code(tmp_path))


@pytest.mark.parametrize(
    "writes",
    [
        "open(here / 'new.txt', 'w').write('text')",
        "(here / 'new.txt').write_text('text')",
        "os.chdir(here); open('new.txt', 'w').write('text')",
        "fd = os.open(str(here / 'new.txt'), os.O_CREAT | os.O_WRONLY); os.write(fd, b'text')",
        "open(here / 'sub/../new.txt', 'a').write('text')",
        "open(here / 'tmp', 'w').write('text'); os.replace(here / 'tmp', here / 'new.txt')",
        "open(here / 'tmp', 'x').write('text'); os.rename(here / 'tmp', here / 'new.txt')",
        "open('/dev/shm/srobust-x', 'w').write('text'); shutil.move('/dev/shm/srobust-x', here / 'new.txt')",
        "(here / 'tmp').write_text('text'); (here / 'tmp').rename(here / 'new.txt')",
        "shutil.copy(here / 'data/x', here / 'new.txt'); (here / 'new.txt').write_text('text')",
    ],
)
def test_a_new_file_is_in_its_real_place_and_seen_in_the_copy(script: Scripts, writes: str) -> None:
    said = script(
        f"{writes}\nprint((here / 'new.txt').read_text(), sorted(p.name for p in here.glob('*.txt')))"
    )
    assert said == "text ['log.txt', 'new.txt']\n"
    assert script.origin("new.txt").read_text() == "text"
    assert not script.origin("new.txt").is_symlink()
    assert not script.origin("tmp").exists()


@pytest.mark.parametrize(
    "makes",
    [
        "os.makedirs(here / 'out/deep', exist_ok=True)",
        "(here / 'out/deep').mkdir(parents=True)",
        "os.mkdir(here / 'out'); os.mkdir(here / 'out/deep')",
    ],
)
def test_new_folders_are_in_their_real_place(script: Scripts, makes: str) -> None:
    script(f"{makes}\nopen(here / 'out/deep/x', 'w').write('1')\nos.makedirs(here / 'out', exist_ok=True)")
    assert script.origin("out/deep/x").read_text() == "1"
    # Another process of this node, and one that is not the first, find it too.
    assert script("print(os.listdir(here / 'out'), (here / 'out/deep').exists())") == "['deep'] True\n"


def test_what_another_node_has_made_is_seen(script: Scripts) -> None:
    script.code.write({"ready": "yes", "out/n2.txt": "2"})
    said = script(
        "print(os.path.exists(here / 'ready'), open(here / 'out/n2.txt').read(), os.listdir(here / 'out'))"
    )
    assert said == "True 2 ['n2.txt']\n"


def test_code_that_came_later_is_not_seen(script: Scripts) -> None:
    script.code.write({"late.py": "1"})
    assert script("print(os.path.exists(here / 'late.py'))") == "False\n"


@pytest.mark.parametrize("name", ["log.txt", "own.yaml"])
def test_a_file_that_was_there_and_is_written_is_the_one_in_its_place(script: Scripts, name: str) -> None:
    script(f"open(here / '{name}', 'a').write('after\\n')")
    assert script.origin(name).read_text() == "before\nafter\n"
    assert script(f"print(open(here / '{name}').read())") == "before\nafter\n\n"


def test_what_a_child_has_changed_in_the_copy_is_not_hidden(script: Scripts) -> None:
    said = script(
        """
        os.system(f"echo child >> {here}/own.yaml")
        open(here / "own.yaml", "a").write("script\\n")
        print((here / "own.yaml").read_text().split())
        """
    )
    assert said == "['before', 'child', 'script']\n"
    assert script.origin("own.yaml").read_text() == "before\n"  # until the agent settles


def test_what_was_removed_in_its_place_is_in_nobodys_way(script: Scripts) -> None:
    script.code.write({"out/old/x": "", "lock": ""})
    script("os.listdir(here / 'out'); open(here / 'lock').close()")  # now they are links in the copy
    script.origin("lock").unlink()
    shutil.rmtree(script.origin("out"))
    script(
        """
        os.makedirs(here / "out/new", exist_ok=True)
        open(here / "lock", "x").close()
        """
    )
    assert os.listdir(script.origin("out")) == ["new"]


@as_root
def test_copies_of_a_script_are_ordinary_files() -> None:
    home = Path(tempfile.mkdtemp(dir="/var/tmp"))
    os.chown(home, NOBODY, NOBODY)

    def copied_twice() -> str:
        script = Scripts(Code(home))
        Creations(script.copy).begin()
        os.mkdir(script.in_copy("run"))
        for _ in range(2):
            shutil.copy(script.in_copy("script.py"), script.in_copy("run"))
        return oct(script.origin("run/script.py").stat().st_mode)

    try:
        assert run_as(NOBODY, copied_twice) == "0o100644"
    finally:
        shutil.rmtree(home)


@pytest.mark.parametrize(
    "removes",
    ["os.remove(here / 'new')", "(here / 'new').unlink()", "os.rename(here / 'new', here / 'other')"],
)
def test_what_is_removed_is_removed_in_its_place(script: Scripts, removes: str) -> None:
    script(f"(here / 'new').write_text('1')\n{removes}\nassert not (here / 'new').exists()")
    assert not script.origin("new").exists()


def test_a_folder_is_made_anew(script: Scripts) -> None:
    script(
        """
        for text in "12":
            shutil.rmtree(here / "out", ignore_errors=True)
            os.makedirs(here / "out")
            (here / "out" / text).write_text(text)
        os.makedirs(here / "empty"); os.rmdir(here / "empty")
        """
    )
    assert [path.name for path in script.origin("out").iterdir()] == ["2"]
    assert not script.origin("empty").exists()


def test_errors_are_those_of_the_real_place(script: Scripts) -> None:
    said = script(
        """
        for act in (
            lambda: open(here / "gone/x", "w"),
            lambda: os.mkdir(here / "sub"),
            lambda: os.listdir(here / "gone"),
            lambda: open(here / "log.txt", "x"),
            lambda: os.remove(here / "gone"),
            lambda: os.stat(here / "gone"),
            lambda: os.rename(here / "gone", here / "x"),
            lambda: os.mkdir(here / "gone/x"),
        ):
            try:
                act()
            except OSError as error:
                print(type(error).__name__, end=" ")
        """
    )
    assert said.split() == [
        *("FileNotFoundError", "FileExistsError", "FileNotFoundError", "FileExistsError"),
        *("FileNotFoundError", "FileNotFoundError", "FileNotFoundError", "FileNotFoundError"),
    ]
    assert not script.origin("gone").exists()


@pytest.mark.slow
def test_what_torch_saves_beside_the_script_is_in_its_real_place(script: Scripts) -> None:
    script(
        """
        torch.save({"x": 1}, here / "model.pt")
        torch.save({"x": 2}, str(here / "model.tmp")); os.replace(here / "model.tmp", here / "best.pt")
        assert torch.load(here / "best.pt") == {"x": 2}
        """,
        first="import torch",
    )
    assert script.origin("model.pt").stat().st_size > 100
    assert script.origin("best.pt").is_file()


def test_processes_that_make_the_same_folder_all_succeed(script: Scripts) -> None:
    program = PRELUDE + "for i in range(50): os.makedirs(here / f'out/{i}/deep', exist_ok=True)"
    command = [sys.executable, "-c", program, script.copy.place, str(script.code.folder)]
    ranks = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(rank.communicate()[1], rank.returncode) for rank in ranks] == [("", 0)] * 4
    assert len(os.listdir(script.origin("out"))) == 50


# -- programs that are Python -----------------------------------------------------------------------------

_PROGRAM = """
import os, pathlib, subprocess, sys
here = pathlib.Path(__file__).parent
(here / "out").mkdir()
(here / "out/x").write_text("x")
fd = os.open(here / "log.bin", os.O_CREAT | os.O_WRONLY)
subprocess.run([sys.executable, "-c", f"open({str(here / 'child.txt')!r}, 'w')"], check=True)
print(getattr(sys, "own", "none"))
"""


def _run_program(code: Code, *path: Path) -> str:
    copy = code.release(sys.executable, "train.py", kind=CommandKind.EXEC)
    own = os.pathsep.join(map(str, path)) or None
    done = subprocess.run(
        copy.command(CommandKind.EXEC, (sys.executable, "train.py"), str(code.folder)),
        env={"PYTHONPATH": copy.python_path(None, (), str(code.folder)) + (f":{own}" if own else "")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_what_a_program_in_python_and_its_children_create_is_in_its_real_place(tmp_path: Path) -> None:
    code = Code(tmp_path)
    code.write({"train.py": _PROGRAM})
    _run_program(code)
    assert {"out", "log.bin", "child.txt"} <= set(os.listdir(code.folder))
    assert (code.folder / "out/x").read_text() == "x"


def test_a_program_in_python_runs_its_own_sitecustomize_as_well(tmp_path: Path) -> None:
    code = Code(tmp_path)
    code.write({"train.py": _PROGRAM})
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.own = 'its own'")
    assert _run_program(code, own) == "its own\n"
    assert (code.folder / "child.txt").is_file()


@pytest.mark.slow
def test_what_torch_saves_in_a_program_that_imports_it_later_is_in_its_real_place(tmp_path: Path) -> None:
    code = Code(tmp_path)
    code.write({"train.py": "import torch\ntorch.save({}, __file__.replace('train.py', 'last.pt'))"})
    _run_program(code)
    assert (code.folder / "last.pt").stat().st_size > 100
