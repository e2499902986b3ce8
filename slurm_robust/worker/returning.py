"""What is still to be done when the script has returned without an error, before its threads end."""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)

_calls: list[Callable[[], None]] = []


def when_returned(call: Callable[[], None]) -> Callable[[], None]:
    """Have ``call`` called then; returns what takes that back, which may be called again."""
    _calls.append(call)

    def forget() -> None:
        if call in _calls:
            _calls.remove(call)

    return forget


def returned() -> None:
    """Call all, the last one first. What one raises is logged: the training is done."""
    for call in reversed(_calls):
        try:
            call()
        except Exception:  # noqa: BLE001 - whatever a script's objects raise
            _log.exception("the end of the script is not as it should be")
