"""Trees as Python: about single values, or about whole columns at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from attrs import evolve, field, frozen

from kvproof.spec.declaration import Declaration
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
from kvproof.spec.generator.layout import INDENT, WIDTH
from kvproof.spec.location import DeclarationError
from kvproof.spec.rows import Role
from kvproof.spec.text import larger_of
from kvproof.spec.walk import AnyCell, cells, children, nodes

CellWriter = Callable[[AnyCell], str]

OR, AND, NOT, COMPARE, SUM, PRODUCT, ATOM = 1, 2, 3, 4, 7, 8, 9
_BIT_OR, _BIT_AND = 5, 6


@frozen
class Python:
    """Writes trees as Python text.

    Args:
        cell: writes a cell.
        columns: the cells are numpy arrays, so formulas are combined element by element.
        operands: single values that meet a column are written as arrays without dimensions.
        total: writes a sum; None where a sum cannot be compiled.
        stands_at: writes the question what stands at a place of a table.
        numbers: what the next local variables are numbered with.
        names: local variables that already hold the value of a node, by the node's identity.

    """

    cell: CellWriter
    columns: bool = False
    operands: bool = False
    total: Callable[[Total], str] | None = None
    stands_at: Callable[[StandsAt], str] | None = None
    names: Mapping[int, str] = field(factory=dict)
    numbers: Iterator[int] = field(factory=lambda: count(1))

    def text(self, tree: Expression, within: int = 0) -> str:
        """Return the tree as Python, in parentheses if it binds less tightly than `within`."""
        written, tightness = self._write(tree)
        return f"({written})" if tightness < within else written

    def statement(self, prefix: str, tree: Expression, level: int) -> list[str]:
        """Return `prefix` and the tree on one line; if too long, after naming the tree's parts."""
        line = prefix + self.text(tree)
        if len(INDENT * level + line) <= WIDTH:
            return [line]
        lines: list[str] = []
        names = dict(self.names)
        for part in self._parts(tree):
            body = self.statement(_UNNUMBERED, part, level)
            names[id(part)] = f"part_{next(self.numbers)}"
            value = body[-1].removeprefix(_UNNUMBERED)
            lines += [*body[:-1], f"{names[id(part)]} = {value}"]
        return [*lines, *evolve(self, names=names).statement(prefix, tree, level)]

    def _parts(self, tree: Expression) -> list[Expression]:
        """Return the operands that deserve a name: whatever is more than a single cell."""
        parts = [part for part in children(tree) if children(part) or isinstance(part, Total)]
        if isinstance(tree, No) or len(parts) < 1:
            return [inner for part in children(tree) for inner in self._parts(part)]
        return parts

    def conjuncts(self, tree: Expression) -> list[str]:
        """Return a guard's conjunct as items to be joined by `and` (or `&`)."""
        level = _BIT_AND + 1 if self.columns else AND + 1
        items = tree.items if isinstance(tree, AllOf) else (tree,)
        return [self.text(item, level) for item in items]

    def _write(self, tree: Expression) -> tuple[str, int]:
        if id(tree) in self.names:
            return self.names[id(tree)], ATOM
        if isinstance(tree, AnyCell):
            return self.cell(tree), ATOM
        if isinstance(tree, Total):
            if self.total is None:
                raise DeclarationError(
                    tree.where, "a total cannot be compiled here; keep a counter variable instead."
                )
            return self.total(tree), ATOM
        if isinstance(tree, StandsAt):
            if self.stands_at is None:
                raise DeclarationError(tree.where, "a place in a table cannot be read here.")
            return self.stands_at(tree), ATOM
        return _WRITERS[type(tree)](self, tree)

    def _literal(self, tree: Literal) -> tuple[str, int]:
        if self.operands and tree.value in _OPERANDS:
            return _OPERANDS[tree.value], ATOM
        return str(tree.value), ATOM if tree.value >= 0 else SUM

    def _member(self, tree: Member) -> tuple[str, int]:
        return f"_{tree.name}" if self.operands else tree.name, ATOM

    def _constant(self, tree: Constant) -> tuple[str, int]:
        return f"{'operands' if self.operands else 'state'}.{tree.name.lower()}", ATOM

    def _arithmetic(self, tree: Any, symbol: str, level: int) -> tuple[str, int]:
        right = self.text(tree.right, level if symbol == "+" else level + 1)
        return f"{self.text(tree.left, level)} {symbol} {right}", level

    def _compare(self, tree: Compare) -> tuple[str, int]:
        sides = f"{self.text(tree.left, SUM)} {tree.operator} {self.text(tree.right, SUM)}"
        return sides, COMPARE

    def _joined(self, items: tuple[Expression, ...], word: str, sign: str) -> tuple[str, int]:
        level = {"and": AND, "or": OR, "&": _BIT_AND, "|": _BIT_OR}
        symbol = sign if self.columns else word
        inner = NOT if symbol == "or" else level[symbol] + 1
        return f" {symbol} ".join(self.text(item, inner) for item in items), level[symbol]

    def _any_of(self, tree: AnyOf) -> tuple[str, int]:
        members = _membership(tree)
        if members is None or self.columns:
            return self._joined(tree.items, "or", "|")
        cell, names = members
        return f"{self.cell(cell)} in ({', '.join(names)})", COMPARE

    def _no(self, tree: No) -> tuple[str, int]:
        if self.columns and not _is_plain(tree.body):
            return f"~{self.text(tree.body, ATOM)}", PRODUCT
        if isinstance(tree.body, No):
            return self._write(tree.body.body)
        # `~` of a plain Python truth value is a number, and never zero.
        return f"not {self.text(tree.body, NOT)}", NOT

    def _choose(self, tree: ChooseNumber) -> tuple[str, int]:
        sides = larger_of(tree)
        if sides is not None:
            name = "np.maximum" if self.columns else "max"
            return f"{name}({', '.join(self.text(side) for side in sides)})", ATOM
        if self.columns and is_count(tree):
            return self._write(tree.condition)
        if self.columns:
            parts = (tree.condition, tree.then, tree.otherwise)
            return f"np.where({', '.join(self.text(part) for part in parts)})", ATOM
        then, otherwise = self.text(tree.then, OR), self.text(tree.otherwise, OR)
        return f"{then} if {self.text(tree.condition, OR)} else {otherwise}", 0


