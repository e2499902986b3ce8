"""The manual pages and scripts of an installation are whole."""

from __future__ import annotations

import re

from slurm_robust.admin.items import Layout, man_pages, scripts


def test_manual_pages_are_whole() -> None:
    pages = man_pages()
    assert set(pages) == {"slurm-robust.5", "srobust-admin.8", "srobust-node.8", "srobust.1"}
    assert "max_temperature_c" in pages["slurm-robust.5"]
    for name, text in pages.items():
        assert text.startswith(".TH ")
        assert "@KEYS@" not in text
        # A line that begins with a dot is a request; anything else would be lost.
        requests = set(re.findall(r"(?m)^\.(\w*)", text))
        assert requests <= {
            "TH",
            "SH",
            "SS",
            "TP",
            "B",
            "BR",
            "BI",
            "I",
            "IR",
            "RB",
            "RI",
            "PP",
            "nf",
            "fi",
            "br",
        }, name


def test_scripts_call_the_program_of_this_very_installation() -> None:
    found = scripts(Layout(node_command="/opt/x/bin/srobust-node"))
    assert {"prolog.sh", "epilog.sh", "healthcheck.sh", "hook.sh"} <= set(found)
    for name in ("prolog.sh", "epilog.sh", "healthcheck.sh"):
        assert "\nSROBUST_NODE=/opt/x/bin/srobust-node\n" in found[name]
