"""Trees as the text a reader would write on paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    Constant,
    Expression,
    FlagCell,
    FlagParameter,
    Literal,
    Member,
    Multiply,
    No,
    Number,
    NumberCell,
    NumberParameter,
    StandsAt,
    Subtract,
    Total,
    Truth,
)

_TIGHT = {Add: 4, Subtract: 4, Multiply: 5, Compare: 3, No: 6, AllOf: 2, AnyOf: 1}


def text(tree: Expression) -> str:
    """Return the tree as text: one line, with as few parentheses as the reader needs."""
    writer = _WRITERS.get(type(tree))
    return writer(tree) if writer else _unknown(tree)


def assignment_text(assignment: Assignment) -> str:
    """Return `cell := value`, with `for every ...` where it is made for many cells."""
    line = f"{text(assignment.cell)} := {text(assignment.value)}"
    bound = ", ".join(f"{index.role} {index.name}" for index in assignment.every)
    return f"{line} for every {bound}" if bound else line


def _unknown(tree: Expression) -> str:
    index, body = getattr(tree, "index", None), getattr(tree, "body", None)
    if index is not None and isinstance(body, Expression):
        return f"{type(tree).__name__.lower()}({index.role} {index.name}: {text(body)})"
    return repr(tree)


def _within(tree: Expression, outer: type, *, right: bool = False) -> str:
    if outer in {AllOf, AnyOf, Compare} and isinstance(tree, AnyOf) and _membership(tree):
        return text(tree)
    inner, limit = _TIGHT.get(type(tree), 9), _TIGHT[outer]
    tight = inner > limit or (inner == limit and not right and outer is not Compare)
    return text(tree) if tight else f"({text(tree)})"


def _binary(symbol: str) -> Callable[[Any], str]:
    def write(tree: Any) -> str:
        outer = type(tree)
        return f"{_within(tree.left, outer)} {symbol} {_within(tree.right, outer, right=True)}"

    return write


def _compare(tree: Compare) -> str:
    return f"{_within(tree.left, Compare)} {tree.operator} {_within(tree.right, Compare)}"


def _cell(tree: NumberCell | FlagCell | ChoiceCell) -> str:
    return f"{tree.variable}[{', '.join(index.name for index in tree.indices)}]"


def _joined(word: str) -> Callable[[Any], str]:
    def write(tree: Any) -> str:
        return f" {word} ".join(_within(item, type(tree)) for item in tree.items) or word

    return write


def _any_of(tree: AnyOf) -> str:
    match tree.items:
        case (No(body=condition), conclusion):
            return f"{_side(condition)} → {_side(conclusion)}"
    return _membership(tree) or _joined("or")(tree)


def _side(tree: Expression) -> str:
    return f"({text(tree)})" if isinstance(tree, AnyOf) and not _membership(tree) else text(tree)


def _membership(tree: AnyOf) -> str:
    """Return `cell in {A, B}` for a choice compared with several members."""
    sides = [
        (text(item.left), item.right.name)
        for item in tree.items
        if isinstance(item, Compare) and item.operator == "==" and isinstance(item.right, Member)
    ]
    if len(sides) != len(tree.items) or len({left for left, _ in sides}) != 1:
        return ""
    return f"{sides[0][0]} in {{{', '.join(name for _, name in sides)}}}"


def larger_of(tree: ChooseNumber) -> tuple[Number, Number] | None:
    """Return the two numbers of which the tree is the larger one, if it is made by `larger`."""
    if not (isinstance(tree.condition, Compare) and tree.condition.operator == ">="):
        return None
    compared = text(tree.condition.left), text(tree.condition.right)
    same = compared == (text(tree.then), text(tree.otherwise))
    return (tree.then, tree.otherwise) if same else None


def _choose(tree: ChooseNumber) -> str:
    sides = larger_of(tree)
    if sides is not None:
        return f"max({', '.join(text(side) for side in sides)})"
    condition = text(tree.condition)
    values = [side.value for side in (tree.then, tree.otherwise) if isinstance(side, Literal)]
    if values == [1, 0]:
        return f"[{condition}]"
    return f"({text(tree.then)} if {condition} else {text(tree.otherwise)})"


_WRITERS: dict[type, Callable[[Any], str]] = {
    Literal: lambda tree: str(tree.value),
    Truth: lambda tree: "true" if tree.value else "false",
    Member: lambda tree: tree.name,
    Constant: lambda tree: tree.name,
    NumberParameter: lambda tree: tree.name,
    FlagParameter: lambda tree: tree.name,
    NumberCell: _cell,
    FlagCell: _cell,
    ChoiceCell: _cell,
    Add: _binary("+"),
    Subtract: _binary("-"),
    Multiply: _binary("*"),
    ChooseNumber: _choose,
    Total: lambda tree: f"total({tree.index.role} {tree.index.name}: {text(tree.body)})",
    BeforeNumber: lambda tree: f"before({text(tree.body)})",
    BeforeFormula: lambda tree: f"before({text(tree.body)})",
    Compare: _compare,
    AllOf: _joined("and"),
    AnyOf: _any_of,
    No: lambda tree: f"not {_within(tree.body, No)}",
    StandsAt: lambda tree: (
        f"{tree.table}[{tree.owner.name}] has {tree.entry.name} at {text(tree.position)}"
    ),
}
