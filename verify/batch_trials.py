"""The trials of a row's batch form: arrays of one and of two positions, against the row in turn.

A batch form works on each position alike and counts the positions before it, so two of them show
what it does; longer arrays are left to the tests that draw them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import z3
from attrs import evolve, frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import (
    Add,
    Expression,
    FlagParameter,
    Index,
    NumberParameter,
    Subtract,
)
from kvproof.spec.rows import Parameter, Transition
from kvproof.spec.text import text
from kvproof.spec.walk import AnyCell, read_cells
from kvproof.verify.instances import Instance, places
from kvproof.verify.scalar_trials import application, yes_or_no
from kvproof.verify.setting import Names, alias_cases, instances_for
from kvproof.verify.symbolic import SymbolicFlag, SymbolicNumber
from kvproof.verify.symbolic_columns import SymbolicColumn, column
from kvproof.verify.trees import replace_parameters
from kvproof.verify.trial import Answer, Application, Trial

POSITIONS_MAX = 2

Kind = TypeVar("Kind", bound=Parameter)


def has_batch(row: Transition) -> bool:
    """Return whether a batch form of the row is generated."""
    return row.batched or row.drains is not None


def batch_parameters(row: Transition) -> list[str]:
    """Return the parameters of the batch form: those of the row, but for the entry of a drain."""
    parameters = _owner_and_entry(row)[:1] if row.drains else row.parameters
    return [parameter.name for parameter in parameters]


def batch_trials(declaration: Declaration, row: Transition) -> Iterator[Trial]:
    """Yield the batch form for each number of positions, and each way for instances to repeat."""
    for count in range(0 if row.drains else 1, POSITIONS_MAX + 1):
        numbered = [_numbered(row, parameter, count) for parameter in row.parameters]
        flat: tuple[Parameter, ...] = tuple(item for group in numbered for item in group)
        for names in alias_cases(evolve(row, parameters=flat)):
            batch = _Batch(declaration, row, names, count)
            yield batch.drain() if row.drains else batch.trial()


def _numbered(row: Transition, parameter: Kind, count: int) -> list[Kind]:
    """Return what a parameter of the row is called at each position."""
    if row.drains and parameter != _owner_and_entry(row)[1]:
        return [parameter]
    return [evolve(parameter, name=f"{parameter.name}_{number}") for number in range(count)]


def _owner_and_entry(row: Transition) -> tuple[Index, Index]:
    """Return the parameters of a row that drains: the table's owner, and what is taken out."""
    owner, entry = row.parameters
    assert isinstance(owner, Index)
    assert isinstance(entry, Index)
    return owner, entry


@frozen
class _Batch:
    """A batch of `count` positions whose instances are given by `names`."""

    declaration: Declaration
    row: Transition
    names: Names
    count: int

    def trial(self) -> Trial:
        """Return the trial of a form that takes an array for each parameter."""
        instances = instances_for(self.declaration, self.names)
        stand = places(self.declaration, instances, apart=True)
        arrays: list[object] = []
        for parameter in self.row.parameters:
            if isinstance(parameter, Index):
                named = _numbered(self.row, parameter, self.count)
                arrays.append(np.array([stand[self.names[item]] for item in named]))
            else:
                arrays.append(_symbolic_array(_numbered(self.row, parameter, self.count)))
        return Trial(
            self.declaration,
            tuple(self._application(number) for number in range(self.count)),
            instances,
            stand,
            tuple(arrays),
            yes_or_no,
            may_refuse=self._repeats(),
        )

    def drain(self) -> Trial:
        """Return the trial of a form that takes the owner of a table, all of which it drains."""
        instances = instances_for(self.declaration, self.names)
        stand = places(self.declaration, instances, apart=True)
        parameter, entry = _owner_and_entry(self.row)
        owner = self.names[parameter]
        named = tuple(self.names[item] for item in _numbered(self.row, entry, self.count))
        return Trial(
            self.declaration,
            tuple(self._application(number) for number in reversed(range(self.count))),
            instances,
            stand,
            (Instance(owner, stand[owner]),),
            _drained([stand[index] for index in reversed(named)]),
            orders={owner: named},
            may_refuse=self._repeats() or not named,
        )

    def _application(self, number: int) -> Application:
        """Return the row as applied to one position."""
        names: Names = {}
        values: dict[str, Expression] = {}
        for parameter in self.row.parameters:
            if isinstance(parameter, Index):
                named = _numbered(self.row, parameter, self.count)
                names[parameter] = self.names[named[number % len(named)]]
            else:
                values[parameter.name] = _numbered(self.row, parameter, self.count)[number]
        applied = application(self.row, names)
        guard = tuple(replace_parameters(part, values) for part in applied.guard)
        assignments = {
            name: evolve(item, value=replace_parameters(item.value, values))
            for name, item in applied.effects.assignments.items()
        }
        return Application(guard, evolve(applied.effects, assignments=assignments))

    def _repeats(self) -> bool:
        """Return whether an instance comes twice of which more than counters is assigned."""
        for parameter in must_differ(self.declaration, self.row):
            items = _numbered(self.row, parameter, self.count)
            if len({self.names[item] for item in items}) < len(items):
                return True
        return False


def _symbolic_array(numbered: Sequence[NumberParameter | FlagParameter]) -> SymbolicColumn:
    flag = isinstance(numbered[0], FlagParameter)
    return column(
        SymbolicFlag(z3.Bool(item.name)) if flag else SymbolicNumber(z3.Int(item.name))
        for item in numbered
    )


def _drained(expected: list[int]) -> Answer:
    """Return a reader of what a drain returns: the entries, the last one first, or None."""

    def read(returned: object) -> bool | None:
        if returned is None:
            return False
        same = isinstance(returned, np.ndarray) and returned.tolist() == expected
        return True if same else None

    return read


def must_differ(declaration: Declaration, row: Transition) -> list[Index]:
    """Return the parameters of which a row assigns something that it does not merely count.

    A row that reads nothing that it writes may be applied to one instance again and again.
    """
    acting = frozenset(item for item in row.parameters if isinstance(item, Index))
    stored = [
        (item.cell, item.value)
        for item in row.effect
        if isinstance(item.cell, AnyCell) and not declaration.variable[item.cell.variable].ghost
    ]
    written = {cell.variable for cell, _ in stored}
    found: dict[Index, None] = {}
    if not written & _variables((*row.guard, *(value for _, value in stored))):
        return []
    for cell, value in stored:
        counts = isinstance(value, Add | Subtract) and text(value.left) == text(cell)
        if not counts:
            found |= dict.fromkeys(index for index in cell.indices if index in acting)
    return list(found)


def _variables(trees: Iterable[Expression]) -> set[str]:
    return {cell.variable for tree in trees for cell in read_cells(tree)}
