"""Workers run from the copy of a release, whatever becomes of the code in its place."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.model.job import CommandKind
from slurm_robust.worker.copied import CopiedCode
from tests.forked_zygote import ForkedZygoteLauncher
from tests.there import there
from tests.unit.worker.copied_code import Code
from tests.unit.worker.script_runner import ScriptRunner, WorkerResult

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptRunner]:
    folder = tmp_path_factory.mktemp("zygote")
    runner = ScriptRunner(cwd=folder, results=folder, launcher=ForkedZygoteLauncher)
    yield runner
    runner.close()


@pytest.fixture
def code(tmp_path: Path) -> Code:
    return Code(tmp_path)


def run(
    zygote: ScriptRunner,
    code: Code,
    copy: CopiedCode,
    *command: str,
    cwd: Path | None = None,
    **changes: object,
) -> WorkerResult:
    return zygote.run(command or ("script.py",), cwd or code.folder, code=copy, **changes)  # type: ignore[arg-type]


WHERE = """
import json, os, sys
import helper
print(json.dumps([__file__, sys.argv[0], sys.path[0], helper.__file__, os.getcwd()]))
"""


def test_a_script_and_what_it_imports_are_of_the_copy_and_the_working_directory_is_the_users(
    zygote: ScriptRunner, code: Code
) -> None:
    code.write({"script.py": WHERE, "helper.py": ""})
    copy = code.release()
    file, argv, entry, helper, cwd = json.loads(run(zygote, code, copy).out)
    place = f"{copy.place}/project"
    assert (file, argv, entry, helper) == (
        f"{place}/script.py",
        f"{place}/script.py",
        place,
        f"{place}/helper.py",
    )
    assert cwd == str(code.folder)


def test_two_releases_one_after_the_other_have_each_its_own_code(zygote: ScriptRunner, code: Code) -> None:
    code.write({"script.py": "import helper\nprint(helper.VALUE)", "helper.py": "VALUE = 1"})
    first = code.release()
    code.write({"helper.py": "VALUE = 22"})
    second = code.release()
    assert [run(zygote, code, copy).out for copy in (first, second, first)] == ["1\n", "22\n", "1\n"]


def test_an_edit_while_a_script_runs_tears_nothing(zygote: ScriptRunner, code: Code) -> None:
    """The script itself edits the code in its place before it imports more of it."""
    script = f"""
open({str(code.folder / "late.py")!r}, "w").write("VALUE = 'new'")
import late
print(late.VALUE)
"""
    code.write({"script.py": script, "late.py": "VALUE = 'old'"})
    assert run(zygote, code, code.release()).out == "old\n"


def test_a_module_is_run_from_the_copy_of_the_working_directory(zygote: ScriptRunner, code: Code) -> None:
    code.write({"pack/__init__.py": "", "pack/age.py": "from pack import own\nprint(own.__file__, __file__)"})
    code.write({"pack/own.py": ""})
    copy = code.release("pack.age", kind=CommandKind.MODULE)
    done = run(zygote, code, copy, "pack.age", kind=CommandKind.MODULE)
    assert done.out == f"{copy.place}/project/pack/own.py {copy.place}/project/pack/age.py\n"


def test_a_folder_with_a_main_is_run_from_the_copy(zygote: ScriptRunner, code: Code) -> None:
    code.write({"app/__main__.py": "import beside\nprint(beside.__file__)", "app/beside.py": ""})
    copy = code.release("app")
    assert run(zygote, code, copy, "app").out == f"{copy.place}/project/app/beside.py\n"


def test_processes_that_it_starts_have_the_copy_too(zygote: ScriptRunner, code: Code) -> None:
    script = """
import multiprocessing, subprocess, sys, torch
import helper
def where(_): return helper.__file__
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1
    def __getitem__(self, i): return helper.__file__
if __name__ == "__main__":
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(*pool.map(where, [0]))
    print(*next(iter(torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context="spawn"))))
