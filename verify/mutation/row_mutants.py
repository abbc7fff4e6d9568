"""Rows with one fault: what a proof is worth is what it says about these.

A mutant drops a conjunct of a guard, an assignment or the target state, or bends one of them, or
lets the row start from one state more or one less.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, frozen

from kvproof.spec.expression import Expression, Member
from kvproof.spec.rows import Enumeration, Transition
from kvproof.spec.text import assignment_text, text
from kvproof.spec.walk import cells
from kvproof.verify.mutation.bends import bends, value_bends


@frozen
class Mutant:
    """A row with one fault; `fault` says which, and `about` names the variables that it is about.

    Those only say where to look first. `part` is what was written, and `instead` what is now.
    """

    fault: str
    row: Transition
    about: frozenset[str] = frozenset()
    part: str = ""
    instead: str = ""


def row_mutants(row: Transition, states: Enumeration) -> list[Mutant]:
    """Return every mutant of a row, each fault once."""
    found = (*mutants(row), *bent(row), *elsewhere(row, states))
    return list({mutant.fault: mutant for mutant in found}.values())


def mutants(row: Transition) -> Iterator[Mutant]:
    """Yield every mutant of a row that lacks one part of it."""
    for place, conjunct in enumerate(row.guard):
        guard = (*row.guard[:place], *row.guard[place + 1 :])
        part = text(conjunct)
        fault = f"{row.name} without guard {part}"
        yield Mutant(fault, evolve(row, guard=guard), _read(conjunct), part)
    for place, assignment in enumerate(row.effect):
        effect = (*row.effect[:place], *row.effect[place + 1 :])
        part = assignment_text(assignment)
        fault = f"{row.name} without effect {part}"
        yield Mutant(fault, evolve(row, effect=effect), _read(assignment.cell), part)
    if row.target is not None:
        target = row.target.name
        yield Mutant(f"{row.name} without target {target}", evolve(row, target=None), part=target)


def bent(row: Transition) -> Iterator[Mutant]:
    """Yield every mutant of a row in which one node of a guard or of a value is bent."""
    for place, conjunct in enumerate(row.guard):
        part = text(conjunct)
        for changed in bends(conjunct):
            guard = (*row.guard[:place], changed, *row.guard[place + 1 :])
            fault = f"{row.name} with guard {text(changed)} for {part}"
            faulty = evolve(row, guard=guard)  # type: ignore[arg-type]
            yield Mutant(fault, faulty, _read(conjunct), part, text(changed))
    for place, assignment in enumerate(row.effect):
        part = assignment_text(assignment)
        for changed in value_bends(assignment.value):
            other = evolve(assignment, value=changed)
            effect = (*row.effect[:place], other, *row.effect[place + 1 :])
            fault = f"{row.name} with effect {assignment_text(other)} for {text(assignment.value)}"
            about = _read(assignment.cell)
            yield Mutant(fault, evolve(row, effect=effect), about, part, text(changed))


def elsewhere(row: Transition, states: Enumeration) -> Iterator[Mutant]:
    """Yield every mutant of a row that starts from one state more or less, or leads elsewhere."""
    if row.subject is None:
        return
    for member in (states[name] for name, _ in states.members):
        name = member.name
        if not _is_one_of(member, row.source):
            faulty = evolve(row, source=(*row.source, member))
            yield Mutant(f"{row.name} from {name} too", faulty, instead=name)
        elif len(row.source) > 1:
            faulty = evolve(row, source=tuple(s for s in row.source if s.value != member.value))
            yield Mutant(f"{row.name} not from {name}", faulty, part=name)
        if row.target is not None and member.value != row.target.value:
            faulty = evolve(row, target=member)
            yield Mutant(f"{row.name} to {name}", faulty, part=row.target.name, instead=name)


def _is_one_of(member: Member, members: tuple[Member, ...]) -> bool:
    return any(member.value == item.value for item in members)


def _read(tree: Expression) -> frozenset[str]:
    return frozenset(cell.variable for cell in cells(tree))
