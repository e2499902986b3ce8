"""The commented file, the documentation and the manual page tell of the keys that there are."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import yaml

from slurm_robust.admin import keys
from slurm_robust.admin.items import DATA, Layout, man_pages, scripts
from slurm_robust.config.node import NodeConfig

PAGE = Path(__file__).resolve().parents[3] / "docs" / "node-configuration.md"


def test_the_file_says_nothing_until_a_line_loses_its_mark_and_then_the_default() -> None:
    header = (DATA / "config-header.txt").read_text()
    assert yaml.safe_load(keys.as_yaml(header)) is None
    text = keys.as_yaml("")
    said = re.sub(r"(?m)^#", "", re.sub(r"(?m)^# \S.*$", "", text))
    values = yaml.safe_load(said)
    assert set(values) == set(NodeConfig.__struct_fields__)
    assert msgspec.convert(values, NodeConfig) == NodeConfig()
    assert max(map(len, text.splitlines())) <= 240


def test_every_key_is_on_the_page_and_the_page_is_of_today() -> None:
    """python -m slurm_robust.admin.keys docs/node-configuration.md writes it anew."""
    page = PAGE.read_text()
    assert page == keys.written(page)
    assert all(f"`{key.name}`" in page for section in keys.sections() for key in section.keys)


def test_manual_pages_are_whole() -> None:
    pages = man_pages()
    assert set(pages) == {"slurm-robust.5", "srobust-admin.8", "srobust-node.8"}
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
