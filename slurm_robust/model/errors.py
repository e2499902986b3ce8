"""The base of every error that a person may meet."""

from __future__ import annotations


class SrobustError(Exception):
    """An error that is told in one message without a traceback.

    ``exit_code`` is the exit code of ``srobust`` when nothing handles it; ``fix`` says in words what
    the reader can do about it (empty when there is nothing to say).
    """

    exit_code: int = 1
    fix: str = ""

    def in_full(self) -> str:
        """The message, and the fix where the message does not hold it."""
        return f"{self}\n  fix: {self.fix}" if self.fix and self.fix not in str(self) else str(self)
