"""The section ``notify`` of a job's configuration: who is told what. Times are in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta

from slurm_robust.config.section import SECRET, Contradiction, Folder, Positive, Seconds, Section
from slurm_robust.model.notice import NoticeKind, Severity
from slurm_robust.util.text import without_urls

_NonEmpty = Annotated[str, Meta(min_length=1, title="a string that is not empty")]
_MARKS = str.maketrans("", "", "._-")
_SECRET_HOSTS = ("hooks.slack.com", "discord.com", "discordapp.com", "webhook.office.com", "logic.azure.com")
_MAX_TIMEOUT_S = 60.0
_KINDS = tuple(NoticeKind)


class ChannelConfig(Section):
    """A way to tell people: a program (``command``), a webhook (``url_file``, ``url_env`` or ``url``), or
    mail (``mail``); exactly one of them."""

    name: _NonEmpty
    """Name in messages, letters, digits and ``. _ -``."""

    command: Annotated[tuple[_NonEmpty, ...], Meta(examples=[["/home/me/bin/page"]])] = ()
    """Program and its arguments. It gets the text on standard input and facts in ``SROBUST_NOTICE_*``. Exit
    code 0 means that the message was delivered."""

    url_file: Annotated[Folder | None, Meta(title="the name of a file, or null")] = None
    """File that holds the webhook's URL and nothing else. It must be yours and closed to others (``chmod
    600``)."""

    url_env: Annotated[_NonEmpty | None, Meta(title="the name of an environment variable, or null")] = None
    """Environment variable of the batch script that holds the webhook's URL."""

    url: Annotated[_NonEmpty | None, Meta(title="a URL without a secret, or null", extra={SECRET: True})] = (
        None
    )
    """The webhook's URL, if it holds no secret (a relay of the site)."""

    mail: Annotated[tuple[_NonEmpty, ...], Meta(examples=[["me@example.org"]])] = ()
    """Addresses of mail."""

    mail_from: _NonEmpty | None = None
    """Sender's address. ``null``: as ``sendmail`` sets it."""

    sendmail: _NonEmpty = "/usr/sbin/sendmail"
    """Program that takes mail like sendmail(8), on the node of the controller."""

    on: tuple[NoticeKind, ...] | None = None
    """Kinds of notices for this channel. ``null``: those of ``notify.on``."""

    min_severity: Severity | None = None
    """Least severity for this channel. ``null``: that of ``notify.min_severity``."""

    timeout_s: Seconds = 10.0
    """Time limit of one message, 60 at most. A program that takes longer is killed with all that it has
    started."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield what makes a channel impossible to name or to use."""
        if not (self.name.isascii() and self.name.translate(_MARKS).isalnum()):
            yield Contradiction(
                keys=("name",), text=f"name is {_shown(self.name)}", fix="use letters, digits and . _ -"
            )
        ways = [key for key in ("command", "url_file", "url_env", "url", "mail") if getattr(self, key)]
        if len(ways) != 1:
            text = f"channel {_shown(self.name)} has {' and '.join(ways) or 'no way to send anything'}"
            fix = "give exactly one of command, url_file, url_env, url and mail"
            yield Contradiction(keys=("name",), text=text, fix=fix)
        if self.timeout_s > _MAX_TIMEOUT_S:
            text = f"timeout_s is {self.timeout_s:g}"
            yield Contradiction(
                keys=("timeout_s",), text=text, fix=f"write a number up to {_MAX_TIMEOUT_S:g}"
            )
        for key in ("mail", "mail_from"):
            addresses = self.mail if key == "mail" else filter(None, (self.mail_from,))
            if any(not _is_address(address) for address in addresses):
                text = f"{key} holds what is no address"
                yield Contradiction(keys=(key,), text=text, fix="write addresses like me@example.org")
        if self.url is not None and (why := _unfit(self.url)):
            fix = "write the URL to a file of yours, chmod 600 it, and name it as url_file"
            yield Contradiction(keys=("url",), text=f"url {why}", fix=fix)


class NotifyConfig(Section):
    """Notifications of a job's incidents, its end and its standbys. See
    [notifications](watching.md#notifications)."""

    channels: Annotated[
        tuple[ChannelConfig, ...], Meta(examples=[[{"name": "mail", "mail": ["me@example.org"]}]])
    ] = ()
    """Channels to which notices are sent. None by default."""

    on: tuple[NoticeKind, ...] = _KINDS
    """Kinds of notices."""

    min_severity: Severity = Severity.INFO
    """Least severity."""

    per_hour: Positive = 20
    """Messages of a channel within any 3600 s. What exceeds it waits and goes into one message, which says
    how many notices it leaves out. The last one is kept for what is critical."""

    batch_s: Annotated[float, Meta(ge=0, le=600, title="a number of seconds from 0 to 600")] = 10.0
    """Notices within this time go into one message."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield names that two channels share."""
        names = [channel.name for channel in self.channels]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield Contradiction(
                    keys=(f"channels.{index}.name",),
                    text=f"two channels have the name {_shown(name)}",
                    fix="give each a name of its own",
                )


def url_problem(url: str) -> str:
    """Return what is wrong with a webhook's URL, without showing it; "" if nothing is."""
    return "is not an address that begins with http:// or https://" if _split(url) is None else ""


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL that can be used."""
    if not url.isascii() or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def _unfit(url: str) -> str:
    """Return why a URL must not stand in a configuration."""
    parts = _split(url)
    if parts is None:
        return url_problem(url)
    host = parts.hostname or ""
    known = any(host == one or host.endswith(f".{one}") for one in _SECRET_HOSTS)
    return "holds a secret" if known or parts.username or parts.password or parts.query else ""


def _shown(name: str) -> str:
    return without_urls(repr(name))


def _is_address(text: str) -> bool:
    """Return whether it is one address and nothing else: a header must not get another line or recipient."""
    name, at, domain = text.rpartition("@")
    plain = text.isascii() and text.isprintable() and not set(text) & set(' ,;:<>()[]\\"')
    return plain and not text.startswith("-") and bool((name and domain) or not at)