"""
    code.write({"script.py": script, "helper.py": ""})
    copy = code.release()
    done = run(zygote, code, copy)
    assert done.out == f"{copy.place}/project/helper.py\n" * 3, done.err


def test_the_place_of_an_error_says_neither_node_nor_release(zygote: ScriptRunner, code: Code) -> None:
    code.write(
        {"script.py": "import helper\nhelper.fail()", "helper.py": "def fail():\n    open(__file__ + 'x')"}
    )
    error = there(run(zygote, code, code.release()).exited.error)
    assert (error.file, error.line) == ("helper.py", 2)
    assert error.message == "[Errno 2] No such file or directory: 'helper.pyx'"
    assert 'File "helper.py", line 2' in error.traceback
    assert "-code/" not in error.traceback


def test_ranks_may_run_in_the_copy(zygote: ScriptRunner, code: Code) -> None:
    """And what was left out of it is there by links."""
    code.write({".gitignore": "data", "data/x": "7", "conf.ini": "old"})
    code.write({"script.py": "import os\nprint(os.getcwd(), open('data/x').read(), open('conf.ini').read())"})
    copy = code.release(workdir=True)
    code.write({"conf.ini": "new", "data/x": "8"})
    assert run(zygote, code, copy).out == f"{copy.place}/project 8 old\n"


def test_code_that_is_read_from_its_place_is_named_at_the_first_step(
    zygote: ScriptRunner, code: Code
) -> None:
    script = """
import torch
exec(open("configurator.py").read())
open(__file__).read(); open("conf/left.yaml").read(); open("notes.txt").read()
weight = torch.nn.Parameter(torch.ones(1)); weight.grad = torch.ones(1)
torch.optim.SGD([weight]).step()
open("later.py").read()
"""
    code.write({"script.py": script, "configurator.py": "", "later.py": "", "notes.txt": ""})
    code.write({".gitignore": "conf/", "conf/left.yaml": ""})
    assert run(zygote, code, code.release()).outside == ("configurator.py",)


# -- what the zygote may have imported ------------------------------------------------------------------


def test_a_zygote_that_has_imported_the_users_own_modules_serves_other_releases_by_fresh_interpreters(
    code: Code, tmp_path: Path
) -> None:
    code.write({"script.py": "import own\nprint(own.VALUE)", "own.py": "VALUE = 1"})
    first = code.release()
    code.write({"own.py": "VALUE = 22"})
    second = code.release()
    runner = ScriptRunner(
        cwd=code.folder, preload=("own",), code=first, results=tmp_path, launcher=ForkedZygoteLauncher
    )
    try:
        assert [run(runner, code, copy).out for copy in (first, second, first)] == ["1\n", "22\n", "1\n"]
    finally:
        runner.close()


def test_a_package_of_the_search_path_is_found_when_the_first_copy_of_the_zygote_is_gone(
    code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``pip install -e`` puts it there. A node keeps the two newest copies."""
    monkeypatch.syspath_prepend(str(code.folder / "src"))
    code.write({"script.py": "import mine\nprint(mine.VALUE)", "src/mine.py": "VALUE = 1"})
    copies = [code.release()]
    for value in (22, 333):
        code.write({"src/mine.py": f"VALUE = {value}"})
        copies.append(code.release())
    runner = ScriptRunner(cwd=code.folder, code=copies[0], results=tmp_path, launcher=ForkedZygoteLauncher)
    try:
        shutil.rmtree(copies[0].place)
        found = [run(runner, code, copies[number]).out for number in (1, 2, 1)]
        assert found == ["22\n", "333\n", "22\n"]
    finally:
        runner.close()


def test_a_module_that_a_release_puts_before_an_installed_one_counts(code: Code, tmp_path: Path) -> None:
    """The zygote has imported the installed one."""
    code.write({"script.py": "import wave\nprint(getattr(wave, 'VALUE', 'installed'))"})
    first = code.release()
    code.write({"wave.py": "VALUE = 'own'"})
    second = code.release()
    runner = ScriptRunner(
        cwd=code.folder, preload=("wave",), code=first, results=tmp_path, launcher=ForkedZygoteLauncher
    )
    try:
        assert [run(runner, code, copy).out for copy in (first, second)] == ["installed\n", "own\n"]
    finally:
        runner.close()


# -- programs -------------------------------------------------------------------------------------------


def test_programs_of_a_worker_find_editable_packages_of_the_copy(code: Code, tmp_path: Path) -> None:
    """Here by the path that setuptools leaves in ``site-packages``."""
    code.write({"src/mine/__init__.py": "", "script.py": ""})
    copy = code.release()
    path = copy.python_path(None, [str(code.folder / "src")], str(code.folder))
    found = subprocess.run(
        [sys.executable, "-c", "import mine; print(mine.__file__)"],
        env={"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == f"{copy.place}/project/src/mine/__init__.py\n"
