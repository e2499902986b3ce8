"""A pytest plug-in: the files that take longest start first, since all wait for one that starts last.

For ``--dist loadfile --no-loadscope-reorder``: xdist by itself starts with the files that have most tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# As --durations=0 shows. The others follow in their usual order.
LONGEST = (
    "tests/cluster/test_updates.py",
    "tests/cluster/test_story.py",
    "tests/cluster/test_leaving.py",
    "tests/cluster/test_detection.py",
    "tests/cluster/test_continuing.py",
    "tests/cluster/test_takeover.py",
    "tests/cluster/test_copies.py",
    "tests/cluster/test_standbys.py",
    "tests/cluster/test_slurm_contract.py",
    "tests/cluster/test_recovery.py",
    "tests/cluster/test_companions.py",
    "tests/cluster/test_sizes.py",
    "tests/cluster/test_fewer_nodes.py",
    "tests/cluster/test_storage.py",
    "tests/cluster/test_losses.py",
    "tests/cluster/test_unreachable.py",
    "tests/cluster/test_drain.py",
    "tests/cluster/test_diagnose.py",
    "tests/cluster/test_over_eviction.py",
    "tests/cluster/test_tutorial.py",
    "tests/cluster/test_preemption.py",
    "tests/cluster/test_starts.py",
    "tests/cluster/test_giveback.py",
    "tests/cluster/test_install.py",
    "tests/cluster/test_rehearsal.py",
    "tests/cluster/test_examples.py",
    "tests/cluster/test_fault_matrix.py",
    "tests/cluster/test_fallbacks.py",
    "tests/cluster/test_missing_parts.py",
    "tests/cluster/test_held.py",
    "tests/cluster/test_report.py",
    "tests/cluster/test_first_contact.py",
    "tests/cluster/test_sandbox_down.py",
    "tests/cluster/test_templates.py",
    "tests/cluster/test_links.py",
    "tests/cluster/test_sandbox.py",
    "tests/cluster/test_hooks.py",
    "tests/cluster/test_replay.py",
    "tests/cluster/test_gpus.py",
    "tests/unit/diagnostics/test_runner.py",
    "tests/unit/integrations/test_examples.py",
    "tests/unit/cli/test_hostile_texts.py",
    "tests/unit/agent/test_agent.py",
    "tests/unit/controller/test_supervisor.py",
    "tests/unit/worker/test_zygote.py",
    "tests/unit/hooks/test_hook.py",
    "tests/unit/inspector/test_agent_alerts.py",
    "tests/unit/agent/test_rehearsal.py",
    "tests/unit/worker/test_examples.py",
    "tests/unit/benchmarks/test_checkpoint.py",
    "tests/unit/inspector/test_inspector.py",
    "tests/unit/integrations/test_data.py",
    "tests/unit/nodes/test_gpu_gather.py",
    "tests/unit/agent/stacks/test_hangs.py",
    "tests/unit/worker/test_api.py",
    "tests/unit/test_leftovers.py",
    "tests/unit/integrations/test_fsdp2.py",
    "tests/unit/agent/test_copies_faults.py",
    "tests/unit/util/test_isolate.py",
    "tests/unit/benchmarks/test_drain_storm.py",
    "tests/unit/engine/test_detection.py",
    "tests/unit/agent/test_launcher.py",
    "tests/unit/diagnostics/test_live.py",
    "tests/unit/worker/test_dump.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by file, and keep the order within each."""
    place = {ROOT / name: number for number, name in enumerate(LONGEST)}
    if gone := [str(path) for path in place if not path.exists()]:
        raise pytest.UsageError(f"tests/longest_first.py names files that are gone: {', '.join(gone)}")
    items.sort(key=lambda item: place.get(item.path, len(place)))