_UNNUMBERED = "part_? = "
_OPERANDS = {0: "ZERO", 1: "ONE"}


def _is_plain(tree: Expression) -> bool:
    """Return whether a formula is about constants and single things, so that it is one value."""
    if any(isinstance(node, NumberParameter | FlagParameter) for node in nodes(tree)):
        return False
    return all(index.name == index.role for cell in cells(tree) for index in cell.indices)


def _membership(tree: AnyOf) -> tuple[AnyCell, list[str]] | None:
    cells: dict[tuple[object, ...], AnyCell] = {}
    names = []
    for item in tree.items:
        if not (isinstance(item, Compare) and isinstance(item.left, ChoiceCell)):
            return None
        if not (isinstance(item.right, Member) and item.operator == "=="):
            return None
        cells[(item.left.variable, *item.left.indices)] = item.left
        names.append(item.right.name)
    return (next(iter(cells.values())), names) if len(cells) == 1 else None


def is_count(tree: ChooseNumber) -> bool:
    """Return whether the tree is 1 where its condition holds and 0 elsewhere."""
    values = [side.value for side in (tree.then, tree.otherwise) if isinstance(side, Literal)]
    return values == [1, 0]


_WRITERS: dict[type, Callable[[Any, Any], tuple[str, int]]] = {
    Literal: lambda self, tree: self._literal(tree),
    Truth: lambda _, tree: (str(tree.value), ATOM),
    Member: lambda self, tree: self._member(tree),
    Constant: lambda self, tree: self._constant(tree),
    NumberParameter: lambda _, tree: (tree.name, ATOM),
    FlagParameter: lambda _, tree: (tree.name, ATOM),
    Add: lambda self, tree: self._arithmetic(tree, "+", SUM),
    Subtract: lambda self, tree: self._arithmetic(tree, "-", SUM),
    Multiply: lambda self, tree: self._arithmetic(tree, "*", PRODUCT),
    Compare: lambda self, tree: self._compare(tree),
    AllOf: lambda self, tree: self._joined(tree.items, "and", "&"),
    AnyOf: lambda self, tree: self._any_of(tree),
    No: lambda self, tree: self._no(tree),
    ChooseNumber: lambda self, tree: self._choose(tree),
}


def attribute(declaration: Declaration, cell: AnyCell) -> str:
    """Return `role.variable`: where the cell's column (or single value) lives."""
    variable = declaration.variable[cell.variable]
    return f"{variable.of[0].name}.{cell.variable}"


def is_single(declaration: Declaration, cell: NumberCell | FlagCell | ChoiceCell) -> bool:
    """Return whether the variable has one cell in all."""
    return declaration.variable[cell.variable].of[0].single


def instances(role: Role) -> str:
    """Return the slice that leaves out what lies below the first instance."""
    return f"[{role.first}:]" if role.first else ""
