"""People are told of a rank's crash and of a node's power cut once each, on a real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.notice import NOTIFIED
from slurm_robust.sandbox import Sandbox
from slurm_robust.sandbox.config import HEAD
from slurm_robust.util.program import kill_group
from tests.cluster.protected_job import SCRIPTS, USER, ProtectedJob, find_process

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

PORT = 8181
CONFIG = """
notify:
  batch_s: 1
  channels:
    - {name: program, command: [sh, -c, "cat >> told.txt"]}
    - {name: hook, url_file: hook.url}
    - {name: hangs, command: [sh, -c, "trap '' TERM; sleep 600"], timeout_s: 3}
"""


@pytest.fixture
def hook(sandbox: Sandbox) -> Iterator[Path]:
    """The file with what was posted to the webhook of ``hook.url``."""
    home = sandbox.home(USER)
    owner = home.stat()
    shutil.copy(SCRIPTS / "hook.py", home / "hook.py")
    posted = home / "posted.jsonl"
    for name in ("posted.jsonl", "told.txt"):
        (home / name).unlink(missing_ok=True)
    url = home / "hook.url"
    url.write_text(f"http://{sandbox.config.address(HEAD)}:{PORT}/services/abcdefghijkl\n")
    os.chown(url, owner.st_uid, owner.st_gid)
    url.chmod(0o600)
    (home / "notify.yaml").write_text(CONFIG)
    process = sandbox.popen(["python3", "hook.py", str(PORT), posted.name], node=HEAD, user=USER)
    yield posted
    kill_group(process)


def test_a_crash_and_a_power_cut_are_told_once_though_the_teller_is_killed_and_a_channel_hangs(
    sandbox: Sandbox, hook: Path
) -> None:
    job = ProtectedJob(
        sandbox, "--config notify.yaml --spares 1 tiny.py --out OUT --steps 60 --step-s 0.3", nodes=3
    )
    job.wait_step(3)
    sandbox.fault.kill_rank(job.id, 1)
    job.wait_recovered(1)
    told = sandbox.home(USER) / "told.txt"

    # Killed before it has written down that a message arrived, the teller tells it again: see the unit tests.
    def is_first_told() -> bool:
        channels = NOTIFIED.decode((job.folder / "notified.json").read_bytes()).channels
        arrived = all(channels[name].sending is None for name in ("program", "hook"))
        return arrived and all("incident 1 is over" in file.read_text() for file in (told, hook))

    job.wait(lambda: told.exists() and hook.exists() and is_first_told(), 30, "the first messages")
    host = job.state.own_node
    os.kill(find_process(sandbox, host, "-m", "slurm_robust.notify"), signal.SIGKILL)
    sandbox.fault.power_cut(next(node for node in job.state.world.slots if node != host))
    recovered = job.wait_recovered(2)
    print("recovered after", [incident.recover_s for incident in recovered])
    assert job.wait_end() == 0
    assert job.out.exists()
    posted = "\n".join(json.loads(line)["text"] for line in hook.read_text().splitlines())
    for text in (told.read_text(), posted):
        lines = [
            line
            for line in text.splitlines()
            if ": incident " in line or "standby" in line or "run is over" in line
        ]
        print("\n".join(lines))
        once = (
            "incident 1: worker exit",
            "incident 1 is over",
            "incident 2: node lost",
            "incident 2 is over",
        )
        for words in (*once, "no standby is left", "the run is over, exit code 0"):
            assert sum(words in line for line in lines) == 1, (words, text)
        assert "may have been sent before" not in text
    assert "could not be told by hangs" in job.log
    assert "abcdefghijkl" not in job.log
    assert not [e for e in job.events(ev.Noted) if "abcdefghijkl" in e.text]
