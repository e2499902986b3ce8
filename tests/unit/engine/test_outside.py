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


def test_where_files_are_that_were_created_in_a_copy_is_in_the_log() -> None:
    sim = trained(2)
    there(sim.nodes["n2"].agent).tell("files are now elsewhere")
    sim.run(0.5)
    assert [event.node for event in sim.events(ev.Noted) if event.text == "files are now elsewhere"] == ["n2"]
    assert sim.said.count("files are now elsewhere") == 1
