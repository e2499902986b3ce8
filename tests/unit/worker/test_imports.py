"""What a script imports is noted where it may be imported earlier, and imported where a fork can have it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from slurm_robust.worker.imports import read_names

RECORDING = """
import sys
from slurm_robust.worker.imports import ImportRecorder
recorder = ImportRecorder(sys.argv[1], "own")
recorder.begin()
{script}
recorder.leave()
assert recorder not in sys.meta_path
"""

IMPORTING = """
import json, os, sys
from slurm_robust.worker.zygote import UnfitModule, import_learned
found = {}
for name in sys.argv[1:]:
    read, write = os.pipe()
    if not os.fork():
        try:
            import_learned([name])
            said = "imported" if name in sys.modules else "left out"
        except UnfitModule as error:
            said = f"{error.module}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.wait()
    found[name] = os.read(read, 4096).decode()
print(json.dumps(found))
"""

PACKAGES = {
    "plain.py": "",
    "pack/__init__.py": "",
    "pack/inner.py": "",
    "sets.py": "import os\nos.environ['SET_BY_PACKAGE'] = '1'\nimport plain",
    "later.py": "",
    "raises.py": "raise ValueError('no such\\ndriver')",
    "exits.py": "import sys\nsys.exit(3)",
    "threads.py": "import threading as t\nt.Thread(target=t.Event().wait, daemon=True).start()",
    "forks.py": "import subprocess\nchild = subprocess.Popen(['sleep', '1'])",
    "connects.py": "import socket\nkept = socket.socket()",
    "handles.py": "import signal\nsignal.signal(signal.SIGUSR2, lambda *_: None)",
    "moves.py": "import os\nos.chdir('/')",
    "mpi4py.py": "",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages; beside it one of the user's own."""
    folder = tmp_path_factory.mktemp("imports") / "site-packages"
    for name, text in PACKAGES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder.parent / "mine.py").write_text("import later")
    return folder


def python(installed: Path, code: str, *arguments: str) -> str:
    path = f"{installed}:{installed.parent}:{Path.cwd()}"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def recorded(installed: Path, tmp_path: Path, script: str) -> tuple[str, ...] | None:
    place = tmp_path / "modules.json"
    python(installed, RECORDING.format(script=script), str(place))
    names = read_names(place)
    return names and tuple(name for name in names if (installed / f"{name.partition('.')[0]}.py").exists())


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import plain", ("plain",)),
        ("import mine", ("later",)),  # not the user's own
        ("import sets", ("sets", "plain")),  # a package does the same in a zygote
        ("import plain, os\nos.environ['X'] = '1'\nimport later", ("plain",)),
        ("import os\nos.environ['X'] = '1'\nimport mine", ()),
        ("import os\ndel os.environ['PATH']\nimport plain", ()),
        ("import mpi4py", ()),
        ("try:\n    import raises\nexcept ValueError:\n    pass", ()),
        (
            "import threading as th\nt = th.Thread(None, __import__, None, ('plain',))\nt.start()\nt.join()",
            ("plain",),
        ),
    ],
)  # fmt: skip
def test_the_imports_of_a_script_are_noted(
    installed: Path, tmp_path: Path, script: str, expected: tuple[str, ...]
) -> None:
    assert recorded(installed, tmp_path, script) == expected


def test_modules_of_packages_are_noted_too(installed: Path, tmp_path: Path) -> None:
    place = tmp_path / "modules.json"
    python(installed, RECORDING.format(script="import pack.inner"), str(place))
    names = read_names(place)
    assert names is not None
    assert {"pack", "pack.inner"} <= set(names)
    assert names.index("pack") < names.index("pack.inner")


@pytest.mark.parametrize("content", [b"", b"{", b"7", b'["a", 7]', b"\xff" * 100, b"[" * 100_000])
def test_whatever_else_is_there_counts_as_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "modules.json").write_bytes(content)
    assert read_names(tmp_path / "modules.json") == ()
    assert read_names(tmp_path / "absent") is None


def test_hostile_names_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_bytes(msgspec.json.encode(["yaml", "os; import evil", "\x1b[31m"]))
    assert read_names(tmp_path / "modules.json") == ("yaml",)


@pytest.mark.slow
def test_only_what_a_fork_can_have_is_imported_before(installed: Path) -> None:
    wanted = {
        "plain": "imported",
        "pack.inner": "imported",
        "mine": "left out",
        "nowhere": "left out",
        "pack.nowhere": "pack.nowhere: its import fails: ModuleNotFoundError: No module named 'pack.nowhere'",
        "raises": "raises: its import fails: ValueError: no such driver",
        "exits": "exits: its import fails: SystemExit: 3",
        "threads": "threads: its import leaves or changes threads",
        "forks": "forks: its import leaves or changes child processes",
        "connects": "connects: its import leaves or changes sockets",
        "handles": "handles: its import leaves or changes signal handlers",
        "moves": "moves: its import leaves or changes the working directory",
    }
    assert json.loads(python(installed, IMPORTING, *wanted)) == wanted
