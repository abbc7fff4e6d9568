"""The expression trees of the declaration: whole numbers, formulas and members of an enumeration.

A tree is written with ordinary operators (`held[r] * BLOCK_SIZE < known[r]`) and read by the
prover, the code generator, the document writer and the slow interpreter. Python's `and`, `or`,
`not`, `in` and chained comparisons ask a formula for its truth value; a tree has none, so each of
them is refused at import, with the line and what to write instead.
"""

from __future__ import annotations

from typing import NoReturn

from attrs import field, frozen

from kvproof.spec.location import DeclarationError, Location, here


@frozen(eq=False)
class Expression:
    """A node of a tree; `where` is the line that wrote it and takes no part in comparison."""

    where: Location = field(factory=here, kw_only=True, repr=False)

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        """Refuse: a tree has no truth value while the declaration is being read."""
        raise DeclarationError(
            here(),
            "a formula was used as a Python truth value; `and`, `or`, `not`, `in`, `if` and chained"
            " comparisons do that. Write all_of(...), any_of(...), no(...), or choose(...).",
        )


@frozen(eq=False)
class Number(Expression):
    """A whole number of any size."""

    __hash__ = object.__hash__

    def __add__(self, other: Number | int) -> Number:
        """Return the sum."""
        return Add(self, number(other))

    def __radd__(self, other: int) -> Number:
        """Return the sum."""
        return Add(number(other), self)

    def __sub__(self, other: Number | int) -> Number:
        """Return the difference."""
        return Subtract(self, number(other))

    def __rsub__(self, other: int) -> Number:
        """Return the difference."""
        return Subtract(number(other), self)

    def __mul__(self, other: Number | int) -> Number:
        """Return the product; one side must be a constant, so that proofs stay linear."""
        return Multiply(self, number(other))

    def __rmul__(self, other: int) -> Number:
        """Return the product."""
        return Multiply(number(other), self)

    def __lt__(self, other: Number | int) -> Formula:
        """Return the comparison."""
        return Compare("<", self, number(other))

    def __le__(self, other: Number | int) -> Formula:
        """Return the comparison."""
        return Compare("<=", self, number(other))

    def __gt__(self, other: Number | int) -> Formula:
        """Return the comparison, as `<` with its sides exchanged."""
        return Compare(">", self, number(other))

    def __ge__(self, other: Number | int) -> Formula:
        """Return the comparison, as `<=` with its sides exchanged."""
        return Compare(">=", self, number(other))

    # An equation is a formula, not a Python truth value; this is the one place that says so.
    def __eq__(self, other: object) -> Formula:  # type: ignore[override]
        """Return the equation."""
        return Compare("==", self, number(other))

    def __ne__(self, other: object) -> Formula:  # type: ignore[override]
        """Return the inequation."""
        return Compare("!=", self, number(other))

    def becomes(self, value: Number | int) -> Assignment:
        """Assign: after the row, this cell holds `value` as computed before the row."""
        return Assignment(self, number(value))


@frozen(eq=False)
class Formula(Expression):
    """A statement about a state."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Formula:  # type: ignore[override]
        """Return `both or neither`."""
        return Compare("==", self, formula(other))

    def __ne__(self, other: object) -> Formula:  # type: ignore[override]
        """Return `exactly one`."""
        return Compare("!=", self, formula(other))

    def becomes(self, value: Formula | bool) -> Assignment:
        """Assign: after the row, this cell holds `value` as computed before the row."""
        return Assignment(self, formula(value))


@frozen(eq=False)
class Choice(Expression):
    """A member of an enumeration, or a cell that holds one."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Formula:  # type: ignore[override]
        """Return the equation; both sides must belong to the same enumeration."""
        return Compare("==", self, _choice_like(self, other))

    def __ne__(self, other: object) -> Formula:  # type: ignore[override]
        """Return the inequation."""
        return Compare("!=", self, _choice_like(self, other))

    def becomes(self, value: Choice) -> Assignment:
        """Assign: after the row, this cell holds `value`."""
        return Assignment(self, _choice_like(self, value))

    def is_in(self, *members: Choice) -> Formula:
        """Return whether this is one of `members`."""
        return any_of(*(self == member for member in members))


@frozen(eq=False)
class Literal(Number):
    """A number written in the declaration."""

    value: int


@frozen(eq=False)
class Truth(Formula):
    """True or false."""

    value: bool


@frozen(eq=False)
class Member(Choice):
    """One member of an enumeration."""

    enumeration: str
    name: str
    value: int


@frozen(eq=False)
class Constant(Number):
    """A named number, fixed when the engine is configured; never below `minimum`."""

    name: str
    doc: str
    minimum: int = 1


@frozen(eq=False)
class NumberParameter(Number):
    """A number given to a row by its caller."""

    name: str
    meaning: str


@frozen(eq=False)
class FlagParameter(Formula):
    """A true-or-false value given to a row by its caller."""

    name: str
    meaning: str


@frozen
class Index:
    """A variable that stands for one instance of a role."""

    role: str
    name: str


@frozen(eq=False)
class NumberCell(Number):
    """The number that a variable holds for given instances."""

    variable: str
    indices: tuple[Index, ...]


@frozen(eq=False)
class FlagCell(Formula):
    """The truth value that a variable holds for given instances."""

    variable: str
    indices: tuple[Index, ...]


@frozen(eq=False)
class ChoiceCell(Choice):
    """The enumeration member that a variable holds for given instances."""

    variable: str
    indices: tuple[Index, ...]
    enumeration: str


