"""The ways to tell people: a program, a webhook, mail. One protocol, and errors that hold no secret."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from slurm_robust.config.notify import ChannelConfig, url_problem
from slurm_robust.model.exits import signal_name
from slurm_robust.notify.courier import SendFailure
from slurm_robust.notify.message import Message
from slurm_robust.notify.secrets import Secret, SecretError, Source, from_environment, from_file
from slurm_robust.util.program import run_program
from slurm_robust.util.text import one_line
from slurm_robust.util.threads import BackgroundCall

_MAX_ANSWER = 64 << 10
_MAX_SAID = 200  # characters of what a program or a server says, in an error
_MAX_TEXT = 30_000  # characters; Slack takes 40,000
_MAX_STUCK = 4

Environ = Mapping[str, str]


class ChannelFailed(Exception):
    """The message was, it seems, not sent. Neither text nor fix holds a secret."""

    def __init__(self, text: str, **more: Any) -> None:
        """Take ``more`` of the fields of :class:`SendFailure`."""
        super().__init__(text)
        self.failure = SendFailure(text="", **more)


class MessageChannel(Protocol):
    """Sends messages to people."""

    def send(self, message: Message, timeout_s: float) -> None:
        """Send one message. Raises :class:`ChannelFailed`.

        Returns or raises within ``timeout_s`` seconds and two more, whatever the other side does.
        """
        ...


def attempt(channel: MessageChannel, message: Message, timeout_s: float) -> SendFailure | None:
    """Send one message; None if it was sent. Raises nothing."""
    try:
        channel.send(message, timeout_s)
    except ChannelFailed as error:
        return replace(error.failure, text=one_line(str(error)))
    except Exception as error:  # noqa: BLE001  # a defect of a channel costs its messages, not those of others
        # Its text may hold anything, a secret too.
        return SendFailure(text=f"{type(error).__name__} in the channel itself", unsure=True)
    return None


def make_channel(config: ChannelConfig, cwd: str, environ: Environ) -> MessageChannel:
    """Return the channel of a configuration. ``cwd``: files and programs are relative to it."""
    if config.command:
        return CommandChannel(config.command, cwd, environ)
    if config.mail:
        return MailChannel(config.mail, config.mail_from, config.sendmail, cwd, environ)
    return WebhookChannel(_source(config, cwd, environ))


def missing(config: ChannelConfig, cwd: str, environ: Environ) -> str:
    """Return what a channel lacks on this node, with the fix, before there is anything to send; "" if
    nothing.
    """
    if config.command or config.mail:
        program = config.command[0] if config.command else config.sendmail
        path = os.path.join(cwd, program) if "/" in program else program
        there = shutil.which(path, path=environ.get("PATH"))
        return "" if there else f"there is no program {one_line(program)} on this node"
    try:
        _source(config, cwd, environ)()
    except SecretError as error:
        return f"{error}; {error.fix}"
    return ""


def _source(config: ChannelConfig, cwd: str, environ: Environ) -> Source:
    if config.url_file is not None:
        path = os.path.join(cwd, os.path.expanduser(config.url_file))
        return lambda: from_file(path)
    if (name := config.url_env) is not None:
        return lambda: from_environment(name, environ)
    url = config.url or ""
    return lambda: Secret(url)


# -- programs -----------------------------------------------------------------------------------------------


class CommandChannel:
    """A program that gets the text on standard input, and facts in its environment."""

    def __init__(self, command: Sequence[str], cwd: str, environ: Environ) -> None:
        self._command = tuple(command)
        self._cwd = cwd
        self._environ = dict(environ)

    def send(self, message: Message, timeout_s: float) -> None:
        """Run the program to its end; it and what it has started are killed when its time is over."""
        facts = {f"SROBUST_NOTICE_{name}": value.replace("\0", "?") for name, value in message.facts.items()}
        text = f"{message.text}\n".encode(errors="replace")
        _run(self._command, text, self._cwd, {**self._environ, **facts}, timeout_s)


class MailChannel:
    """Mail by ``sendmail -t``. sendmail queues it: what it accepts may still not arrive."""

    def __init__(
        self, to: Sequence[str], sender: str | None, sendmail: str, cwd: str, environ: Environ
    ) -> None:
        self._to = tuple(to)
        self._sender = sender
        self._command = (sendmail, "-t", "-i")  # -i: a line with a single dot is no end
        self._cwd = cwd
        self._environ = dict(environ)

    def send(self, message: Message, timeout_s: float) -> None:
        """Hand one mail over."""
        mail = compose_mail(message, self._to, self._sender)
        _run(self._command, mail, self._cwd, self._environ, timeout_s)


def compose_mail(message: Message, to: Sequence[str], sender: str | None) -> bytes:
    """Return the mail as sendmail reads it, lines ending in LF. Headers are encoded by RFC 2047."""
    mail = EmailMessage(policy=SMTP.clone(linesep="\n"))
    mail["Subject"] = one_line(message.subject).encode(errors="replace").decode()
    mail["To"] = ", ".join(to)  # checked with the configuration: addresses and nothing else
    if sender is not None:
        mail["From"] = sender
    mail["Date"] = formatdate(localtime=True)
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no absence note answers it
    for name in ("ID", "SEVERITY", "KIND"):
        if value := message.facts.get(name):
            mail[f"X-Srobust-{name.title()}"] = one_line(value).encode(errors="replace").decode()
    mail.set_content(message.text.encode(errors="replace").decode() + "\n", cte="quoted-printable")
    return bytes(mail)


def _run(command: Sequence[str], text: bytes, cwd: str, env: Environ, timeout_s: float) -> None:
    """Run a program with ``text`` as its input. Raises :class:`ChannelFailed`."""
    name = one_line(command[0])
    try:
        code, said, _ = run_program(
            command, limit_s=timeout_s, max_bytes=_MAX_SAID, env=env, cwd=cwd, stdin=text, merge=True
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its arguments hold a null character"
        fix = f"check that {name} is there and executable on the node of the controller"
        raise ChannelFailed(f"{name} cannot be started: {why}", fix=fix, permanent=True) from error
    words = f": {text_}" if (text_ := one_line(said.decode(errors="replace"), _MAX_SAID)) else ""
    if code is None:
        late = f"{name} did not end within {timeout_s:g} s and was killed{words}"
        raise ChannelFailed(late, fix="see why it hangs, or set timeout_s higher", unsure=True)
    if code != 0:
        how = f"exit code {code}" if code > 0 else signal_name(-code)
        raise ChannelFailed(f"{name}: {how}{words}", fix=f"run {name} by hand")


# -- webhooks -----------------------------------------------------------------------------------------------


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """No other host gets what was meant for the URL that the user gave."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class WebhookChannel:
    """A POST of ``{"text": …}``, as Slack, Mattermost, Rocket.Chat and others take it."""

    def __init__(self, url: Source) -> None:
        self._url = url
        self._stuck: list[BackgroundCall[None]] = []

    def send(self, message: Message, timeout_s: float) -> None:
        """Post one message. Redirects are not followed, and what is answered is read in part only."""
        self._stuck = [call for call in self._stuck if not call.done]
        if len(self._stuck) >= _MAX_STUCK:
            fix = "check the network, the name servers and the proxy of the controller's node"
            raise ChannelFailed(f"{len(self._stuck)} earlier messages still hang", fix=fix)
        # A name server may hang longer than any time limit of a socket, and a server may send byte by byte.
        call = BackgroundCall("webhook", partial(self._send, message, timeout_s))
        if not call.wait(timeout_s):
            self._stuck.append(call)
            raise _late(timeout_s)
        call.result(0.0)

    def _send(self, message: Message, timeout_s: float) -> None:
        try:
            url = self._url()
        except SecretError as error:
            raise ChannelFailed(str(error), fix=error.fix, permanent=True) from None
        if problem := url_problem(url.reveal()):
            raise ChannelFailed(f"the webhook's URL {problem}", fix="write the URL anew", permanent=True)
        try:
            _post(url.reveal(), payload(message), timeout_s)
        except ChannelFailed as error:
            error.args = (url.hide(str(error)),)
            raise
        except Exception as error:  # noqa: BLE001 - its text may hold the URL
            text = url.hide(one_line(f"{type(error).__name__}: {error}", _MAX_SAID))
            raise ChannelFailed(text, fix=_REACH) from None


