"""The channels: programs, a webhook with a real server, a stand-in for sendmail, and the fake."""

from __future__ import annotations

import email
import email.policy
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.config.notify import ChannelConfig
from slurm_robust.notify.channels import (
    ChannelFailed,
    CommandChannel,
    MailChannel,
    MessageChannel,
    WebhookChannel,
    compose_mail,
    make_channel,
    missing,
    payload,
)
from slurm_robust.notify.secrets import Secret, SecretError, from_environment, from_file
from slurm_robust.testing.fake_channel import HANGS, FakeChannel
from slurm_robust.util import proc
from tests.contracts.channel import HOSTILE, LIMIT_S, MESSAGE, SECRET, ChannelContract
from tests.unit.notify.http_server import SECRET_PATH, Server
from tests.users import as_root
from tests.waiting import wait_for

ENDINGS = {"works": "", "refuses": "echo no >&2; exit 3", "hangs": "trap '' TERM; sleep 60"}


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return str(path)


# -- the contract -------------------------------------------------------------------------------------------


class FakeWorld:
    def __init__(self) -> None:
        self._working = FakeChannel()

    def channel(self, behaviour: str) -> MessageChannel:
        if behaviour == "works":
            return self._working
        plan = HANGS if behaviour == "hangs" else ChannelFailed("it refuses", fix="ask it why")
        return FakeChannel(plan, plan)

    def received(self) -> list[str]:
        return [message.text for message in self._working.messages]


class CommandWorld:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def channel(self, behaviour: str) -> MessageChannel:
        keeps = f"cat > {self._folder}/$$.text" if behaviour == "works" else ""
        command = script(self._folder / behaviour, f"{keeps}\n{ENDINGS[behaviour]}")
        return CommandChannel((command,), str(self._folder), {**os.environ, "TOKEN": SECRET})

    def received(self) -> list[str]:
        return [path.read_text(errors="replace") for path in self._folder.glob("*.text")]


class MailWorld(CommandWorld):
    def channel(self, behaviour: str) -> MessageChannel:
        keeps = f"cat > {self._folder}/$$.text" if behaviour == "works" else ""
        sendmail = script(
            self._folder / behaviour, f'[ "$*" = "-t -i" ] || exit 9\n{keeps}\n{ENDINGS[behaviour]}'
        )
        return MailChannel(("a@example.org",), None, sendmail, str(self._folder), dict(os.environ))

    def received(self) -> list[str]:
        mails = [email.message_from_string(text, policy=email.policy.default) for text in super().received()]
        return [mail.get_content() for mail in mails if mail["To"] == "a@example.org"]


class WebhookWorld:
    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        self._file = folder / "url"
        self._file.touch(0o600)
        self._file.write_text(f"{server.address}{SECRET_PATH}{SECRET}\n")

    def channel(self, behaviour: str) -> MessageChannel:
        self._server.behaviour = behaviour
        return WebhookChannel(lambda: from_file(str(self._file)))

    def received(self) -> list[str]:
        return self._server.texts


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


class TestFake(ChannelContract):
    @pytest.fixture
    def world(self) -> FakeWorld:
        return FakeWorld()


