"""Mistakes that are refused when a declaration is built, each with its line and what to write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from kvproof.spec.derive import complete
from kvproof.spec.expression import (
    Assignment,
    Expression,
    FlagParameter,
    Index,
    NumberParameter,
)
from kvproof.spec.location import DeclarationError, Location
from kvproof.spec.rows import Transition
from kvproof.spec.walk import AnyCell, cells, free_indices, nodes, speaks_of_before

if TYPE_CHECKING:
    from kvproof.spec.declaration import Declaration


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def where(self) -> Location: ...


def check(declaration: Declaration) -> None:
    """Raise DeclarationError for the first mistake found, in the order of this list."""
    _names_are_unique(declaration)
    for row in declaration.transitions:
        _check_transition(declaration, row)
    _invariants_say_something(declaration)
    _every_variable_is_used(declaration)
    _measures_are_lowered(declaration)
    _named_rows_exist(declaration)
    _witnesses_cover_every_row(declaration)


def _refuse(row: _Named, message: str) -> None:
    raise DeclarationError(row.where, f"{type(row).__name__.lower()} {row.name!r}: {message}")


def _names_are_unique(declaration: Declaration) -> None:
    groups: tuple[Iterable[_Named], ...] = (
        (*declaration.constants, *declaration.roles, *declaration.variables),
        declaration.transitions,
        (*declaration.all_invariants, *declaration.measures, *declaration.progress),
        declaration.witnesses,
    )
    for group in groups:
        seen: dict[str, _Named] = {}
        for row in group:
            if row.name in seen:
                _refuse(row, f"the name is taken at {seen[row.name].where}; choose another.")
            seen[row.name] = row


def _check_transition(declaration: Declaration, row: Transition) -> None:
    _states_are_known(declaration, row)
    full = complete(row, declaration.state)
    _variables_are_declared(declaration, full)
    _assigned_once(full)
    _indices_are_bound(full)
    _parameters_are_used(full)
    _says_nothing_of_before(full)
    _ghosts_stay_ghosts(declaration, full)
    _tables_keep_their_length(declaration, full)
    if row.undoes is not None and row.undoes not in declaration.transition:
        _refuse(row, f"undoes {row.undoes!r}, which is no transition; name one.")


def _states_are_known(declaration: Declaration, row: Transition) -> None:
    for member in (*row.source, *(() if row.target is None else (row.target,))):
        if member.enumeration != declaration.enumeration.name:
            _refuse(
                row, f"{member.name} is no state of a request; use {declaration.enumeration.name}."
            )
    if (row.subject is None) != (not row.source):
        _refuse(row, "subject and source go together; give both or neither.")
    if row.target is not None and row.subject is None:
        _refuse(row, "a target state needs a subject; name the request that moves.")


def _expressions(row: Transition) -> Iterator[Expression]:
    yield from row.guard
    for assignment in row.effect:
        yield assignment.cell
        yield assignment.value


def _variables_are_declared(declaration: Declaration, row: Transition) -> None:
    for expression in _expressions(row):
        for cell in cells(expression):
            if cell.variable not in declaration.variable:
                _refuse(row, f"{cell.variable!r} is not among the declared variables; add it.")


def _cell(row: Transition, assignment: Assignment) -> AnyCell:
    if not isinstance(assignment.cell, AnyCell):
        _refuse(row, "only a variable's cell can be assigned; write variable[index].becomes(...).")
        raise AssertionError
    return assignment.cell


def _assigned_once(row: Transition) -> None:
    seen: dict[tuple[str, bool], Assignment] = {}
    for assignment in row.effect:
        cell = _cell(row, assignment)
        key = (cell.variable, False)
        if key in seen:
            _refuse(
                row,
                f"{cell.variable} is assigned at {seen[key].where} and at {assignment.where};"
                " effects are simultaneous, so assign each variable once.",
            )
        seen[key] = assignment


def _indices_are_bound(row: Transition) -> None:
    known = {parameter for parameter in row.parameters if isinstance(parameter, Index)}
    for expression in row.guard:
        _no_stranger(row, expression, known)
    for assignment in row.effect:
        bound = known | set(assignment.every)
        _no_stranger(row, assignment.cell, bound)
        _no_stranger(row, assignment.value, bound)


def _no_stranger(row: Transition, expression: Expression, known: set[Index]) -> None:
    for index in free_indices(expression):
        if index not in known and index.name != index.role:
            _refuse(
                row, f"the {index.role} {index.name!r} is neither a parameter nor under every(...)."
            )


def _parameters_are_used(row: Transition) -> None:
    used: set[object] = set()
    for expression in _expressions(row):
        used |= set(free_indices(expression))
        used |= {
            node.name
            for node in nodes(expression)
            if isinstance(node, NumberParameter | FlagParameter)
        }
    declared = {p if isinstance(p, Index) else p.name for p in row.parameters}
    for parameter in declared - used:
        _refuse(row, f"the parameter {parameter} is not used; remove it.")
    for name in {item for item in used if isinstance(item, str)} - declared:
        _refuse(row, f"{name!r} is used but is not among the parameters; add it.")


def _says_nothing_of_before(row: Transition) -> None:
    if any(speaks_of_before(expression) for expression in _expressions(row)):
        _refuse(row, "before(...) belongs into invariants; a row always reads the state before it.")


def _ghosts_stay_ghosts(declaration: Declaration, row: Transition) -> None:
    ghosts = {name for name, variable in declaration.variable.items() if variable.ghost}
    readers = list(row.guard)
    for assignment in row.effect:
        if _cell(row, assignment).variable not in ghosts:
            readers.append(assignment.value)  # type: ignore[arg-type]
    for expression in readers:
        for cell in cells(expression):
            if cell.variable in ghosts:
                _refuse(row, f"{cell.variable} is for proofs alone and cannot be read here.")


def _tables_keep_their_length(declaration: Declaration, row: Transition) -> None:
    written = {_cell(row, assignment).variable for assignment in row.effect}
    for name in written:
        length = declaration.variable[name].length
        if length is not None and length.name not in written:
            _refuse(row, f"{name} changes but its length {length.name} does not; assign both.")


def _invariants_say_something(declaration: Declaration) -> None:
    for invariant in declaration.invariants:
        if not any(True for _ in cells(invariant.formula)):
            _refuse(invariant, "mentions no variable; it can be deleted or is an assumption.")
        for cell in cells(invariant.formula):
            if cell.variable not in declaration.variable:
                _refuse(invariant, f"{cell.variable!r} is not among the declared variables.")


def _every_variable_is_used(declaration: Declaration) -> None:
    read: set[str] = set()
    wrote: set[str] = set()
    for row in declaration.transitions:
        full = complete(row, declaration.state)
        for assignment in full.effect:
            wrote.add(_cell(full, assignment).variable)
            read |= {cell.variable for cell in cells(assignment.value)}
        read |= {cell.variable for part in full.guard for cell in cells(part)}
    read |= {cell.variable for row in declaration.invariants for cell in cells(row.formula)}
    for variable in declaration.variables:
        if variable.name not in read:
            _refuse(variable, "no guard, effect or invariant reads it; remove it or say its law.")
        if variable.name not in wrote:
            _refuse(variable, "no transition changes it; make it a constant.")


def _measures_are_lowered(declaration: Declaration) -> None:
    for measure in declaration.measures:
        if not measure.lowered_by:
            _refuse(measure, "no row lowers it; name one in lowered_by, or remove the measure.")


def _named_rows_exist(declaration: Declaration) -> None:
    rows = set(declaration.transition)
    for measure in declaration.measures:
        for name in {*measure.lowered_by, *measure.raised_by} - rows:
            _refuse(measure, f"{name!r} is no transition; the rows are {', '.join(sorted(rows))}.")
    for progress in declaration.progress:
        for name in set(progress.rows) - rows:
            _refuse(progress, f"{name!r} is no transition; name rows that exist.")
    for witness in declaration.witnesses:
        for name in {str(step[0]) for step in witness.steps} - rows:
            _refuse(witness, f"{name!r} is no transition; name rows that exist.")


def _witnesses_cover_every_row(declaration: Declaration) -> None:
    fired = {str(step[0]) for witness in declaration.witnesses for step in witness.steps}
    for row in declaration.transitions:
        if row.name not in fired:
            _refuse(row, "no witness fires it; add it to a run, so that no proof is vacuous.")
