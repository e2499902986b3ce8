"""A real agent whose node loses a GPU: what its heartbeats tell, and when."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.model.job import CommandKind
from slurm_robust.nodes.gpus.judging import CONFIRM_AFTER_S
from slurm_robust.sandbox.gpus import StandInGpus
from slurm_robust.wire.messages import Heartbeat, Phase
from tests.builders.specs import usual_inspection
from tests.unit.agent.local_job import LocalJob, ScriptedController
from tests.unit.nodes.fake_nvml import environment
from tests.waiting import BUSY

pytestmark = pytest.mark.slow

SLEEPER = "import time; time.sleep(1000)"


@pytest.fixture
def gpus(tmp_path: Path) -> StandInGpus:
    made = StandInGpus(tmp_path / "state", "n1", 4)
    made.reset()
    return made


@pytest.fixture
def controller(tmp_path: Path, gpus: StandInGpus) -> Iterator[ScriptedController]:
    """Of a job that runs on n1, whose inspection observes as often as it usually does."""
    job = LocalJob(
        tmp_path,
        "",
        kind=CommandKind.EXEC,
        command=(sys.executable, "-c", SLEEPER),
        inspection=usual_inspection(),
    )
    try:
        controller = job.controller()
        library = {name: environment(gpus)[name] for name in ("LD_LIBRARY_PATH", "SROBUST_NVML_STATE")}
        job.start_agent("n1", **library)
        controller.wait_for("n1", lambda heartbeat: heartbeat.ready)
        controller.launch("n1", 1, (0, 1))
        controller.wait_for("n1", lambda heartbeat: heartbeat.phase is Phase.RUNNING)
        gpus.set(0, recovery_action=1)  # what comes before the first run is no news
        controller.wait_for("n1", lambda heartbeat: texts(heartbeat, "gpu.recovery"))
        yield controller
    finally:
        job.close()


def texts(heartbeat: Heartbeat, check: str) -> list[str]:
    return [f"{a.subject} {a.text}" for a in heartbeat.alerts if a.check == check and a.ended_s is None]


def test_a_lost_gpu_is_reported_within_5_s_and_its_return_too(
    controller: ScriptedController, gpus: StandInGpus
) -> None:
    begun = time.monotonic()
    gpus.set(2, lost=True)
    heartbeat = controller.wait_for("n1", lambda heartbeat: texts(heartbeat, "gpu.lost"))
    assert time.monotonic() - begun < 5.0 * BUSY
    assert texts(heartbeat, "gpu.lost")[0].startswith("gpu2 lost")
    gpus.set(2, lost=False)
    heartbeat = controller.wait_for(
        "n1", lambda heartbeat: heartbeat.alerts and not texts(heartbeat, "gpu.lost")
    )
    assert [(a.number, a.ended_s is not None) for a in heartbeat.alerts if a.check == "gpu.lost"] == [
        (2, True)
    ]


def test_an_xid_is_reported_at_once_even_without_the_kernel_log(
    controller: ScriptedController, gpus: StandInGpus
) -> None:
    begun = time.monotonic()
    gpus.xid(1, 31)  # the program's own fault
    gpus.xid(3, 79)
    heartbeat = controller.wait_for("n1", lambda heartbeat: texts(heartbeat, "kernel.xid"))
    assert time.monotonic() - begun < 2.0 * BUSY
    (text,) = texts(heartbeat, "kernel.xid")
    assert text.startswith("gpu3 XID 79, ")


def test_a_driver_that_hangs_is_reported_and_its_agent_goes_on(
    controller: ScriptedController, gpus: StandInGpus
) -> None:
    controller.stop("n1", 1)  # a driver that is busy with starting workers may be silent
    gpus.driver(hang=True)
    begun = time.monotonic()
    heartbeat = controller.wait_for("n1", lambda heartbeat: texts(heartbeat, "gpu.lost"))
    assert time.monotonic() - begun > CONFIRM_AFTER_S
    assert texts(heartbeat, "gpu.lost") == [" driver hangs"]
    assert controller.wait_for("n1", lambda later: later.seq > heartbeat.seq + 5).phase is Phase.ENDED
