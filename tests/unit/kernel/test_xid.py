"""Messages of NVIDIA's driver: all shapes of lines that are seen, and what each code means for a node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.kernel import xid
from slurm_robust.kernel.catalog import RULES, Topic
from slurm_robust.kernel.xid import XidSeverity
from slurm_robust.model.findings import Party, Suggestion
from tests.there import there

GPU = "NVRM: Xid (PCI:0000:9b:00): "
ACTION = "GPU recovery action changed from 0x0 (None) to {}"
LINK = "(0x{:08x}, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"


@pytest.mark.parametrize(
    ("text", "address", "code", "pid"),
    [
        (GPU + "119, pid=4821, name=python3, Timeout after 6s of waiting", "0000:9b:00", 119, 4821),
        (GPU + "13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception", "0000:9b:00", 13, 0),
        (GPU + "13, pid=<unknown>, name=<unknown>, Graphics", "0000:9b:00", 13, 0),
        (GPU + "48, An uncorrectable double bit error", "0000:9b:00", 48, 0),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00", 14, 0),
        ("NVRM: Xid (PCI:0018:01:00): 79, GPU has fallen off the bus.", "0018:01:00", 79, 0),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 43, pid=7, name=a, Ch 1", "0000:01:00", 43, 7),
        ("NVRM: Xid (PCI:0000:C1:00): 62", "0000:c1:00", 62, 0),
        ("NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.", "0000:9b:00", 79, 0),
        ("NVRM: GPU at 0000:01:00.0 has fallen off the bus.", "0000:01:00", 79, 0),
        (
            "NVRM: The NVIDIA GPU 0000:b3:00.0 NVRM: (PCI ID: 10de:26b5) installed in this system has "
            "NVRM: fallen off the bus and is not responding to commands.",
            "0000:b3:00",
            79,
            0,
        ),
    ],
)
def test_each_shape_of_line_is_read(text: str, address: str, code: int, pid: int) -> None:
    found = there(xid.parse(text))
    assert (found.subject, found.code, found.pids) == (address, code, (pid,) if pid else ())


@pytest.mark.parametrize(
    "prefix",
    [
        "[ 1843.308145] ",
        "[ 1843.308145] [  T123] ",
        "[Fri Mar  3 04:44:24 2023] ",
        "kern  :warn  : 2024-03-03T04:44:24,308145+00:00 ",
        "Mar  3 04:44:24 gpu-07 kernel: ",
        "Mar  3 04:44:24 gpu-07 kernel: [1843.308145] ",
        "",
    ],
)
def test_prefixes_of_logs_come_off(prefix: str) -> None:
    assert xid.without_prefix(f"{prefix}{GPU}79, x") == f"{GPU}79, x"
    switch = "nvidia-nvswitch3: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48"
    assert xid.without_prefix(prefix + switch) == switch


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: Xid",
        "NVRM: loading NVIDIA UNIX x86_64",
        f"python3[7]: {GPU}79",
        f" {GPU}79",
        "NVRM: GPU 3 is well",
    ],
)
def test_other_messages_are_not_xids(text: str) -> None:
    assert xid.parse(text) is None


def test_a_line_of_a_mig_instance_names_the_cause() -> None:
    found = there(
        xid.parse("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 45, pid=8, name=x, Ch 1 caused by previous Xid 149")
    )
    assert found.cause == 149


@pytest.mark.parametrize(
    ("text", "severity", "suggestion"),
    [
        ("144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x1 0x8)", XidSeverity.NON_FATAL, Suggestion.MONITOR),
        ("144, SAW_MVB Fatal XC0 i0 Link 0 (0x1 0x8)", XidSeverity.FATAL, Suggestion.RESET),
        (
            "145, pid=3, name=x, RLW_RXPIPE Non-fatal XC0 i0 Link 13 (0x0)",
            XidSeverity.NON_FATAL,
            Suggestion.MONITOR,
        ),
        ("145, RLW Fatal XC0 i0 Link -1 (0x000fe406)", XidSeverity.FATAL, Suggestion.RESET),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6)", XidSeverity.ELSEWHERE, Suggestion.MONITOR),
        ("150, MSE Fatal XC0 i0 Link 1 (0x0)", XidSeverity.FATAL, Suggestion.RESET),
        ("150, in a shape nobody knows", XidSeverity.PLAIN, Suggestion.MONITOR),
        # A process may be called like this.
        (
            "145, pid=3, name=, X Fatal XC0 i, RLW Nonfatal XC0 i0 Link 13",
            XidSeverity.NON_FATAL,
            Suggestion.MONITOR,
        ),
        ("154, " + ACTION.format("0x1 (GPU Reset Required)"), XidSeverity.RESET, Suggestion.RESET),
        (
            "154, pid=1, name=x, " + ACTION.format("0x2 (Node Reboot Required)"),
            XidSeverity.REBOOT,
            Suggestion.REBOOT,
        ),
        ("154, " + ACTION.format("0x3 (Drain P2P)"), XidSeverity.RESET, Suggestion.RESET),
        ("154, " + ACTION.format("0x4 (Drain and Reset)"), XidSeverity.RESET, Suggestion.RESET),
        (
            "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            XidSeverity.NONE,
            Suggestion.NONE,
        ),
        ("154, " + ACTION.format("0x9 (New)"), XidSeverity.UNKNOWN, Suggestion.MONITOR),
        ("154, " + ACTION.format("0x5 (Recover IMEX Domain)"), XidSeverity.RECOVER_IMEX, Suggestion.MONITOR),
        (
            "74, NVLink: fatal error detected on link 6" + LINK.format(1 << 16),
            XidSeverity.PLAIN,
            Suggestion.RESET,
        ),
        (
            "74, NVLink: error detected on link 6" + LINK.format(1 << 23 | 1),
            XidSeverity.IGNORED,
            Suggestion.MONITOR,
        ),
        ("74, NVLink: error detected on link 6" + LINK.format(0), XidSeverity.PLAIN, Suggestion.RESET),
        ("74, NVLink: error detected on link 6(0x1, 0x0, 0x4, 0x0)", XidSeverity.PLAIN, Suggestion.RESET),
        ("74, NVLink error", XidSeverity.PLAIN, Suggestion.RESET),
    ],
)
def test_a_line_says_how_severe_it_is(text: str, severity: XidSeverity, suggestion: Suggestion) -> None:
    found = there(xid.parse(GPU + text))
    assert found.severity == severity
    assert xid.rule(found.code, found.severity).suggestion is suggestion


@pytest.mark.parametrize("code", [13, 31, 32, 43, 45, 69])
def test_faults_of_programs_are_the_jobs(code: int) -> None:
    rule = xid.rule(code)
    assert (rule.topic in (Topic.PROGRAM, Topic.END), rule.blame, rule.lasting) == (True, Party.JOB, False)
    assert not rule.suggestion.keeps_jobs_away


@pytest.mark.parametrize("code", [46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 143])
def test_faults_of_hardware_last_until_they_are_mended(code: int) -> None:
    rule = xid.rule(code)
    assert rule.lasting
    assert rule.suggestion.keeps_jobs_away
    assert rule.blame is Party.NODE


@pytest.mark.parametrize("code", [38, 63, 92, 94, 121, 160, 9999])
def test_other_and_unknown_xids_keep_no_job_away(code: int) -> None:
    assert xid.rule(code).suggestion is Suggestion.MONITOR
    assert not xid.rule(code).lasting


def test_what_lasts_keeps_jobs_away_and_the_other_way_round() -> None:
    for rule in RULES.values():
        assert rule.lasting == rule.suggestion.keeps_jobs_away
        assert len(rule.meaning) < 60


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nvidia-nvswitch3: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up", (20034, True)),
        ("nvidia-nvswitch: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 32 egress", (12028, False)),
        ("nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 12028, Severity 0 Engine instance 32", None),
        ("nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 12028, Data {0x0}", None),
        ("nvidia-nvswitch0: open (major=237)", None),
    ],
)
def test_switches_say_how_severe_it_is(text: str, expected: tuple[int, bool] | None) -> None:
    found = xid.parse_switch(text)
    assert (found and (found.code, found.severity == XidSeverity.FATAL)) == expected


@given(st.text(max_size=200))
def test_no_text_breaks_the_parsing_of_xids(text: str) -> None:
    for line in (text, GPU + text, f"{GPU}154, {text}", f"{GPU}74, {text}", f"{GPU}145, {text}"):
        xid.without_prefix(line)
        xid.parse_switch(line)
        found = xid.parse(line)
        assert found is None or xid.rule(found.code, found.severity)


NAMES = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=15) | st.sampled_from(
    [
        "x, Fatal XC0 i0",
        "Fatal XC0 i0 Li",
        "79",
        "x, 79, name=x",
        "154, GPU recov",
        "(0x1, 0x0)",
        "ious Xid 79",
    ]
)


@given(NAMES, st.sampled_from([rule.code for rule in RULES.values() if rule.topic is Topic.PROGRAM]))
def test_a_program_by_any_name_has_only_made_its_own_mistake(name: str, code: int) -> None:
    found = there(xid.parse(f"{GPU}{code}, pid=77, name={name}, Ch 00000010, intr 10000000"))
    assert (found.code, found.pids, found.cause) == (code, (77,), 0)
    assert not xid.rule(found.code, found.severity).suggestion.keeps_jobs_away


@given(NAMES)
def test_no_program_decides_how_severe_a_link_error_is(name: str) -> None:
    for words, severity in (("Fatal", XidSeverity.FATAL), ("Nonfatal", XidSeverity.NON_FATAL)):
        found = there(
            xid.parse(f"{GPU}145, pid=3, name={name}, RLW_RXPIPE {words} XC0 i0 Link 13 (0x0, 0x0)")
        )
        assert found.severity == severity
