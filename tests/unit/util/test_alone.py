from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from slurm_robust.util.alone import Alone
from tests.users import as_root, run_as

SOMAXCONN = Path("/proc/sys/net/core/somaxconn")
TAKE = "import sys; from slurm_robust.util.alone import Alone; print(Alone(sys.argv[1]).take())"


def take_elsewhere(what: str) -> str:
    done = subprocess.run([sys.executable, "-c", TAKE, what], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_of_several_processes_one_has_it_until_it_lets_go() -> None:
    what = f"the tests of {os.getpid()}"
    ours = Alone(what)
    assert ours.take() is None
    assert ours.take() is None, "it is ours already"
    assert take_elsewhere(what) == str(os.getpid())
    assert take_elsewhere(f"{what}, and more") == "None"
    ours.close()
    assert take_elsewhere(what) == "None"
    assert ours.take() is None, "the other process has ended"
    ours.close()


@as_root
def test_a_lock_of_one_user_keeps_no_other_user_out() -> None:
    what = f"what both do, {os.getpid()}"
    ours = Alone(what)
    assert ours.take() is None
    assert run_as(65534, lambda: repr(Alone(what).take())) == "None"
    ours.close()


def test_many_who_ask_for_a_lock_do_not_use_up_its_backlog() -> None:
    what = f"what many want, {os.getpid()}"
    ours = Alone(what)
    assert ours.take() is None
    assert {Alone(what).take() for _ in range(min(200, int(SOMAXCONN.read_text())))} == {os.getpid()}
    ours.close()


def test_a_name_whose_owner_is_not_told_keeps_nobody_out() -> None:
    what = f"what is in the way, {os.getpid()}"
    with ExitStack() as stack:
        trap = stack.enter_context(socket.socket(socket.AF_UNIX))
        trap.bind(Alone(what)._name)
        trap.listen(0)
        links = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)]
        for link in links:
            link.setblocking(False)
        assert errno.EAGAIN in [link.connect_ex(trap.getsockname()) for link in links]
        assert Alone(what).take() is None


@pytest.mark.slow
def test_a_name_that_is_in_the_way_of_nobody_who_listens_keeps_nobody_out() -> None:
    what = f"something, {os.getpid()}"
    with socket.socket(socket.AF_UNIX) as trap:
        trap.bind(Alone(what)._name)
        assert Alone(what).take() is None
