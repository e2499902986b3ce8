"""The watch: what it checks and when, and that it reports a fault once, soon, and its end."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from slurm_robust.config.node import NodeConfig, Watch
from slurm_robust.hooks.watch import GAP_S, SETTLE_S, Round, Schedule, _Watch, rounds, share_of
from slurm_robust.nodes.registry import CHECKS
from tests.waiting import wait_for

CONFIG = Watch(gpu_s=4.0, network_s=10.0, all_s=60.0)


def played(schedule: Schedule, until: float, logged: tuple[float, ...] = ()) -> list[tuple[float, str]]:
    """The rounds until a time, if they take no time."""
    now, seen = 0.0, []
    words = list(logged)
    while now < until:
        if words and words[0] <= now:
            schedule.logged(words.pop(0))
        due, wait_s = schedule.next(now)
        if due is not None:
            seen.append((round(now, 3), due.name))
            schedule.done(due, now)
            continue
        now = min(now + wait_s, words[0] if words else now + wait_s)
    return seen


def test_all_checks_run_first_and_then_each_group_at_its_interval() -> None:
    seen = played(Schedule(rounds(CONFIG, CHECKS), 0.0), 61.0)
    assert seen[0] == (0.0, "all")
    assert [at for at, name in seen if name == "gpu"] == [4.0 * n for n in range(1, 15)]
    assert [at for at, name in seen if name == "network"] == [10.0, 20.0, 30.0, 40.0, 50.0]
    assert [at for at, name in seen if name == "all"] == [0.0, 60.0]


def test_a_kernel_message_is_checked_at_once() -> None:
    seen = played(Schedule(rounds(CONFIG, CHECKS), 0.0), 30.0, logged=(20.5, 20.6))
    assert [at for at, name in seen if name == "kernel"] == [20.5 + SETTLE_S]


def test_a_kernel_that_does_not_stop_logging_is_checked_now_and_then() -> None:
    words = tuple(5.0 + n / 100 for n in range(1000))
    looks = [
        at
        for at, name in played(Schedule(rounds(CONFIG, CHECKS), 0.0), 16.0, logged=words)
        if name == "kernel"
    ]
    gaps = [later - earlier for earlier, later in itertools.pairwise(looks)]
    assert looks[0] == 5.0 + SETTLE_S
    assert min(gaps) >= GAP_S - 1e-6
    assert len(looks) <= 15


def test_what_the_full_run_has_reported_is_no_news_to_the_other_rounds() -> None:
    failing = "ethernet.flaps rail0\ngpu.lost gpu3\nkernel.lockup"
    shares = {one.name: share_of(failing, one) for one in rounds(CONFIG, CHECKS) if one.only}
    assert shares == {"kernel": "kernel.lockup", "gpu": "gpu.lost gpu3", "network": "ethernet.flaps rail0"}


def test_a_fault_that_comes_again_after_a_full_run_is_news() -> None:
    said: list[tuple[str, str]] = []

    def look(one: Round, known: str) -> str:
        said.append((one.name, known))
        return "ethernet.state rail0" if one.name == "network" else ""

    everything, _, _, network = rounds(CONFIG, CHECKS)
    watch = _Watch(rounds(CONFIG, CHECKS), look)
    for one in (network, network, everything, network):
        watch._round(one)
    assert [known for name, known in said if name == "network"] == ["", "ethernet.state rail0", ""]


def test_intervals_that_would_be_a_busy_loop_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r">= 1\.0 - at `\$\.watch\.gpu_s`"):
        msgspec.convert({"watch": {"gpu_s": 0.1}}, NodeConfig)


# A node with one check of its own, that belongs to the round of the GPUs.
PROGRAM = """
import sys
from slurm_robust.nodes import registry
from slurm_robust.nodes.check import EVERYWHERE, Check, Probe, Source
from slurm_robust.model.findings import Finding, Outcome, Suggestion, Writer
from slurm_robust.model.record import Record

class Fan(Record):
    rpm: int

def judge(view, config):
    bad = view.facts.rpm < 100
    yield Finding(check="gpu.fan", outcome=Outcome.FAIL if bad else Outcome.PASS, subject="fan0",
                  text="stands still", suggestion=Suggestion.REPLACE)

fans = Source(name="fans", facts=Fan, gather=lambda host, config: Fan(rpm=int(open(sys.argv[-1]).read())))
registry.CHECKS = (Check("gpu.fan", fans, judge, "", Writer.KERNEL, EVERYWHERE, Probe.GPU),)
from slurm_robust.hooks.command import main
sys.exit(main(sys.argv[1:-1]))
"""


class Watched:
    """A node, its fan, its events and its watch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fan = folder / "rpm"
        self.turn(1000)
        config = {
            "paths": {
                "state": str(folder / "state"),
                "log": str(folder / "events.jsonl"),
                "runtime": str(folder / "run"),
                "syslog": False,
            },
            "watch": {"gpu_s": 1.0, "network_s": 600.0, "all_s": 600.0},
            "hooks": {"slurm_bin": str(folder)},
        }
        (folder / "config.yaml").write_text(json.dumps(config))

    def turn(self, rpm: int) -> None:
        (self.folder / "new").write_text(str(rpm))
        (self.folder / "new").rename(self.fan)

    def start(self) -> subprocess.Popen[bytes]:
        words = ["watch", "--config", str(self.folder / "config.yaml"), str(self.fan)]
        return subprocess.Popen([sys.executable, "-c", PROGRAM, *words], env={}, stdout=subprocess.PIPE)

    def runs(self) -> list[tuple[bool, str]]:
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        events = [json.loads(line) for line in lines]
        return [(event["fit"], event["reason"]) for event in events if event["event"] == "run"]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    node = Watched(tmp_path)
    process = node.start()
    try:
        wait_for(lambda: len(node.runs()) == 1, message="the first look")
        yield node
    finally:
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.slow
def test_a_fault_is_reported_once_and_so_is_its_end(watched: Watched) -> None:
    watched.turn(0)
    wait_for(lambda: len(watched.runs()) == 2, message="the fault")
    assert watched.runs()[-1] == (False, "srobust: fan0 stands still")
    facts = watched.folder / "state" / "facts.msgpack"
    looked = {facts.stat().st_mtime_ns}
    wait_for(lambda: looked.add(facts.stat().st_mtime_ns) or len(looked) > 3, message="more looks")
    watched.turn(1000)
    wait_for(lambda: len(watched.runs()) > 2, message="its end")
    assert [fit for fit, _ in watched.runs()] == [True, False, True]


@pytest.mark.slow
def test_a_second_watch_on_a_node_ends_at_once(watched: Watched) -> None:
    second = watched.start()
    out, _ = second.communicate(timeout=60)
    assert (second.returncode, out) == (1, b"srobust-node: another watch runs on this node\n")
