"""What a worker leaves of its error on a node whose memory is full: a real, small /dev/shm in a namespace."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from slurm_robust.model.exits import WorkerError

IN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
SMALL_MEMORY = "mount -t tmpfs -o size=1m none /dev/shm"

SCRIPT = """
import sys
from slurm_robust.worker import crash
crash.keep_room("/dev/shm/error.json")
try:
    with open("/dev/shm/other", "wb", 0) as file:
        while file.write(bytes(4096)):
            pass
except OSError:
    pass
try:
    raise {error}
except Exception as error:
    crash.leave(crash.describe(error, error.__traceback__, "/"), "/dev/shm/error.json")
print(open("/dev/shm/error.json").read())
"""


def left(error: str) -> WorkerError:
    """Raise ``error`` where ``/dev/shm`` is full to the last byte."""
    if subprocess.run([*IN_NAMESPACE, SMALL_MEMORY], capture_output=True, check=False).returncode:
        pytest.skip("no mount in a namespace here")
    command = [
        *IN_NAMESPACE,
        f'{SMALL_MEMORY} && exec "$0" -c "$1"',
        sys.executable,
        SCRIPT.format(error=error),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return msgspec.json.decode(ended.stdout, type=WorkerError)


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError('unable to allocate shared memory(shm) for file </t>: No space left on device (28)')",
        "RuntimeError('DataLoader worker (pid 7) is killed by signal: Bus error. ')",
        "RuntimeError('unable to open shared memory object </torch_1> in read-write mode: (28)')",
        "OSError(28, 'No space left on device')",
    ],
)
def test_an_error_that_a_full_memory_causes_is_left_there_and_says_so(error: str) -> None:
    found = left(error)
    assert (found.type, found.full) == (error.partition("(")[0], "/dev/shm")
    assert "Traceback" in found.traceback


def test_an_error_of_another_kind_is_left_in_a_full_memory_too() -> None:
    found = left("KeyError('loss')")
    assert (found.type, found.full) == ("KeyError", "")


def test_an_error_that_needs_more_than_its_room_is_left_without_its_traceback() -> None:
    found = left("ValueError('\\x01' * 9000)")
    assert (found.type, found.traceback) == ("ValueError", "")
