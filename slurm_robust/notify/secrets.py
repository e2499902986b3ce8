"""The one reader of secrets: the URLs of webhooks, from a file of the user's or from the environment.

Nothing but :class:`Secret` passes them on, and that shows its value only to code that asks for it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping

from slurm_robust.util.ours import open_ours

_MAX_BYTES = 8192
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MIN_PART = 8  # characters of a secret that say anything


class SecretError(Exception):
    """There is no secret to use; the message says why, without it. ``fix``: what to do."""

    def __init__(self, text: str, fix: str) -> None:
        super().__init__(text)
        self.fix = fix


class Secret:
    """A text that no log, error or journal gets: only :meth:`reveal` has it."""

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the text itself."""
        return self._value

    def hide(self, text: str) -> str:
        """Return ``text`` without the secret or a part of it between slashes, as an answer may quote it."""
        parts = [self._value, *self._value.replace("?", "/").replace("&", "/").split("/")]
        for part in sorted(parts, key=len, reverse=True):
            if len(part) >= _MIN_PART:
                text = text.replace(part, "(hidden)")
        return text

    def __repr__(self) -> str:
        return "Secret()"


Source = Callable[[], Secret]
"""Reads a secret anew each time: it may be changed while the job runs. Raises :class:`SecretError`."""


def from_file(path: str) -> Secret:
    """Return the one line of a file. Raises :class:`SecretError` unless it is this user's alone."""
    path = os.path.expanduser(path)
    try:
        with os.fdopen(open_ours(path), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & _OTHERS:
                text = f"{path} can be read or written by others (mode {stat.S_IMODE(mode):o})"
                raise SecretError(text, f"chmod 600 {path}, and make a new secret")
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror or error}"
        raise SecretError(text, f"write the URL to {path} and chmod 600 it") from error
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        text = ""  # the error would show it
    if not text or "\n" in text or len(content) > _MAX_BYTES:
        raise SecretError(f"{path} does not hold one line of text", f"write the URL to {path}, and only that")
    return Secret(text)


def from_environment(name: str, environ: Mapping[str, str]) -> Secret:
    """Return the value of a variable. Raises :class:`SecretError`."""
    if not (value := environ.get(name, "").strip()):
        fix = f"export {name} in the batch script, before 'srobust run'"
        raise SecretError(f"the environment variable {name} is not set", fix)
    return Secret(value)
