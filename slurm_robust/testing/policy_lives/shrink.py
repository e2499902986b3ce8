"""Makes a spec that fails as small as it gets, and writes it as YAML. Pure, but for what it is tried with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec
import yaml

from slurm_robust.simulator.spec import FaultSource, Spec

Fails = Callable[[Spec], bool]
_Path: TypeAlias = tuple[str | int, ...]

MOST_TRIES = 1000
"""After this many specs the smallest one so far is the answer."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_KIND, _RATE = "kind", "rate"


def shrunk(spec: Spec, fails: Fails, most: int = MOST_TRIES) -> Spec:
    """Return the smallest spec that was found for which ``fails`` still holds.

    Sources of faults are left out, keys get their defaults, and numbers get smaller, as long as it fails.
    """
    smallest, before, tries = as_plain(spec), dict[str, Any](), 0
    while smallest != before:
        before = smallest
        for path in _paths(before):
            for candidate in _simpler(smallest, path):
                if tries == most:
                    return as_spec(smallest)
                tries += 1
                if _is_spec(candidate) and fails(as_spec(candidate)):
                    smallest = candidate
                    break
    return as_spec(smallest)


def as_yaml(spec: Spec) -> str:
    """Return the keys of ``spec`` that are no defaults, as a file that can be read again."""
    return yaml.safe_dump(as_plain(spec), sort_keys=False, allow_unicode=True, width=100)


def as_plain(spec: Spec) -> dict[str, Any]:
    """Return the keys of ``spec`` that are no defaults."""
    found = _differing(msgspec.to_builtins(spec), msgspec.to_builtins(Spec()))
    if spec.faults:
        found["faults"] = [
            {_KIND: one.kind.value}
            | _differing(msgspec.to_builtins(one), msgspec.to_builtins(FaultSource(kind=one.kind)))
            for one in spec.faults
        ]
    return found


def as_spec(plain: dict[str, Any]) -> Spec:
    """Return the spec of :func:`as_plain`."""
    return msgspec.convert(plain, Spec)


def _is_spec(plain: dict[str, Any]) -> bool:
    try:
        as_spec(plain)
    except msgspec.ValidationError:
        return False
    return True


def _differing(plain: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in plain.items():
        known = default[key]
        if isinstance(value, dict) and isinstance(known, dict):
            if parts := _differing(value, known):
                found[key] = parts
        elif value != known:
            found[key] = list(value) if isinstance(value, tuple) else value
    return found


def _paths(value: Any, path: _Path = ()) -> list[_Path]:
    """Return the places of all parts of ``value``, large ones first.

    Of a list the last ones come first: when one is left out, the places of the others stay.
    """
    return sorted(_parts(value, path), key=lambda place: (len(place), _is_small(place)))


def _is_small(place: _Path) -> bool:
    return place[0] != "faults"


def _parts(value: Any, path: _Path) -> Iterator[_Path]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _parts(part, (*path, key))
    elif isinstance(value, list):
        for place in reversed(range(len(value))):
            yield from _parts(value[place], (*path, place))


def _simpler(whole: dict[str, Any], path: _Path) -> Iterator[dict[str, Any]]:
    """Yield ``whole`` with something simpler at ``path``, which may be gone; nothing there comes first."""
    try:
        here: Any = whole
        for key in path:
            here = here[key]
    except LookupError:
        return
    if path[-1] not in (_KIND, _RATE):
        yield _changed(whole, path, ())
    yield from (_changed(whole, path, (less,)) for less in _less(here))


def _changed(value: Any, path: _Path, part: tuple[Any, ...]) -> Any:
    """Return ``value`` with the one of ``part`` at ``path``, or without what is there."""
    key, rest = path[0], path[1:]
    new = (_changed(value[key], rest, part),) if rest else part
    if isinstance(value, list):
        assert isinstance(key, int)
        return [*value[:key], *new, *value[key + 1 :]]
    return {one: new[0] if one == key else kept for one, kept in value.items() if one != key or new}


def _less(value: Any) -> Iterator[Any]:
    """Yield simpler values than a number, a time or a rate."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield from dict.fromkeys(less for less in (1, value // 2, value - 1) if 0 < less < value)
    found = _NUMBER.match(value) if isinstance(value, str) else None
    if found is None:
        return
    number = float(found[0])
    for less in (number / 4, number / 2, number):
        text = f"{less:.1g}" if less < 10 else f"{float(f'{less:.1g}'):.0f}"
        if 0.0 < float(text) <= number and text != found[0]:
            yield text + value[found.end() :]
