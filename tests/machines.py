"""Machines as files of their ``/proc`` and ``/sys``: tests/data/numa."""

from __future__ import annotations

from pathlib import Path

MACHINES = Path(__file__).parent / "data" / "numa"
NODES = "sys/devices/system/node"
