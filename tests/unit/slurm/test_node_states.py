"""States of nodes in all spellings: what scontrol, sinfo and JSON print, 22.05 to 26.05 and later."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.slurm import jsonforms, text
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.need import places
from slurm_robust.slurm.process import CompletedCommand
from slurm_robust.slurm.records import KNOWN_STATES, OF_RESERVATION, SlurmJob, SlurmNode
from slurm_robust.slurm.values import parse_states
from tests.builders import records
from tests.slurm_language import FOLDER, Case, cases

STATES = cases("node_states.tsv")


def node(states: str) -> SlurmNode:
    return records.node(states=parse_states(states))


def reading(found: SlurmNode) -> str:
    """One word for what the node is to a job that looks for spares."""
    if found.is_down:
        return "down"
    if found.is_leaving:
        return "leaving"
    if not found.usable:
        return "kept" if found.usable_despite(OF_RESERVATION) else "shut"
    return "free" if found.is_idle else "used"


@pytest.mark.parametrize("case", STATES, ids=lambda case: case.id)
def test_each_spelling_is_read_the_safe_way_round(case: Case) -> None:
    assert reading(node(case.given)) == case.expected
    # The same as JSON has it: a list, and the base as a string beside its flags.
    states = sorted(parse_states(case.given), key=lambda state: state not in ("IDLE", "MIXED", "DOWN"))
    base, flags = next(iter(states), ""), states[1:]
    for item in ({"state": [base, *flags]}, {"state": base.lower(), "state_flags": flags}):
        (found,) = jsonforms.parse_nodes({"nodes": [{"name": "n1", **item}]})
        assert reading(found) == case.expected


@pytest.mark.parametrize("case", STATES, ids=lambda case: case.id)
def test_only_a_free_node_is_a_place_for_a_job(case: Case) -> None:
    job = SlurmJob(job_id=7, name="t", user_name="u", states=frozenset({"PENDING"}), partition="main")
    assert (places(job, [node(case.given)]).free == ("n1",)) == (case.expected == "free")


@pytest.mark.parametrize(
    "states", ["ALLOCATED", "MIXED+PLANNED", "ALLOCATED+RESERVED", "MIXED+MAINTENANCE", "MIXED+X"]
)
def test_the_own_node_stays_a_place_for_a_job(states: str) -> None:
    job = SlurmJob(job_id=7, name="t", user_name="u", states=frozenset({"RUNNING"}), partition="main")
    assert places(job, [node(states)], own=("n1",)).free == ("n1",)
    assert places(job, [node("ALLOCATED+REBOOT_REQUESTED")], own=("n1",)).busy == ("n1",)


def test_a_node_that_fails_while_its_job_runs_is_not_down() -> None:
    """scontrol state=fail: its job goes on, and Slurm takes nothing from it."""
    for states in ("MIXED+FAIL", "ALLOCATED+FAIL", "FAILING", "failg"):
        assert not node(states).is_down
        assert node(states).is_leaving
        assert not node(states).usable
    assert node("DOWN+FAIL").is_down


def test_the_nodes_of_a_reservation_are_usable_to_its_jobs() -> None:
    for states in ("IDLE+RESERVED", "IDLE+RESERVED+MAINTENANCE"):
        assert node(states).usable_despite(OF_RESERVATION)
    for states in ("IDLE+RESERVED+DRAIN", "IDLE+RESERVED+PLANNED", "RESERVED", "IDLE*+RESERVED"):
        assert not node(states).usable_despite(OF_RESERVATION)


@given(st.sampled_from(STATES), st.from_regex(r"[A-Z]{2,9}(_[A-Z]{2,9})?", fullmatch=True))
def test_a_flag_that_nobody_knows_makes_a_node_unusable(case: Case, flag: str) -> None:
    if flag not in KNOWN_STATES and parse_states(flag) == {flag}:
        assert not node(f"{case.given}+{flag}").usable


@given(st.text(max_size=40))
def test_no_text_breaks_the_reading_of_node_states(states: str) -> None:
    if node(states).usable:
        assert parse_states(states) <= KNOWN_STATES


def test_twenty_nodes_of_25_11_and_26_05() -> None:
    nodes = {n.name: n for n in text.parse_nodes((FOLDER / "scontrol_show_node.txt").read_text())}
    read = {name: reading(found) for name, found in nodes.items()}
    assert [name for name, word in read.items() if word == "free"] == ["n01", "n12"]
    assert [name for name, word in read.items() if word == "down"] == ["n05", "n15"]
    assert [name for name, word in read.items() if word == "leaving"] == ["n06", "n07", "n08", "n13", "n20"]
    assert nodes["n20"].reason == "Low RealMemory (reported:1900000 < 100.00% of configured:2000000)"


def test_an_unknown_state_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    output = "NodeName=n1 NodeAddr=n1\n   State=IDLE+QUANTUM\n"

    def run(argv: list[str], **_: object) -> CompletedCommand:
        return CompletedCommand(tuple(argv), 0, "slurm 22.05.8" if "--version" in argv else output, "")

    client = CliSlurmClient(run=run)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not client.nodes()[0].usable
    assert [record.getMessage() for record in caplog.records] == [
        "srobust does not know these states of nodes, and uses none in them: ['QUANTUM']"
    ]
