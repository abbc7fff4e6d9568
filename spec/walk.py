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
    StandsAt,
    Total,
)

AnyCell = NumberCell | FlagCell | ChoiceCell


_FIELDS: dict[type[Expression], tuple[str, ...]] = {}


def _fields(node: Expression) -> tuple[str, ...]:
    """Return the names of a node's fields that can hold trees."""
    kind = type(node)
    if kind not in _FIELDS:
        names = (attribute.name for attribute in fields(kind))
        _FIELDS[kind] = tuple(name for name in names if name != "where")
    return _FIELDS[kind]


def children(node: Expression) -> tuple[Expression, ...]:
    """Return the direct parts of a node, in reading order."""
    parts: list[Expression] = []
    for name in _fields(node):
        value = getattr(node, name)
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


def read_cells(node: Expression) -> Iterator[AnyCell]:
    """Yield the cells that code must read: of a place in a table only the list itself."""
    if isinstance(node, StandsAt):
        yield NumberCell(node.table, (node.owner, node.entry))
        yield from read_cells(node.position)
    elif isinstance(node, AnyCell):
        yield node
    else:
        for child in children(node):
            yield from read_cells(child)


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
    for name in _fields(node):
        value = getattr(node, name)
        if isinstance(value, Expression):
            changed = change(value)
            if changed is not value:
                updates[name] = changed
        elif isinstance(value, tuple) and value and isinstance(value[0], Expression):
            items = tuple(change(item) for item in value)
            if any(new is not old for new, old in zip(items, value, strict=True)):
                updates[name] = items
    return evolve(node, **updates) if updates else node  # type: ignore[arg-type]


def rename(node: Expression, names: dict[Index, Index]) -> Expression:
    """Return the tree with free indices replaced by others of the same role."""
    if isinstance(node, AnyCell):
        return evolve(node, indices=tuple(names.get(index, index) for index in node.indices))
    if isinstance(node, StandsAt):
        owner, entry = names.get(node.owner, node.owner), names.get(node.entry, node.entry)
        renamed = rebuild(node, lambda part: rename(part, names))
        return evolve(renamed, owner=owner, entry=entry)  # type: ignore[call-arg]
    if isinstance(node, Total):
        inner = {old: new for old, new in names.items() if old != node.index}
        return rebuild(node, lambda part: rename(part, inner))
    return rebuild(node, lambda part: rename(part, names))
