"""Reading a tree: its children, its cells, and the same tree with parts replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import evolve, fields

from kvproof.spec.expression import (
    BeforeFormula,
    BeforeNumber,
    ChoiceCell,
    Expression,
    FlagCell,
    Index,
    NumberCell,
    Total,
)

AnyCell = NumberCell | FlagCell | ChoiceCell


def children(node: Expression) -> tuple[Expression, ...]:
    """Return the direct parts of a node, in reading order."""
    parts: list[Expression] = []
    for attribute in fields(type(node)):
        value = getattr(node, attribute.name)
        if isinstance(value, Expression):
            parts.append(value)
        elif isinstance(value, tuple):
            parts.extend(item for item in value if isinstance(item, Expression))
    return tuple(parts)


def nodes(node: Expression) -> Iterator[Expression]:
    """Yield the node and everything below it."""
    yield node
    for child in children(node):
        yield from nodes(child)


def cells(node: Expression) -> Iterator[AnyCell]:
    """Yield every cell that the tree reads."""
    for part in nodes(node):
        if isinstance(part, AnyCell):
            yield part


def free_indices(node: Expression) -> dict[Index, None]:
    """Return the indices that no total of the tree binds, in order of first appearance."""
    if isinstance(node, AnyCell):
        return dict.fromkeys(node.indices)
    found: dict[Index, None] = {}
    for child in children(node):
        found |= free_indices(child)
    if isinstance(node, Total):
        found.pop(node.index, None)
    return found


def speaks_of_before(node: Expression) -> bool:
    """Return whether the tree compares with the state before a row."""
    return any(isinstance(part, BeforeNumber | BeforeFormula) for part in nodes(node))


def rebuild(node: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Return the node with `change` applied to each direct part."""
    updates: dict[str, object] = {}
    for attribute in fields(type(node)):
        value = getattr(node, attribute.name)
        if isinstance(value, Expression):
            updates[attribute.name] = change(value)
        elif isinstance(value, tuple) and any(isinstance(item, Expression) for item in value):
            updates[attribute.name] = tuple(
                change(item) if isinstance(item, Expression) else item for item in value
            )
    return evolve(node, **updates) if updates else node  # type: ignore[arg-type]


def rename(node: Expression, names: dict[Index, Index]) -> Expression:
    """Return the tree with free indices replaced by others of the same role."""
    if isinstance(node, AnyCell):
        return evolve(node, indices=tuple(names.get(index, index) for index in node.indices))
    if isinstance(node, Total):
        inner = {old: new for old, new in names.items() if old != node.index}
        return rebuild(node, lambda part: rename(part, inner))
    return rebuild(node, lambda part: rename(part, names))
