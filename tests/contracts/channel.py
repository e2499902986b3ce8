"""The contract of Channel as tests: programs, webhooks, mail and the fake must all pass it.

Derive a class from :class:`ChannelContract` in a pytest module and give it a fixture ``world``.
"""

from __future__ import annotations

import time
from typing import Protocol

import pytest

from slurm_robust.notify.channels import ChannelFailed, MessageChannel
from slurm_robust.notify.message import Message

SECRET = "T0SECRET/B0SECRET/abcdefghijklmnop"
MESSAGE = Message(
    subject="srobust: job 7: something",
    text="srobust: job 7\n10:50:00 warning: a <b> & c\n.\nnext: srobust status 7",
    facts={"ID": "7/incident/1", "JOB": "7", "SEVERITY": "warning", "KIND": "incident"},
)
HOSTILE = Message(
    subject="a\r\nBcc: thief@example.org\r\n\r\nbody \x1b[31m ünïcode 世界 \udcff" + "x" * 2000,
    text="<!channel> & <@U123> \x00 \udcff 世界\n.\nFrom here\n" + "y" * 100_000,
    facts={"ID": "7/a\nb\0c", "SEVERITY": "warning"},
)
LIMIT_S = 10.0


class ChannelWorld(Protocol):
    """Makes channels to an other side that the test decides."""

    def channel(self, behaviour: str) -> MessageChannel:
        """One whose other side ``works``, ``refuses``, or ``hangs``."""
        ...

    def received(self) -> list[str]:
        """The texts that arrived at working channels, in order."""
        ...


class ChannelContract:
    """What everybody relies on who sends messages."""

    def test_a_message_arrives_with_all_its_lines(self, world: ChannelWorld) -> None:
        world.channel("works").send(MESSAGE, LIMIT_S)
        (text,) = world.received()
        assert [line for line in MESSAGE.text.splitlines() if line not in text] == []

    def test_hostile_text_arrives_too(self, world: ChannelWorld) -> None:
        world.channel("works").send(HOSTILE, LIMIT_S)
        (text,) = world.received()
        assert "世界" in text
        assert "thief" not in text

    def test_a_refusal_is_an_error_with_its_fix(self, world: ChannelWorld) -> None:
        with pytest.raises(ChannelFailed) as found:
            world.channel("refuses").send(MESSAGE, LIMIT_S)
        assert str(found.value)
        assert found.value.failure.fix
        assert not found.value.failure.unsure

    def test_a_channel_that_hangs_has_failed_after_its_time(self, world: ChannelWorld) -> None:
        begun = time.monotonic()
        with pytest.raises(ChannelFailed, match=r"within 0\.1 s") as found:
            world.channel("hangs").send(MESSAGE, 0.1)
        assert 0.1 <= time.monotonic() - begun < 60
        assert found.value.failure.unsure

    def test_a_channel_that_failed_can_be_used_again(self, world: ChannelWorld) -> None:
        channel = world.channel("refuses")
        for _ in range(2):
            with pytest.raises(ChannelFailed):
                channel.send(MESSAGE, LIMIT_S)
        world.channel("works").send(MESSAGE, LIMIT_S)
        assert len(world.received()) == 1

    def test_no_error_holds_the_secret(self, world: ChannelWorld) -> None:
        for behaviour, limit_s in (("refuses", LIMIT_S), ("hangs", 0.1)):
            with pytest.raises(ChannelFailed) as found:
                world.channel(behaviour).send(MESSAGE, limit_s)
            error = found.value
            told = f"{error} {error!r} {error.failure.fix} {error.__cause__!r}"
            assert not [part for part in SECRET.split("/") if part in told]
