"""Small changes of meaning to a function of the core, each to a copy of its tree."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice, pairwise
from typing import Any

from attrs import define, field

from kvproof.spec.declaration import Declaration

Change = Callable[[], None]
Changed = Callable[[], ast.FunctionDef]
Named = tuple[str, Change]

OPPOSITES: Mapping[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
OTHER_NAMES = {
    "max": "min",
    "maximum": "minimum",
    "everywhere": "nowhere",
    "nowhere": "everywhere",
    "ONE": "ZERO",
    "ZERO": "ONE",
}


@define
class Changes:
    """The changes to the functions of a declaration's core, which know its names."""

    declaration: Declaration
    statuses: list[str] = field(init=False)
    variables: dict[str, list[str]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Collect the names that can stand in each other's place."""
        self.statuses = [name for name, _ in self.declaration.enumeration.members]
        stored = [item for item in self.declaration.variables if not item.ghost]
        self.variables = {
            role.name: [item.name for item in stored if item.of[0] == role]
            for role in self.declaration.roles
        }
        constants = [item.name.lower() for item in self.declaration.constants]
        self.variables |= {"state": constants, "operands": constants}

    def of(self, function: ast.FunctionDef) -> Iterator[tuple[str, Changed]]:
        """Yield every change to a function: its place and what it is, and how to make a copy.

        A line is counted from that of `def`, so that a place does not move with what is above it;
        what a line has several times is numbered.
        """
        seen: Counter[str] = Counter()
        for place, node in enumerate(changeable(function)):
            line = getattr(node, "lineno", function.lineno) - function.lineno
            for number, (what, _) in enumerate(self._to(node, function)):
                name = f"line {line}: {what}"
                seen[name] += 1
                again = f" ({seen[name]})" if seen[name] > 1 else ""
                yield f"{name}{again}", partial(self._changed, function, place, number)

    def _changed(self, function: ast.FunctionDef, place: int, number: int) -> ast.FunctionDef:
        """Return a copy of a function with one of the changes made to one of its nodes."""
        changed = copy.deepcopy(function)
        there = self._to(changeable(changed)[place], changed)
        _, change = next(islice(there, number, None))
        change()
        return ast.fix_missing_locations(changed)

    def _to(self, node: ast.AST, function: ast.FunctionDef) -> Iterator[Named]:
        """Yield what can be changed about one node, each with a function that does it in place."""
        for kind in type(node).__mro__:
            yield from _CHANGES.get(kind, lambda _: iter(()))(node)
        if isinstance(node, ast.Name):
            yield from self._name(node, function)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node)

    def _name(self, node: ast.Name, function: ast.FunctionDef) -> Iterator[Named]:
        """Yield one status for another, and one parameter for another."""
        parameters = [argument.arg for argument in function.args.args[1:]]
        for names in (self.statuses, parameters if len(parameters) > 1 else []):
            if node.id in names and isinstance(node.ctx, ast.Load):
                yield _becomes(node, "id", names[names.index(node.id) - 1])

    def _attribute(self, node: ast.Attribute) -> Iterator[Named]:
        """Yield a variable for another one of the same role, or a constant for another."""
        owner = ast.unparse(node.value)
        plain = owner.removesuffix(".cells").removeprefix("state.")
        names = self.variables.get(plain, [])
        if node.attr in names:
            yield _becomes(node, "attr", names[names.index(node.attr) - 1])


def changeable(function: ast.FunctionDef) -> list[ast.AST]:
    """Return a function, and each node of its body."""
    return [function, *(node for statement in function.body for node in ast.walk(statement))]


def set_field(node: ast.AST, name: str, value: object) -> Change:
    """Return the change that sets one field of a node."""
    return lambda: setattr(node, name, value)


def _becomes(node: ast.AST, name: str, value: str) -> Named:
    return f"{getattr(node, name)} becomes {value}", set_field(node, name, value)


def _other_name(node: Any) -> Iterator[Named]:
    """Yield the smaller for the larger, nowhere for everywhere, one for zero."""
    name = "id" if isinstance(node, ast.Name) else "attr"
    if getattr(node, name) in OTHER_NAMES:
        yield _becomes(node, name, OTHER_NAMES[getattr(node, name)])


