"""Markdown, as little of it as the documents need: sections, tables and code."""

from __future__ import annotations

from collections.abc import Iterable

NOTHING = "-"


def section(title: str, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """Return a heading and a table, or nothing where there is no row."""
    filled = tuple(rows)
    return f"## {title}\n\n{table(header, filled)}\n" if filled else ""


def table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """Return a table; an empty cell is shown as a dash."""
    rule = tuple("---" for _ in header)
    return "\n".join(_line(cells) for cells in (header, rule, *rows))


def code(words: str) -> str:
    """Return the words as code."""
    return f"`{words}`"


def names(words: Iterable[str]) -> str:
    """Return each of the words as code, with commas between them."""
    return ", ".join(map(code, words)) or NOTHING


def lines(words: Iterable[str]) -> str:
    """Return each of the words as code, on a line of its own."""
    return "<br>".join(map(code, words)) or NOTHING


def _line(cells: tuple[object, ...]) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') or NOTHING for cell in cells)} |"