_REACH = "check that the controller's node reaches the server (https_proxy in the batch script?)"


def payload(message: Message) -> bytes:
    """Return the JSON that is posted. ``&``, ``<``, ``>`` are escaped, so that Slack mentions no user."""
    whole = message.text.encode(errors="replace").decode()
    text = whole.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if len(text) > _MAX_TEXT:
        text = re.sub(r"&[a-z]*$", "", text[:_MAX_TEXT]) + "…"
    return json.dumps({"text": text}).encode()


def _post(url: str, body: bytes, timeout_s: float) -> None:
    """Post it. Raises :class:`ChannelFailed`, ``OSError``, ``HTTPException``, ``ValueError``."""
    until = time.monotonic() + timeout_s
    headers = {"Content-Type": "application/json", "User-Agent": "slurm_robust"}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            _drain(answer, until)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(error, _drain(error, until)) from None
    except urllib.error.URLError as error:
        reason = error.reason
        why = reason.strerror if isinstance(reason, OSError) and reason.strerror else reason
        if isinstance(reason, TimeoutError):
            raise _late(timeout_s) from None
        raise ChannelFailed(one_line(f"no connection: {why}"), fix=_REACH) from None
    except TimeoutError:
        raise _late(timeout_s) from None
    except (http.client.HTTPException, ConnectionError) as error:
        what = one_line(str(error) or type(error).__name__, _MAX_SAID)
        raise ChannelFailed(f"the server gave no whole answer: {what}", fix=_REACH, unsure=True) from None


def _late(timeout_s: float) -> ChannelFailed:
    return ChannelFailed(f"no answer within {timeout_s:g} s", fix=_REACH, unsure=True)


def _drain(answer: Any, until: float) -> bytes:
    """Return the beginning of the answer that comes in time."""
    found = b""
    with suppress(OSError, http.client.HTTPException):
        while len(found) < _MAX_ANSWER and time.monotonic() < until:
            part = answer.read1(8192)
            if not part:
                break
            found += part
    return found


def _refused(error: urllib.error.HTTPError, body: bytes) -> ChannelFailed:
    said = one_line(body.decode(errors="replace"), _MAX_SAID)
    text = one_line(f"HTTP {error.code} {error.reason}") + (f": {said}" if said else "")
    if error.code == http.HTTPStatus.TOO_MANY_REQUESTS or error.code == http.HTTPStatus.SERVICE_UNAVAILABLE:
        after = error.headers.get("Retry-After", "") if error.headers else ""
        wait_s = float(after) if after.isascii() and after.isdecimal() and len(after) < _DIGITS else 0.0
        return ChannelFailed(text, fix="lower notify.per_hour", retry_after_s=wait_s)
    if 300 <= error.code < 400:
        fix = "give the URL to which it leads: redirects are not followed"
        return ChannelFailed(text, fix=fix, permanent=True)
    if 400 <= error.code < 500:
        return ChannelFailed(text, fix="check the webhook's URL; it may have been revoked", permanent=True)
    return ChannelFailed(text, fix="the server has trouble; it is tried again")


_DIGITS = 7
