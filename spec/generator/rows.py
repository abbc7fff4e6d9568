"""The scalar form of every row: one guard, and effects ordered so that each reads old values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from attrs import evolve, frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import (
    Add,
    AllOf,
    Assignment,
    ChooseNumber,
    Compare,
    Expression,
    FlagParameter,
    Formula,
    Index,
    Literal,
    No,
    NumberCell,
    NumberParameter,
    StandsAt,
    Subtract,
    Total,
)
from kvproof.spec.generator.layout import INDENT, WIDTH, assigned, call, indent, joined
from kvproof.spec.generator.python import (
    ATOM,
    NOT,
    Python,
    attribute,
    instances,
    is_count,
    is_single,
)
from kvproof.spec.location import DeclarationError
from kvproof.spec.rows import Transition
from kvproof.spec.text import text
from kvproof.spec.walk import AnyCell, nodes, read_cells


@frozen
class Effect:
    """One stored assignment of a row, with the name its variable is written by."""

    cell: AnyCell
    assignment: Assignment

    @property
    def value(self) -> Expression:
        """Return the tree that is assigned."""
        return self.assignment.value


def stored_effects(declaration: Declaration, row: Transition) -> list[Effect]:
    """Return the effects on stored variables, each after every one that reads its old value."""
    waiting = []
    for assignment in row.effect:
        assert isinstance(assignment.cell, AnyCell)
        if not declaration.variable[assignment.cell.variable].ghost:
            waiting.append(Effect(assignment.cell, assignment))
    return _in_reading_order(declaration, row, waiting)


def _in_reading_order(
    declaration: Declaration, row: Transition, waiting: list[Effect]
) -> list[Effect]:
    ordered: list[Effect] = []
    while waiting:
        ready = [item for item in waiting if not _is_read_by_others(declaration, item, waiting)]
        if not ready:
            raise DeclarationError(
                row.where,
                f"transition {row.name!r}: the effects read each other's old values in a circle;"
                " carry one of them in a variable of its own.",
            )
        ordered.append(ready[0])
        waiting = [item for item in waiting if item is not ready[0]]
    return ordered


def _is_read_by_others(declaration: Declaration, effect: Effect, waiting: list[Effect]) -> bool:
    others = (item for item in waiting if item is not effect)
    return any(effect.cell.variable in _reads(declaration, item) for item in others)


def _reads(declaration: Declaration, effect: Effect) -> set[str]:
    """Return what the effect's code reads: its value's cells, and a table's old length."""
    names = {cell.variable for cell in read_cells(effect.value)}
    for name in {*names, effect.cell.variable}:
        length = declaration.variable[name].length
        if length is not None:
            names.add(length.name)
    return names - {effect.cell.variable}


def scalar_function(declaration: Declaration, row: Transition) -> list[str]:
    """Return the lines of the function that applies the row to one instance of each role."""
    python = scalar_python(declaration)
    numbers = count(1)
    names: dict[int, str] = {}
    body = []
    for tree in _masks(row):
        names[id(tree)] = f"part_{next(numbers)}"
        body += _mask(declaration, tree, names[id(tree)], numbers)
    body += _guard(evolve(python, names=names), row)
    for same in _conditions_used_twice(declaration, row):
        name = f"part_{next(numbers)}"
        body += assigned(name, column_python(declaration).text(same[0]), 1)
        names |= {id(tree): name for tree in same}
    for effect in stored_effects(declaration, row):
        body += _effect(declaration, row, effect, numbers, names)
    body.append("return True")
    first = _locals(declaration, row, body)
    return [*signature(row), *indent([*docstring(row), *first, *body])]


def signature(row: Transition) -> list[str]:
    """Return the first line of the scalar function, broken if it is too long."""
    kinds = {Index: "int", NumberParameter: "int", FlagParameter: "bool"}
    parameters = [f"{p.name}: {kinds[type(p)]}" for p in row.parameters]
    return call(f"def {row.name}", ["state: State", *parameters], " -> bool:", 0)


def docstring(row: Transition, *more: str) -> list[str]:
    """Return the row's sentence, what else there is to say, and the rule it follows."""
    lines = [f'"""{row.doc}', ""]
    if more:
        lines += [*more, ""]
    lines += [f"Rule: {row.rule}.", '"""']
    return lines


def uses_columns(declaration: Declaration, row: Transition) -> bool:
    """Return whether the row speaks of every instance of a role, so that it works on columns."""
    trees = [*row.guard, *(assignment.value for assignment in row.effect)]
    if any(isinstance(node, Total) for tree in trees for node in nodes(tree)):
        return True
    return any(
        effect.assignment.every and not is_table(declaration, effect.cell)
        for effect in stored_effects(declaration, row)
    )


