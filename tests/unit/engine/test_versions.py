"""Controller and agents of different releases in one job: what each does not know is named, never guessed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from slurm_robust.config.job import JobConfig, StandbyConfig
from slurm_robust.model import events as ev
from slurm_robust.policy.standbys import SETTLED_S
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Load, Rehearse
from slurm_robust.wire.protocol import PROTOCOL
from tests.unit.engine.stories import PACE, gets_on, notes, sent, trained

LEARNS = JobConfig(standby=StandbyConfig(rehearse=False, test_s=0))
REHEARSES = JobConfig(standby=StandbyConfig(learn=False, test_s=0))
OLDER = (
    f"agent on n3 speaks protocol 0, this controller {PROTOCOL}: it is not sent load, rehearse, try_release"
)


def job(
    nodes: int = 2, spares: int = 1, config: JobConfig | None = None, protocol: int = 0, speak: str = ""
) -> Sim:
    """A job that has made some steps; agents on the nodes that ``speak`` names are of another release."""
    sim = Sim(nodes, spares, seed=1, steps=400, pace=PACE, config=config)
    for node in speak.split():
        sim.nodes[node].protocol = protocol
    sim.run_until(lambda: sim.step >= 2, within_s=60.0)
    return sim


def loads(sim: Sim) -> list[str]:
    """Nodes whose agents were ordered to load modules."""
    return list(dict.fromkeys(node for node, message in sent(sim, Load)))


def rehearsals(sim: Sim) -> list[str]:
    return list(dict.fromkeys(node for node, message in sent(sim, Rehearse)))


def hear(sim: Sim, sender: str, **message: object) -> str:
    """The controller hears a message from ``sender``; the note of it, of which there is one."""
    before = len(notes(sim))
    for _ in range(3):
        sim.env.post(sender, f"somebody on {sender}", sim.state.epoch, msgspec.msgpack.encode(message))
        sim.run(1.0)
    (text,) = notes(sim)[before:]
    assert sim.said.count(text) == 1
    return text


def test_no_line_is_written_about_agents_of_the_same_version() -> None:
    sim = job()
    assert not any("protocol" in text for text in (*notes(sim), *sim.said))
    assert [event.protocol for event in sim.events(ev.AgentJoined)] == [PROTOCOL] * 3


@pytest.mark.parametrize(
    ("config", "ordered", "nodes"), [(LEARNS, loads, ["n4", "n1", "n2"]), (REHEARSES, rehearsals, ["n4"])]
)
def test_an_older_agent_is_named_and_not_sent_what_it_does_not_know(
    config: JobConfig, ordered: Callable[[Sim], list[str]], nodes: list[str]
) -> None:
    sim = job(spares=2, config=config, speak="n3")
    sim.run(SETTLED_S + 10.0)
    assert notes(sim).count(OLDER) == sim.said.count(OLDER) == 1
    assert [event.protocol for event in sim.events(ev.AgentJoined) if event.node == "n3"] == [0]
    assert ordered(sim) == nodes
    assert "n3" not in {node for node, _ in sim.sent}


def test_many_older_agents_are_one_line_in_the_log_and_each_in_the_journal() -> None:
    sim = job(spares=0, speak="n1 n2")
    assert len([text for text in sim.said if "speaks protocol 0" in text]) == 1
    assert len([text for text in notes(sim) if "speaks protocol 0" in text]) == 2


def test_an_older_agent_takes_a_slot_as_any_other() -> None:
    sim = job(config=REHEARSES, speak="n3")
    sim.node_dies("n2")
    gets_on(sim, 2)
    assert sim.state.world.slots == ("n1", "n3")


def test_a_newer_agent_is_followed_as_one_of_this_version() -> None:
    sim = job(config=LEARNS, protocol=PROTOCOL + 1, speak="n3")
    sim.run(SETTLED_S + 10.0)
    assert loads(sim)[0] == "n3"
    assert not any("protocol" in text for text in (*notes(sim), *sim.said)), "it has the longer list"


def test_a_message_of_a_newer_agent_is_refused_by_name() -> None:
    sim = job(protocol=PROTOCOL + 1, speak="n3")
    assert hear(sim, "n3", kind="weather", node="n3") == (
        f"agent on n3 speaks protocol {PROTOCOL + 1}, this controller {PROTOCOL}: message 'weather' is "
        "unknown and is refused"
    )


def test_a_heartbeat_that_cannot_be_read_is_refused_with_the_reason() -> None:
    assert hear(trained(2), "n2", kind="heartbeat", node="n9", protocol=7) == (
        f"agent on n9 speaks protocol 7, this controller {PROTOCOL}: message 'heartbeat' cannot be read "
        "(Object missing required field `agent`) and is refused"
    )


def test_a_question_of_a_newer_command_is_refused_by_name() -> None:
    assert hear(trained(2), "n1", kind="sing") == (
        f"a client speaks another protocol, this controller {PROTOCOL}: "
        "message 'sing' is unknown and is refused"
    )


def test_a_newer_controller_that_takes_over_names_the_agents_that_it_finds() -> None:
    sim = job(config=LEARNS)
    assert sim.events(ev.ModulesLearned)
    sim.controller_dies()
    for node in sim.nodes.values():
        node.protocol = 0
    sim.run_until(lambda: sim.stage == "Running", within_s=30.0)
    sim.run(SETTLED_S + 10.0)
    assert loads(sim) == [], "agents of the release before do not know it"
    assert len([text for text in notes(sim) if "speaks protocol 0" in text]) == 3
    assert len([text for text in sim.said if "speaks protocol 0" in text]) == 1
    sim.nodes["n3"].protocol = PROTOCOL
    sim.agent_dies("n3")
    sim.run(20.0)
    assert loads(sim) == ["n3"], "started again, it is of this release"


def test_an_older_controller_that_takes_over_reads_the_joins_of_a_newer_one() -> None:
    """A field of an event that a release does not know is passed over."""
    line = ev.encode_event(ev.AgentJoined(t=1.0, node="n3", agent="a", address="x", protocol=9))
    assert b'"protocol":9' in line
    newer = line.replace(b'"protocol":9', b'"protocol":9,"mood":"good"')
    assert ev.decode_event(newer) == ev.AgentJoined(t=1.0, node="n3", agent="a", address="x", protocol=9)
