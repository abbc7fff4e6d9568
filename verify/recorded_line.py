"""One line of a recording, whose fields are taken out by name and kind, or an error says where."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NoReturn, Self

from attrs import frozen


class RecordingError(ValueError):
    """A file that is no recording, or one that is broken or cannot be replayed; it says where."""


@frozen
class Line:
    """An object of a recording, and where it stands: the file, the line, the path within it."""

    place: str
    values: dict[str, Any]

    @classmethod
    def parse(cls, path: Path, number: int, text: str) -> Self:
        """Return a line of a file.

        Raises:
            RecordingError: If the text is no JSON object.

        """
        place = f"{path}:{number}"
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RecordingError(
                f"{place}: expected a JSON object, saw {text[:40]!r} ({error}); record the file"
                " again."
            ) from error
        if not isinstance(values, dict):
            raise RecordingError(
                f"{place}: expected a JSON object, saw {_shown(values)}; record the file again."
            )
        return cls(place, values)

    def refuse(self, message: str) -> NoReturn:
        """Raise RecordingError with the place in front."""
        raise RecordingError(f"{self.place}: {message}")

    def only(self, known: Collection[str], why: str) -> None:
        """Refuse a field that is not known, since it may decide what is not replayed."""
        unknown = sorted(self.values.keys() - set(known))
        if unknown:
            self.refuse(f"saw the unknown field {unknown[0]!r}; {why}")

    def has(self, name: str) -> bool:
        """Return whether there is such a field, and it is not null."""
        return self.values.get(name) is not None

    def part(self, name: str) -> Line:
        """Return the object in a field."""
        return Line(f"{self.place}: {name}", self._take(name, _is_object, "an object"))

    def parts(self, name: str) -> list[Line]:
        """Return the objects of a list."""
        items = self._take(name, _list_of(_is_object), "a list of objects")
        return [Line(f"{self.place}: {name}[{place}]", item) for place, item in enumerate(items)]

    def parts_by_id(self, name: str) -> dict[str, Line]:
        """Return the objects of a mapping from request id."""
        items = self._take(name, _object_of(_is_object), "objects by request id")
        return {key: Line(f"{self.place}: {name}.{key}", item) for key, item in items.items()}

    def text(self, name: str) -> str:
        """Return a string."""
        value: str = self._take(name, _is_text, "a string")
        return value

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value: bool = self._take(name, _is_flag, "true or false")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """Return a whole number, or the default if there is one and the field is not there."""
        if default is not None and not self.has(name):
            return default
        value: int = self._take(name, _is_whole, "a whole number")
        return value

    def optional_number(self, name: str) -> int | None:
        """Return a whole number, or None if the field is not there."""
        return self.number(name) if self.has(name) else None

    def real(self, name: str, default: float | None = None) -> float:
        """Return a number, or the default if there is one and the field is not there."""
        if default is not None and not self.has(name):
            return default
        return float(self._take(name, _is_real, "a number"))

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers."""
        return tuple(self._take(name, _list_of(_is_whole), "a list of whole numbers"))

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of request ids."""
        return tuple(self._take(name, _list_of(_is_text), "a list of request ids"))

    def counts(self, name: str) -> dict[str, int]:
        """Return whole numbers by request id."""
        value: dict[str, int] = self._take(
            name, _object_of(_is_whole), "whole numbers by request id"
        )
        return value

    def lists(self, name: str) -> dict[str, tuple[int, ...]]:
        """Return lists of whole numbers by request id."""
        kind = _object_of(_list_of(_is_whole))
        items = self._take(name, kind, "lists of whole numbers by request id")
        return {key: tuple(item) for key, item in items.items()}

    def _take(self, name: str, fits: Callable[[Any], bool], expected: str) -> Any:
        if name not in self.values:
            self.refuse(f"the field {name!r} is missing; expected {expected}; record it again.")
        value = self.values[name]
        if not fits(value):
            self.refuse(f"{name} is {_shown(value)}; expected {expected}; record it again.")
        return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_real(value: Any) -> bool:
    return type(value) in (int, float)


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _object_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


_SHOWN_MAX = 60
