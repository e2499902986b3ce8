"""pyslurm in its helper process: the transport with stand-ins, the translation over the fake."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.slurm import errors
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.process import CompletedCommand
from slurm_robust.slurm.pyslurm_client import PyslurmClient, PyslurmHelper, Unsupported
from slurm_robust.slurm.pyslurm_helper import answer, methods
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.slurm.select import make_client
from slurm_robust.testing.fake_slurm import FakeSlurm

STAND_INS = Path(__file__).parents[2] / "stand_ins"


def helper(module: Path, timeout_s: float = 20.0) -> PyslurmHelper:
    """A helper that imports ``module``/pyslurm.py."""
    return PyslurmHelper(timeout_s, environ={**os.environ, "PYTHONPATH": str(module)})


def module(folder: Path, source: str) -> Path:
    head = "__version__ = '22.5.3'\nclass RPCError(Exception): errno = 1\n"
    (folder / "pyslurm.py").write_text(head + source)
    return folder


@pytest.fixture
def pyslurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """The stand-in in this process, over a fake Slurm."""
    monkeypatch.syspath_prepend(str(STAND_INS))
    import pyslurm as stand_in

    monkeypatch.setattr(stand_in, "client", FakeSlurm())
    yield stand_in
    sys.modules.pop("pyslurm")


def ask(stand_in: object, method: str, **params: object) -> dict[str, object]:
    import msgspec

    line = msgspec.json.encode({"method": method, "params": params})
    reply = msgspec.json.encode(answer(methods(stand_in), stand_in.RPCError, line))
    return msgspec.json.decode(reply)


def test_pyslurms_records_are_translated_to_ours(pyslurm: object) -> None:
    slurm = pyslurm.client
    job_id = slurm.submit(SubmitRequest(command=("x",), nodes=2, time_limit_s=600, comment="c"))
    job = ask(pyslurm, "job", job_id=job_id)["value"]
    assert job["nodes"] == ["n1", "n2"]
    assert job["time_limit_s"] == 600.0
    nodes = ask(pyslurm, "nodes", names=["n3", "n1"])["value"]
    assert [n["name"] for n in nodes] == ["n3", "n1"]
    assert nodes[0]["gres"] == [{"name": "gpu", "type": "h200", "count": 8}]
    assert len(ask(pyslurm, "nodes", names=None)["value"]) == 4
    ask(pyslurm, "drain", nodes=["n3"], reason="xid 79")
    assert slurm.nodes(["n3"])[0].reason == "xid 79"
    ask(pyslurm, "resume", nodes=["n3"])
    assert not slurm.nodes(["n3"])[0].is_drained
    ask(pyslurm, "requeue", job_id=job_id)
    ask(pyslurm, "exclude", job_id=job_id, nodes=["n1"])
    ask(pyslurm, "release", job_id=job_id)
    assert slurm.job(job_id).excluded_nodes == ("n1",)


def test_refusals_and_gaps(pyslurm: object) -> None:
    assert ask(pyslurm, "job", job_id=99) == {"error": "Invalid job id specified", "errno": 2017}
    assert ask(pyslurm, "nodes", names=["n99"]) == {"error": "Node n99 not found", "errno": 1}
    del pyslurm.Job.release
    assert "AttributeError" in str(ask(pyslurm, "release", job_id=1)["missing"])


def test_a_module_that_ends_the_interpreter(tmp_path: Path) -> None:
    source = "import os, sys\nprint('fatal: no slurm.conf', file=sys.stderr, flush=True)\nos._exit(1)\n"
    with pytest.raises(errors.BackendUnavailable, match=r"fatal: no slurm\.conf"):
        helper(module(tmp_path, source)).release()


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(errors.BackendUnavailable, match="No module named"):
        helper(tmp_path).release()


@pytest.mark.parametrize(
    ("trouble", "error", "said"),
    [("time.sleep(600)", errors.SlurmTimeout, None), ("os._exit(3)", errors.CommandFailed, "helper died")],
    ids=["hangs", "dies"],
)
def test_after_a_call_in_which_the_helper_hangs_or_dies_the_next_one_works(
    tmp_path: Path, trouble: str, error: type[Exception], said: str | None
) -> None:
    source = (
        "import os, time, pathlib\n"
        f"flag = pathlib.Path({str(tmp_path / 'flag')!r})\n"
        "class Job:\n"
        "    def __init__(self, id): pass\n"
        "    def release(self):\n"
        f"        if not flag.exists(): flag.touch(); {trouble}\n"
    )
    given = helper(module(tmp_path, source), timeout_s=5.0)
    given.release()
    given._timeout_s = 0.3 if "sleep" in trouble else 5.0
    with pytest.raises(error, match=said):
        given.call("release", job_id=1)
    given._timeout_s = 5.0
    assert given.call("release", job_id=1) is None
    given.close()


class NoHelper(PyslurmHelper):
    """A pyslurm that can do nothing."""

    def call(self, method: str, **params: object) -> object:
        raise Unsupported(method)


def test_what_pyslurm_cannot_do_goes_over_the_command_line() -> None:
    asked: list[list[str]] = []

    def run(command: object, **rest: object) -> CompletedCommand:
        asked.append(list(command))
        return CompletedCommand(command=tuple(command), exit_code=0, stdout="", stderr="")

    client = PyslurmClient(NoHelper(1.0), run=run)
    client.requeue(7)
    client.release(7)
    client.set_excluded_nodes(7, ["n1"])
    client.set_excluded_nodes(7, [])
    client.drain(["n1"], "why")
    client.resume(["n1"])
    assert [words[1] for words in asked] == ["requeue", "release", *["update"] * 4]


def test_choice_of_the_backend(tmp_path: Path) -> None:
    assert type(make_client("cli")) is CliSlurmClient
    assert type(make_client("auto", installed=lambda: False)) is CliSlurmClient
    with pytest.raises(ValueError, match="auto, cli, pyslurm"):
        make_client("rest")
    broken = module(tmp_path, "raise SystemExit('cannot load libslurm')\n")
    assert type(make_client("auto", installed=lambda: True, helper=helper(broken))) is CliSlurmClient
    with pytest.raises(errors.BackendUnavailable, match="cannot load libslurm"):
        make_client("pyslurm", helper=helper(broken))
