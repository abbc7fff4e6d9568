"""The declaration as a document: Markdown tables that are the reference of the product.

`document` is everything; `properties_table` is the short table of what is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvproof.spec.declaration import AnyVariable, Declaration
from kvproof.spec.derive import bounds
from kvproof.spec.digest import digest
from kvproof.spec.expression import Constant
from kvproof.spec.markdown import NOTHING, code, lines, names, section, table
from kvproof.spec.properties import PROPERTIES, Property
from kvproof.spec.rows import Invariant, Measure, Progress, Role, Transition, Witness
from kvproof.spec.text import assignment_text, text


def document(declaration: Declaration) -> str:
    """Return the whole declaration, one section for each kind of row."""
    sections = (section(declaration) for section in _SECTIONS)
    head = f"# {declaration.name}\n\nDigest of the declaration: `{digest(declaration)}`\n"
    return "\n".join((head, *(part for part in sections if part)))


def properties_table(declaration: Declaration) -> str:
    """Return every property, what it says, and the rows that state it."""
    rows = ((item.name, item.sentence, _stated_by(declaration, item)) for item in PROPERTIES)
    return table(("property", "what it says", "stated by"), rows)


def _stated_by(declaration: Declaration, item: Property) -> str:
    named: tuple[Invariant | Measure | Progress, ...] = (
        *declaration.invariants,
        *declaration.measures,
        *declaration.progress,
    )
    stated = [code(row.name) for row in named if row.property == item.name]
    count = sum(row.property == item.name for row in bounds(declaration.variables))
    stated += [f"the least values of {count} variables"] if count else []
    return ", ".join(stated) or item.elsewhere or NOTHING


def _constants(declaration: Declaration) -> str:
    rows = ((code(row.name), row.minimum, row.doc) for row in declaration.constants)
    return section("Constants", ("constant", "least", "meaning"), rows)


def _assumptions(declaration: Declaration) -> str:
    rows = (
        (code(row.name), row.sentence, code(text(row.formula)))
        for row in declaration.all_assumptions
    )
    return section("Assumptions", ("assumption", "sentence", "formula"), rows)


def _states(declaration: Declaration) -> str:
    rows = ((code(name), doc) for name, doc in declaration.enumeration.members)
    return section("States", ("state", "meaning"), rows)


def _variables(declaration: Declaration) -> str:
    return "\n".join(_variables_of(declaration, role) for role in declaration.roles)


def _variables_of(declaration: Declaration, role: Role) -> str:
    rows = (
        _variable(declaration, row) for row in declaration.variables if row.of[0].name == role.name
    )
    header = ("variable", "kind", "starts as", "least", "meaning")
    return section(f"Variables of a {role.name}: {role.doc}", header, rows)


def _variable(declaration: Declaration, row: AnyVariable) -> tuple[object, ...]:
    least = NOTHING if row.minimum is None else row.minimum
    doc = f"{row.doc} (for proofs alone)" if row.ghost else row.doc
    return code(row.name), _kind(row), _initial(row), least, doc


def _kind(row: AnyVariable) -> str:
    kind = row.enumeration.name if row.enumeration else "true or false" if row.flag else "number"
    return f"{kind} for each {row.of[1].name}" if len(row.of) > 1 else kind


def _initial(row: AnyVariable) -> str:
    if isinstance(row.initial, Constant):
        return code(row.initial.name)
    if row.enumeration is not None:
        return code(row.enumeration.members[row.initial][0])
    return code(str(bool(row.initial)).lower() if row.flag else str(row.initial))


def _transitions(declaration: Declaration) -> str:
    rows = (
        (
            code(_signature(row)),
            _move(row),
            lines(map(text, row.guard)),
            lines(map(assignment_text, row.effect)),
            row.doc,
            row.rule,
        )
        for row in declaration.transitions
    )
    header = ("transition", "from → to", "guard", "effect", "sentence", "rule")
    return section("Transitions", header, rows)


def _signature(row: Transition) -> str:
    return f"{row.name}({', '.join(parameter.name for parameter in row.parameters)})"


def _move(row: Transition) -> str:
    sources = ", ".join(member.name for member in row.source)
    if row.target is None:
        return f"stays {sources}" if sources else NOTHING
    return f"{sources} → {row.target.name}"


def _invariants(declaration: Declaration) -> str:
    rows = (
        (row.property, code(row.name), _sentence(row), code(text(row.formula)), row.rule)
        for row in declaration.all_invariants
    )
    header = ("property", "invariant", "sentence", "formula", "rule")
    return section("Invariants", header, rows)


def _sentence(row: Invariant) -> str:
    return f"{row.sentence} (Follows from the others.)" if row.consequence else row.sentence


def _measures(declaration: Declaration) -> str:
    rows = (
        (
            row.property,
            code(row.name),
            row.sentence,
            code(text(row.value)),
            names(row.lowered_by),
            names(row.raised_by),
        )
        for row in declaration.measures
    )
    header = ("property", "measure", "sentence", "value", "lowered by", "raised by")
    return section("Measures", header, rows)


def _progress(declaration: Declaration) -> str:
    rows = (
        (row.property, code(row.name), row.sentence, code(text(row.when)), names(row.rows))
        for row in declaration.progress
    )
    header = ("property", "progress", "sentence", "when", "one of these is enabled")
    return section("Progress", header, rows)


def _witnesses(declaration: Declaration) -> str:
    rows = (
        (code(row.name), row.sentence, lines(_steps(row)), _ends(row))
        for row in declaration.witnesses
    )
    return section("Witnesses", ("witness", "sentence", "run", "ends with"), rows)


def _steps(row: Witness) -> Iterator[str]:
    for name, *arguments in row.steps:
        yield f"{name}({', '.join(str(argument) for argument in arguments)})"


def _ends(row: Witness) -> str:
    return NOTHING if row.ends is None else code(text(row.ends))


_SECTIONS: tuple[Callable[[Declaration], str], ...] = (
    _constants,
    _assumptions,
    _states,
    _variables,
    _transitions,
    _invariants,
    _measures,
    _progress,
    _witnesses,
)
