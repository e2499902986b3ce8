"""The tutorial as it is written: its commands, one after the other in one shell, show what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.sandbox.folder import state_root
from tests.pages import DOCS, blocks

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

CHECKOUT = DOCS.parent
LIMIT_S = 480.0


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """It has a folder for sandboxes, as the page uses the default name; all are down afterwards."""
    folder = state_root() / "tutorials" / str(os.getpid())
    folder.mkdir(parents=True)
    programs = str(Path(sys.executable).parent)
    # All nodes share the machine's cores.
    given = {"SROBUST_SANDBOX_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **given, "PATH": f"{programs}:{os.environ['PATH']}"}
    yield environment
    subprocess.run(["srobust", "sandbox", "down", "--all"], env=environment, check=True, timeout=60)
    for path in (folder, folder.parent):
        if path.exists() and not any(path.iterdir()):
            path.rmdir()


def test_every_command_runs_and_shows_what_the_page_says(environment: dict[str, str]) -> None:
    page = blocks((DOCS / "tutorial.md").read_text())
    script = "".join(f"echo '@@ line {block.line}'\n{block.code}" for block in page)
    done = subprocess.run(
        ["timeout", "--kill-after=10", str(LIMIT_S), "bash", "-e", "-c", f"exec 2>&1\n{script}"],
        cwd=CHECKOUT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    print(done.stdout)
    assert done.returncode == 0, f"the shell ended with {done.returncode}"
    said = re.split(r"^@@ line \d+\n", done.stdout, flags=re.MULTILINE)[1:]
    missing = [
        f"docs/tutorial.md, block of line {block.line}: shows no {pattern!r}"
        for block, text in zip(page, said, strict=True)
        for pattern in block.shows
        if not re.search(pattern, text)
    ]
    assert missing == []
