"""Code that ranks read from its place, not from their release, is named once."""

from __future__ import annotations

from slurm_robust.model import events as ev
from slurm_robust.testing.sim.job import Sim
from tests.there import there
from tests.unit.engine.stories import trained


def tell(sim: Sim, node: str, *files: str) -> None:
    there(sim.nodes[node].agent).tell_outside(*files)
    sim.run(0.5)


def test_code_that_an_update_does_not_change_is_named_once_with_the_way_out() -> None:
    sim = trained(2)
    tell(sim, "n1", "configurator.py", "conf/a.yaml")
    tell(sim, "n1", "configurator.py", "conf/a.yaml")
    tell(sim, "n2", "configurator.py", "conf/a.yaml")
    text = (
        "configurator.py, conf/a.yaml: read from its place, not from the release: an update does not change "
        "it until you set code.workdir: release"
    )
    assert [event.text for event in sim.events(ev.Noted) if "read from" in event.text] == [text]
    assert sim.said.count(text) == 1
