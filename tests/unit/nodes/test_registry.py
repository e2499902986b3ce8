"""The registry: every check is in it and on its page, and a declaration that lacks a part is an error."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from slurm_robust.config.node import NodeConfig
from slurm_robust.nodes import checks
from slurm_robust.nodes.check import EVERYWHERE, NOT_LIVE, AnyCheck, Check, CheckContext
from slurm_robust.nodes.registry import CHECKS
from slurm_robust.nodes.runner import choose, contexts_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "node-checks.md"


def test_every_module_of_checks_is_in_the_registry() -> None:
    modules = [
        importlib.import_module(f"{checks.__name__}.{one.name}")
        for one in pkgutil.iter_modules(checks.__path__)
    ]
    missing = {
        module.__name__
        for module in modules
        if not {*map(id, getattr(module, "CHECKS", ()))} <= {*map(id, CHECKS)}
    }
    assert missing == set(), "slurm_robust/nodes/registry.py lacks these"


def test_names_are_unique_and_at_most_one_check_speaks_for_a_source_that_hangs() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    speakers = Counter(check.source.name for check in CHECKS if check.hangs)
    assert [name for name, count in speakers.items() if count > 1] == []


@pytest.mark.parametrize("field", ["written_by", "contexts", "probe"])
def test_a_check_says_itself_where_it_runs_and_who_writes_its_evidence(field: str) -> None:
    fields = msgspec.structs.asdict(CHECKS[0])
    del fields[field]
    with pytest.raises(TypeError, match=f"Missing required argument '{field}'"):
        Check(**fields)


def where(check: AnyCheck) -> str:
    missing = [context.value for context in CheckContext if context not in check.contexts]
    return f"all but {', '.join(missing)}" if missing else "all"


def counts(check: AnyCheck) -> str:
    if check.second:
        return f"at once, with independent evidence: {check.second}"
    return "at once" if check.confirm == 1 else f"after {check.confirm} periodic runs in a row"


def test_the_page_has_every_check() -> None:
    """SROBUST_WRITE_GOLDEN=1 pytest tests/unit/nodes/test_registry.py"""
    head = ["check", "runs in", "probe", "written by", "counts"]
    body = [
        [f"`{check.name}`", where(check), check.probe.value, check.written_by.value, counts(check)]
        for check in CHECKS
    ]
    table = "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *body])
    page = PAGE.read_text()
    expected = re.sub(r"(?m)(^\|.*\n)+|\Z", lambda match: table, page, count=1)
    if os.environ.get("SROBUST_WRITE_GOLDEN"):
        PAGE.write_text(expected)
    assert PAGE.read_text() == expected, "SROBUST_WRITE_GOLDEN=1 writes docs/node-checks.md"


@pytest.mark.parametrize(
    ("declared", "rule", "is_live"),
    [
        (EVERYWHERE, None, True),
        (EVERYWHERE, ("prolog",), False),
        (EVERYWHERE, ("prolog", "periodic"), True),
        (NOT_LIVE, ("prolog", "periodic"), False),
    ],
)
def test_a_rule_of_the_site_about_periodic_runs_holds_beside_a_training(
    declared: frozenset[CheckContext], rule: tuple[str, ...] | None, *, is_live: bool
) -> None:
    check = msgspec.structs.replace(CHECKS[0], contexts=declared)
    config = msgspec.convert({"checks": {check.name: {"contexts": rule}}}, NodeConfig)
    assert (CheckContext.LIVE in contexts_of(check, config.checks[check.name])) == is_live
    assert choose([check], config, CheckContext.LIVE)[0] == ((check,) if is_live else ())
