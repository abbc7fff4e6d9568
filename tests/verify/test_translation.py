"""The translation check proves the core on disk, and refutes it after any small change of meaning."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import islice, pairwise
from typing import Any

import pytest

from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.batch_trials import has_batch
from kvproof.verify.core_text import Names, core_folder, names_in
from kvproof.verify.translation import batch_matches, check_translation, row_translates
from kvproof.verify.verdict import Method, Result, Verdict

ROWS = SCHEDULER.complete_transitions
BATCHES = [name for name, row in ROWS.items() if has_batch(row)]

# --- Small changes of meaning ---------------------------------------------------------------------

OPPOSITES: dict[type, type] = {
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
STATUSES = [name for name, _ in SCHEDULER.enumeration.members]
VARIABLES = {
    role.name: [v.name for v in SCHEDULER.variables if v.of[0] == role and not v.ghost]
    for role in SCHEDULER.roles
}

Change = Callable[[], None]


def set_field(node: ast.AST, field: str, value: object) -> Change:
    """Return the change that sets one field of a node."""
    return lambda: setattr(node, field, value)


def changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """Yield what can be changed about one node, each with a function that does it in place."""
    for kind in type(node).__mro__:
        for name, change in CHANGES.get(kind, lambda _: iter(()))(node):
            yield name, change


def change_operator(node: Any) -> Iterator[tuple[str, Change]]:
    """Turn an operator round: + into -, < into <=."""
    old = node.op
    if type(old) in OPPOSITES:
        new = OPPOSITES[type(old)]()
        yield f"{type(old).__name__} becomes {type(new).__name__}", set_field(node, "op", new)


def change_comparison(node: ast.Compare) -> Iterator[tuple[str, Change]]:
    """Turn a comparison round."""
    new = OPPOSITES[type(node.ops[0])]()
    name = f"{type(node.ops[0]).__name__} becomes {type(new).__name__}"
    yield name, set_field(node, "ops", [new])


def drop_item(node: Any) -> Iterator[tuple[str, Change]]:
    """Drop one conjunct, or one member of a tuple of statuses."""
    field = "values" if isinstance(node, ast.BoolOp) else "elts"
    items = getattr(node, field)
    for place in range(len(items) if len(items) > 1 else 0):
        rest = items[:place] + items[place + 1 :]
        # Of two operands one remains; an operator needs two, so it is written twice.
        rest = rest * 2 if len(rest) == 1 else rest
        name = f"without {ast.unparse(items[place])}"
        yield name, set_field(node, field, rest)


def change_constant(node: ast.Constant) -> Iterator[tuple[str, Change]]:
    """Change a number by one, a truth value to the other."""
    if isinstance(node.value, bool):
        yield f"not {node.value}", set_field(node, "value", not node.value)
    elif isinstance(node.value, int):
        for change in (1, -1):
            new = node.value + change
            yield f"{node.value} becomes {new}", set_field(node, "value", new)


def change_name(node: ast.Name) -> Iterator[tuple[str, Change]]:
    """Put one status for another."""
    if node.id in STATUSES:
        new = STATUSES[STATUSES.index(node.id) - 1]
        yield f"{node.id} becomes {new}", set_field(node, "id", new)


def change_attribute(node: ast.Attribute) -> Iterator[tuple[str, Change]]:
    """Put a variable for another one of the same role."""
    names = VARIABLES.get(ast.unparse(node.value).removesuffix(".cells").removeprefix("state."), [])
    if node.attr in names:
        new = names[names.index(node.attr) - 1]
        yield f"{node.attr} becomes {new}", set_field(node, "attr", new)


def drop_negation(node: ast.UnaryOp) -> Iterator[tuple[str, Change]]:
    """Take a negation out."""
    if isinstance(node.op, ast.Not):
        twice = ast.UnaryOp(ast.Not(), node.operand)
        yield "without not", set_field(node, "operand", twice)


def exchange_branches(node: ast.IfExp) -> Iterator[tuple[str, Change]]:
    """Exchange what a condition chooses."""

    def exchange() -> None:
        node.body, node.orelse = node.orelse, node.body

    yield "branches exchanged", exchange


def exchange_arguments(node: ast.Call) -> Iterator[tuple[str, Change]]:
    """Exchange two neighbouring arguments of a call."""
    for place in range(len(node.args) - 1):
        new = list(node.args)
        new[place : place + 2] = new[place + 1], new[place]
        yield f"arguments {place} exchanged", set_field(node, "args", new)


def change_body(node: ast.FunctionDef) -> Iterator[tuple[str, Change]]:
    """Drop a statement, or exchange two of which one reads what the other writes."""
    docstring, *body = node.body
    for place, statement in enumerate(body):
        new = [docstring, *body[:place], *body[place + 1 :]]
        yield f"without `{ast.unparse(statement)}`", set_field(node, "body", new)
    for place, (first, second) in enumerate(pairwise(body)):
        if depends(first, second) or depends(second, first):
            new = [docstring, *body[:place], second, first, *body[place + 2 :]]
            yield f"`{ast.unparse(second)}` first", set_field(node, "body", new)


def depends(reader: ast.stmt, writer: ast.stmt) -> bool:
    """Return whether a statement mentions what another one assigns."""
    targets = getattr(writer, "targets", [getattr(writer, "target", None)])
    written = {ast.unparse(target) for target in targets if target is not None}
    return any(ast.unparse(n) in written for n in ast.walk(reader) if isinstance(n, ast.expr))


CHANGES: Mapping[type, Callable[[Any], Iterator[tuple[str, Change]]]] = {
    ast.BinOp: change_operator,
    ast.AugAssign: change_operator,
    ast.BoolOp: lambda node: iter((*change_operator(node), *drop_item(node))),
    ast.Tuple: drop_item,
    ast.Compare: change_comparison,
    ast.Constant: change_constant,
    ast.Name: change_name,
    ast.Attribute: change_attribute,
    ast.UnaryOp: drop_negation,
    ast.IfExp: exchange_branches,
    ast.Call: exchange_arguments,
    ast.FunctionDef: change_body,
}


def mutants(function: ast.FunctionDef) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield every changed copy of a function, with its line and what was changed."""
    for number in range(len(list(places_to_change(function)))):
        changed = copy.deepcopy(function)
        node, name, change = next(islice(places_to_change(changed), number, None))
        line = getattr(node, "lineno", function.lineno) - function.lineno
        change()
        yield f"line {line}: {name}", ast.fix_missing_locations(changed)


def places_to_change(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, str, Change]]:
    """Yield every change to a function, and to each node of its body."""
    below = (node for statement in function.body for node in ast.walk(statement))
    for node in (function, *below):
        for name, change in changes(node):
            yield node, name, change


@cache
def module(name: str) -> tuple[ast.Module, Names]:
    """Return the tree and the names of a module of the core."""
    text = (core_folder() / f"{name}.py").read_text(encoding="utf-8")
    return ast.parse(text), names_in(text)


def function_of(name: str, row: str) -> ast.FunctionDef:
    """Return the tree of a row's function."""
    tree, _ = module(name)
    return next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == row)


def survivors(name: str, row: str, check: Callable[[Names], Result]) -> list[str]:
    """Return the changes to the function of a row that the check does not refute."""
    found = []
    for change, tree in mutants(function_of(name, row)):
        names = dict(module(name)[1])
        code = compile(ast.Module([tree], []), "<mutant>", "exec", flags=ANNOTATIONS)
        exec(code, names)
        if check(names).verdict is not Verdict.REFUTED:
            found.append(change)
    return found


ANNOTATIONS = __import__("__future__").annotations.compiler_flag
