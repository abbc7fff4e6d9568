"""The first difference between two records, in words that fit a small table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen

AROUND = 3


@frozen
class Difference:
    """What differs first: in which step, what was recorded, and what was seen instead."""

    step: int
    what: str
    expected: str
    seen: str


def first_difference(step: int, when: str, expected: Any, seen: Any) -> Difference | None:
    """Compare two records of one class field by field; None if they are equal."""
    for field in attrs.fields(type(expected)):
        one, other = getattr(expected, field.name), getattr(seen, field.name)
        if one != other:
            where, left, right = next(_parts(one, other))
            heading = field.name.replace("_", " ")
            return Difference(step, f"{heading}{where}, {when}", left, right)
    return None


def _parts(expected: Any, seen: Any) -> Iterator[tuple[str, str, str]]:
    """Yield where two values differ, and how they read there."""
    if isinstance(expected, Mapping):
        for key in sorted(expected.keys() | seen.keys()):
            if key not in expected or key not in seen:
                yield f" of {key}", _entry(expected, key), _entry(seen, key)
            else:
                found = _parts(expected[key], seen[key])
                yield from ((f" of {key}{where}", a, b) for where, a, b in found)
    elif expected != seen:
        yield _unequal(expected, seen)


def _entry(values: Mapping[str, Any], key: str) -> str:
    return _said(values[key], 0) if key in values else "(not there)"


def _unequal(expected: Any, seen: Any) -> tuple[str, str, str]:
    if not isinstance(expected, tuple):
        return "", _said(expected, 0), _said(seen, 0)
    pairs = zip(expected, seen, strict=False)
    shorter = min(len(expected), len(seen))
    place = next((i for i, (one, other) in enumerate(pairs) if one != other), shorter)
    long = max(len(expected), len(seen)) > 2 * AROUND
    where = f", from place {place + 1}" if long else ""
    return where, _said(expected, place), _said(seen, place)


def _said(value: Any, place: int) -> str:
    """Return a value as text; of a long list, the items around a place."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if not value:
        return "(none)"
    if len(value) <= 2 * AROUND:
        return ", ".join(map(str, value))
    first, last = max(place - AROUND, 0), place + AROUND
    items = [str(item) for item in value[first:last]]
    return ", ".join([*["..."] * (first > 0), *items, *["..."] * (last < len(value))])
