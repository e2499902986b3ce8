"""Hazard rules: each fires on a bad sample, is silent on good facts, and never raises."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.budget import Room
from slurm_robust.config.job import JobConfig, Timings
from slurm_robust.doctor.facts import Facts, NodeFacts, Software
from slurm_robust.doctor.launchers import RunLine
from slurm_robust.doctor.rule import HazardRule, Level, apply, apply_all
from slurm_robust.doctor.rules import RULES
from slurm_robust.doctor.rules.site import TIMES
from slurm_robust.doctor.shape import ScriptShape
from slurm_robust.hooks.times import HookTimes
from slurm_robust.model.job import CommandKind
from slurm_robust.slurm.options import OFF, Options
from slurm_robust.slurm.records import Terms
from tests.unit.doctor.samples import BAD, GOOD, JOB, SLURM, Change, config, fact, node, slurm, software

PAGE = Path(__file__).resolve().parents[3] / "docs" / "doctor.md"
BY_NAME = {rule.name: rule for rule in RULES}
FACTS = tuple(name for name in Facts.__struct_fields__ if name != "config")


def test_each_rule_has_one_name_and_a_sample() -> None:
    assert [name for name, count in Counter(rule.name for rule in RULES).items() if count > 1] == []
    assert set(BAD) == set(BY_NAME)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_no_rule_fires_where_all_is_well(rule: HazardRule) -> None:
    found = apply(rule, GOOD)
    assert (found.level, found.text) == (Level.GOOD, "")


@pytest.mark.parametrize(
    ("name", "change"),
    [pytest.param(name, change, id=name) for name, changes in BAD.items() for change in changes],
)
def test_a_rule_fires_on_its_sample(name: str, change: Change) -> None:
    found = apply(BY_NAME[name], change(GOOD))
    assert found.level is BY_NAME[name].level
    assert found.text
    assert "\n" not in found.line()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_what_a_rule_needs_and_nobody_knows_is_unknown(rule: HazardRule) -> None:
    for need in rule.needs:
        assert apply(rule, fact(**{need: None})(GOOD)).level is Level.UNKNOWN, need


def test_a_release_without_a_setting_is_unknown() -> None:
    without = {key: value for key, value in SLURM.items() if key != "MaxBatchRequeue"}
    found = apply(BY_NAME["slurm.max_batch_requeue"], fact(slurm=without)(GOOD))
    assert (found.level, found.text) == (Level.UNKNOWN, "not seen: MaxBatchRequeue")


def test_an_option_that_may_have_been_given_is_unknown() -> None:
    partly = fact(options=Options(given={"signal": "B:USR1@120"}, complete=False))(GOOD)
    assert apply(BY_NAME["job.no_kill"], partly).level is Level.UNKNOWN
    assert apply(BY_NAME["job.signal"], partly).level is Level.GOOD


@pytest.mark.parametrize(
    ("name", "given", "level"),
    [
        ("job.requeue", {"requeue": OFF}, Level.BAD),
        ("job.requeue", {"requeue": ""}, Level.GOOD),
        ("job.requeue", {}, Level.UNKNOWN),
        ("job.open_mode", {"open-mode": "append"}, Level.GOOD),
        ("job.open_mode", {}, Level.UNKNOWN),
        ("job.mem", {"mem": "0"}, Level.GOOD),
        ("job.mem", {}, Level.UNKNOWN),
    ],
)
def test_what_the_job_asks_for_needs_no_slurm_conf(name: str, given: dict[str, str], level: Level) -> None:
    facts = fact(job=None, slurm=None, options=Options(given=given))(GOOD)
    assert apply(BY_NAME[name], facts).level is level


def test_a_reservation_that_is_there_is_good() -> None:
    rule, named = BY_NAME["settings.reservation"], config("companions", reservation="spares")(GOOD)
    assert apply(rule, named).level is Level.UNKNOWN
    assert apply(rule, fact(reservations=("other", "spares"))(named)).level is Level.GOOD


def test_neighbours_of_bad_releases_are_good() -> None:
    for name, release in (
        ("nccl.large_scale", (2, 27, 7)),
        ("nccl.large_scale", (2, 28, 9)),
        ("nccl.abort", (2, 26, 2)),
        ("nccl.shrink", (2, 30, 7)),
        ("nccl.ras_crash", (2, 23, 4)),
        ("nccl.ras_crash", (2, 27, 3)),
    ):
        assert apply(BY_NAME[name], software(nccl=release)(GOOD)).level is Level.GOOD, (name, release)


@pytest.mark.parametrize(
    ("name", "conf"),
    [
        ("slurm.completing_for_ever", {"SLURM_VERSION": "25.11.6", "PrologFlags": "Alloc,RunInJob"}),
        ("slurm.completing_for_ever", {"SLURM_VERSION": "26.05.0", "PrologFlags": "RunInJob"}),
        ("slurm.completing_for_ever", {"SLURM_VERSION": "25.05.1", "PrologFlags": "Alloc"}),
        ("slurm.epilog_twice", {"SLURM_VERSION": "26.05.0"}),
        ("slurm.epilog_twice", {"SLURM_VERSION": "25.11.0", "Epilog": ""}),
        ("slurm.preempted_early", {"PreemptType": "preempt/qos", "Prolog": ""}),
        ("slurm.preempted_early", {"PreemptType": "preempt/none"}),
    ],
)
def test_releases_without_the_defect_are_good(name: str, conf: dict[str, str]) -> None:
    assert apply(BY_NAME[name], slurm(**conf)(GOOD)).level is Level.GOOD


def test_the_worst_comes_first() -> None:
    levels = [hazard.level for hazard in apply_all(RULES, fact(slurm=None, clock_s=-200.0)(GOOD))]
    assert levels == sorted(levels, key=list(Level).index)
    assert levels[0] is Level.BAD
    assert levels[-1] is Level.UNKNOWN


TEXT = st.one_of(
    st.sampled_from(
        ["", "0", "60 sec", "(null)", "1-", "A,B=,=C", "99999999999999999999 sec", "-1", "∞", "٣"]
    ),
    st.text(max_size=8),
)
NUMBER = st.one_of(st.none(), st.integers(-1, 2**63))
VERSION = st.lists(st.integers(0, 600), max_size=3).map(tuple)
ROOMS = st.lists(
    st.builds(Room, name=TEXT, total=st.integers(0, 2**50), free=st.integers(-(2**40), 2**50)), max_size=3
)
NAMES = (
    "nodes",
    "ntasks",
    "segment",
    "gpus",
    "gres",
    "gpus-per-node",
    "no-kill",
    "requeue",
    "signal",
    "open-mode",
    "nodelist",
    "mem",
    "mem-update",
)
VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT")
WHOLE: dict[str, st.SearchStrategy[Any]] = {
    "configured": st.builds(JobConfig),
    "slurm": st.dictionaries(st.sampled_from(sorted(SLURM)), TEXT),
    "refused": TEXT,
    "hears": st.booleans(),
    "shape": st.builds(ScriptShape, protected=st.booleans(), hides=TEXT, code=st.integers(0, 255), gres=TEXT),
    "uncopied": TEXT,
    "run": st.builds(
        RunLine,
        options=st.lists(TEXT, max_size=2).map(tuple),
        kind=st.sampled_from(CommandKind),
        command=st.lists(TEXT, max_size=3).map(tuple),
    ),
    "missing": TEXT,
    "reservations": st.lists(TEXT, max_size=2).map(tuple),
    "preemption": st.builds(Terms, name=TEXT, grace_s=st.integers(0, 2**31), mode=TEXT),
    "saved_s": st.floats(0, 1e9),
    "hook_times": st.dictionaries(
        st.sampled_from(["prolog", "epilog"]),
        st.builds(
            HookTimes,
            runs=st.integers(0, 10**6),
            since=st.floats(0, 2**31),
            usual_s=st.floats(0, 1e5),
            longest_s=st.floats(0, 1e5),
        ),
    ),
    "clock_s": st.floats(allow_nan=True),
    "job": st.builds(
        msgspec.structs.replace, st.just(JOB), time_limit_s=st.one_of(st.none(), st.floats(0, 1e9))
    ),
    "options": st.builds(
        Options, given=st.dictionaries(st.sampled_from(NAMES), TEXT), complete=st.booleans()
    ),
    "environ": st.dictionaries(st.sampled_from([*VARIABLES, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]), TEXT),
    "software": st.builds(Software, torch=VERSION, nccl=VERSION, cuda=VERSION, driver=VERSION),
    "node": st.builds(
        NodeFacts,
        rooms=ROOMS.map(tuple),
        interfaces=st.lists(TEXT, max_size=2).map(tuple),
        hcas=st.lists(TEXT, max_size=3).map(tuple),
        memlock=NUMBER,
        synchronised=st.one_of(st.none(), st.booleans()),
    ),
    "gpus": st.booleans(),
    "nodes": st.integers(0, 10**6),
    "ranks": st.integers(0, 10**7),
    "state_bytes": st.integers(0, 2**50),
}


@pytest.mark.slow
@given(st.fixed_dictionaries({name: st.one_of(st.none(), whole) for name, whole in WHOLE.items()}))
def test_no_rule_raises_whatever_is_missing(facts: dict[str, Any]) -> None:
    assert len(apply_all(RULES, Facts(**facts))) == len(RULES)


def test_the_property_covers_all_facts() -> None:
    assert set(WHOLE) == set(FACTS)


def test_the_page_has_every_rule() -> None:
    """SROBUST_WRITE_GOLDEN=1 pytest tests/unit/doctor/test_rules.py"""
    head = ["rule", "", "what it does to a recovery", "fix", "source"]
    body = [[f"`{rule.name}`", rule.level.value, rule.why, rule.fix, rule.source] for rule in RULES]
    table = "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *body])
    head_of_page, rules, _ = PAGE.read_text().partition("## Rules\n")
    expected = f"{head_of_page}{rules}\n{table}"
    if os.environ.get("SROBUST_WRITE_GOLDEN"):
        PAGE.write_text(expected)
    assert PAGE.read_text() == expected, "SROBUST_WRITE_GOLDEN=1 writes docs/doctor.md"


# -- The times in slurm.conf, of which srobust run warns -------------------------------------------

DEFAULTS = {"KillWait": "30 sec", "UnkillableStepTimeout": "60 sec"}


def too_short(slurm_conf: Mapping[str, str], timings: Timings, *, gpus: bool) -> Iterator[str]:
    facts = Facts(config=JobConfig(timings=timings), slurm=dict(slurm_conf), gpus=gpus)
    found = [apply(rule, facts) for rule in TIMES]
    return (hazard.line() for hazard in found if hazard.level is Level.BAD)


def test_slurms_defaults_are_too_short_for_gpus_only() -> None:
    assert list(too_short(DEFAULTS, Timings(), gpus=False)) == []
    (text,) = too_short(DEFAULTS, Timings(), gpus=True)
    assert text.startswith("UnkillableStepTimeout is 60 s")
    assert "180 s to die" in text
    assert text.endswith("sets UnkillableStepTimeout to timings.kill_wait_s (180 by default) or more")


@pytest.mark.parametrize("timeout", ["180 sec", "600 sec"])
def test_a_slurm_that_waits_long_enough_is_well(timeout: str) -> None:
    assert list(too_short(DEFAULTS | {"UnkillableStepTimeout": timeout}, Timings(), gpus=True)) == []


def test_a_kill_wait_that_is_shorter_than_leaving_is_reported() -> None:
    (text,) = too_short(DEFAULTS | {"KillWait": "15 sec"}, Timings(), gpus=False)
    assert "KillWait is 15 s" in text
    assert "may need 22 s" in text
    assert "sets KillWait to at least that" in text
    assert list(too_short({"KillWait": "15 sec"}, Timings(stop_grace_s=2.0, shutdown_s=7.0), gpus=False)) == [
        text.replace("22 s", "16 s")
    ]


def test_what_slurm_does_not_say_is_not_judged() -> None:
    assert list(too_short({}, Timings(), gpus=True)) == []
    assert list(too_short({"KillWait": "(null)"}, Timings(), gpus=True)) == []


@pytest.mark.parametrize(
    ("speeds", "level"),
    [
        ({}, Level.UNKNOWN),
        ({"10.20.0.7": ("ib0", 50e9)}, Level.UNKNOWN),
        ({"10.0.0.7": ("eth0", 125e6)}, Level.GOOD),
        ({"10.0.0.7": ("ib0", 50e9), "10.20.0.7": ("eth0", 125e6)}, Level.GOOD),
        ({"10.0.0.7": ("eth0", 3.125e9), "10.20.0.7": ("eth1", 12.4e9)}, Level.GOOD),
    ],
)
def test_an_address_is_slow_only_beside_a_much_faster_one(
    speeds: dict[str, tuple[str, float]], level: Level
) -> None:
    assert apply(BY_NAME["node.slow_address"], node(speeds=speeds)(GOOD)).level is level


def test_copies_that_take_the_fast_network_leave_the_slow_address_alone() -> None:
    slow = node(speeds={"10.0.0.7": ("eth0", 125e6), "10.20.0.7": ("ib0", 50e9)})(GOOD)
    assert apply(BY_NAME["node.slow_address"], slow).level is Level.NOTE
    chosen = config("checkpoint", peer_network="ib0")(slow)
    assert apply(BY_NAME["node.slow_address"], chosen).level is Level.GOOD


@pytest.mark.parametrize(
    ("torch", "value", "found"),
    [
        ((2, 14, 1), None, []),
        ((2, 14, 1), "1", ["nccl.unrecorded"]),
        ((2, 15, 0), "1", ["nccl.unseen_gpus"]),
        ((2, 15, 0), "0", []),
        ((2, 13, 0), "1", []),
    ],
)
def test_what_nccls_recorder_leaves_out_depends_on_the_release_and_the_variable(
    torch: tuple[int, ...], value: str | None, found: list[str]
) -> None:
    of_recorders = [BY_NAME["nccl.unrecorded"], BY_NAME["nccl.unseen_gpus"]]
    change = fact(environ={} if value is None else {"TORCH_DIST_USE_NCCL2": value})
    facts, without_gpus = (change(software(torch=torch, nccl=nccl)(GOOD)) for nccl in ((2, 30, 7), ()))
    assert [r.name for r in of_recorders if apply(r, facts).level is not Level.GOOD] == found
    assert all(apply(rule, without_gpus).level is Level.GOOD for rule in of_recorders)
