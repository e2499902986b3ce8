"""The deep test of a node, on a folder tree: what the repair desk gets, and what is still unproven."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurm_robust.admin.deep_check import Examination, examine
from slurm_robust.config.node import CheckRule, NodeConfig, Paths, SiteCheck
from slurm_robust.hooks.record import DrainCause, DrainFile, OwnDrain
from slurm_robust.kernel.host import Host


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    check = tmp_path / "root" / "check"
    check.parent.mkdir()
    check.write_text(
        f"#!/bin/sh\nif [ -e {tmp_path}/broken ]; then echo stands still; exit 2; fi\necho turns\n"
    )
    check.chmod(0o755)
    fan = SiteCheck(name="fan", command=("/check",), contexts=("deep",), suggestion="replace")
    rules = {"*": CheckRule(suggestion="monitor"), "site.fan": CheckRule(suggestion="replace")}
    return NodeConfig(
        site_checks=(fan,), checks=rules, paths=Paths(state=str(tmp_path / "state"), syslog=False)
    )


def test_a_deep_check_tells_what_is_wrong_and_on_what(config: NodeConfig, tmp_path: Path) -> None:
    dmi = tmp_path / "root/sys/class/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "product_serial").write_text("ABC42\n")
    found = examine(config, Host(tmp_path / "root"), 1000.0)
    assert found.fit
    assert found.serials["product_serial"] == "ABC42"
    assert not found.remembered
    assert "site.fan" in {finding.check for finding in found.report.findings}
    (tmp_path / "broken").touch()
    found = examine(config, Host(tmp_path / "root"), 1000.0)
    assert not found.fit
    assert "stands still" in found.report.reason
    assert msgspec.json.decode(msgspec.json.encode(found), type=Examination) == found


def test_a_node_must_pass_the_check_that_drained_it(config: NodeConfig, tmp_path: Path) -> None:
    fan, lost = DrainCause(check="site.fan"), DrainCause(check="gpu.xid", subject="gpu3")
    file = DrainFile(Path(config.paths.state))
    file.path.parent.mkdir()
    file.save(OwnDrain(reason="srobust: x", causes=(fan, lost)))
    found = examine(config, Host(tmp_path / "root"), 1000.0)
    assert found.fit
    assert found.open == (lost,)
    assert found.remembered


def test_the_node_itself_says_which_reasons_are_ours(config: NodeConfig, tmp_path: Path) -> None:
    file = DrainFile(Path(config.paths.state))
    file.path.parent.mkdir()
    file.save(OwnDrain(reason="srobust: fan stands still", causes=(DrainCause(check="site.fan"),)))
    (tmp_path / "broken").touch()
    found = examine(config, Host(tmp_path / "root"), 1000.0)
    assert found.reasons == ("srobust: fan stands still",)
    assert found.reason == "srobust: quarantine: fan stands still"
    (tmp_path / "broken").unlink()
    found = examine(config, Host(tmp_path / "root"), 1000.0)
    assert found.reasons == ("srobust: fan stands still", "srobust: quarantine: fan stands still")
    assert found.fault == ""


def test_a_drain_that_a_hook_saw_undone_is_still_known(config: NodeConfig, tmp_path: Path) -> None:
    file = DrainFile(Path(config.paths.state))
    file.path.parent.mkdir()
    file.save(OwnDrain(former="srobust: fan stands still", causes=(DrainCause(check="site.fan"),)))
    found = examine(config, Host(tmp_path / "root"), 1000.0)
    assert found.reasons == ("srobust: fan stands still",)
