"""A network card that has become slow: no stack shows whose it is, only tests of pairs do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

STEPS, WIDTH = 1500, 4000  # 288 kB of gradients in each step
NORMAL = 900  # steps until the pace of a training counts as its own: the minute before, and some of them
OPTIONS = "--spares 1 --set detect.slow_samples=1 --set detect.diagnose_s=120"
SCRIPT = f"tiny.py --out OUT --steps {STEPS} --step-s 0.1 --width {WIDTH}"
# What leaves the node: a shaped queue, as of a card that has fallen back to a lower rate.
SLOW = "tc qdisc add dev eth0 root tbf rate 12mbit burst 32kbit latency 400ms"


def test_a_slow_card_is_found_by_tests_after_looks_at_the_stacks_have_named_nobody(
    sandboxes: Callable[..., Sandbox],
) -> None:
    sandbox = sandboxes(nodes=5, slurmd_timeout_s=20, cred_expire_s=5, accounting=False)
    job = ProtectedJob(sandbox, f"{OPTIONS} {SCRIPT}", nodes=5)
    job.wait_step(NORMAL, 240)
    node = job.state.world.slots[2]
    sandbox.exec(SLOW.split(), node=node, user="root")
    job.wait(lambda: job.events(ev.IncidentOpened), 180, "a slowdown")
    (opened,) = job.events(ev.IncidentOpened)
    assert opened.symptom is Symptom.SLOW
    job.wait_recovered(1, 240)
    why = [event.reason for event in job.events(ev.Decided)]
    assert [event.node for event in job.events(ev.NodeEvicted)] == [node], why
    assert [event.suspects for event in job.events(ev.NodesTested)] == [(node,)], why
    assert job.wait_end() == 0, job.log
    assert job.step() == STEPS - 1