@frozen(eq=False)
class Add(Number):
    """A sum of two numbers."""

    left: Number
    right: Number


@frozen(eq=False)
class Subtract(Number):
    """A difference of two numbers."""

    left: Number
    right: Number


@frozen(eq=False)
class Multiply(Number):
    """A product in which one side is a constant."""

    left: Number
    right: Number

    def __attrs_post_init__(self) -> None:
        """Refuse a product of two things that can both change."""
        if not any(isinstance(side, Constant | Literal) for side in (self.left, self.right)):
            raise DeclarationError(
                self.where,
                "a product of two varying numbers; one side must be a constant. Keep the product"
                " in a variable of its own and change it by addition.",
            )


@frozen(eq=False)
class ChooseNumber(Number):
    """One number or another, by a formula."""

    condition: Formula
    then: Number
    otherwise: Number


@frozen(eq=False)
class Total(Number):
    """The sum of `body` over all instances of the index's role; their number has no bound."""

    index: Index
    body: Number


@frozen(eq=False)
class BeforeNumber(Number):
    """What a number was before the row; only an invariant may say it."""

    body: Number


@frozen(eq=False)
class BeforeFormula(Formula):
    """Whether a formula held before the row; only an invariant may say it."""

    body: Formula


@frozen(eq=False)
class Compare(Formula):
    """A comparison; `operator` is one of == != < <= > >=."""

    operator: str
    left: Expression
    right: Expression


@frozen(eq=False)
class AllOf(Formula):
    """True when every item is."""

    items: tuple[Formula, ...]


@frozen(eq=False)
class AnyOf(Formula):
    """True when some item is."""

    items: tuple[Formula, ...]


@frozen(eq=False)
class No(Formula):
    """True when the body is not."""

    body: Formula


@frozen(eq=False)
class StandsAt(Formula):
    """A table of `owner` names `entry` at `position`; `meaning` says the same for the proofs.

    The core looks at the list itself; the proofs have the number of times the list names the entry
    and, as a ghost, the place at which it was put.
    """

    table: str
    owner: Index
    position: Number
    entry: Index
    meaning: Formula


@frozen(eq=False)
class Assignment:
    """A cell and its value after the row; with `every`, for each instance of those indices."""

    cell: Expression
    value: Expression
    every: tuple[Index, ...] = ()
    where: Location = field(factory=here, kw_only=True, repr=False)


def number(value: object) -> Number:
    """Return `value` as a number of the language, or refuse it with the line that used it."""
    if isinstance(value, Number):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Literal(value)
    raise DeclarationError(here(), f"expected a number, saw {_kind(value)}; write a number here.")


def formula(value: object) -> Formula:
    """Return `value` as a formula of the language, or refuse it with the line that used it."""
    if isinstance(value, Formula):
        return value
    if isinstance(value, bool):
        return Truth(value)
    raise DeclarationError(
        here(), f"expected a formula, saw {_kind(value)}; compare it with something."
    )


def all_of(*items: Formula | bool) -> Formula:
    """Return the conjunction of `items`."""
    return AllOf(tuple(formula(item) for item in items))


def any_of(*items: Formula | bool) -> Formula:
    """Return the disjunction of `items`."""
    return AnyOf(tuple(formula(item) for item in items))


def no(body: Formula) -> Formula:
    """Return the negation of `body`."""
    return No(formula(body))


def implies(condition: Formula, conclusion: Formula) -> Formula:
    """Return `conclusion` wherever `condition` holds."""
    return AnyOf((No(formula(condition)), formula(conclusion)))


def choose(condition: Formula, then: Number | int, otherwise: Number | int) -> Number:
    """Return `then` where `condition` holds and `otherwise` elsewhere."""
    return ChooseNumber(formula(condition), number(then), number(otherwise))


def larger(left: Number | int, right: Number | int) -> Number:
    """Return the larger of two numbers."""
    return choose(number(left) >= number(right), left, right)


def count_if(condition: Formula) -> Number:
    """Return 1 where `condition` holds and 0 elsewhere."""
    return choose(condition, 1, 0)


def total(index: Index, body: Number | Formula) -> Number:
    """Return the sum of `body` over every instance of the index's role, however many there are."""
    term = count_if(body) if isinstance(body, Formula) else number(body)
    return Total(index, term)


def before(body: Number) -> Number:
    """Return what `body` was before the row."""
    return BeforeNumber(number(body))


def held_before(body: Formula) -> Formula:
    """Return whether `body` held before the row."""
    return BeforeFormula(formula(body))


def every(*arguments: Index | Assignment) -> Assignment:
    """Return an assignment made for each instance of the given indices at once."""
    *indices, assignment = arguments
    if not isinstance(assignment, Assignment) or not all(isinstance(i, Index) for i in indices):
        raise DeclarationError(here(), "write every(index, ..., cell.becomes(value)).")
    bound = tuple(index for index in indices if isinstance(index, Index))
    return Assignment(assignment.cell, assignment.value, bound)


def _choice_like(self: Choice, other: object) -> Choice:
    if isinstance(other, Choice) and _enumeration(self) == _enumeration(other):
        return other
    raise DeclarationError(
        here(), f"expected a member of {_enumeration(self)}, saw {_kind(other)}."
    )


def _enumeration(node: Choice) -> str:
    return str(getattr(node, "enumeration", "an enumeration"))


def _kind(value: object) -> str:
    if isinstance(value, Formula):
        return "a formula"
    if isinstance(value, Number):
        return "a number"
    if isinstance(value, Choice):
        return f"a member of {_enumeration(value)}"
    return f"{value!r} of type {type(value).__name__}"
