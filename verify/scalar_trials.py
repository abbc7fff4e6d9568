"""The trials of a row's scalar function: one for each way in which its parameters can coincide."""

from __future__ import annotations

from collections.abc import Iterator

import z3

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import FlagParameter, Index, Total
from kvproof.spec.rows import Parameter, Transition
from kvproof.spec.walk import nodes
from kvproof.verify.instances import Instance, places
from kvproof.verify.setting import Names, alias_cases, guard_of, instances_for
from kvproof.verify.symbolic import SymbolicFlag, SymbolicNumber
from kvproof.verify.trees import Instances, effects_of
from kvproof.verify.trial import Application, Trial


def scalar_trials(declaration: Declaration, row: Transition) -> Iterator[Trial]:
    """Yield the row with its parameters distinct, and with each choice of them the same."""
    for names in alias_cases(row):
        yield _trial(declaration, row, names)


def _trial(declaration: Declaration, row: Transition, names: Names) -> Trial:
    instances = instances_for(declaration, names)
    if speaks_of_all(row):
        instances = _one_more(instances)
    # Columns are used as a whole, so that no place in them may be left without an instance.
    stand = places(declaration, instances, apart=False)

    def argument(parameter: Parameter) -> object:
        if isinstance(parameter, Index):
            return Instance(names[parameter], stand[names[parameter]])
        if isinstance(parameter, FlagParameter):
            return SymbolicFlag(z3.Bool(parameter.name))
        return SymbolicNumber(z3.Int(parameter.name))

    return Trial(
        declaration,
        (application(row, names),),
        instances,
        stand,
        tuple(argument(parameter) for parameter in row.parameters),
        yes_or_no,
    )


def application(row: Transition, names: Names) -> Application:
    """Return a row with its parameters replaced by named instances."""
    return Application(tuple(guard_of(row, names)), effects_of(row.effect, names))


def yes_or_no(returned: object) -> bool | None:
    """Return what a function of a row answers; only True and False are answers."""
    return returned if isinstance(returned, bool) else None


def speaks_of_all(row: Transition) -> bool:
    """Return whether the row reads or writes every instance of some role."""
    trees = (*row.guard, *(assignment.value for assignment in row.effect))
    totals = any(isinstance(node, Total) for tree in trees for node in nodes(tree))
    return totals or any(assignment.every for assignment in row.effect)


def _one_more(instances: Instances) -> Instances:
    """Return the instances and a second arbitrary one of each role."""
    return {role: (*named, Index(role, "another")) for role, named in instances.items()}
