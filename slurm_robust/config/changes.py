"""What of a job's configuration an update can change while the job runs. Pure.

These are the keys that the controller alone reads, at its start, and those that only commands read. All else
was taken when the job or its agents started: sizes, folders, what agents do, ports, notifications.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from slurm_robust.config.errors import InvalidSettings, Problem
from slurm_robust.config.job import JobConfig
from slurm_robust.config.reader import Layers, as_json, place_of, schema_keys
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.record import Record

_KEYS = {
    "limits": "per_signature per_hour per_day total",
    "timings": (
        "node_dead_s unreachable_s agent_start_s launch_s stop_grace_s checkpoint_s moment_s shutdown_s"
    ),
    "checkpoint": "keep keep_every max_blocked_share every_s every_steps if_unusable if_parts_are_missing",
    "detect": (
        "hang hang_factor hang_floor_s first_step_s silence_s phase_s slow_factor slow_samples spike_factor "
        "spike_warmup_steps non_finite network_alerts network_window_s stacks_s diagnose diagnose_s "
        "quick_test_s log_rules"
    ),
    "code": "paths max_files max_mb max_file_mb take_s workdir",
    "updates": "good_steps good_s slow_factor rollback trial trial_s deadline_s keep",
    "replay": "args steps budget_s",
    "standby": "rehearse rehearse_steps rehearse_s rehearse_writes test_s replenish",
    "slurm": "requeue start_now give_back job_comment",
    "companions": "reservation partition wait_s without_nvlink sbatch",
}
CHANGEABLE = frozenset(
    {"final_exit_codes", *(f"{section}.{key}" for section, keys in _KEYS.items() for key in keys.split())}
)
"""Keys that may differ from those with which the job began. A new key is none of them until it is added."""

_SIZES = "a job keeps its slots: submit a new job, of this training or with --from, with other sizes"
_PLACES = "submit a new job (of this training, or with --from)"
_AGENTS = "agents and workers are started with it: submit a new job (of this training, or with --from)"
_FIXES = {
    "nodes": _SIZES,
    "spares": _SIZES,
    "nproc_per_node": _SIZES,
    "parallel": _SIZES,
    "job_dir": _PLACES,
    "training": _PLACES,
    "checkpoint": _PLACES,
    "agents": "'srobust update --image PATH' runs another image; for other options submit a new job",
    "code": "without releases there are no updates: edit the code in its place, then 'scontrol requeue'",
    "notify": "who is told is set when the job starts: submit a new job (of this training, or with --from)",
}


class ConfigChange(Record):
    """A key whose value differs. Values are JSON; secrets are hidden."""

    key: str
    before: str
    after: str


def changes(before: JobConfig, after: JobConfig) -> tuple[ConfigChange, ...]:
    """Return the keys whose values differ, in the order of the schema."""
    return tuple(
        ConfigChange(key=key, before=as_json(old), after=as_json(new))
        for (key, old), (_, new) in zip(_flat(before), _flat(after), strict=True)
        if old != new
    )


def with_file(config: JobConfig, content: bytes, name: str) -> JobConfig:
    """Return a job's configuration with what the YAML file of a release sets; the rest stays as it is.

    ``config``: that with which the job began; ``name``: the file's, for messages. Raises
    :class:`InvalidSettings` with all that is wrong, and with each key that cannot change while a job runs.
    """
    layers = Layers(JobConfig, values=msgspec.to_builtins(config))
    layers.add_yaml(content, name)
    problems = list(_refused(config, layers))
    if problems:
        raise InvalidSettings.of([*layers.problems, *problems])
    return layers.build()


def _refused(config: JobConfig, layers: Layers[JobConfig]) -> Iterator[Problem]:
    """Yield each key of a file that would change, and cannot."""
    wanted = msgspec.convert(layers.values, JobConfig)
    for change in changes(config, wanted):
        if change.key in CHANGEABLE:
            continue
        place = place_of(layers.places, tuple(change.key.split("."))).text
        fix = _FIXES.get(change.key) or _FIXES.get(change.key.partition(".")[0], _AGENTS)
        shown = "" if change.key.startswith("notify.") else f" ({change.before}, not {change.after})"
        text = f"{place}: {change.key} cannot change while the job runs{shown}\n  fix: {fix}"
        yield Problem(text, ExitCode.CONFIG)


def _flat(config: JobConfig) -> Iterator[tuple[str, object]]:
    values: Mapping[str, object] = msgspec.to_builtins(config)
    for key in schema_keys(JobConfig):
        value: object = values
        for part in key.split("."):
            assert isinstance(value, Mapping)
            value = value[part]
        yield key, value
