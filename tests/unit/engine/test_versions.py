"""Controller and agents of different releases in one job: what each does not know is named, never guessed."""

from __future__ import annotations

import pytest

from slurm_robust.config.job import JobConfig, StandbyConfig
from slurm_robust.engine.transitions import ToReconnecting
from slurm_robust.model import events as ev
from slurm_robust.policy.standbys import SETTLED_S
from slurm_robust.wire.messages import Ack, Foreign, Rehearse
from slurm_robust.wire.protocol import PROTOCOL
from tests.unit.engine.fake_job import Job
from tests.unit.engine.test_learning import learn, loads
from tests.unit.engine.test_standby import train

LEARNS = JobConfig(standby=StandbyConfig(rehearse=False, test_s=0))
REHEARSES = JobConfig(standby=StandbyConfig(learn=False, test_s=0))
OLDER = f"agent on n3 speaks protocol 0, this controller {PROTOCOL}: it is not sent load, rehearse"


def notes(job: Job) -> list[str]:
    return [event.text for event in job.events(ev.Noted)]


def rehearsals(job: Job) -> list[str]:
    return list(dict.fromkeys(node for node, m in job.sent if isinstance(m, Rehearse)))


def test_an_agent_of_the_same_version_is_not_worth_a_word() -> None:
    job = Job()
    train(job, 2)
    assert not any("protocol" in text for text in (*notes(job), *job.said))
    assert {event.protocol for event in job.events(ev.AgentJoined)} == {PROTOCOL}
    assert {m.protocol for _, m in job.sent if isinstance(m, Ack)} == {PROTOCOL}


@pytest.mark.parametrize(("config", "what"), [(LEARNS, loads), (REHEARSES, rehearsals)])
def test_an_older_agent_is_named_and_not_sent_what_it_does_not_know(config: JobConfig, what: object) -> None:
    job = Job(spares=("n3", "n4"), config=config)
    job.join("n3", "older", protocol=0)
    train(job, 2)
    learn(job, "n1", "yaml")
    train(job, SETTLED_S + 5)
    assert notes(job).count(OLDER) == job.said.count(OLDER) == 1
    assert [event.protocol for event in job.events(ev.AgentJoined) if event.node == "n3"] == [PROTOCOL, 0]
    assert [node for node, _ in loads(job)] == (["n4", "n1", "n2"] if config is LEARNS else [])
    assert rehearsals(job) == ([] if config is LEARNS else ["n4"])


def test_many_older_agents_are_one_line_in_the_log_and_each_in_the_journal() -> None:
    job = Job(slots=("n1", "n2"), spares=())
    for node in ("n1", "n2"):
        job.join(node, f"older on {node}", protocol=0)
    assert len([text for text in job.said if "speaks protocol 0" in text]) == 1
    assert len([text for text in notes(job) if "speaks protocol 0" in text]) == 2


def test_an_older_agent_takes_a_slot_as_any_other() -> None:
    job = Job(config=REHEARSES)
    job.join("n3", "older", protocol=0)
    train(job, 2)
    job.power_cut("n2")
    job.until(lambda: job.core.world.slots == ("n1", "n3") and job.stage == "Running")
    assert job.orders["n3"].generation == 2


def test_a_newer_agent_is_followed_as_one_of_this_version() -> None:
    job = Job(config=LEARNS)
    job.join("n3", "newer", protocol=PROTOCOL + 1)
    train(job, 2)
    learn(job, "n1", "yaml")
    train(job, SETTLED_S + 2)
    assert ("n3", 1) in loads(job)
    assert not any("protocol" in text for text in (*notes(job), *job.said)), "it has the longer list"


def test_a_message_of_a_newer_agent_is_refused_by_name() -> None:
    job = Job()
    job.join("n3", "newer", protocol=PROTOCOL + 1)
    for _ in range(3):
        job.core.on_foreign(Foreign(kind="weather", node="n3"), job.now())
    job.tick()
    text = (
        f"agent on n3 speaks protocol {PROTOCOL + 1}, this controller {PROTOCOL}: message 'weather' is "
        "unknown and is refused"
    )
    assert notes(job).count(text) == job.said.count(text) == 1


def test_a_heartbeat_that_cannot_be_read_is_no_silence_without_a_reason() -> None:
    job = Job()
    job.core.on_foreign(Foreign(kind="heartbeat", node="n9", protocol=7, why="no `phase`"), job.now())
    job.tick()
    assert notes(job)[-1] == (
        f"agent on n9 speaks protocol 7, this controller {PROTOCOL}: message 'heartbeat' cannot be read "
        "(no `phase`) and is refused"
    )


def test_a_question_of_a_newer_command_is_refused_by_name() -> None:
    job = Job()
    job.core.on_foreign(Foreign(kind="sing"), job.now())
    job.tick()
    assert notes(job)[-1] == (
        f"a client speaks another protocol, this controller {PROTOCOL}: "
        "message 'sing' is unknown and is refused"
    )


def test_a_newer_controller_that_takes_over_names_the_agents_that_it_finds() -> None:
    job = Job(config=LEARNS)
    train(job, 2)
    learn(job, "n1", "yaml")
    history = (
        *job.journal,
        ev.ControllerStarted(t=job.wall, epoch=2, host="n1", pid=2, port=2, taken_from="n2"),
    )
    newer = Job(history=history, config=LEARNS, first=ToReconnecting(), clock=(job.mono, job.wall))
    newer.heartbeats = dict(job.heartbeats)
    for node in ("n1", "n2", "n3"):
        newer.tell(node, protocol=0)
    newer.until(lambda: newer.stage == "Running")
    train(newer, SETTLED_S + 2)
    assert loads(newer) == [], "agents of the release before do not know it"
    assert len([text for text in notes(newer) if "speaks protocol 0" in text]) == 3
    assert len([text for text in newer.said if "speaks protocol 0" in text]) == 1
    newer.join("n3", "of the new release")
    train(newer, 2)
    assert loads(newer) == [("n3", 1)], "started again, it is of this release"


def test_an_older_controller_that_takes_over_reads_the_joins_of_a_newer_one() -> None:
    """A field of an event that a release does not know is passed over."""
    line = ev.encode_event(ev.AgentJoined(t=1.0, node="n3", agent="a", address="x", protocol=9))
    assert b'"protocol":9' in line
    newer = line.replace(b'"protocol":9', b'"protocol":9,"mood":"good"')
    assert ev.decode_event(newer) == ev.AgentJoined(t=1.0, node="n3", agent="a", address="x", protocol=9)
