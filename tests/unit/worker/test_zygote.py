"""A script in a fork of the zygote must not be able to tell it from ``python script.py``."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slurm_robust.model.errors import UNUSABLE_COPY
from slurm_robust.model.job import CommandKind
from slurm_robust.worker.zygote import ASK_NVML
from tests.forked_zygote import ForkedZygoteLauncher
from tests.there import there
from tests.unit.worker.script_runner import ScriptRunner, plain_python

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptRunner]:
    runner = ScriptRunner(cwd=tmp_path_factory.mktemp("zygote"))
    yield runner
    runner.close()


def write(folder: Path, text: str, name: str = "script.py") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


# torch 2.4 adds a folder to sys.path, a new one in each process, when some of its modules are imported.
WHO_AM_I = """
import json, os, sys, signal
main = sys.modules["__main__"]
maker = sys.modules.get("torch.distributed.nn.jit.instantiator")
of_torch = getattr(maker, "INSTANTIATED_TEMPLATE_DIR_PATH", None)
print(json.dumps({
    "argv": sys.argv, "path0": sys.path[0], "path": [entry for entry in sys.path[1:] if entry != of_torch],
    "name": __name__, "file": __file__,
    "package": __package__, "spec": repr(__spec__), "cached": main.__dict__.get("__cached__", "none"),
    "same": main.__dict__ is globals(), "orig": sys.orig_argv[1:], "cwd": os.getcwd(),
    "stdin": sys.stdin.read() if sys.stdin else None, "loader": type(__loader__).__name__,
    "names": sorted(n for n in globals() if n.startswith("__")), "executable": sys.executable,
    "term": repr(signal.getsignal(signal.SIGTERM)), "int": repr(signal.getsignal(signal.SIGINT)),
    "chld": repr(signal.getsignal(signal.SIGCHLD)), "hup": repr(signal.getsignal(signal.SIGHUP)),
    "pipe": repr(signal.getsignal(signal.SIGPIPE)),
    "mask": repr(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "fds": sorted(map(int, os.listdir("/proc/self/fd")))[:3],
}))
"""


@pytest.mark.parametrize("name", ["script.py", "sub/dir/script.py", "./script.py"])
def test_a_script_sees_what_python_would_show_it(runner: ScriptRunner, tmp_path: Path, name: str) -> None:
    write(tmp_path, WHO_AM_I, name)
    plain = plain_python(name, "--flag", "x", cwd=tmp_path)
    forked = runner.run((name, "--flag", "x"), tmp_path)
    assert forked.code == 0, forked.err
    assert json.loads(forked.out) == json.loads(plain.stdout)


def test_a_module_sees_what_python_would_show_it(runner: ScriptRunner, tmp_path: Path) -> None:
    write(tmp_path, WHO_AM_I, "pack/age.py")
    write(tmp_path, "", "pack/__init__.py")
    plain = plain_python("-m", "pack.age", "x", cwd=tmp_path)
    forked = runner.run(("pack.age", "x"), tmp_path, kind=CommandKind.MODULE)
    address = re.compile("0x[0-9a-f]+")
    assert json.loads(address.sub("", forked.out)) == json.loads(address.sub("", plain.stdout))


def test_a_folder_with_a_main_is_run(runner: ScriptRunner, tmp_path: Path) -> None:
    write(tmp_path, "import beside, sys\nprint(beside.VALUE, sys.argv)", "app/__main__.py")
    write(tmp_path, "VALUE = 7", "app/beside.py")
    assert runner.run(("app", "x"), tmp_path).out == plain_python("app", "x", cwd=tmp_path).stdout


CODES = [
    "pass",
    "import sys; sys.exit()",
    "import sys; sys.exit(3)",
    "import sys; sys.exit(259)",
    "import sys; sys.exit('a reason')",
    "import sys; sys.exit(True)",
    "raise SystemExit",
    "import os; os._exit(5)",
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "raise KeyboardInterrupt",
    "import atexit, sys; atexit.register(print, 'bye'); sys.exit(2)",
    "import threading, time\ndef f():\n time.sleep(0.1)\n print('end')\nthreading.Thread(target=f).start()",
    "import atexit; atexit.register(lambda: 1 / 0)",
    "import sys; sys.stdout.close()",
    "print('no newline', end='')",
    "import sys; sys.excepthook = lambda *a: print('hooked', a[0].__name__); raise ValueError",
]


@pytest.mark.parametrize("source", CODES)
def test_ends_and_output_are_pythons(runner: ScriptRunner, tmp_path: Path, source: str) -> None:
    write(tmp_path, source)
    plain = plain_python("script.py", cwd=tmp_path)
    forked = runner.run(("script.py",), tmp_path)
    code = forked.code if forked.code is not None else -(forked.exited.signal or 0)
    assert (code, forked.out) == (plain.returncode, plain.stdout)


ERRORS = [
    "def f():\n    return 1 / 0\n\nf()\n",
    "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('outer') from e\n",
    "class Own(Exception):\n    pass\n\nraise Own('mine')\n",
    "def broken(:\n",
    "import json\njson.loads('{')\n",
    "import sys\nsys.exit('bye')\n",
]


@pytest.mark.parametrize("source", ERRORS)
def test_a_traceback_is_pythons(runner: ScriptRunner, tmp_path: Path, source: str) -> None:
    write(tmp_path, source)
    assert runner.run(("script.py",), tmp_path).err == plain_python("script.py", cwd=tmp_path).stderr


def test_the_place_of_an_error_is_in_the_users_own_code(runner: ScriptRunner, tmp_path: Path) -> None:
    write(tmp_path, "import json\nimport helper\nhelper.load()\n")
    write(tmp_path, "import json\ndef load():\n    return json.loads('{')\n", "helper.py")
    error = there(runner.run(("script.py",), tmp_path).exited.error)
    assert (error.type, error.file, error.line) == ("json.decoder.JSONDecodeError", "helper.py", 3)
    assert "bootstrap.py" not in error.traceback
    assert "Expecting property name" in error.message


@pytest.mark.parametrize(
    "line",
    [
        "raise OSError(errno.ENOSPC, 'No space left on device', 'here')",
        "open('/dev/full', 'wb', 0).write(b'x')",
        "raise OSError(errno.ENOSPC, 'No space left on device', b'here')",
    ],
)
def test_a_disk_with_room_is_not_told_as_full(runner: ScriptRunner, tmp_path: Path, line: str) -> None:
    """The other case needs a full disk; it is planted on a node of the sandbox."""
    script = f"import errno\ntry:\n    {line}\nexcept OSError as e:\n    raise ValueError('save') from e"
    write(tmp_path, script)
    error = there(runner.run(("script.py",), tmp_path).exited.error)
    assert "No space left" in error.traceback
    assert (error.type, error.full) == ("ValueError", "")


WORKING = {
    "classes can be pickled and processes spawned": (
        """
import multiprocessing, pickle, sys
class Point:
    def __init__(self, x): self.x = x
def double(point): return Point(2 * point.x)
if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(Point(1))).x == 1
    for method in ("spawn", "forkserver", "fork"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, [p.x for p in pool.map(double, [Point(1), Point(2)])])
