"""What a test needs to be there, for type checkers and for a failure that says so."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def there(value: T | None) -> T:
    """Return ``value``, which is not None."""
    assert value is not None
    return value
