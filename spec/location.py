"""Where in the declaration something was written, and how a mistake there is reported."""

from __future__ import annotations

import sys
import typing
from functools import cache
from pathlib import Path

from attrs import frozen

_LANGUAGE = {"expression.py", "location.py", "rows.py"}


@frozen
class Location:
    """A line of a declaration file."""

    file: str
    line: int

    def __str__(self) -> str:
        """Return `file:line`, the file without its folder."""
        return f"{Path(self.file).name}:{self.line}"


class DeclarationError(Exception):
    """A mistake in the declaration; the message starts with the file and line of the row."""

    def __init__(self, location: Location, message: str) -> None:
        super().__init__(f"{location}: {message}")
        self.location = location


def here() -> Location:
    """Return the nearest line on the call stack that is not part of the language itself."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_language(frame.f_code.co_filename):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)


@cache
def _is_language(file: str) -> bool:
    path = Path(file)
    if file == typing.__file__:  # Variable[Number](...) passes through it.
        return True
    return file.startswith("<attrs") or (
        path.name in _LANGUAGE and path.parent == Path(__file__).parent
    )
