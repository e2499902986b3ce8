"""The commented file and the documentation have the keys that there are."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from slurm_robust.admin.items import DATA
from slurm_robust.config.node import NodeConfig
from slurm_robust.config.reader import schema_keys
from slurm_robust.config.reference import PAGES, as_roff, as_yaml, groups, page_with_tables

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_file_says_nothing_until_a_line_loses_its_mark_and_then_the_default() -> None:
    header = (DATA / "config-header.txt").read_text()
    assert yaml.safe_load(as_yaml(NodeConfig, header)) is None
    text = as_yaml(NodeConfig, "")
    said = re.sub(r"(?m)^#", "", re.sub(r"(?m)^# \S.*$", "", text))
    values = yaml.safe_load(said)
    assert set(values) == set(NodeConfig.__struct_fields__)
    assert msgspec.convert(values, NodeConfig) == NodeConfig()
    assert max(map(len, text.splitlines())) <= 240


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_of_today(name: str) -> None:
    """python -m slurm_robust.config.reference docs/configuration.md docs/node-configuration.md"""
    page = (DOCS / name).read_text()
    assert page == page_with_tables(page, PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_every_key_is_on_its_page_and_explained(name: str) -> None:
    page = (DOCS / name).read_text()
    assert [
        key for key in schema_keys(PAGES[name]) if f"`{key}`" not in page and f"### `{key}`" not in page
    ] == []
    entries = [entry for group in groups(PAGES[name]) for entry in group.entries]
    assert [entry.full_name for entry in entries if not entry.text.endswith((".", ")"))] == []


def test_links_of_the_documentation_are_no_part_of_the_manual_page() -> None:
    assert "node-checks.md#checks-of-your-own" not in as_roff(NodeConfig)
    assert "checks of your own" in as_roff(NodeConfig).replace("\\-", "-")
