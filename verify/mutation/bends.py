"""Trees with one fault: an order by one too narrow or too wide, a sign turned, a branch exchanged.

A bend changes one node and nothing else, and what it yields is a tree of the language like any
other: a product keeps its constant, a place in a table keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import evolve, fields

from kvproof.spec.expression import (
    Add,
    AllOf,
    AnyOf,
    Choice,
    ChooseNumber,
    Compare,
    Expression,
    FlagCell,
    FlagParameter,
    Formula,
    Literal,
    Multiply,
    No,
    Number,
    StandsAt,
    Subtract,
    Truth,
)

NARROWER = {"<=": "<", ">=": ">"}
WIDER = {"<": "<=", ">": ">="}
OPPOSITE = {"<=": ">", ">": "<=", ">=": "<", "<": ">=", "==": "!=", "!=": "=="}
OFF_BY_ONE = (1, -1)


def bends(tree: Expression) -> Iterator[Expression]:
    """Yield the tree with one of its nodes bent, for each node and each way to bend it."""
    for kind, bend in _BENDS:
        if isinstance(tree, kind):
            yield from bend(tree)
    if not isinstance(tree, StandsAt):
        yield from _inside(tree)


def value_bends(value: Expression) -> Iterator[Expression]:
    """Yield what an assignment could assign instead: one more, one less, or a bent tree."""
    yield from bends(value)
    if isinstance(value, Number) and not isinstance(value, Literal):
        yield from (value + 1, value - 1)
    if isinstance(value, Formula) and not isinstance(value, Truth | No | FlagParameter | FlagCell):
        yield No(value)


def _inside(tree: Expression) -> Iterator[Expression]:
    """Yield the tree with one of its parts bent."""
    for attribute in fields(type(tree)):
        held = getattr(tree, attribute.name)
        if isinstance(held, Expression):
            for bent in bends(held):
                yield evolve(tree, **{attribute.name: bent})  # type: ignore[arg-type]
        elif isinstance(held, tuple) and held and isinstance(held[0], Expression):
            for place, item in enumerate(held):
                for bent in bends(item):
                    items = (*held[:place], bent, *held[place + 1 :])
                    yield evolve(tree, **{attribute.name: items})  # type: ignore[arg-type]


def _compare(tree: Compare) -> Iterator[Expression]:
    """Yield the comparison turned round, and where it orders numbers, wider and narrower by one.

    Next to a literal that is what bending the literal does.
    """
    yield evolve(tree, operator=OPPOSITE[tree.operator])
    if isinstance(tree.left, Choice | Formula) or isinstance(tree.right, Literal):
        return
    if tree.operator == "==":
        yield evolve(tree, operator="<=")
        yield evolve(tree, operator=">=")
    shifted = NARROWER.get(tree.operator) or WIDER.get(tree.operator)
    if shifted is not None:
        yield evolve(tree, operator=shifted)
        yield evolve(tree, right=_wider_side(tree))


def _wider_side(tree: Compare) -> Number:
    """Return the right side moved by one, to where the operator does not move it."""
    assert isinstance(tree.right, Number)
    up = tree.operator in {"<=", ">"}
    return tree.right + 1 if up else tree.right - 1


def _junction(tree: AllOf | AnyOf) -> Iterator[Expression]:
    """Yield `or` for `and`, or the other way round, and the junction without each of its items."""
    if len(tree.items) < 2:
        return
    yield (AnyOf if isinstance(tree, AllOf) else AllOf)(tree.items)
    for place in range(len(tree.items)):
        yield evolve(tree, items=(*tree.items[:place], *tree.items[place + 1 :]))


def _stands_at(tree: StandsAt) -> Iterator[Expression]:
    """Yield the place moved by one, in the list and in its meaning, and the opposite."""
    assert isinstance(tree.meaning, AllOf)
    named, at = tree.meaning.items
    assert isinstance(at, Compare)
    for position in (tree.position + 1, tree.position - 1):
        meaning = AllOf((named, evolve(at, right=position)))
        yield evolve(tree, position=position, meaning=meaning)
    yield No(tree)


_BENDS: tuple[tuple[type, Callable[[Any], Iterator[Expression]]], ...] = (
    (Compare, _compare),
    (AllOf, _junction),
    (AnyOf, _junction),
    (StandsAt, _stands_at),
    (No, lambda tree: iter((tree.body,))),
    (FlagCell, lambda tree: iter((No(tree),))),
    (FlagParameter, lambda tree: iter((No(tree),))),
    (Truth, lambda tree: iter((evolve(tree, value=not tree.value),))),
    (Literal, lambda tree: (Literal(tree.value + change) for change in OFF_BY_ONE)),
    (Add, lambda tree: iter((Subtract(tree.left, tree.right),))),
    (Subtract, lambda tree: iter((Add(tree.left, tree.right),))),
    (Multiply, lambda tree: iter((Add(tree.left, tree.right),))),
    (
        ChooseNumber,
        lambda tree: iter((evolve(tree, then=tree.otherwise, otherwise=tree.then),)),
    ),
)
