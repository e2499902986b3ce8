"""A job's directory on storage that does not answer, or that its user made so, costs its time and no more."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.users import as_root

ROOT = Path(__file__).resolve().parents[3]


@as_root
@pytest.mark.slow
def test_a_working_directory_that_hangs_is_left_behind() -> None:
    code = """
        import sys, time
        from slurm_robust.config.node import NodeConfig
        from slurm_robust.hooks.suspects import READ_S, Ignored, read_suspect
        from tests.stand_ins.dead_mount import DeadMount
        environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "23001", "SLURM_JOB_GID": "23001"}
        with DeadMount() as folder:
            begun = time.monotonic()
            found = read_suspect(NodeConfig(), {**environ, "SLURM_JOB_WORK_DIR": folder}, "n1", time.time())
            assert isinstance(found, Ignored), found
            assert time.monotonic() - begun < READ_S + 10
            print(found.why)
    """
    words = ["unshare", "--mount", sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.startswith("no answer"), done.stderr
