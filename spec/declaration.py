"""A declaration: all rows of a machine, checked as a whole when it is built."""

from __future__ import annotations

from functools import cached_property

from attrs import define, evolve, field

from kvproof.spec.checks import check
from kvproof.spec.derive import bounds, complete
from kvproof.spec.expression import Choice, Constant, Formula, Number
from kvproof.spec.rows import (
    Assumption,
    Enumeration,
    Invariant,
    Measure,
    Progress,
    Role,
    Transition,
    Variable,
    Witness,
)

AnyVariable = Variable[Number] | Variable[Formula] | Variable[Choice]


@define(frozen=True, eq=False, slots=False)
class Declaration:
    """The rows of one machine; a mistake in any of them raises DeclarationError at import.

    `enumeration` and `state` say which variable holds the state that `Transition.source` and
    `Transition.target` speak of.
    """

    name: str
    constants: tuple[Constant, ...]
    roles: tuple[Role, ...]
    enumeration: Enumeration
    state: Variable[Choice]
    variables: tuple[AnyVariable, ...]
    transitions: tuple[Transition, ...]
    invariants: tuple[Invariant, ...]
    measures: tuple[Measure, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    progress: tuple[Progress, ...] = ()
    witnesses: tuple[Witness, ...] = ()
    checked: bool = field(default=True, kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Refuse a declaration with a mistake in it."""
        if self.checked:
            check(self)

    @cached_property
    def variable(self) -> dict[str, AnyVariable]:
        """Return the variables by name."""
        return {variable.name: variable for variable in self.variables}

    @cached_property
    def role(self) -> dict[str, Role]:
        """Return the roles by name."""
        return {role.name: role for role in self.roles}

    @cached_property
    def transition(self) -> dict[str, Transition]:
        """Return the transitions by name, as declared."""
        return {row.name: row for row in self.transitions}

    @cached_property
    def complete_transitions(self) -> dict[str, Transition]:
        """Return the transitions with source and target written into guard and effect."""
        return {row.name: complete(row, self.state) for row in self.transitions}

    @cached_property
    def all_invariants(self) -> tuple[Invariant, ...]:
        """Return the declared invariants and the declared bounds of variables."""
        return (*bounds(self.variables), *self.invariants)

    @cached_property
    def all_assumptions(self) -> tuple[Assumption, ...]:
        """Return the declared assumptions and the least values of the constants."""
        least = (
            Assumption(
                f"{constant.name}_minimum",
                f"{constant.name} is at least {constant.minimum}.",
                constant >= constant.minimum,
                where=constant.where,
            )
            for constant in self.constants
        )
        return (*least, *self.assumptions)

    def with_transition(self, changed: Transition) -> Declaration:
        """Return a declaration in which one row is replaced by `changed`, of the same name.

        No check is made: the result may be a mutant whose mistakes the proofs are to find.
        """
        rows = tuple(changed if row.name == changed.name else row for row in self.transitions)
        return evolve(self, transitions=rows, checked=False)
