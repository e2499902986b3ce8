"""A node that a running job gives back is idle while its epilog tests it: the next prolog waits."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from slurm_robust.config.node import NodeConfig, Paths
from slurm_robust.hooks import hook
from slurm_robust.hooks.record import DrainFile, OwnDrain
from slurm_robust.hooks.sweep import Swept
from slurm_robust.hooks.undertest import under_test, wait_for_test
from slurm_robust.kernel.host import Host
from tests.unit.hooks.test_hook import ACT, Machine


def test_nothing_is_waited_for_on_a_node_that_is_not_tested(tmp_path: Path) -> None:
    assert not wait_for_test(tmp_path / "none", 600)
    with under_test(tmp_path):
        pass
    assert not wait_for_test(tmp_path, 600)


def test_the_end_of_the_test_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    waited: list[bool] = []
    with under_test(tmp_path):
        assert wait_for_test(tmp_path, 0.05)
        prolog = threading.Thread(target=lambda: waited.append(wait_for_test(tmp_path, 600)))
        prolog.start()
        prolog.join(0.2)
        assert prolog.is_alive()
    prolog.join(60)
    assert waited == [True]


@pytest.mark.slow
@pytest.mark.parametrize(("reason", "code"), [("", 0), ("srobust: core is broken", 1)])
def test_a_prolog_refuses_the_node_if_the_test_has_drained_it(tmp_path: Path, reason: str, code: int) -> None:
    machine = Machine(tmp_path)
    machine.configure(ACT, prolog_s=8)
    state = tmp_path / "state"
    with under_test(state):
        DrainFile(state).save(OwnDrain(reason=reason))
        assert machine.run("prolog") == code
    assert reason in machine.errors


def test_an_epilog_holds_the_next_prolog_from_its_first_act_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []

    def look(*_: object) -> Swept:
        held.append(wait_for_test(tmp_path, 0.01))
        return Swept()

    config = NodeConfig(paths=Paths(state=str(tmp_path), log=str(tmp_path / "log"), syslog=False))
    run = hook._HookRun(hook.Hook.EPILOG, config, {"SLURMD_NODENAME": "n1"}, 3.0, Host(tmp_path))
    monkeypatch.setattr(hook, "sweep_job", look)
    monkeypatch.setattr(run, "_test", look)
    run.epilog(tmp_path)
    assert held == [True, False], "while it sweeps; not where there is no suspect"
