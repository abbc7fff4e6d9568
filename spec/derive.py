"""What follows from rows without a person writing it: full guards and effects, bounds, frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from attrs import evolve

from kvproof.spec.expression import Choice, Formula, Index, Number, NumberCell
from kvproof.spec.rows import Invariant, Transition, Variable
from kvproof.spec.walk import AnyCell, free_indices

if TYPE_CHECKING:
    from kvproof.spec.declaration import AnyVariable


def complete(row: Transition, state: Variable[Choice]) -> Transition:
    """Return the row with its source state as first guard and its target state as last effect."""
    if row.subject is None:
        return row
    cell = state[row.subject]
    guard = (cell.is_in(*row.source) if len(row.source) > 1 else cell == row.source[0],)
    effect = () if row.target is None else (cell.becomes(row.target),)
    return evolve(row, guard=(*guard, *row.guard), effect=(*row.effect, *effect))


def bounds(variables: Iterable[AnyVariable]) -> tuple[Invariant, ...]:
    """Return one invariant for each variable with a declared minimum."""
    return tuple(_bound(variable) for variable in variables if variable.minimum is not None)


def _bound(variable: AnyVariable) -> Invariant:
    indices = tuple(
        role.index(role.name if role.single else f"any_{role.name}") for role in variable.of
    )
    cell = NumberCell(variable.name, indices, where=variable.where)
    return Invariant(
        f"{variable.name}_minimum",
        f"{variable.name} never falls below {variable.minimum}.",
        cell >= (variable.minimum or 0),
        property="N1",
        where=variable.where,
    )


def quantified(formula: Formula | Number) -> tuple[Index, ...]:
    """Return the indices for whose every instance an invariant speaks; single roles have none."""
    return tuple(index for index in free_indices(formula) if index.name != index.role)


def written(row: Transition) -> frozenset[str]:
    """Return the variables that a complete row writes; the frame is every other one."""
    cells = (assignment.cell for assignment in row.effect)
    return frozenset(cell.variable for cell in cells if isinstance(cell, AnyCell))
