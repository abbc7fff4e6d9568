"""The row kinds of the declaration, as frozen attrs classes.

`Constant` is a row too; it lives in `expression.py` because it is also a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from attrs import field, frozen

from kvproof.spec.expression import (
    AllOf,
    Assignment,
    Choice,
    ChoiceCell,
    Constant,
    FlagCell,
    FlagParameter,
    Formula,
    Index,
    Member,
    Number,
    NumberCell,
    NumberParameter,
    StandsAt,
    number,
)
from kvproof.spec.location import DeclarationError, Location, here

Parameter = Index | NumberParameter | FlagParameter
Cell = TypeVar("Cell", Number, Formula, Choice)


def _where() -> Location:
    return field(factory=here, kw_only=True, repr=False, eq=False)


@frozen(eq=False)
class Role:
    """A kind of thing of which there is any number (a request), or exactly one (the pool).

    `count` is the constant that says how many there are, where that is fixed; instances are
    numbered from `first` (block 0 is the null block and no instance).
    """

    name: str
    doc: str
    plural: str = ""
    single: bool = False
    count: Constant | None = None
    first: int = 0
    where: Location = _where()

    def index(self, name: str) -> Index:
        """Return a variable that stands for one instance of this role."""
        return Index(self.name, name)


@frozen(eq=False)
class Enumeration:
    """A fixed set of named values."""

    name: str
    doc: str
    members: tuple[tuple[str, str], ...]
    where: Location = _where()

    def __getitem__(self, name: str) -> Member:
        """Return the member called `name`; an unknown one is refused with the known ones listed."""
        names = [member for member, _ in self.members]
        if name not in names:
            raise DeclarationError(
                here(), f"{self.name} has no member {name!r}; it has {', '.join(names)}."
            )
        return Member(self.name, name, names.index(name))


@frozen(eq=False)
class Variable(Generic[Cell]):
    """A column (one cell per instance), a pair (one per two instances), or a single cell.

    `minimum` is a declared bound, proved like any other invariant.
    `ghost` variables exist for the proofs alone: no guard and no stored variable may read one.
    `length` makes a pair a table: each first instance has a list of second instances, the pair
    counts how often it names one, and `length` is the variable that holds the length of the list.
    `place` is a ghost pair that holds the place at which an entry was appended.
    """

    name: str
    of: tuple[Role, ...]
    doc: str
    initial: int | Constant = 0
    minimum: int | None = None
    ghost: bool = False
    length: Variable[Number] | None = None
    place: Variable[Number] | None = None
    enumeration: Enumeration | None = None
    flag: bool = False
    where: Location = _where()

    def __getitem__(self, index: Role | Index | tuple[Role | Index, ...]) -> Cell:
        """Return the cell for the given instances, one of each role the variable belongs to."""
        given = index if isinstance(index, tuple) else (index,)
        indices = tuple(i.index(i.name) if isinstance(i, Role) else i for i in given)
        expected, seen = [role.name for role in self.of], [i.role for i in indices]
        if seen != expected:
            raise DeclarationError(
                here(), f"{self.name} is indexed by {expected}, saw {seen}; give one of each."
            )
        return self._cell(indices)

    def stands_at(self, owner: Index, position: Number | int, entry: Index) -> Formula:
        """Return whether the list of `owner` names `entry` at `position`, counted from 0."""
        if self.place is None:
            raise DeclarationError(
                here(), f"{self.name} has no places; give it place=, a ghost pair of its roles."
            )
        named, place = NumberCell(self.name, (owner, entry)), self.place[owner, entry]
        return StandsAt(
            self.name, owner, number(position), entry, AllOf((named >= 1, place == position))
        )

    def _cell(self, indices: tuple[Index, ...]) -> Cell:
        if self.enumeration is not None:
            return ChoiceCell(self.name, indices, self.enumeration.name)  # type: ignore[return-value]
        if self.flag:
            return FlagCell(self.name, indices)  # type: ignore[return-value]
        return NumberCell(self.name, indices)  # type: ignore[return-value]


@frozen(eq=False)
class Transition:
    """One declared way for the state to change: all at once, or, when the guard fails, not at all.

    `subject` moves from one of the states `source` to `target` (no target: it stays where it is).
    `batches` says which batch forms are generated: over arrays of parameters, or over a table.
    `undoes` names the row that this one reverses exactly; that is proved too.
    `breaks` makes the row one of the reference's, kept to reproduce it and used by no safe profile:
    it is proved to break the invariants that are named, and to keep all others.
    """

    name: str
    doc: str
    rule: str
    parameters: tuple[Parameter, ...] = ()
    subject: Index | None = None
    source: tuple[Member, ...] = ()
    target: Member | None = None
    guard: tuple[Formula, ...] = ()
    effect: tuple[Assignment, ...] = ()
    batched: bool = False
    drains: Variable[Number] | None = None
    environment: bool = False
    undoes: str | None = None
    breaks: tuple[str, ...] = ()
    where: Location = _where()


@frozen(eq=False)
class Invariant:
    """A sentence true in every reachable state, or, where it says `before`, of every step.

    A `consequence` follows from the other invariants alone and is proved from them.
    """

    name: str
    sentence: str
    formula: Formula
    property: str
    rule: str = ""
    consequence: bool = False
    where: Location = _where()


@frozen(eq=False)
class Measure:
    """A number that never falls below zero, lowered by some rows and raised only by named ones."""

    name: str
    sentence: str
    value: Number
    lowered_by: tuple[str, ...]
    raised_by: tuple[str, ...] = ()
    property: str = "V1"
    where: Location = _where()


@frozen(eq=False)
class Assumption:
    """A fact about constants that the engine's configuration is checked for; proofs may use it."""

    name: str
    sentence: str
    formula: Formula
    where: Location = _where()


@frozen(eq=False)
class Progress:
    """Wherever `when` holds for some instances, one of `rows` is enabled for some instances.

    `fixed` says which parameters of a row stand for instances of the claim, and `only` what must
    hold of a row besides its guard.
    `uses` names the invariants that the proof rests on; where it is None, all are assumed.
    """

    name: str
    sentence: str
    parameters: tuple[Index, ...]
    when: Formula
    rows: tuple[str, ...]
    fixed: Mapping[str, Mapping[str, Index]] = field(factory=dict)
    only: Mapping[str, Formula] = field(factory=dict)
    uses: tuple[str, ...] | None = None
    property: str = "V1"
    where: Location = _where()


@frozen(eq=False)
class Witness:
    """A run that must be possible, so that no proof holds because nothing ever happens.

    Each step is a row's name followed by its arguments; instances are numbered from 0.
    An `unsafe` run uses rows of the reference, so no invariant is asked of it.
    """

    name: str
    sentence: str
    constants: dict[str, int]
    steps: tuple[tuple[str, ...] | tuple[str | int | bool, ...], ...]
    ends: Formula | None = None
    unsafe: bool = False
    where: Location = _where()


Row = (
    Role
    | Enumeration
    | Variable[Number]
    | Variable[Formula]
    | Variable[Choice]
    | Transition
    | Invariant
    | Measure
    | Assumption
    | Progress
    | Witness
)
