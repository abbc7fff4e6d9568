"""What a tree may say depends on its place: each is checked against the row that it is in.

A guard is about the instances that the row names, an invariant about all instances there are, a
measure about none in particular, an assumption about constants only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn, Protocol

from attrs import frozen

from kvproof.spec.expression import (
    Assignment,
    Constant,
    Expression,
    FlagParameter,
    Formula,
    Index,
    Number,
    NumberParameter,
    Truth,
)
from kvproof.spec.location import DeclarationError, Location
from kvproof.spec.rows import Transition
from kvproof.spec.walk import cells, free_indices, nodes, speaks_of_before

if TYPE_CHECKING:
    from kvproof.spec.declaration import Declaration


class Named(Protocol):
    """A row of any kind."""

    @property
    def name(self) -> str:
        """Return the name that other rows know it by."""
        ...

    @property
    def where(self) -> Location:
        """Return the line that declares it."""
        ...


def refuse(row: Named, message: str) -> NoReturn:
    """Raise DeclarationError at the line of the row."""
    raise DeclarationError(row.where, f"{type(row).__name__.lower()} {row.name!r}: {message}")


@frozen
class Place:
    """A tree, the row it is in, and what it may say there; `indices` None means any instance."""

    row: Named
    tree: Expression
    kind: type[Expression] = Formula
    indices: frozenset[Index] | None = frozenset()
    of_a_row: bool = False
    before: bool = False
    variables: bool = True
    truths: bool = False


def check_trees(declaration: Declaration, transitions: tuple[Transition, ...]) -> None:
    """Raise DeclarationError for the first tree that says what its place does not allow."""
    for place in (*_in_transitions(transitions), *_elsewhere(declaration)):
        for rule in _RULES:
            rule(declaration, place)


def _in_transitions(transitions: tuple[Transition, ...]) -> Iterator[Place]:
    for row in transitions:
        known = frozenset(item for item in row.parameters if isinstance(item, Index))
        for part in row.guard:
            yield Place(row, part, indices=known, of_a_row=True)
        for assignment in row.effect:
            yield from _in_assignment(row, assignment, known)


def _in_assignment(
    row: Transition, assignment: Assignment, known: frozenset[Index]
) -> Iterator[Place]:
    if not isinstance(assignment, Assignment):
        refuse(row, f"an effect is an assignment, saw {assignment!r}; write cell.becomes(value).")
    bound = known | frozenset(assignment.every)
    for tree in (assignment.cell, assignment.value):
        yield Place(row, tree, Expression, bound, of_a_row=True, truths=True)


def _elsewhere(declaration: Declaration) -> Iterator[Place]:
    for invariant in declaration.invariants:
        yield Place(invariant, invariant.formula, indices=None, before=True)
    for measure in declaration.measures:
        yield Place(measure, measure.value, Number)
    for assumption in declaration.assumptions:
        yield Place(assumption, assumption.formula, variables=False)
    for progress in declaration.progress:
        yield Place(progress, progress.when, indices=frozenset(progress.parameters))
    for witness in declaration.witnesses:
        if witness.ends is not None:
            yield Place(witness, witness.ends, indices=None)


def _is_of_its_kind(declaration: Declaration, place: Place) -> None:
    tree: object = place.tree
    if isinstance(tree, place.kind):
        return
    wanted = place.kind.__name__.lower()
    seen = type(tree).__name__ if isinstance(tree, Expression) else repr(tree)
    hint = _BOOL_HINT if isinstance(tree, bool) else _KIND_HINTS[place.kind]
    refuse(place.row, f"expected a {wanted}, saw {seen}; {hint}.")


_BOOL_HINT = "two instances cannot be compared; say what is true of their variables"
_KIND_HINTS: dict[type[Expression], str] = {
    Formula: "compare it with something",
    Number: "write a number, or count_if(...) of a formula",
    Expression: "write a number, a formula or a member of an enumeration",
}


def _says_something(declaration: Declaration, place: Place) -> None:
    if place.truths or not any(isinstance(node, Truth) for node in nodes(place.tree)):
        return
    refuse(
        place.row,
        "a part is true or false whatever the state is; say what is true of variables"
        " (two instances cannot be compared).",
    )


def _variables_are_declared(declaration: Declaration, place: Place) -> None:
    for cell in cells(place.tree):
        if not place.variables:
            refuse(place.row, f"{cell.variable} changes; an assumption is about constants only.")
        if cell.variable not in declaration.variable:
            refuse(place.row, f"{cell.variable!r} is not among the declared variables; add it.")


def _constants_are_declared(declaration: Declaration, place: Place) -> None:
    known = {constant.name for constant in declaration.constants}
    for node in nodes(place.tree):
        if isinstance(node, Constant) and node.name not in known:
            refuse(place.row, f"{node.name!r} is not among the declared constants; add it.")


def _indices_are_instances(declaration: Declaration, place: Place) -> None:
    for cell in cells(place.tree):
        for index in cell.indices:
            role = declaration.role.get(index.role)
            if role is None:
                refuse(place.row, f"{index.role!r} is not among the declared roles; add it.")
            if role.single and index.name != role.name:
                refuse(place.row, f"there is one {role.name}; write {cell.variable}[{role.name}].")
            if index.name == role.name and not role.single:
                refuse(
                    place.row,
                    f"there are many {role.plural or role.name}; name one:"
                    f" x = {role.name}.index('x'), then {cell.variable}[x].",
                )


def _indices_are_bound(declaration: Declaration, place: Place) -> None:
    for index in free_indices(place.tree):
        if place.indices is None or index in place.indices or declaration.role[index.role].single:
            continue
        hint = "neither a parameter nor under every(...)" if place.of_a_row else "under no total"
        refuse(place.row, f"the {index.role} {index.name!r} is {hint}; bind it.")


def _before_is_in_its_place(declaration: Declaration, place: Place) -> None:
    if speaks_of_before(place.tree) and not place.before:
        refuse(
            place.row,
            "before(...) belongs into invariants; everything else reads one state only.",
        )


def _parameters_are_in_their_place(declaration: Declaration, place: Place) -> None:
    for node in nodes(place.tree):
        if isinstance(node, NumberParameter | FlagParameter) and not place.of_a_row:
            refuse(place.row, f"{node.name!r} is given to a transition and means nothing here.")


_RULES: tuple[Callable[[Declaration, Place], None], ...] = (
    _is_of_its_kind,
    _says_something,
    _variables_are_declared,
    _constants_are_declared,
    _indices_are_instances,
    _indices_are_bound,
    _before_is_in_its_place,
    _parameters_are_in_their_place,
)
