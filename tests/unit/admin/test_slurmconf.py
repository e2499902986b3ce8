"""The change of slurm.conf: what it says afterwards, what stays, and that every byte can be had back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.admin.slurmconf import (
    HookSettings,
    link_in,
    make_plan,
    read_all,
    revert,
    statements,
    without_ours,
)

MAIN = "/etc/slurm/slurm.conf"
PROLOG = "/etc/slurm-robust/slurm.d/prolog/*"
EPILOG = "/etc/slurm-robust/slurm.d/epilog/*"
HEALTH = "/usr/libexec/slurm-robust/healthcheck.sh"
WISH = HookSettings(prolog=PROLOG, epilog=EPILOG, health_check=HEALTH)
OURS = {
    "/etc/slurm-robust/slurm.d/prolog/50-slurm-robust": "prolog.sh",
    "/etc/slurm-robust/slurm.d/epilog/50-slurm-robust": "epilog.sh",
}


def says(files: dict[str, str]) -> dict[str, str]:
    """What Slurm would take from the text: the last line of each key."""
    return {found.key.lower(): found.value for found in statements(files, MAIN)}


def planned(
    text: str, wish: HookSettings = WISH, **others: str
) -> tuple[dict[str, str], dict[str, str], str]:
    """What slurm.conf says after the change, the links, and the notes."""
    plan = make_plan({MAIN: text, **{f"/etc/slurm/{name}": part for name, part in others.items()}}, wish)
    assert without_ours(plan.after).after == plan.before, "what is undone is as before"
    assert make_plan(plan.after, wish).diff() == "", "a second time changes nothing"
    return says(plan.after), plan.links, "\n".join(plan.notes)


def test_an_empty_configuration_gets_everything() -> None:
    said, links, notes = planned("ClusterName=c\n")
    assert said == {
        "clustername": "c",
        "prolog": PROLOG,
        "epilog": EPILOG,
        "healthcheckprogram": HEALTH,
        "healthcheckinterval": "61",
        "healthchecknodestate": "ANY,CYCLE",
        "schedulerparameters": "nohold_on_prolog_fail",
        "prologflags": "Alloc",
        "prologepilogtimeout": "120",
    }
    assert (links, notes) == (OURS, "")


def test_a_single_script_of_the_site_is_linked_beside_ours_and_runs_first() -> None:
    said, links, _ = planned("Prolog=/etc/slurm/prolog.sh # do not touch\n")
    assert said["prolog"] == PROLOG
    assert links == {**OURS, "/etc/slurm-robust/slurm.d/prolog/90-site": "/etc/slurm/prolog.sh"}
    assert sorted(["90-site", "50-slurm-robust"], reverse=True)[0] == "90-site", "Slurm runs from z to a"
    assert said["prologepilogtimeout"] == "600", "the site's own prolog may take its time"


def test_the_links_are_the_same_on_a_node_that_sees_the_changed_file() -> None:
    plan = make_plan({MAIN: "Prolog=/etc/slurm/prolog.sh\n"}, WISH)
    again = make_plan(plan.after, WISH)
    assert (again.links, again.diff()) == (plan.links, "")


@pytest.mark.parametrize(
    ("pattern", "link"),
    [
        ("/etc/slurm/prolog.d/*", "/etc/slurm/prolog.d/50-slurm-robust"),
        ("/etc/slurm/prolog.d/*.sh", "/etc/slurm/prolog.d/50-slurm-robust.sh"),
        ("/etc/slurm/prolog-*", "/etc/slurm/prolog-50-slurm-robust"),
        ("/etc/slurm/[0-9]*", None),
        ("/etc/slurm/??-*", None),
        ("/etc/*/prolog", None),
    ],
)
def test_a_folder_of_the_site_gets_a_link_and_its_line_stays(pattern: str, link: str | None) -> None:
    said, links, notes = planned(f"Prolog={pattern}\n")
    assert said["prolog"] == pattern
    assert link_in(pattern) == link
    assert ({name for name in links if "epilog" not in name} == {link}) == (link is not None)
    assert (pattern in notes) == (link is None)


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("SchedulerParameters=defer,bf_interval=5", "schedulerparameters", "defer,bf_interval=5,{}"),
        ('schedulerparameters = "defer"', "schedulerparameters", "defer,{}"),
        ("SchedulerParameters=NoHold_on_prolog_fail", "schedulerparameters", "NoHold_on_prolog_fail"),
        ("SchedulerParameters=defer,\\\n  bf_interval=5", "schedulerparameters", None),
        ("SchedulerParameters=defer,\\\nbf_interval=5", "schedulerparameters", "defer,bf_interval=5,{}"),
        ("SchedulerParameters=a\nSchedulerParameters=defer", "schedulerparameters", "defer,{}"),
        ("SchedulerParameters=(null)", "schedulerparameters", "{}"),
        ("PrologFlags=X11", "prologflags", "X11"),
        ("PrologFlags=contain", "prologflags", "contain"),
        ("PrologFlags=Serial", "prologflags", "Serial,Alloc"),
        ("PrologEpilogTimeout=29", "prologepilogtimeout", "30"),
        ("PrologEpilogTimeout=30", "prologepilogtimeout", "30"),
        ("PrologEpilogTimeout=65534", "prologepilogtimeout", "120"),
        ("HealthCheckInterval=0", "healthcheckinterval", "61"),
        ("HealthCheckInterval=300", "healthcheckinterval", "300"),
        ("HealthCheckNodeState=IDLE,CYCLE", "healthchecknodestate", "IDLE,CYCLE"),
        ("#Prolog=/old", "prolog", PROLOG),
        ("Prolog=/a \\\n", "prolog", PROLOG),
    ],
)
def test_what_the_site_has_stays_and_only_what_is_missing_is_added(
    line: str, key: str, value: str | None
) -> None:
    said, _, _ = planned(f"{line}\n")
    if value is None:  # two words of one value are no value to Slurm either: ours is added
        assert said[key] == "nohold_on_prolog_fail"
    else:
        assert said[key] == value.format("nohold_on_prolog_fail")


def test_a_health_check_of_the_site_stays_and_is_reported() -> None:
    said, _, notes = planned("HealthCheckProgram=/usr/sbin/nhc\nHealthCheckInterval=300\n")
    assert said["healthcheckprogram"] == "/usr/sbin/nhc"
    assert "--systemd-timer" in notes


def test_with_a_timer_the_health_check_is_not_asked_for() -> None:
    said, _, _ = planned("", HookSettings(prolog=PROLOG, epilog=EPILOG, health_check=""))
    assert [key for key in said if key.startswith("health")] == []


def test_a_line_in_an_included_file_is_changed_there() -> None:
    files = {MAIN: "Include sched.conf\n", "/etc/slurm/sched.conf": "SchedulerParameters=defer\n"}
    assert read_all(MAIN, files.__getitem__) == files
    plan = make_plan(files, WISH)
    assert "SchedulerParameters=defer,nohold_on_prolog_fail" in plan.after["/etc/slurm/sched.conf"]
    assert "SchedulerParameters" not in plan.after[MAIN]
    assert plan.diff().count("+++") == 2


def test_the_last_line_of_a_key_counts_wherever_it_is() -> None:
    said, links, _ = planned("Prolog=/a\ninclude more.conf\n", **{"more.conf": "Prolog=/b\n"})
    assert said["prolog"] == PROLOG
    assert links["/etc/slurm-robust/slurm.d/prolog/90-site"] == "/b"


def test_files_that_include_each_other_end() -> None:
    files = {MAIN: "include slurm.conf\ninclude a\n", "/etc/slurm/a": "include slurm.conf\nProlog=/x\n"}
    assert says(read_all(MAIN, files.__getitem__)) == {"prolog": "/x"}


def test_a_comment_stays_where_it_is() -> None:
    after = make_plan({MAIN: "  SchedulerParameters = defer  # why\n"}, WISH).after[MAIN]
    assert "  SchedulerParameters = defer,nohold_on_prolog_fail  # why\n" in after


LINES = st.sampled_from(
    [
        "ClusterName=x",
        "Prolog=/a",
        'Epilog="/b c"',
        "Prolog=/d/*",
        "SchedulerParameters=defer # c",
        "PrologFlags=Serial \\",
        "# note \\",
        "",
        "\tEpilog = /x\r",
        "NodeName=n1 CPUs=2",
        "Include other.conf",
        "PrologEpilogTimeout=1",
        "HealthCheckInterval=0\x0c",
        "\udc80\x85",
    ]
)


@given(st.lists(LINES, max_size=12), st.booleans(), st.lists(LINES, max_size=6))
def test_whatever_the_file_is_undoing_gives_back_every_byte(
    lines: list[str], ends: bool, other: list[str]
) -> None:
    files = {MAIN: "\n".join(lines) + "\n" * ends, "/etc/slurm/other.conf": "\n".join(other)}
    plan = make_plan(files, WISH)
    assert {name: revert(text) for name, text in plan.after.items()} == files
    assert make_plan(plan.after, WISH).after == plan.after
