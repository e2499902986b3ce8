"""The text of messages."""

from __future__ import annotations

from slurm_robust.model.notice import Notice, NoticeKind, Severity
from slurm_robust.notify.message import Subject, compose
from slurm_robust.util.text import clock

JOB = Subject(job="7", command="train.py --x", cluster="alpha", name="7")


def notice(number: int, **changes: object) -> Notice:
    values: dict[str, object] = {
        "key": f"incident/{number}",
        "t": float(number),
        "kind": NoticeKind.INCIDENT,
        "severity": Severity.WARNING,
        "text": f"incident {number}: hang",
        "command": f"srobust incident 7 {number}",
        "incident": number,
    }
    return Notice(**{**values, **changes})  # type: ignore[arg-type]


def test_a_message_of_one_notice() -> None:
    message = compose(JOB, [notice(1, nodes=("n2", "n1"), action="restart")])
    assert message.subject == "srobust: job 7 on alpha: incident 1: hang"
    assert message.text == (
        "srobust: job 7 on alpha, train.py --x\n"
        f"{clock(1)} warning: incident 1: hang\n"
        "  nodes: n[1-2]\n"
        "  controller: restart\n"
        "next: srobust incident 7 1"
    )
    assert message.facts["NODES"] == "n[1-2]"
    assert message.facts["ID"] == "7/incident/1"


def test_several_notices_are_headed_by_the_most_urgent() -> None:
    several = [notice(1), notice(2, severity=Severity.CRITICAL, kind=NoticeKind.GIVE_UP), notice(3)]
    message = compose(JOB, several, 4, again=True)
    assert message.subject.endswith("incident 2: hang (and 2 more)")
    assert "4 more were left out." in message.text
    assert "A part of this may have been sent before." in message.text
    assert message.text.splitlines()[-1] == "next: srobust incidents 7"
    assert (message.facts["SEVERITY"], message.facts["KINDS"]) == ("critical", "incident,give_up")
    assert (message.facts["COUNT"], message.facts["LEFT_OUT"]) == ("3", "4")


def test_the_subject_of_an_incident_that_is_over_says_so() -> None:
    over = notice(
        1,
        kind=NoticeKind.RECOVERY,
        severity=Severity.INFO,
        text="incident 1 is over, recovered in 2.5 s (rank 0: SIGKILL on n2): step 5 is the first new one",
        short="recovered in 2.5 s (rank 0: SIGKILL on n2)",
    )
    message = compose(JOB, [notice(1), notice(1), over])
    assert message.subject == "srobust: job 7 on alpha: recovered in 2.5 s (rank 0: SIGKILL on n2)"
    assert (message.facts["KIND"], message.facts["SEVERITY"]) == ("recovery", "info")
    assert f"{clock(1)} warning: incident 1: hang" in message.text, "what happened is told all the same"
    another = compose(JOB, [notice(1), over, notice(2)])
    assert another.subject == "srobust: job 7 on alpha: incident 2: hang (and 1 more)"


def test_observe_mode_is_marked() -> None:
    job = Subject(job="7", observes=True)
    message = compose(job, [notice(1)])
    assert message.subject.startswith("srobust: job 7 (observe mode): ")
    assert message.text.startswith("srobust: job 7 (observe mode)\n")
    assert message.facts["MODE"] == "observe"


def test_a_thousand_nodes_are_folded() -> None:
    message = compose(JOB, [notice(1, nodes=tuple(f"n{i:04d}" for i in range(1000)))])
    assert "nodes: n[0000-0999]" in message.text
