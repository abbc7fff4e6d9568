"""Mistakes that are refused when a declaration is built, each with its line and what to write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kvproof.spec.check_trees import Named, check_trees, refuse
from kvproof.spec.derive import complete
from kvproof.spec.expression import (
    Assignment,
    Expression,
    FlagParameter,
    Index,
    NumberParameter,
)
from kvproof.spec.rows import Measure, Transition, Witness
from kvproof.spec.text import assignment_text, text
from kvproof.spec.walk import AnyCell, cells, free_indices, nodes, read_cells

if TYPE_CHECKING:
    from kvproof.spec.declaration import Declaration


def check(declaration: Declaration) -> None:
    """Raise DeclarationError for the first mistake found, in the order of this list."""
    _names_are_unique(declaration)
    _pairs_have_a_length(declaration)
    _places_are_ghosts(declaration)
    for row in declaration.transitions:
        _states_are_known(declaration, row)
    full = tuple(complete(row, declaration.state) for row in declaration.transitions)
    check_trees(declaration, full)
    for row in full:
        _check_transition(declaration, row)
    _invariants_say_something(declaration)
    _every_variable_is_used(declaration, full)
    _named_rows_exist(declaration)
    _broken_invariants_exist(declaration)
    _measures_are_lowered(declaration)
    _witnesses_can_be_run(declaration)
    _witnesses_cover_every_row(declaration)


def _names_are_unique(declaration: Declaration) -> None:
    groups: tuple[Iterable[Named], ...] = (
        (*declaration.constants, *declaration.roles, *declaration.variables),
        declaration.transitions,
        (*declaration.all_invariants, *declaration.measures, *declaration.progress),
        declaration.witnesses,
    )
    for group in groups:
        seen: dict[str, Named] = {}
        for row in group:
            if row.name in seen:
                refuse(row, f"the name is taken at {seen[row.name].where}; choose another.")
            seen[row.name] = row


def _pairs_have_a_length(declaration: Declaration) -> None:
    for variable in declaration.variables:
        if len(variable.of) > 1 and variable.length is None and not variable.ghost:
            refuse(
                variable,
                "a stored pair is a table and needs length=, the variable that holds how long the"
                " table is; or make it a ghost.",
            )


def _places_are_ghosts(declaration: Declaration) -> None:
    for variable in declaration.variables:
        place = variable.place
        if place is not None and not (place.ghost and place.of == variable.of):
            roles = ", ".join(role.name for role in variable.of)
            refuse(variable, f"place= is {place.name}; it must be a ghost of ({roles}).")


def _states_are_known(declaration: Declaration, row: Transition) -> None:
    states, owner = declaration.enumeration, declaration.state.of[0].name
    for member in (*row.source, *(() if row.target is None else (row.target,))):
        if member.enumeration != states.name:
            refuse(row, f"{member.name} is no state of a {owner}; use {states.name}.")
    if (row.subject is None) != (not row.source):
        refuse(row, "subject and source go together; give both or neither.")
    if row.target is not None and row.subject is None:
        refuse(row, f"a target state needs a subject; name the {owner} that moves.")
    if row.subject is not None and row.subject.role != owner:
        refuse(row, f"a {row.subject.role} has no state; the subject must be a {owner}.")


def _check_transition(declaration: Declaration, row: Transition) -> None:
    _assigned_once(row)
    _every_index_is_assigned(row)
    _parameters_are_used(row)
    _ghosts_stay_ghosts(declaration, row)
    _tables_keep_their_length(declaration, row)
    _places_are_noted(declaration, row)
    if row.undoes is not None and row.undoes not in declaration.transition:
        refuse(row, f"undoes {row.undoes!r}, which is no transition; name one.")


def _expressions(row: Transition) -> Iterator[Expression]:
    yield from row.guard
    for assignment in row.effect:
        yield assignment.cell
        yield assignment.value


def _cell(row: Transition, assignment: Assignment) -> AnyCell:
    if not isinstance(assignment.cell, AnyCell):
        refuse(row, "only a variable's cell can be assigned; write variable[index].becomes(...).")
    return assignment.cell


def _assigned_once(row: Transition) -> None:
    seen: dict[str, Assignment] = {}
    for assignment in row.effect:
        name = _cell(row, assignment).variable
        if name in seen:
            refuse(
                row,
                f"{name} is assigned at {seen[name].where} and at {assignment.where};"
                " effects are simultaneous, so assign each variable once.",
            )
        seen[name] = assignment


def _every_index_is_assigned(row: Transition) -> None:
    for assignment in row.effect:
        cell = _cell(row, assignment)
        for index in assignment.every:
            if index not in cell.indices:
                refuse(
                    row,
                    f"every({index.name}, ...) assigns {cell.variable} many times over;"
                    f" index it by {index.name!r}, or write total(...).",
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
        name = parameter.name if isinstance(parameter, Index) else parameter
        refuse(row, f"the parameter {name!r} is not used; remove it.")
    for name in {item for item in used if isinstance(item, str)} - declared:
        refuse(row, f"{name!r} is used but is not among the parameters; add it.")


def _ghosts_stay_ghosts(declaration: Declaration, row: Transition) -> None:
    ghosts = {name for name, variable in declaration.variable.items() if variable.ghost}
    readers = list(row.guard)
    for assignment in row.effect:
        if _cell(row, assignment).variable not in ghosts:
            readers.append(assignment.value)  # type: ignore[arg-type]
    for expression in readers:
        for cell in read_cells(expression):
            if cell.variable in ghosts:
                refuse(row, f"{cell.variable} is for proofs alone and cannot be read here.")


def _tables_keep_their_length(declaration: Declaration, row: Transition) -> None:
    written = {_cell(row, assignment).variable for assignment in row.effect}
    for name in written:
        length = declaration.variable[name].length
        if length is not None and length.name not in written:
            refuse(row, f"{name} changes but its length {length.name} does not; assign both.")


def _places_are_noted(declaration: Declaration, row: Transition) -> None:
    """Refuse a row after which a ghost place may differ from where the entry is in its list."""
    effect = {_cell(row, assignment).variable: assignment for assignment in row.effect}
    for name, table in declaration.variable.items():
        if table.place is None or table.length is None:
            continue
        change, noted = effect.get(name), effect.get(table.place.name)
        if change is None or text(change.value) == "0":
            if noted is not None:
                refuse(row, f"{table.place.name} is noted, but nothing is put into {name}.")
            continue
        cell = _cell(row, change)
        if change.every or text(change.value) != f"{text(cell)} + 1":
            refuse(row, f"{name} keeps places: put one entry at its end, or take all of them out.")
        wanted = table.place[cell.indices].becomes(table.length[cell.indices[0]])
        if noted is None or assignment_text(noted) != assignment_text(wanted):
            refuse(row, f"{name} gets an entry; note its place: {assignment_text(wanted)}.")


def _invariants_say_something(declaration: Declaration) -> None:
    for invariant in declaration.invariants:
        if not any(True for _ in cells(invariant.formula)):
            refuse(invariant, "mentions no variable; it can be deleted or is an assumption.")


def _every_variable_is_used(declaration: Declaration, full: tuple[Transition, ...]) -> None:
    read = {cell.variable for row in declaration.invariants for cell in cells(row.formula)}
    wrote: set[str] = set()
    for row in full:
        wrote |= _written(row)
        trees = (*row.guard, *(assignment.value for assignment in row.effect))
        read |= {cell.variable for tree in trees for cell in cells(tree)}
    for variable in declaration.variables:
        if variable.name not in read:
            refuse(variable, "no guard, effect or invariant reads it; remove it or say its law.")
        if variable.name not in wrote:
            refuse(variable, "no transition changes it; make it a constant.")


def _written(row: Transition) -> set[str]:
    return {_cell(row, assignment).variable for assignment in row.effect}


def _named_rows_exist(declaration: Declaration) -> None:
    rows = set(declaration.transition)
    known = ", ".join(sorted(rows))
    named: list[tuple[Named, set[str]]] = [
        *((row, {*row.lowered_by, *row.raised_by}) for row in declaration.measures),
        *((row, set(row.rows)) for row in declaration.progress),
        *((row, {str(step[0]) for step in row.steps}) for row in declaration.witnesses),
    ]
    for row, names in named:
        for name in sorted(names - rows):
            refuse(row, f"{name!r} is no transition; the rows are {known}.")
    for progress in declaration.progress:
        if not progress.rows:
            refuse(progress, "no row is named, so none is enabled; name those that can go on.")


def _broken_invariants_exist(declaration: Declaration) -> None:
    known = {row.name for row in declaration.all_invariants}
    for row in declaration.transitions:
        for name in row.breaks:
            if name not in known:
                refuse(row, f"breaks {name!r}, which is no invariant; name one, or break none.")


def _measures_are_lowered(declaration: Declaration) -> None:
    for measure in declaration.measures:
        if not measure.lowered_by:
            refuse(measure, "no row lowers it; name one in lowered_by, or remove the measure.")
        for name in (*measure.lowered_by, *measure.raised_by):
            _changes(declaration, measure, name)


def _changes(declaration: Declaration, measure: Measure, name: str) -> None:
    read = {cell.variable for cell in cells(measure.value)}
    full = complete(declaration.transition[name], declaration.state)
    if not read & _written(full):
        refuse(
            measure,
            f"{name} changes none of {', '.join(sorted(read))} and so neither lowers nor raises"
            " it; name a row that does.",
        )


def _witnesses_can_be_run(declaration: Declaration) -> None:
    constants = {constant.name for constant in declaration.constants}
    for witness in declaration.witnesses:
        for name in sorted(constants ^ set(witness.constants)):
            given = "is no constant; remove it" if name not in constants else "needs a value"
            refuse(witness, f"{name!r} {given}.")
        for step in witness.steps:
            _step_has_its_arguments(declaration, witness, step)


def _step_has_its_arguments(
    declaration: Declaration, witness: Witness, step: tuple[str | int | bool, ...]
) -> None:
    name, *arguments = step
    wanted = [parameter.name for parameter in declaration.transition[str(name)].parameters]
    if len(arguments) != len(wanted):
        refuse(
            witness,
            f"{name} takes ({', '.join(wanted)}), saw {len(arguments)} arguments: {arguments};"
            " give one for each.",
        )


def _witnesses_cover_every_row(declaration: Declaration) -> None:
    fired = {str(step[0]) for witness in declaration.witnesses for step in witness.steps}
    for row in declaration.transitions:
        if row.name not in fired:
            refuse(row, "no witness fires it; add it to a run, so that no proof is vacuous.")