class TestCommand(ChannelContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> CommandWorld:
        return CommandWorld(tmp_path)


class TestMail(ChannelContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> MailWorld:
        return MailWorld(tmp_path)


class TestWebhook(ChannelContract):
    @pytest.fixture
    def world(self, server: Server, tmp_path: Path) -> WebhookWorld:
        return WebhookWorld(server, tmp_path)


# -- programs -----------------------------------------------------------------------------------------------


def test_a_program_learns_the_facts_from_its_environment(tmp_path: Path) -> None:
    command = script(tmp_path / "x", f"env -0 | grep -z ^SROBUST_NOTICE_ > {tmp_path}/facts")
    CommandChannel((command,), str(tmp_path), dict(os.environ)).send(MESSAGE, LIMIT_S)
    facts = dict(line.split("=", 1) for line in (tmp_path / "facts").read_text().split("\0") if line)
    assert facts == {f"SROBUST_NOTICE_{name}": value for name, value in MESSAGE.facts.items()}
    CommandChannel((command,), str(tmp_path), dict(os.environ)).send(HOSTILE, LIMIT_S)
    assert "SROBUST_NOTICE_ID=7/a\nb?c" in (tmp_path / "facts").read_text()


def test_all_that_a_late_program_has_started_is_killed(tmp_path: Path) -> None:
    forks = (
        f"trap '' TERM; setsid bash -c 'echo $$ > {tmp_path}/far; exec sleep 60' & sleep 60 & echo $! > near"
    )
    command = script(tmp_path / "x", f"cd {tmp_path}; {forks}; wait")
    channel = CommandChannel((command,), str(tmp_path), dict(os.environ))
    with pytest.raises(ChannelFailed, match="was killed"):
        channel.send(MESSAGE, 0.4)
    pids = [int((tmp_path / name).read_text()) for name in ("near", "far")]
    wait_for(lambda: all(not is_alive(pid) for pid in pids), message="the end of what it started")


def is_alive(pid: int) -> bool:
    found = proc.read_process(pid)
    return found is not None and found.state not in proc.DEAD


def test_what_a_program_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    command = script(tmp_path / "x", f"sleep 1000 & echo $! > {tmp_path}/left; echo delivered")
    begun = time.monotonic()
    CommandChannel((command,), str(tmp_path), dict(os.environ)).send(MESSAGE, LIMIT_S)
    assert time.monotonic() - begun < 60
    os.kill(int((tmp_path / "left").read_text()), 9)


def test_a_program_may_print_without_end(tmp_path: Path) -> None:
    command = script(tmp_path / "x", "head -c 3000000 /dev/zero; echo; echo last words; exit 1")
    with pytest.raises(ChannelFailed, match=r"exit code 1: .*last words"):
        CommandChannel((command,), str(tmp_path), dict(os.environ)).send(MESSAGE, LIMIT_S)


@pytest.mark.parametrize("command", ["/gone", "/", "a\0b"])
def test_a_program_that_cannot_be_started_is_not_tried_at_once_again(command: str, tmp_path: Path) -> None:
    with pytest.raises(ChannelFailed, match="cannot be started") as found:
        CommandChannel((command,), str(tmp_path), dict(os.environ)).send(MESSAGE, LIMIT_S)
    assert found.value.failure.permanent


# -- mail ---------------------------------------------------------------------------------------------------


def test_a_subject_adds_no_header_and_is_encoded() -> None:
    raw = compose_mail(HOSTILE, ("a@example.org", "b@example.org"), "me@example.org")
    head, _, _ = raw.partition(b"\n\n")
    assert raw.isascii()
    assert b"\r" not in raw
    assert b"=?utf-8?" in head
    assert not [line for line in head.splitlines() if line.lower().startswith((b"bcc", b"cc"))]
    mail = email.message_from_bytes(raw, policy=email.policy.default)
    assert mail["To"] == "a@example.org, b@example.org"
    assert mail["From"] == "me@example.org"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert "Bcc: thief@example.org" in mail["Subject"]
    assert max(map(len, raw.splitlines())) < 998


def test_a_name_without_a_domain_is_a_local_user() -> None:
    assert b"\nTo: alice\n" in compose_mail(MESSAGE, ("alice",), None)


# -- webhooks -----------------------------------------------------------------------------------------------


def hook(server: Server, behaviour: str) -> WebhookChannel:
    server.behaviour = behaviour
    return WebhookChannel(lambda: Secret(f"{server.address}{SECRET_PATH}{SECRET}"))


def test_text_mentions_nobody() -> None:
    text = json.loads(payload(HOSTILE))["text"]
    assert text.startswith("&lt;!channel&gt; &amp; &lt;@U123&gt;")
    assert len(text) < 40_000


def test_a_server_that_wants_patience_gets_it(server: Server) -> None:
    with pytest.raises(ChannelFailed, match="HTTP 429") as found:
        hook(server, "429").send(MESSAGE, LIMIT_S)
    assert found.value.failure.retry_after_s == 30
    assert not found.value.failure.permanent


def test_a_redirect_is_not_followed(server: Server) -> None:
    with pytest.raises(ChannelFailed, match="HTTP 302") as found:
        hook(server, "redirect").send(MESSAGE, LIMIT_S)
    assert server.paths == [f"{SECRET_PATH}{SECRET}"]
    assert found.value.failure.permanent


def test_an_answer_that_does_not_end_is_read_in_part(server: Server) -> None:
    hook(server, "huge").send(MESSAGE, LIMIT_S)
    assert len(server.bodies) == 1


def test_an_answer_in_single_bytes_has_its_time(server: Server) -> None:
    begun = time.monotonic()
    with pytest.raises(ChannelFailed, match=r"within 0\.2 s"):
        hook(server, "drips").send(MESSAGE, 0.2)
    assert time.monotonic() - begun < 60


def test_a_server_that_closes_early_may_have_the_message(server: Server) -> None:
    with pytest.raises(ChannelFailed, match="no whole answer") as found:
        hook(server, "closes").send(MESSAGE, LIMIT_S)
    assert found.value.failure.unsure


def test_an_answer_that_quotes_the_secret_does_not_get_through(server: Server) -> None:
    with pytest.raises(ChannelFailed, match="HTTP 404 Not Found: no such hook") as found:
        hook(server, "echoes").send(MESSAGE, LIMIT_S)
    assert not [part for part in SECRET.split("/") if part in str(found.value)]
    assert found.value.failure.permanent


def test_a_server_that_does_not_listen_has_not_got_the_message() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/{SECRET}"
        with pytest.raises(ChannelFailed, match="no connection: Connection refused") as found:
            WebhookChannel(lambda: Secret(url)).send(MESSAGE, LIMIT_S)
    assert not found.value.failure.unsure


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "http://", "http://a b/c", "http://h:99999/", "x", "http://h\x7f/"]
)
def test_only_addresses_of_the_web_are_used(url: str) -> None:
    with pytest.raises(ChannelFailed, match="the webhook's URL is not an address") as found:
        WebhookChannel(lambda: Secret(url)).send(MESSAGE, LIMIT_S)
    assert url == "http://" or url not in str(found.value)


