"""Lines of Python, broken where they are too long, exactly as the project's formatter would."""

from __future__ import annotations

from collections.abc import Iterable

WIDTH = 100
INDENT = "    "


def indent(lines: Iterable[str], levels: int = 1) -> list[str]:
    """Return the lines moved to the right; blank ones stay blank."""
    return [INDENT * levels + line if line else line for line in lines]


def joined(prefix: str, operator: str, items: list[str], suffix: str, level: int) -> list[str]:
    """Return `prefix(a operator b)suffix` on one line if it fits, else an operand a line."""
    bare = f" {operator} ".join(items)
    needs_parentheses = prefix.endswith("bool") or (len(items) > 1 and prefix.endswith("not "))
    line = f"{prefix}({bare}){suffix}" if needs_parentheses else f"{prefix}{bare}{suffix}"
    if len(INDENT * level + line) <= WIDTH:
        return [line]
    if len(INDENT * (level + 1) + bare) <= WIDTH:
        return [f"{prefix}(", INDENT + bare, f"){suffix}"]
    first, *others = items
    body = [first, *(f"{operator} {item}" for item in others)]
    lines = [line for item in body for line in broken(item, level + 1)]
    return [f"{prefix}(", *indent(lines), f"){suffix}"]


def broken(item: str, level: int) -> list[str]:
    """Return an operand on one line if it fits, else broken at its comparison or inside it."""
    if len(INDENT * level + item) <= WIDTH:
        return [item]
    for sign in ("<", "<=", ">", ">=", "==", "!=", "in"):
        left, right = parted(item, f" {sign} ")
        if right and sign == "in" and len(INDENT * level + f"in {right[0]}") > WIDTH:
            names = right[0].strip("()").split(", ")
            return [left, "in (", *indent(f"{name}," for name in names), ")"]
        if right:
            return [*broken(left, level), f"{sign} {right[0]}"]
    head, _, inner = item.partition("(")
    first, others = parted(inner.removesuffix(")"), " or ")
    items = [first, *(f"or {other}" for other in others)]
    lines = [line for item in items for line in broken(item, level + 1)]
    return [f"{head}(", *indent(lines), ")"]


def parted(text: str, separator: str) -> tuple[str, list[str]]:
    """Return the parts of the text between separators that no parenthesis encloses."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth == 0 and text.startswith(separator, place):
            parts.append(text[start:place])
            start = place + len(separator)
    parts.append(text[start:])
    return parts[0], parts[1:]


def call(prefix: str, arguments: list[str], suffix: str, level: int) -> list[str]:
    """Return `prefix(a, b)suffix` on one line if it fits, else the arguments on a line below."""
    line = f"{prefix}({', '.join(arguments)}){suffix}"
    if len(INDENT * level + line) <= WIDTH:
        return [line]
    inner = ", ".join(arguments)
    if len(INDENT * (level + 1) + inner) <= WIDTH:
        return [f"{prefix}(", INDENT + inner, f"){suffix}"]
    return [f"{prefix}(", *(f"{INDENT}{item}," for item in arguments), f"){suffix}"]


def assigned(target: str, value: str, level: int, sign: str = "") -> list[str]:
    """Return `target = value` (`+=` with a sign), the value on a line of its own if too long."""
    line = f"{target} {sign}= {value}"
    if len(INDENT * level + line) <= WIDTH:
        return [line]
    return [f"{target} {sign}= (", INDENT + value, ")"]


def import_line(module: str, names: Iterable[str]) -> list[str]:
    """Return `from module import a, b`, broken one name a line where it is too long."""
    ordered = sorted(set(names), key=_import_order)
    if not ordered:
        return []
    line = f"from {module} import {', '.join(ordered)}"
    if len(line) <= WIDTH:
        return [line]
    return [f"from {module} import (", *(f"{INDENT}{name}," for name in ordered), ")"]


def _import_order(name: str) -> tuple[int, str]:
    if name.isupper():
        return 0, name
    return (1 if name[0].isupper() else 2), name
