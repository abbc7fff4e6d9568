"""Trees as z3 terms: a cell is one z3 constant, a sum a z3 function of what its body mentions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import z3
from attrs import define, field, frozen

from kvproof.spec.expression import (
    Add,
    AllOf,
    AnyOf,
    ChoiceCell,
    ChooseNumber,
    Compare,
    Constant,
    Expression,
    FlagCell,
    FlagParameter,
    Index,
    Literal,
    Member,
    Multiply,
    No,
    NumberCell,
    NumberParameter,
    StandsAt,
    Subtract,
    Total,
    Truth,
)
from kvproof.spec.text import text
from kvproof.spec.walk import AnyCell, free_indices, rebuild, rename
from kvproof.verify.trees import GENERIC, Rest, simplify

Term = Any  # z3 ships no types; every Term is a z3.ExprRef.


@frozen
class Sum:
    """One sum that occurs in a query: over `role`, of `body`, with closed parts as arguments."""

    role: str
    whole: bool
    body: Expression
    arguments: tuple[Expression, ...]
    term: Term = field(eq=False)

    @property
    def skeleton(self) -> str:
        """Return the text of the body, the same for all sums that differ only in arguments."""
        return text(self.body)


@define
class Terms:
    """Translates trees for one query and remembers the cells and sums it has met.

    Args:
        counts: for roles with a declared number of instances, the constant that says it.
        named: how many instances of each role have a name (they are split off every sum).

    """

    counts: dict[str, Constant]
    named: dict[str, int]
    cells: dict[str, Term] = field(factory=dict)
    choices: dict[str, ChoiceCell] = field(factory=dict)
    sums: dict[str, Sum] = field(factory=dict)

    def of(self, tree: Expression) -> Term:
        """Return the z3 term that means the same as the tree."""
        kind = type(tree)
        if kind in _BINARY:
            return _BINARY[kind](self.of(tree.left), self.of(tree.right))  # type: ignore[attr-defined]
        return _READERS[kind](self, tree)

    def absorb(self, other: Terms) -> None:
        """Remember the cells and sums that a term translated elsewhere is about."""
        self.cells |= other.cells
        self.choices |= other.choices
        self.sums |= other.sums

    def cell(self, tree: AnyCell) -> Term:
        """Return the z3 constant for a cell."""
        name = text(tree)
        if name not in self.cells:
            self.cells[name] = z3.Bool(name) if isinstance(tree, FlagCell) else z3.Int(name)
            if isinstance(tree, ChoiceCell):
                self.choices[name] = tree
        return self.cells[name]

    def sum_of(self, index: Index, body: Expression, *, whole: bool) -> Term:
        """Return the sum of `body` over the instances without a name, or over all (`whole`)."""
        body = simplify(body)
        if isinstance(body, Add | Subtract):
            left = self.sum_of(index, body.left, whole=whole)
            right = self.sum_of(index, body.right, whole=whole)
            return left + right if isinstance(body, Add) else left - right
        if isinstance(body, Multiply) and not _mentions(body.left, index):
            return self.of(body.left) * self.sum_of(index, body.right, whole=whole)
        if isinstance(body, Multiply) and not _mentions(body.right, index):
            return self.sum_of(index, body.left, whole=whole) * self.of(body.right)
        if isinstance(body, ChooseNumber) and not _mentions(body.condition, index):
            then = self.sum_of(index, body.then, whole=whole)
            return z3.If(
                self.of(body.condition), then, self.sum_of(index, body.otherwise, whole=whole)
            )
        if isinstance(body, Literal) and (body.value == 0 or index.role in self.counts):
            return self._sum_of_literal(index, body, whole=whole)
        return self._opaque_sum(index, body, whole=whole)

    def _sum_of_literal(self, index: Index, body: Literal, *, whole: bool) -> Term:
        if body.value == 0:
            return z3.IntVal(0)
        split_off = 0 if whole else self.named.get(index.role, 0)
        return body.value * (self.of(self.counts[index.role]) - split_off)

    def _opaque_sum(self, index: Index, body: Expression, *, whole: bool) -> Term:
        generic = rename(body, {index: Index(index.role, GENERIC)})
        arguments: list[Expression] = []
        skeleton = _close(generic, arguments)
        terms = [self.of(argument) for argument in arguments]
        name = f"{'all' if whole else 'rest'} {index.role} {text(skeleton)}"
        sorts = [term.sort() for term in terms]
        function = z3.Function(name, *sorts, z3.IntSort()) if terms else z3.Int(name)
        term = function(*terms) if terms else function
        key = f"{name} {terms}"
        if key not in self.sums:
            self.sums[key] = Sum(index.role, whole, skeleton, tuple(arguments), term)
        return term


def _mentions(tree: Expression, index: Index) -> bool:
    return index in free_indices(tree)


def _close(tree: Expression, arguments: list[Expression]) -> Expression:
    """Replace the largest parts that do not mention the generic instance by numbered parameters.

    A cell indexed by the generic instance and by a named one keeps the named one: the sum over a
    column of a pair is a different sum for each name.
    """
    if isinstance(tree, Literal | Truth | Member | Constant):
        return tree
    if all(index.name != GENERIC for index in free_indices(tree)) and not isinstance(tree, Total):
        name = f"${len(arguments)}"
        arguments.append(tree)
        if isinstance(tree, FlagCell | FlagParameter | Compare | AllOf | AnyOf | No):
            return FlagParameter(name, "")
        return NumberParameter(name, "")
    if isinstance(tree, AnyCell):
        return tree
    return rebuild(tree, lambda part: _close(part, arguments))


def _compare(terms: Terms, tree: Compare) -> Term:
    return _ORDER[tree.operator](terms.of(tree.left), terms.of(tree.right))


def _choose(terms: Terms, tree: ChooseNumber) -> Term:
    return z3.If(terms.of(tree.condition), terms.of(tree.then), terms.of(tree.otherwise))


_BINARY: dict[type, Callable[[Term, Term], Term]] = {
    Add: lambda left, right: left + right,
    Subtract: lambda left, right: left - right,
    Multiply: lambda left, right: left * right,
}
_ORDER: dict[str, Callable[[Term, Term], Term]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
_READERS: dict[type, Callable[[Terms, Any], Term]] = {
    Literal: lambda _, tree: z3.IntVal(tree.value),
    Truth: lambda _, tree: z3.BoolVal(tree.value),
    Member: lambda _, tree: z3.IntVal(tree.value),
    Constant: lambda _, tree: z3.Int(tree.name),
    NumberParameter: lambda _, tree: z3.Int(tree.name),
    FlagParameter: lambda _, tree: z3.Bool(tree.name),
    NumberCell: Terms.cell,
    FlagCell: Terms.cell,
    ChoiceCell: Terms.cell,
    ChooseNumber: _choose,
    Compare: _compare,
    AllOf: lambda terms, tree: z3.And([terms.of(item) for item in tree.items]),
    AnyOf: lambda terms, tree: z3.Or([terms.of(item) for item in tree.items]),
    No: lambda terms, tree: z3.Not(terms.of(tree.body)),
    StandsAt: lambda terms, tree: terms.of(tree.meaning),
    Rest: lambda terms, tree: terms.sum_of(tree.index, tree.body, whole=False),
    Total: lambda terms, tree: terms.sum_of(tree.index, tree.body, whole=True),
}