def test_many_that_hang_are_not_joined_by_more(server: Server) -> None:
    channel = hook(server, "drips")
    for _ in range(4):
        with pytest.raises(ChannelFailed, match="within"):
            channel.send(MESSAGE, 0.05)
    with pytest.raises(ChannelFailed, match="4 earlier messages still hang"):
        channel.send(MESSAGE, 0.05)


# -- secrets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_read_or_write_is_no_secret(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "url"
    path.write_text(SECRET)
    path.chmod(mode)
    with pytest.raises(SecretError, match="can be read or written by others") as found:
        from_file(str(path))
    assert found.value.fix.startswith(f"chmod 600 {path}")


def test_a_file_is_one_line_of_this_users_own(tmp_path: Path) -> None:
    path = tmp_path / "url"
    for content in (b"", b"a\nb\n", b"\xff\xfe" + SECRET.encode(), b"x" * 10_000):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(SecretError, match="does not hold one line") as found:
            from_file(str(path))
        assert SECRET not in repr(found.value)
        assert found.value.__cause__ is None
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "pipe", "gone", "."):
        with pytest.raises(SecretError, match="cannot be read"):
            from_file(str(tmp_path / name))


@as_root
def test_a_file_of_somebody_else_is_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "url"
    path.touch(0o600)
    os.chown(path, 12345, 12345)
    with pytest.raises(SecretError, match="belongs to uid 12345"):
        from_file(str(path))


def test_a_secret_shows_itself_to_nobody() -> None:
    secret = from_environment("URL", {"URL": f"https://example.org/{SECRET}?key=0123456789 "})
    assert SECRET not in f"{secret} {secret!r} {[secret]}"
    assert secret.hide(f"x {secret.reveal()} T0SECRET key=0123456789") == "x (hidden) (hidden) (hidden)"
    with pytest.raises(SecretError, match="URL is not set"):
        from_environment("URL", {})


def test_what_a_channel_lacks_is_known_before_it_is_needed(tmp_path: Path) -> None:
    script(tmp_path / "here", "")
    environ = {"PATH": "/usr/bin:/bin", "HOOK": "https://example.org/"}
    lacks = {
        "there is no program ./gone": ChannelConfig(name="a", command=("./gone",)),
        "there is no program gone": ChannelConfig(name="a", mail=("a@b",), sendmail="gone"),
        "cannot be read": ChannelConfig(name="a", url_file="gone"),
        "GONE is not set": ChannelConfig(name="a", url_env="GONE"),
    }
    for words, config in lacks.items():
        assert words in missing(config, str(tmp_path), environ)
    for config in (
        ChannelConfig(name="a", command=("./here",)),
        ChannelConfig(name="a", mail=("a@b",), sendmail="cat"),
        ChannelConfig(name="a", url_env="HOOK"),
        ChannelConfig(name="a", url="https://example.org/"),
    ):
        assert missing(config, str(tmp_path), environ) == ""


def test_a_configuration_makes_the_channel(tmp_path: Path, server: Server) -> None:
    path = tmp_path / "url"
    path.touch(0o600)
    path.write_text(f"{server.address}/{SECRET}")
    url = f"{server.address}/relay"
    configs = (
        ChannelConfig(name="a", url_file="url"),
        ChannelConfig(name="b", url_env="HOOK"),
        ChannelConfig(name="c", url=url),
        ChannelConfig(name="d", command=("./keep",)),
        ChannelConfig(name="e", mail=("a@b",), sendmail="./keep"),
    )
    script(tmp_path / "keep", "cat >> kept")
    for config in configs:
        make_channel(config, str(tmp_path), {**os.environ, "HOOK": url}).send(MESSAGE, LIMIT_S)
    assert server.paths == [f"/{SECRET}", "/relay", "/relay"]
    assert (tmp_path / "kept").read_text().count("next: srobust status 7") == 2