def _operator(node: Any) -> Iterator[Named]:
    """Yield an operator turned round: + into -, < into <=."""
    old = node.op
    if type(old) in OPPOSITES:
        new = OPPOSITES[type(old)]()
        yield f"{type(old).__name__} becomes {type(new).__name__}", set_field(node, "op", new)


def _comparison(node: ast.Compare) -> Iterator[Named]:
    """Yield a comparison turned round."""
    old, new = node.ops[0], OPPOSITES[type(node.ops[0])]()
    yield f"{type(old).__name__} becomes {type(new).__name__}", set_field(node, "ops", [new])


def _without_item(node: Any) -> Iterator[Named]:
    """Yield a junction or a tuple of statuses without each of its items."""
    name = "values" if isinstance(node, ast.BoolOp) else "elts"
    items = getattr(node, name)
    for place in range(len(items) if len(items) > 1 else 0):
        rest = items[:place] + items[place + 1 :]
        # Of two operands one remains; an operator needs two, so it is written twice.
        rest = rest * 2 if len(rest) == 1 else rest
        yield f"without {ast.unparse(items[place])}", set_field(node, name, rest)


def _constant(node: ast.Constant) -> Iterator[Named]:
    """Yield a number changed by one, or a truth value changed to the other."""
    if isinstance(node.value, bool):
        yield f"not {node.value}", set_field(node, "value", not node.value)
    elif isinstance(node.value, int):
        for new in (node.value + 1, node.value - 1):
            yield f"{node.value} becomes {new}", set_field(node, "value", new)


def _without_not(node: ast.UnaryOp) -> Iterator[Named]:
    """Yield a negation taken out."""
    if isinstance(node.op, ast.Not):
        twice = ast.UnaryOp(ast.Not(), node.operand)
        yield "without not", set_field(node, "operand", twice)


def _branches(node: ast.IfExp) -> Iterator[Named]:
    """Yield what a condition chooses, exchanged."""

    def exchange() -> None:
        node.body, node.orelse = node.orelse, node.body

    yield "branches exchanged", exchange


def _arguments(node: ast.Call) -> Iterator[Named]:
    """Yield two neighbouring arguments of a call exchanged; of two numbers the larger stays."""
    if ast.unparse(node.func) in {"max", "np.maximum"}:
        return
    for place in range(len(node.args) - 1):
        new = list(node.args)
        new[place : place + 2] = new[place + 1], new[place]
        yield f"arguments {place} exchanged", set_field(node, "args", new)


def _body(node: ast.FunctionDef) -> Iterator[Named]:
    """Yield a statement dropped, or two exchanged of which one reads what the other writes."""
    documented = ast.get_docstring(node) is not None
    start, body = node.body[:documented], node.body[documented:]
    for place, statement in enumerate(body):
        new = [*start, *body[:place], *body[place + 1 :]] or [ast.Pass()]
        yield f"without `{ast.unparse(statement)}`", set_field(node, "body", new)
    for place, (first, second) in enumerate(pairwise(body)):
        if _depends(first, second) or _depends(second, first):
            new = [*start, *body[:place], second, first, *body[place + 2 :]]
            yield f"`{ast.unparse(second)}` first", set_field(node, "body", new)


def _if(node: ast.If) -> Iterator[Named]:
    """Yield what is done under a condition, done in no case."""
    for place, statement in enumerate(node.body):
        rest = [*node.body[:place], *node.body[place + 1 :]] or [ast.Pass()]
        yield f"without `{ast.unparse(statement)}`", set_field(node, "body", rest)


def _depends(reader: ast.stmt, writer: ast.stmt) -> bool:
    """Return whether a statement mentions what another one assigns."""
    targets = getattr(writer, "targets", [getattr(writer, "target", None)])
    written = {ast.unparse(target) for target in targets if target is not None}
    return any(ast.unparse(n) in written for n in ast.walk(reader) if isinstance(n, ast.expr))


_CHANGES: Mapping[type, Callable[[Any], Iterator[Named]]] = {
    ast.BinOp: _operator,
    ast.AugAssign: _operator,
    ast.BoolOp: lambda node: iter((*_operator(node), *_without_item(node))),
    ast.Tuple: _without_item,
    ast.Compare: _comparison,
    ast.Constant: _constant,
    ast.Name: _other_name,
    ast.Attribute: _other_name,
    ast.UnaryOp: _without_not,
    ast.IfExp: _branches,
    ast.Call: _arguments,
    ast.FunctionDef: _body,
    ast.If: _if,
}
