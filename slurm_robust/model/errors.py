"""The base of every error that a person may meet."""

from __future__ import annotations


class SrobustError(Exception):
    """An error that is reported in one message without a traceback.

    A class has the ``exit_code`` and the ``fix`` of most of its errors; one error may have its own.
    """

    exit_code: int = 1
    """Exit code of ``srobust`` when nothing handles the error."""

    fix: str = ""
    """What the reader can do about it; "" when there is nothing to do."""

    def __init__(self, text: str = "", *, fix: str | None = None, code: int | None = None) -> None:
        super().__init__(text)
        if fix is not None:
            self.fix = fix
        if code is not None:
            self.exit_code = code

    def in_full(self) -> str:
        """The message, and the fix where the message does not hold it."""
        return f"{self}\n  fix: {self.fix}" if self.fix and self.fix not in str(self) else str(self)
