"""Nodes of a job, on folders in shared memory, and real agents: gone after the test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.copy_nodes import MakeNode, Node, keys_in
from tests.unit.agent.local_job import LocalJob, MakeJob


@pytest.fixture
def shm() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="srobust-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job"
    path.mkdir()
    return path


@pytest.fixture
def make(shm: Path, job: Path) -> Iterator[MakeNode]:
    nodes: list[Node] = []

    def make(name: str, **copies: object) -> Node:
        nodes.append(Node(name, shm, job, keys_in(job), **copies))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[MakeJob]:
    jobs: list[LocalJob] = []

    def make(script: str, **spec: object) -> LocalJob:
        jobs.append(LocalJob(tmp_path, script, **spec))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()