def is_table(declaration: Declaration, cell: AnyCell) -> bool:
    """Return whether the cell counts entries of a table."""
    return declaration.variable[cell.variable].length is not None


def _conditions_used_twice(declaration: Declaration, row: Transition) -> list[list[Expression]]:
    """Return the comparisons of columns that several effects need; they are worked out first."""
    found: dict[str, list[Expression]] = {}
    for effect in stored_effects(declaration, row):
        if effect.assignment.every and not is_table(declaration, effect.cell):
            for node in nodes(effect.value):
                if isinstance(node, Compare):
                    found.setdefault(text(node), []).append(node)
    return [same for same in found.values() if len(same) > 1]


def _locals(declaration: Declaration, row: Transition, body: list[str]) -> list[str]:
    roles = used_roles(declaration, row)
    if uses_columns(declaration, row):
        return local_names(roles, body)
    values = [f"state.{r}" + ("" if declaration.role[r].single else ".cells") for r in roles]
    return [f"{', '.join(roles)} = {', '.join(values)}"] if roles else []


def local_names(roles: list[str], body: list[str]) -> list[str]:
    """Return the line that names the parts of the state which the body of a function uses."""
    used = [*roles, "operands"] if any("operands." in line for line in body) else roles
    return [f"{', '.join(used)} = {', '.join(f'state.{name}' for name in used)}"] if used else []


def used_roles(declaration: Declaration, row: Transition) -> list[str]:
    """Return the roles whose variables the code of the row names, in declaration order."""
    trees: list[Expression] = list(row.guard)
    for effect in stored_effects(declaration, row):
        trees += [effect.cell, effect.value]
    used = {
        declaration.variable[cell.variable].of[0].name
        for tree in trees
        for cell in read_cells(tree)
    }
    return [role.name for role in declaration.roles if role.name in used]


def _guard(python: Python, row: Transition) -> list[str]:
    conjuncts = [
        i for part in row.guard for i in (part.items if isinstance(part, AllOf) else (part,))
    ]
    if not conjuncts:
        return []
    if len(conjuncts) == 1:
        return [f"if {negated(python, conjuncts[0])}:", "    return False"]
    written = [item for part in conjuncts for item in python.conjuncts(part)]
    return [*joined("if not ", "and", written, ":", 1), "    return False"]


def negated(python: Python, tree: Formula) -> str:
    """Return the opposite of a formula about single values."""
    if isinstance(tree, Compare) and tree.operator in _OPPOSITES:
        return python.text(evolve(tree, operator=_OPPOSITES[tree.operator]))
    return python.text(tree.body) if isinstance(tree, No) else f"not {python.text(tree, NOT)}"


_OPPOSITES = {"==": "!=", ">=": "<", "<=": ">"}


def scalar_python(declaration: Declaration) -> Python:
    """Return the writer of trees about single values."""

    def cell(tree: AnyCell) -> str:
        place = attribute(declaration, tree)
        if is_single(declaration, tree):
            return place
        index = tree.indices[0].name
        length = declaration.variable[tree.variable].length
        if length is None:
            return f"{place}[{index}]"
        owner = declaration.variable[tree.variable].of[0].name
        return f"{place}.count({index}, {owner}.{length.name}[{index}], {tree.indices[1].name})"

    def stands_at(tree: StandsAt) -> str:
        table = NumberCell(tree.table, (tree.owner, tree.entry))
        owner = tree.owner.name
        length = f"{_length(declaration, table)}[{owner}]"
        position = scalar_python(declaration).text(tree.position)
        place = attribute(declaration, table)
        return f"{place}.stands_at({owner}, {length}, {position}, {tree.entry.name})"

    return Python(cell, total=lambda tree: _column_total(declaration, tree), stands_at=stands_at)


def column_python(declaration: Declaration, summed: Index | None = None) -> Python:
    """Return the writer of trees about whole columns, or of the terms of a sum over `summed`.

    There, what belongs to another instance than the summed one is a single cell.
    """

    def cell(tree: AnyCell) -> str:
        place, roles = attribute(declaration, tree), declaration.variable[tree.variable].of
        if summed is not None and not roles[0].single and tree.indices[0] != summed:
            return f"{place}[{tree.indices[0].name}]"
        return place + instances(roles[0])

    return Python(cell, columns=True, operands=True)


def _column_total(declaration: Declaration, tree: Total) -> str:
    python = column_python(declaration, tree.index)
    if isinstance(tree.body, ChooseNumber) and is_count(tree.body):
        return f"np.count_nonzero({python.text(tree.body.condition)})"
    return f"{python.text(tree.body, ATOM)}.sum()"


