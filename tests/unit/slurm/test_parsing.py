"""Recorded output of real releases to records: the same facts from text and from every JSON shape."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.slurm import jsonforms, text, values
from slurm_robust.slurm.errors import UnparsableOutput
from slurm_robust.slurm.records import Gres, SlurmVersion, Terms

DATA = Path(__file__).parents[2] / "data"
OLDEST, *NEWER = sorted(folder.name for folder in (DATA / "slurm_json").iterdir())


def recorded(name: str) -> str:
    return (DATA / "slurm_text" / "22.05.8" / name).read_text()


def document(release: str, name: str) -> jsonforms.Object:
    return jsonforms.load((DATA / "slurm_json" / release / name).read_text())


# -- text of 22.05 ---------------------------------------------------------------------------------


def test_the_state_of_one_node_that_is_in_two_partitions() -> None:
    node = text.parse_node_state(recorded("node_state.txt"))
    assert node is not None
    assert (node.name, node.partitions) == ("n1", ("main", "debug"))
    assert node.states == {"IDLE", "DRAIN"}
    assert (node.reason, node.reason_user) == ("srobust: gpu3 XID 79, fell |off the bus (+2)", "root")
    assert node.reason_time is not None
    assert (node.cpus, node.allocated_cpus) == (16, 0)
    assert text.parse_node_state("") is None
    with pytest.raises(UnparsableOutput):
        text.parse_node_state("sinfo: n1 idle\n")


@given(st.lists(st.sampled_from(["Partitions=x", "n1", "n9  idle", "16/0/0/16", "", "[root@5]"]), max_size=4))
def test_a_reason_with_line_breaks_is_one_reason_of_one_node(lines: list[str]) -> None:
    """Also where a line of it looks like a field or begins like a row: no partition comes of it."""
    plain = recorded("node_state.txt")
    found = text.parse_node_state("".join(row + "\n".join(["", *lines, ""]) for row in plain.splitlines()))
    expected = text.parse_node_state(plain)
    assert found is not None
    assert expected is not None
    reason = " ".join((expected.reason, *" ".join(lines).split()))
    assert (found.reason.split(), found.partitions) == (reason.split(), ("main", "debug"))
    assert (found.name, found.states, found.reason_time) == ("n1", expected.states, expected.reason_time)


def test_the_time_of_slurmctld() -> None:
    assert text.parse_now(recorded("sdiag.txt")) == 1795419949.0
    with pytest.raises(UnparsableOutput):
        text.parse_now("Server thread count:  3\n")


def test_a_job_whose_name_and_comment_look_like_fields() -> None:
    job = text.parse_job(recorded("job_running.txt"))
    assert job.name == "my train JobState=FAILED x"
    assert job.comment == "a Requeue=0 b=c"
    assert job.is_running
    assert job.requeue
    assert job.nodes == ("n1", "n2")
    assert job.required_nodes == ("n1", "n2")
    assert job.excluded_nodes == ("n4",)
    assert job.batch_host == "n1"
    assert job.time_limit_s == 7200.0
    assert job.end_time is not None
    assert job.start_time is not None
    assert job.end_time - job.start_time == 7200.0
    assert job.user_name == "alice"


def test_a_line_break_in_a_name_is_refused_rather_than_believed() -> None:
    with pytest.raises(UnparsableOutput, match="appears twice"):
        text.parse_job(recorded("job_name_with_line_break.txt"))


def test_a_name_that_begins_another_record_is_refused() -> None:
    with pytest.raises(UnparsableOutput, match="no JobState"):
        text.parse_job("JobId=7 JobName=x\nJobId=8 JobName=y\n   JobState=RUNNING\n")


def test_of_an_arrays_tasks_the_one_with_the_id_is_meant() -> None:
    tasks = "JobId=39 ArrayJobId=38\n   JobState=FAILED\n\nJobId=38 ArrayJobId=38\n   JobState=RUNNING\n"
    assert text.parse_job(tasks, 38).is_running
    assert text.parse_job(tasks, 40).job_id == 39


def test_a_held_job_is_pending_and_held_by_its_user() -> None:
    job = text.parse_job(recorded("job_held.txt"))
    assert job.held
    assert job.is_pending
    assert not job.held_by_slurm
    assert job.num_nodes == 3
    assert job.start_time is None


def test_a_completing_job_that_was_requeued_with_a_hold() -> None:
    job = text.parse_job(recorded("job_completing_held.txt"))
    assert job.is_completing
    assert not job.is_pending
    assert not job.is_running
    assert not job.is_finished
    assert job.held
    assert job.restart_count == 1


def test_what_a_job_holds_on_each_node() -> None:
    held = text.parse_allocation(recorded("job_running.txt"))
    assert held.nodes == ("n1", "n2")
    assert held.gpus_per_node == {"n1": 4, "n2": 4}


def test_nodes_are_read_with_their_reasons() -> None:
    nodes = {node.name: node for node in text.parse_nodes(recorded("nodes.txt"))}
    assert list(nodes) == ["n1", "n2", "n3", "n4"]
    bad = nodes["n4"]
    assert bad.states == {"IDLE", "DRAIN", "RESERVED"}
    assert bad.is_drained
    assert bad.reason == "gpu xid 79 = bad [x] é State=IDLE"
    assert bad.reason_user == "root"
    assert bad.reason_time is not None
    assert bad.gres == (Gres(name="gpu", type="h200", count=8),)
    assert (bad.cpus, bad.partitions) == (16, ("main",))
    assert nodes["n1"].usable


def test_a_reason_with_local_time_is_the_same_node() -> None:
    (node,) = text.parse_nodes(recorded("node_local_time.txt"))
    assert node.reason == "gpu xid 79 = bad [x] é State=IDLE"
    assert node.reason_time is not None


def test_steps_are_read_with_their_nodes() -> None:
    batch, step = text.parse_steps(recorded("steps.txt"))
    assert (batch.step_id, batch.nodes) == ("batch", ("n1",))
    assert (step.job_id, step.step_id, step.name, step.nodes) == (41, "0", "sleep", ("n1", "n2"))
    assert step.states == {"RUNNING"}


def test_a_step_whose_name_looks_like_fields() -> None:
    (step,) = text.parse_steps(
        "StepId=7.3 UserId=1 StartTime=5 TimeLimit=UNLIMITED\n"
        "   State=RUNNING Partition=main NodeList=n1\n"
        "   Nodes=1 CPUs=1 Tasks=1 Name=a NodeList=n9 Network=x Network=(null)\n"
    )
    assert step.name == "a NodeList=n9 Network=x"
    assert step.nodes == ("n1",)


def test_reservations_are_read_with_their_users_and_flags() -> None:
    (spare,) = text.parse_reservations(recorded("reservations.txt"))
    assert (spare.name, spare.nodes, spare.node_count) == ("spare", ("n3", "n4"), 2)
    assert spare.users == ("alice", "root")
    assert spare.flags == {"IGNORE_JOBS", "SPEC_NODES", "NO_HOLD_JOBS_AFTER_END"}
    assert spare.accounts == ()
    assert text.parse_reservations("No reservations in the system\n") == ()


def test_the_configuration_of_slurm_is_read_as_lists() -> None:
    config = text.parse_config(recorded("config.txt"))
    assert config["ClusterName"] == ("mini",)
    assert config["SlurmdTimeout"] == ("20 sec",)
    assert "EpilogSlurmctld" not in config
    assert config["SlurmctldHost"][0].startswith("head")


def test_config_in_the_forms_of_all_releases() -> None:
    output = "Configuration data as of x\nProlog[0]   = /a\nProlog[1]  = /b\nEpilog = (null)\nX = a=b\n"
    assert text.parse_config(output) == {"Prolog": ("/a", "/b"), "X": ("a=b",)}


def test_switches_are_read_with_their_nodes() -> None:
    spine, leaf = text.parse_topology(
        "SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2] \n"
        "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"
    )
    assert (spine.level, spine.nodes) == (1, ("n1", "n2", "n3", "n4"))
    assert (leaf.level, leaf.nodes) == (0, ("n1", "n2"))


def test_blocks_of_topology_block_are_read_with_their_nodes() -> None:
    """As topology_block.c prints them; the aggregated ones come behind the base blocks."""
    found = text.parse_topology(
        "BlockName=rack1 BlockIndex=0 Nodes=n[01-18] BlockSize=18\n"
        "BlockName=rack2 BlockIndex=1 Nodes=n[19-36] BlockSize=18\n"
        "AggregatedBlock=rack[1-2] BlockIndex=2 Nodes=n[01-36] BlockSize=36\n"
        "BlockName=empty BlockIndex=3 BlockSize=0\n"
    )
    assert [(one.name, one.level, len(one.nodes), one.is_block) for one in found] == [
        ("rack1", 0, 18, True),
        ("rack2", 0, 18, True),
        ("rack[1-2]", 1, 36, True),
        ("empty", 0, 0, True),
    ]


def test_the_segment_of_a_job_is_read_where_slurm_shows_it() -> None:
    shown = "JobId=7 JobName=t\n   JobState=PENDING NumNodes=36-36\n"
    assert text.parse_job(shown).segment == 0, "before 25.05, or without --segment"
    assert text.parse_job(f"{shown}   SegmentSize=18 SpreadSegments=Yes\n").segment == 18


def test_how_partitions_and_qos_are_preempted() -> None:
    """As 22.05 writes it, with fields left out."""
    partitions = (
        "PartitionName=main\n   AllowGroups=ALL Default=YES QoS=N/A\n   GraceTime=0 MaxTime=UNLIMITED\n"
        "   Nodes=n[1-2]\n   OverTimeLimit=NONE PreemptMode=REQUEUE\n   State=UP TotalNodes=2\n\n"
        "PartitionName=low\n   Default=NO QoS=N/A\n   GraceTime=25\n   PreemptMode=CANCEL\n"
        "   MaxTime=7-00:00:00 State=DOWN\n\n"
    )
    assert text.parse_partitions(partitions) == (
        Terms(name="main", mode="REQUEUE", is_default=True),
        Terms(name="low", grace_s=25, mode="CANCEL", is_up=False, max_time_s=604800.0),
    )
    qos = "normal|00:00:00|cluster\ncheap|00:01:25|requeue\n"
    assert text.parse_qos(qos) == (Terms(name="normal"), Terms(name="cheap", grace_s=85, mode="REQUEUE"))
    accounts = "root|\nroot|root\nusers|\nusers|alice\nusers|bob\nempty|\n"
    assert text.parse_associations(accounts) == {"root": {"root"}, "users": {"alice", "bob"}, "empty": set()}
    for parse in (text.parse_qos, text.parse_associations):
        with pytest.raises(UnparsableOutput):
            parse("sacctmgr: something else\n")


def test_accounting_of_a_requeued_job() -> None:
    rows = text.parse_accounting(recorded("accounting_requeued.txt"))
    assert [(r.run, r.step, r.state) for r in rows] == [
        (0, "", "REQUEUED"),
        (0, "batch", "COMPLETED"),
        (0, "0", "CANCELLED"),
        (1, "", "COMPLETED"),
        (1, "batch", "COMPLETED"),
    ]
    assert rows[2].signal == 15
    assert rows[0].nodes == ("n1", "n2", "n3")


def test_accounting_of_a_job_that_gave_a_node_back() -> None:
    rows = text.parse_accounting(recorded("accounting_resized.txt"))
    assert [(r.run, r.step, r.state) for r in rows][-1] == (0, "", "CANCELLED")
    assert {r.run for r in rows} == {0}


def test_accounting_without_rows_and_without_output() -> None:
    assert text.parse_accounting("JobIDRaw|State|ExitCode|Start|End|NodeList\n") == ()
    with pytest.raises(UnparsableOutput, match="no header"):
        text.parse_accounting("")
    with pytest.raises(UnparsableOutput, match="printed the row"):
        text.parse_accounting("JobIDRaw|State|ExitCode|Start|End|NodeList\n7|FAILED\n")


def test_runs_of_all_jobs_are_counted_for_each_job() -> None:
    rows = text.parse_accounting(recorded("runs.txt"))
    assert {row.run for row in rows} == {0}
    assert (rows[0].nodes, rows[0].start_time) == ((), None)
    failed = next(row for row in rows if row.state == "FAILED")
    assert (failed.exit_code, failed.nodes) == (3, ("n2", "n4"))


def test_events_of_nodes() -> None:
    events = text.parse_events(recorded("events.txt"))
    assert [(e.node, e.state) for e in events] == [
        ("n1", "DOWN"),
        ("n2", "DRAIN"),
        ("n2", "DRAIN"),
        ("n3", "DRAIN"),
    ]
    assert events[1].reason == "srobust: gpu3 XID 79"
    assert (events[1].user, events[1].start_time, events[1].end_time) == ("root", 1795275010.0, 1795275013.0)
    assert events[3].reason.startswith("disk | full")
    assert events[3].end_time is None
    with pytest.raises(UnparsableOutput, match="no header"):
        text.parse_events("")
    with pytest.raises(UnparsableOutput, match="printed the row"):
        text.parse_events("NodeName|TimeStart|TimeEnd|State|User|Reason\nn1|1\n")


def test_a_reason_with_line_breaks_is_one_reason() -> None:
    head, *rows = recorded("events.txt").splitlines()
    rows[1] += "\nask joe|not me\n\nn9|now|DRAIN\r"
    events = text.parse_events("\n".join((head, *rows)))
    assert [event.node for event in events] == ["n1", "n2", "n2", "n3"]
    assert events[0].reason.split() == ["srobust-like", "ask", "joe|not", "me", "n9|now|DRAIN"]


FORGED = (
    "NodeName=n9 State=IDLE",
    "State=DOWN",
    "Partitions=x",
    "   Reason=x",
    "[root@5]",
    "[x@y",
    "=",
    "b]",
)
REASONS = st.lists(
    st.sampled_from(FORGED) | st.text(st.characters(exclude_characters="\n"), min_size=1, max_size=9),
    min_size=1,
    max_size=6,
)


@given(REASONS)
def test_no_reason_hides_a_node(lines: list[str]) -> None:
    """Whatever one administrator types, all nodes stay readable, and each has its own fields.

    Printed as by slurm_sprint_node_table of 22.05 to 26.05, which leaves empty lines out.
    """
    reason = "\n".join(lines)
    plain = text.parse_nodes(recorded("nodes.txt"))
    blocks = recorded("nodes.txt").split("\n\n")
    blocks[1] += "\n".join([f"\n   Reason={lines[0]} [root@1795247250]", *(f"{'':10}{x}" for x in lines[1:])])
    found = text.parse_nodes("\n\n".join(blocks))
    assert [(node.name, node.states, node.cpus) for node in found] == [
        (node.name, node.states, node.cpus) for node in plain
    ]
    assert found[1].reason.split() == reason.split()
    assert (found[1].reason_user, found[1].reason_time) == ("root", 1795247250.0)
    assert found[0] == plain[0]
    assert found[2:] == plain[2:]


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("DOWN*", {"DOWN", "NOT_RESPONDING"}),
        ("IDLE+NOT_RESPONDING", {"IDLE", "NOT_RESPONDING"}),
        ("mixed*+drain", {"MIXED", "NOT_RESPONDING", "DRAIN"}),
        ("IDLE~", {"IDLE", "POWERED_DOWN"}),
        ("", set()),
    ],
)
def test_states_of_nodes_are_read_from_words_and_marks(given: str, expected: set[str]) -> None:
    assert values.parse_states(given) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("gpu:h200:8(S:0-1),nic:2", [("gpu", "h200", 8), ("nic", "", 2)]),
        ("gpu:h100:8(IDX:0-3,5)", [("gpu", "h100", 8)]),
        ("gres/gpu=4", [("gpu", "", 4)]),
        ("gres:gpu:8", [("gpu", "", 8)]),
        ("bandwidth:lustre:no_consume:4G", [("bandwidth", "lustre:no_consume", 4 * 1024**3)]),
        ("(null)", []),
        ("gpu", [("gpu", "", 1)]),
    ],
)
def test_generic_resources_are_read_in_all_their_forms(
    given: str, expected: list[tuple[str, str, int]]
) -> None:
    assert [(g.name, g.type, g.count) for g in values.parse_gres(given)] == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [("02:00:00", 7200.0), ("1-00:00:10", 86410.0), ("05:30", 330.0), ("UNLIMITED", None), ("", None)],
)
def test_durations_are_read_as_seconds(given: str, expected: float | None) -> None:
    assert values.parse_duration(given) == expected


def test_versions_of_slurm_can_be_compared() -> None:
    assert values.parse_version("slurm-wlm 22.05.8\n") == SlurmVersion(major=22, minor=5, micro=8)
    assert values.parse_version("slurm 24.11.0-0rc1") >= SlurmVersion(major=24, minor=11)
    assert str(SlurmVersion(major=22, minor=5, micro=8)) == "22.05.8"
    with pytest.raises(UnparsableOutput):
        values.parse_version("none")


# -- JSON of all releases --------------------------------------------------------------------------


@pytest.mark.parametrize("release", NEWER)
def test_nodes_are_read_from_the_json_of_each_release(release: str) -> None:
    first, last = jsonforms.parse_nodes(document(release, "scontrol_show_nodes.json"))
    check_nodes(first.states, last.states, first.reason, first.reason_user)
    assert first.gres == (Gres(name="gpu", type="h100", count=8),)
    assert first.partitions == ("main",)


def test_nodes_are_read_from_the_json_of_22_05() -> None:
    first, last = jsonforms.parse_nodes(document("22.05.8", "sinfo.json"))
    check_nodes(first.states, last.states, first.reason, first.reason_user)
    assert first.reason_time is not None


def check_nodes(first: frozenset[str], last: frozenset[str], reason: str, user: str) -> None:
    assert first == {"ALLOCATED", "DRAIN"}
    assert last == {"IDLE", "DRAIN"}
    assert reason == "draining n1 é"
    assert user == "root"


@pytest.mark.parametrize("release", [OLDEST, *NEWER])
def test_jobs_are_read_from_the_json_of_each_release(release: str) -> None:
    jobs = {job.name: job for job in jsonforms.parse_jobs(document(release, "squeue.json"))}
    train, pending = jobs["train"], jobs["pend"]
    assert train.is_running
    assert train.nodes == ("n1",)
    assert train.excluded_nodes == ("n4",)
    assert train.required_nodes == ("n1",)
    assert train.comment == "c1"
    assert train.requeue
    assert train.restart_count == 0
    assert train.batch_host == "n1"
    assert pending.is_pending
    assert pending.nodes == ()
    assert pending.num_nodes == 3
    assert pending.excluded_nodes == ("n3",)
    assert not pending.held


@pytest.mark.parametrize("release", NEWER)
def test_an_allocation_is_read_from_the_json_of_each_release(release: str) -> None:
    held = jsonforms.parse_allocation(document(release, "scontrol_show_job.json"))
    assert held.nodes == ("n1",)
    assert held.gpus_per_node == {"n1": 8}
    assert held.batch_host == "n1"


@pytest.mark.parametrize("release", NEWER)
def test_steps_and_reservations_are_read_from_the_json_of_each_release(release: str) -> None:
    (step,) = jsonforms.parse_steps(document(release, "scontrol_show_step.json"))
    assert (step.step_id, step.name, step.nodes, step.states) == ("0", "sleep", ("n1",), {"RUNNING"})
    (maint,) = jsonforms.parse_reservations(document(release, "scontrol_show_reservation.json"))
    assert (maint.name, maint.nodes, maint.users) == ("maint", ("n3", "n4"), ("root",))
    assert "MAINT" in maint.flags
    assert maint.start_time is not None


@pytest.mark.parametrize(("state", "held"), [("REQUEUE_HOLD", True), ("EXPEDITING", False)])
def test_text_of_26_05_names_only_what_a_pending_job_waits_in(state: str, held: bool) -> None:
    recording = DATA / "slurm_text" / "26.05.5" / f"job_{state.lower()}.txt"
    of_text = text.parse_job(recording.read_text())
    (of_json,) = jsonforms.parse_jobs(document("26.05.5", f"scontrol_show_job_{state.lower()}.json"))
    assert of_text.states == of_json.states == {"PENDING", state}
    assert of_text.reason == of_json.reason
    for job in (of_text, of_json):
        assert (job.is_pending, job.held, job.is_finished, job.restart_count) == (True, held, False, 1)


@pytest.mark.parametrize("state", ["SIGNALING", "RESIZING", "STOPPED"])
def test_text_names_only_what_is_done_with_a_running_job(state: str) -> None:
    assert values.parse_job_states(state) == {"RUNNING", state}


def test_numbers_of_the_json_may_be_unset_or_infinite() -> None:
    assert jsonforms.number({"set": True, "infinite": False, "number": 7}) == 7
    assert jsonforms.number({"set": False, "infinite": True, "number": 0}) is None
    assert jsonforms.number({"set": True, "infinite": True, "number": 0}) is None
    assert jsonforms.number(None) is None
    assert jsonforms.number(True) is None
    assert jsonforms.number(3) == 3


@pytest.mark.parametrize("output", ["", "  \n", "[1]", "{", '{"errors": []}'])
def test_malformed_json_is_refused(output: str) -> None:
    with pytest.raises(UnparsableOutput):
        jsonforms.parse_nodes(jsonforms.load(output))
