"""A job of one agent whose controller only listens: ``python -m tests.stand_ins.alerts FOLDER``.

Prints one line of JSON for each alert when a heartbeat first tells of it, until its standard input ends.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import closing
from pathlib import Path

import msgspec

from slurm_robust.model.job import CommandKind
from slurm_robust.wire.messages import Phase
from tests.builders.specs import usual_inspection
from tests.unit.agent.local_job import LocalJob

WORKER = (sys.executable, "-c", "import time; time.sleep(1000)")


def main(folder: Path) -> None:
    folder.mkdir()
    node = os.environ["SLURMD_NODENAME"]
    with closing(
        LocalJob(folder, "", kind=CommandKind.EXEC, command=WORKER, inspection=usual_inspection())
    ) as job:
        controller = job.controller()
        job.start_agent(node)
        controller.wait_for(node, lambda heartbeat: heartbeat.ready, 60)
        controller.launch(node, 1, (0, 1))
        controller.wait_for(node, lambda heartbeat: heartbeat.phase is Phase.RUNNING)
        told = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            controller.pump()
            heartbeat = controller.newest(node)
            for alert in heartbeat.alerts if heartbeat else ():
                if alert.number > told:
                    told = alert.number
                    print(msgspec.json.encode(alert).decode(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