def _masks(row: Transition) -> list[Total]:
    """Return the totals in the guard that count instances, and ask several things of each."""
    found = [node for part in row.guard for node in nodes(part) if isinstance(node, Total)]
    return [
        node
        for node in found
        if isinstance(node.body, ChooseNumber)
        and is_count(node.body)
        and isinstance(node.body.condition, AllOf)
        and (len(node.body.condition.items) > _CONJUNCTS_OF_A_LINE or _compares(node))
    ]


def _compares(tree: Total) -> bool:
    """Return whether a total holds each instance against a named one."""
    return any(index != tree.index for cell in read_cells(tree.body) for index in cell.indices)


def _mask(declaration: Declaration, tree: Total, name: str, numbers: Iterator[int]) -> list[str]:
    """Return the lines that name the number of instances that a total counts."""
    assert isinstance(tree.body, ChooseNumber)
    python = column_python(declaration, tree.index)
    conjuncts = python.conjuncts(tree.body.condition)
    if any(len(conjunct) > WIDTH - len(INDENT) for conjunct in conjuncts):
        lines = evolve(python, numbers=numbers).statement("counted = ", tree.body.condition, 1)
    else:
        lines = joined("counted = ", "&", conjuncts, "", 1)
    return [*lines, f"{name} = np.count_nonzero(counted)"]


_CONJUNCTS_OF_A_LINE = 2


def _effect(
    declaration: Declaration,
    row: Transition,
    effect: Effect,
    numbers: Iterator[int],
    names: Mapping[int, str],
) -> list[str]:
    if is_table(declaration, effect.cell):
        return _table_effect(declaration, row, effect)
    if effect.assignment.every:
        python = evolve(column_python(declaration), numbers=numbers, names=names)
        place = python.cell(effect.cell)
        kept = _kept_elsewhere(python, effect, place)
        whole = place if place.endswith("]") else f"{place}[:]"
        return kept or _store(python, effect, place, whole, bare=place)
    python = evolve(scalar_python(declaration), numbers=numbers)
    place = python.cell(effect.cell)
    return _store(python, effect, place, place, bare=place)


def _kept_elsewhere(python: Python, effect: Effect, place: str) -> list[str]:
    """Return `column[condition] = value` where that is all the effect does."""
    value, every = effect.value, effect.assignment.every
    if not isinstance(value, ChooseNumber) or python.text(value.otherwise) != place:
        return []
    if any(index in every for cell in read_cells(value.then) for index in cell.indices):
        return []
    condition, then = python.text(value.condition), python.text(value.then)
    return assigned(f"{place}[{condition}]", then, 1)


def _store(python: Python, effect: Effect, read: str, write: str, *, bare: str) -> list[str]:
    """Return `place += change` where the new value is the old one and a change, else a store."""
    value = effect.value
    if isinstance(value, Add | Subtract) and python.text(value.left) == read:
        sign = "+" if isinstance(value, Add) else "-"
        return python.statement(f"{bare} {sign}= ", value.right, 1)
    if isinstance(value, Formula) and any(isinstance(node, Total) for node in nodes(value)):
        # A numpy truth value would stay one for ever; the state holds Python's.
        return joined(f"{write} = bool", "and", python.conjuncts(value), "", 1)
    return python.statement(f"{write} = ", value, 1)


def _table_effect(declaration: Declaration, row: Transition, effect: Effect) -> list[str]:
    """Return the table operation that an effect on a pair of instances stands for."""
    cell, value = effect.cell, effect.value
    table, owner = attribute(declaration, cell), cell.indices[0].name
    length = _length(declaration, cell)
    if effect.assignment.every and isinstance(value, Literal) and value.value == 0:
        return []  # A table is emptied by its length; the entries beyond it mean nothing.
    if effect.assignment.every and isinstance(value, NumberCell):
        source, giver = attribute(declaration, value), value.indices[0].name
        return [f"{table}.copy({owner}, {source}, {giver}, {_length(declaration, value)}[{giver}])"]
    entry = cell.indices[1].name
    if _changes_by_one(cell, value, Add):
        return [f"{table}.append({owner}, {length}[{owner}], {entry})"]
    if _changes_by_one(cell, value, Subtract):
        return [f"{table}.remove({owner}, {length}[{owner}], {entry})"]
    raise DeclarationError(
        effect.assignment.where,
        f"transition {row.name!r}: a table can be emptied, copied, or changed by one entry; saw"
        f" {text(value)}.",
    )


def _length(declaration: Declaration, cell: AnyCell) -> str:
    variable = declaration.variable[cell.variable]
    assert variable.length is not None
    return f"{variable.of[0].name}.{variable.length.name}"


def _changes_by_one(cell: AnyCell, value: Expression, kind: type) -> bool:
    return (
        isinstance(value, Add | Subtract)
        and isinstance(value, kind)
        and text(value.left) == text(cell)
        and isinstance(value.right, Literal)
        and value.right.value == 1
    )