""",
        "spawn [2, 4]\nforkserver [2, 4]\nfork [2, 4]\n",
    ),
    "workers of a data loader have its datasets": (
        """
import torch
class Squares(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return i * i
if __name__ == "__main__":
    for method, workers in ("fork", 2), ("spawn", 1):
        loader = torch.utils.data.DataLoader(
            Squares(), 4, num_workers=workers, multiprocessing_context=method
        )
        print([batch.tolist() for batch in loader])
""",
        "[[0, 1, 4, 9], [16, 25, 36, 49]]\n" * 2,
    ),
    "an optimizer can be compiled": (
        """
import torch
w = torch.nn.Parameter(torch.ones(4)); w.grad = torch.ones(4)
sgd = torch.optim.SGD([w], lr=0.5)
step = torch.compile(sgd.step, backend="eager")
step(); step()
print(w.tolist())
""",
        "[0.0, 0.0, 0.0, 0.0]\n",
    ),
    "threads of numerical libraries work": (
        """
import numpy, torch
a = numpy.ones((500, 500)); assert (a @ a)[0, 0] == 500
t = torch.ones(500, 500); assert (t @ t)[0, 0] == 500
x = torch.ones(500, 500, requires_grad=True); (x @ x).sum().backward(); print(x.grad[0, 0].item())
""",
        "1000.0\n",
    ),
}


@pytest.mark.parametrize(("source", "out"), WORKING.values(), ids=WORKING)
def test_what_works_in_an_interpreter_works_in_a_fork(
    runner: ScriptRunner, tmp_path: Path, source: str, out: str
) -> None:
    write(tmp_path, source)
    result = runner.run(("script.py",), tmp_path)
    assert (result.code, result.out) == (0, out), result.err


NOISY = """
import os, signal
class Told(BaseException): pass
def handler(*_):
    raise Told("a child ended")
def lose_a_child():
    if (pid := os.fork()) == 0:
        os._exit(1)
    try:
        os.waitpid(pid, 0)
    except Told:
        os.waitpid(pid, 0)
        raise
class Broken(Exception):
    def __str__(self):
        lose_a_child()
        return "the reason"
signal.signal(signal.SIGCHLD, handler)
raise Broken()
"""


def test_a_signal_handler_of_the_script_does_not_hide_its_error(runner: ScriptRunner, tmp_path: Path) -> None:
    write(tmp_path, NOISY)
    result = runner.run(("script.py",), tmp_path)
    assert result.code == 1
    assert result.exited.error is not None
    assert (result.exited.error.type, result.exited.error.message) == ("Broken", "the reason")
    assert "script.py" in result.err
    assert "Broken: the reason" in result.err


@pytest.mark.parametrize("kind", ["MissingCheckpoint", "CorruptPart", "ForeignPart", "UnreadableCopy"])
def test_a_copy_that_cannot_be_restored_has_an_exit_code(
    runner: ScriptRunner, tmp_path: Path, kind: str
) -> None:
    write(tmp_path, f"from slurm_robust.checkpoint.errors import {kind}\nraise {kind}('own-00001.0')")
    result = runner.run(("script.py",), tmp_path)
    assert result.code == UNUSABLE_COPY
    assert there(result.exited.error).message == "own-00001.0"


def test_other_errors_of_a_checkpoint_are_the_scripts(runner: ScriptRunner, tmp_path: Path) -> None:
    write(tmp_path, "from slurm_robust.checkpoint.errors import EntryMismatch\nraise EntryMismatch('x')")
    assert runner.run(("script.py",), tmp_path).code == 1


def test_killed_workers_of_a_data_loader_are_reported(runner: ScriptRunner, tmp_path: Path) -> None:
    """Those of two loaders at once: torch's handler of their ends raises once for each."""
    write(
        tmp_path,
        """
import os, signal, time, torch
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, i):
        time.sleep(0.01)
        return i
# No tensors: whoever fetches one from a worker that is being killed may get ConnectionResetError instead.
# Forks, as before Python 3.14: what starts otherwise would run this script again.
kind = dict(num_workers=2, collate_fn=list, multiprocessing_context="fork")
loaders = [iter(torch.utils.data.DataLoader(Slow(), 1, **kind)) for _ in range(2)]
print([next(loader) for loader in loaders], flush=True)
for loader in loaders:
    for worker in loader._workers:
        os.kill(worker.pid, signal.SIGKILL)
for loader in loaders:
    list(loader)
""",
    )
    for _ in range(5):
        result = runner.run(("script.py",), tmp_path)
        assert result.code == 1
        assert "is killed by signal: Killed" in result.err
        assert "DataLoader worker (pid" in there(result.exited.error).message


def test_forks_share_no_randomness_where_processes_would_not(runner: ScriptRunner, tmp_path: Path) -> None:
    write(tmp_path, "import numpy, random, torch\nprint(numpy.random.rand(), random.random(), torch.rand(1))")
    first, second = (runner.run(("script.py",), tmp_path).out.split() for _ in range(2))
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert first[2] != second[2]


def test_steps_of_every_optimizer_are_counted(runner: ScriptRunner, tmp_path: Path) -> None:
    """Also with a GradScaler, a closure, and an optimizer of the script's own."""
    write(
        tmp_path,
        """
import torch
w = torch.nn.Parameter(torch.ones(4))
def loss():
    w.grad = None
    value = (w * w).sum(); value.backward(); return value
sgd = torch.optim.SGD([w], lr=0.1)
for _ in range(3): loss(); sgd.step()
torch.optim.LBFGS([w], max_iter=2).step(loss)
scaler = torch.amp.GradScaler("cpu")
scaler.scale(torch.ones(1)); loss(); scaler.step(sgd); scaler.update()
class Own(torch.optim.Optimizer):
    def __init__(self, p): super().__init__(p, {})
    def step(self, closure=None): pass
Own([w]).step()
""",
    )
    result = runner.run(("script.py",), tmp_path)
    assert (result.code, result.err) == (0, "")
    assert result.steps == 6 - 1


@pytest.mark.parametrize("by", ["init_process_group('gloo')", "init_device_mesh('cpu', (1,))"])
def test_phases_of_an_unmodified_script_are_measured(runner: ScriptRunner, tmp_path: Path, by: str) -> None:
    write(
        tmp_path,
        f"""
import time, torch
from torch.distributed import init_process_group
from torch.distributed.device_mesh import init_device_mesh
time.sleep(0.2)
{by}
w = torch.nn.Parameter(torch.ones(1))
w.grad = torch.ones(1)
torch.optim.SGD([w], lr=0.1).step()
""",
    )
    env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    result = runner.run(("script.py",), tmp_path, env=env)
    assert (result.code, result.err) == (0, "")
    assert list(result.phases) == ["worker", "imports", "process group", "first step"]
    assert result.phases["imports"] >= 0.2


def test_output_is_seen_line_by_line_also_of_a_killed_worker(runner: ScriptRunner, tmp_path: Path) -> None:
    write(tmp_path, "import os\nprint('first')\nos.kill(os.getpid(), 9)\n")
    result = runner.run(("script.py",), tmp_path)
    assert result.exited.signal == signal.SIGKILL
    assert result.out == "first\n"


def test_the_environment_is_the_workers_own(runner: ScriptRunner, tmp_path: Path) -> None:
    write(tmp_path, "import os\nprint(os.environ.get('MINE'))\nos.environ['MINE'] = 'changed'")
    assert runner.run(("script.py",), tmp_path, env={"MINE": "1"}).out == "1\n"
    assert runner.run(("script.py",), tmp_path).out == "None\n"


def test_preload_is_imported_once_and_shared(tmp_path: Path) -> None:
    write(tmp_path, "import os\nPID = os.getpid()", "heavy.py")
    write(tmp_path, "import os, heavy\nprint(heavy.PID == os.getppid())")
    with closing(ScriptRunner(preload=("heavy",), cwd=tmp_path, launcher=ForkedZygoteLauncher)) as runner:
        assert runner.run(("script.py",), tmp_path).out == "True\n"


def test_a_preload_that_starts_threads_is_reported(tmp_path: Path) -> None:
    write(
        tmp_path,
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
        "threads.py",
    )
    with closing(ScriptRunner(preload=("threads",), cwd=tmp_path, launcher=ForkedZygoteLauncher)) as runner:
        assert any("importing 'threads' started 1 threads" in note for note in runner.notes)


# As NVIDIA's: started in one process, its functions fail in the forks of that.
CUDA = """
#include <unistd.h>
static int by = 0;
static int forked(void) { return by != 0 && by != getpid(); }
int cuInit(unsigned flags) { if (forked()) return 3; by = getpid(); return 0; }
int cuDeviceGetCount(int *count) { if (by == 0 || forked()) return 3; *count = 1; return 0; }
"""
STARTS_CUDA = "import ctypes\nassert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0\n"


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``libcuda.so.1`` in the path of libraries."""
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "cuda.c").write_text(CUDA)
    library = ("cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1", "cuda.c")
    subprocess.run(library, cwd=folder, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))


@pytest.mark.usefixtures("cuda")
def test_a_preload_that_starts_the_driver_is_named_and_its_workers_are_interpreters_of_their_own(
    tmp_path: Path,
) -> None:
    write(tmp_path, "", "harmless.py")
    write(tmp_path, STARTS_CUDA, "greedy.py")
    write(tmp_path, f"{STARTS_CUDA}{WHO_AM_I}")
    write(tmp_path, "def f():\n    return 1 / 0\n\nf()\n", "raises.py")
    with closing(ScriptRunner(preload=("harmless", "greedy"), cwd=tmp_path)) as runner:
        (note,) = [note for note in runner.notes if "driver" in note]
        assert "importing 'greedy' starts the GPU's driver" in note
        forked = runner.run(("script.py", "--flag", "x"), tmp_path)
        assert forked.code == 0, forked.err
        plain = plain_python("script.py", "--flag", "x", cwd=tmp_path)
        assert json.loads(forked.out) == json.loads(plain.stdout)
        failed = runner.run(("raises.py",), tmp_path)
        assert failed.err == plain_python("raises.py", cwd=tmp_path).stderr
        assert failed.exited.error is not None
        assert (failed.exited.error.file, failed.exited.error.line) == ("raises.py", 2)


@pytest.mark.usefixtures("cuda")
def test_a_preload_that_only_loads_the_driver_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ASK_NVML, raising=False)  # Lightning sets it where it is imported
    loads = f"import ctypes, os\nctypes.CDLL('libcuda.so.1')\nASKED = os.environ.get({ASK_NVML!r})"
    write(tmp_path, loads, "modest.py")
    write(tmp_path, f"import os, modest\nprint(modest.ASKED, os.environ.get({ASK_NVML!r}))\n{STARTS_CUDA}")
    with closing(ScriptRunner(preload=("modest",), cwd=tmp_path)) as runner:
        assert not any("driver" in note for note in runner.notes)
        found = runner.run(("script.py",), tmp_path)
        assert (found.code, found.out) == (0, "1 None\n"), found.err
