"""Trees about the state after a row, rewritten as trees about the state before it.

Sums over any number of instances are split into the instances an obligation names and the `Rest`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import evolve, field, frozen

from kvproof.spec.expression import (
    Add,
    AllOf,
    AnyOf,
    Assignment,
    BeforeFormula,
    BeforeNumber,
    ChoiceCell,
    ChooseNumber,
    Compare,
    Expression,
    FlagCell,
    FlagParameter,
    Index,
    Literal,
    Member,
    Multiply,
    No,
    Number,
    NumberCell,
    NumberParameter,
    Subtract,
    Total,
    Truth,
)
from kvproof.spec.walk import AnyCell, rebuild, rename

GENERIC = "•"
Instances = Mapping[str, tuple[Index, ...]]


@frozen(eq=False)
class Rest(Number):
    """The part of a total that belongs to instances without a name."""

    index: Index
    body: Number


@frozen
class Effects:
    """What a row assigns, with its parameters replaced by named instances."""

    assignments: Mapping[str, Assignment] = field(factory=dict)

    def value_of(self, cell: AnyCell) -> Expression | None:
        """Return the tree that `cell` holds after the row, or None where the row leaves it."""
        assignment = self.assignments.get(cell.variable)
        if assignment is None or not isinstance(assignment.cell, AnyCell):
            return None
        bound = dict.fromkeys(assignment.every)
        binding: dict[Index, Index] = {}
        for target, index in zip(assignment.cell.indices, cell.indices, strict=True):
            if target in bound:
                binding[target] = index
            elif target != index:
                return None
        return rename(assignment.value, binding) if binding else assignment.value


def effects_of(assignments: tuple[Assignment, ...], names: dict[Index, Index]) -> Effects:
    """Return the assignments of a row for the given instances."""
    table = {}
    for item in assignments:
        assert isinstance(item.cell, AnyCell)
        cell, value = rename(item.cell, names), rename(item.value, names)
        table[item.cell.variable] = evolve(item, cell=cell, value=value)
    return Effects(table)


def split(tree: Expression, instances: Instances) -> Expression:
    """Return the tree with each total written as its named instances plus the rest."""
    if isinstance(tree, Total):
        body = split(tree.body, instances)
        assert isinstance(body, Number)
        unnamed = Index(tree.index.role, GENERIC)
        generic = rename(body, {tree.index: unnamed})
        assert isinstance(generic, Number)
        parts: Number = Rest(unnamed, generic)
        for instance in instances.get(tree.index.role, ()):
            named = rename(body, {tree.index: instance})
            assert isinstance(named, Number)
            parts = Add(parts, named)
        return parts
    return rebuild(tree, lambda part: split(part, instances))


def after(tree: Expression, effects: Effects) -> Expression:
    """Return the tree about the state before the row that equals `tree` after it."""
    if isinstance(tree, AnyCell):
        value = effects.value_of(tree)
        return tree if value is None else value
    if isinstance(tree, BeforeNumber | BeforeFormula):
        return tree.body
    return rebuild(tree, lambda part: after(part, effects))


def substitute(tree: Expression, change: Callable[[AnyCell], Expression]) -> Expression:
    """Return the tree with every cell replaced."""
    if isinstance(tree, AnyCell):
        return change(tree)
    return rebuild(tree, lambda part: substitute(part, change))


def replace_parameters(tree: Expression, values: Mapping[str, Expression]) -> Expression:
    """Return the tree with number and flag parameters replaced by other trees."""
    if isinstance(tree, NumberParameter | FlagParameter):
        return values.get(tree.name, tree)
    return rebuild(tree, lambda part: replace_parameters(part, values))


def simplify(tree: Expression) -> Expression:
    """Return an equal tree without the parts that known values decide."""
    node = rebuild(tree, simplify)
    for kind, rule in _RULES:
        if isinstance(node, kind):
            return rule(node)
    return node


def _compare(node: Compare) -> Expression:
    left, right = node.left, node.right
    if isinstance(left, Member) and isinstance(right, Member) and node.operator in {"==", "!="}:
        return Truth((left.value == right.value) == (node.operator == "=="))
    if isinstance(left, Literal) and isinstance(right, Literal):
        return Truth(_ORDER[node.operator](left.value, right.value))
    return node


def _all_of(node: AllOf) -> Expression:
    items = tuple(item for item in node.items if not _is(item, value=True))
    if any(_is(item, value=False) for item in items):
        return Truth(value=False)
    return evolve(node, items=items) if items else Truth(value=True)


def _any_of(node: AnyOf) -> Expression:
    items = tuple(item for item in node.items if not _is(item, value=False))
    if any(_is(item, value=True) for item in items):
        return Truth(value=True)
    return evolve(node, items=items) if items else Truth(value=False)


def _no(node: No) -> Expression:
    return Truth(not node.body.value) if isinstance(node.body, Truth) else node


def _choose(node: ChooseNumber) -> Expression:
    if isinstance(node.condition, Truth):
        return node.then if node.condition.value else node.otherwise
    return node


def _add(node: Add) -> Expression:
    if _zero(node.left):
        return node.right
    return node.left if _zero(node.right) else node


def _subtract(node: Subtract) -> Expression:
    return node.left if _zero(node.right) else node


def _multiply(node: Multiply) -> Expression:
    return Literal(0) if _zero(node.left) or _zero(node.right) else node


def _zero(node: Expression) -> bool:
    return isinstance(node, Literal) and node.value == 0


def _is(node: Expression, *, value: bool) -> bool:
    return isinstance(node, Truth) and node.value is value


_ORDER: dict[str, Callable[[int, int], bool]] = {
    "==": int.__eq__,
    "!=": int.__ne__,
    "<": int.__lt__,
    "<=": int.__le__,
    ">": int.__gt__,
    ">=": int.__ge__,
}
_RULES: tuple[tuple[type, Callable[..., Expression]], ...] = (
    (Compare, _compare),
    (AllOf, _all_of),
    (AnyOf, _any_of),
    (No, _no),
    (ChooseNumber, _choose),
    (Add, _add),
    (Subtract, _subtract),
    (Multiply, _multiply),
)


def is_cell_of(tree: Expression, names: set[str]) -> bool:
    """Return whether the tree is a cell of one of the named variables."""
    return isinstance(tree, NumberCell | FlagCell | ChoiceCell) and tree.variable in names
