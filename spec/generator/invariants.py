"""Invariants as functions over whole columns, for the runtime's debug mode.

Left out are sentences about ghosts and about two states: the state that runs has neither.
"""

from __future__ import annotations

from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.derive import quantified
from kvproof.spec.expression import NumberCell, Total
from kvproof.spec.generator.layout import indent, joined
from kvproof.spec.generator.python import ATOM, Python, attribute, instances, is_single
from kvproof.spec.generator.rows import is_table
from kvproof.spec.location import DeclarationError
from kvproof.spec.rows import Invariant
from kvproof.spec.walk import AnyCell, read_cells, speaks_of_before


def checked_invariants(declaration: Declaration) -> list[Invariant]:
    """Return the invariants that a running state can be asked about."""
    return [row for row in declaration.all_invariants if _can_be_checked(declaration, row)]


def _can_be_checked(declaration: Declaration, row: Invariant) -> bool:
    ghost = any(declaration.variable[cell.variable].ghost for cell in read_cells(row.formula))
    return not (ghost or speaks_of_before(row.formula) or len(quantified(row.formula)) > 1)


def invariant_function(declaration: Declaration, row: Invariant) -> list[str]:
    """Return the lines of the function that says where the invariant holds."""
    indices = quantified(row.formula)
    python = _python(declaration)
    roles = [
        role.name
        for role in declaration.roles
        if role.name
        in {declaration.variable[c.variable].of[0].name for c in read_cells(row.formula)}
    ]
    used = [*roles, *_block_role(declaration, row)]
    ordered = [role.name for role in declaration.roles if role.name in used]
    returns = "Flags" if indices else "bool"
    if indices:
        body = python.statement("return ", row.formula, 1)
    else:
        plain = evolve(python, columns=False)
        items = plain.conjuncts(row.formula)
        items = items if len(items) > 1 else [plain.text(row.formula)]
        body = joined("return bool", "and", items, "", 1)
    return [
        f"def {row.name}(state: State) -> {returns}:",
        *indent([f'"""{row.sentence}"""']),
        *indent([f"{', '.join(ordered)} = {', '.join(f'state.{name}' for name in ordered)}"]),
        *indent(body),
    ]


def _block_role(declaration: Declaration, row: Invariant) -> list[str]:
    names = [c.variable for c in read_cells(row.formula) if is_table(declaration, c)]
    return [declaration.variable[name].of[1].name for name in names]


def _python(declaration: Declaration) -> Python:
    def cell(tree: AnyCell) -> str:
        return attribute(declaration, tree) + instances(declaration.variable[tree.variable].of[0])

    def total(tree: Total) -> str:
        body = tree.body
        if isinstance(body, NumberCell) and is_table(declaration, body):
            return _table_total(declaration, tree, body)
        if any(
            not is_single(declaration, c) and tree.index not in c.indices for c in read_cells(body)
        ):
            raise DeclarationError(
                tree.where, "this total has no column form; count it in a variable of its own."
            )
        return f"{Python(cell, columns=True).text(body, ATOM)}.sum()"

    return Python(cell, columns=True, total=total)


def _table_total(declaration: Declaration, tree: Total, cell: NumberCell) -> str:
    variable = declaration.variable[cell.variable]
    assert variable.length is not None
    length = f"{variable.of[0].name}.{variable.length.name}"
    entries, first = f"{variable.of[1].name}.capacity", variable.of[1].first
    place = attribute(declaration, cell)
    over_owners = tree.index == cell.indices[0]
    if over_owners:
        return f"{place}.times_named({length}, {entries}){instances(variable.of[1])}"
    return f"{place}.valid_entries({length}, {first}, {entries})"
