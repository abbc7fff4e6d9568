"""A declaration, executed: the opinion on its rows that needs neither a solver nor generated code.

Trees become Python closures over one flat tuple of cells, once for each choice of instances.
A state is that tuple, so it is its own snapshot and can be hashed; a formula that says `before`
reads the tuple of the earlier state followed by that of the later one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from attrs import define, evolve, field, frozen

from kvproof.spec.declaration import AnyVariable, Declaration
from kvproof.spec.derive import quantified
from kvproof.spec.expression import (
    Add,
    AllOf,
    AnyOf,
    Assignment,
    BeforeFormula,
    BeforeNumber,
    ChoiceCell,
    ChooseNumber,
    Compare,
    Constant,
    Expression,
    FlagCell,
    FlagParameter,
    Formula,
    Index,
    Literal,
    Member,
    Multiply,
    No,
    NumberCell,
    NumberParameter,
    StandsAt,
    Subtract,
    Total,
    Truth,
)
from kvproof.spec.rows import Invariant, Transition
from kvproof.spec.text import text
from kvproof.spec.walk import AnyCell, cells, children, speaks_of_before

State = tuple[int, ...]
Arguments = tuple[int, ...]
Closure = Callable[[State], Any]
Bound = Mapping[Index | str, int]


class Refused(Exception):  # noqa: N818  (it says what happened to the call)
    """A row was called while its guard was false; nothing has changed.

    `conjunct` is the first false part of the guard, `seen` what the cells in it hold.
    """

    def __init__(self, call: str, conjunct: str, seen: Mapping[str, str]) -> None:
        values = ", ".join(f"{cell} = {value}" for cell, value in seen.items())
        super().__init__(f"{call} is refused: {conjunct} is false" + (values and f"; {values}"))
        self.call, self.conjunct, self.seen = call, conjunct, seen


@frozen
class Move:
    """A row with its arguments filled in: a function from states to states."""

    row: str
    arguments: Arguments
    guard: tuple[Closure, ...]
    effect: tuple[tuple[int, Closure], ...]

    def is_enabled(self, state: State) -> bool:
        """Return whether the guard holds."""
        for conjunct in self.guard:  # noqa: SIM110 - a generator costs more than the guard does
            if not conjunct(state):
                return False
        return True

    def applied(self, state: State) -> State:
        """Return the state after the row; every value is computed from the state before it."""
        values = list(state)
        for slot, value in self.effect:
            values[slot] = value(state)
        return tuple(values)


@define
class Simulator:
    """One run of a declaration over a fixed number of instances.

    `run.grow(0, 1)` executes a row and raises `Refused` where its guard is false;
    `run.run("grow", 0, 1)` returns False instead. Instances are given by number.

    Args:
        declaration: what to execute; it may be a mutant.
        constants: a value for each constant.
        instances: how many instances there are of each role whose number no constant fixes; one
            where it is not said.

    """

    declaration: Declaration
    constants: Mapping[str, int]
    instances: Mapping[str, int] = field(factory=dict)
    layout: Layout = field(init=False, repr=False)
    state: State = field(init=False, repr=False)
    _compiler: Compiler = field(init=False, repr=False)
    _moves: dict[tuple[str, Arguments], Move] = field(factory=dict, init=False, repr=False)
    _claims: dict[str, tuple[Closure, ...]] = field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Take the initial state, or refuse constants that the declaration rules out."""
        for constant in self.declaration.constants:
            if constant.name not in self.constants:
                raise ValueError(f"{constant.name} has no value: it is {constant.doc}; give one.")
        self.layout = Layout.of(self.declaration, self.constants, self.instances)
        self._compiler = Compiler(self.layout, self.constants)
        self.state = self.layout.initial(self.constants)
        for fact in self.declaration.all_assumptions:
            if not self.holds(fact.formula):
                raise ValueError(f"{fact.sentence} It is not so for {dict(self.constants)}.")

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return the row called `name` as a function that changes the state or raises Refused."""
        if name.startswith("_") or name not in self.declaration.transition:
            raise AttributeError(f"{name!r} is neither a method nor a row of the declaration.")
        return lambda *given, **named: self._execute(name, given, named)

    def _execute(self, name: str, given: Arguments, named: Mapping[str, int]) -> None:
        move = self.move(name, self._arguments(name, given, named))
        for conjunct, holds in zip(self._row(name).guard, move.guard, strict=True):
            if not holds(self.state):
                call = f"{name}({', '.join(map(str, move.arguments))})"
                bound = _bind(self._row(name), move.arguments)
                slots = dict.fromkeys(self.layout.slots_in(conjunct, bound))
                seen = {self.layout.names[slot]: self.shown(slot) for slot in slots}
                raise Refused(call, text(conjunct), seen)
        self.state = move.applied(self.state)

    def run(self, row: str, *given: int, **named: int) -> bool:
        """Execute a row; return False, with nothing changed, where its guard is false."""
        move = self.move(row, self._arguments(row, given, named))
        if not move.is_enabled(self.state):
            return False
        self.state = move.applied(self.state)
        return True

    def _arguments(self, name: str, given: Arguments, named: Mapping[str, int]) -> Arguments:
        parameters = self._row(name).parameters
        names = [parameter.name for parameter in parameters]
        table = dict(zip(names, given, strict=False)) | dict(named)
        if len(given) + len(named) != len(names) or set(table) != set(names):
            raise TypeError(f"{name} takes {', '.join(names)}; saw {given} and {dict(named)}.")
        for parameter in parameters:
            if isinstance(parameter, Index):
                self.layout.check(parameter.role, table[parameter.name])
        return tuple(table[name] for name in names)

    def _row(self, name: str) -> Transition:
        rows = self.declaration.complete_transitions
        if name not in rows:
            raise ValueError(f"{name!r} is no row; the rows are {', '.join(rows)}.")
        return rows[name]

    def move(self, name: str, arguments: Arguments) -> Move:
        """Return a row with these arguments, in the order of its parameters."""
        key = (name, arguments)
        if key not in self._moves:
            row = self._row(name)
            bound = _bind(row, arguments)
            guard = tuple(self._compiler.of(conjunct, bound) for conjunct in row.guard)
            effect = [pair for item in row.effect for pair in self._compiler.writes(item, bound)]
            self._moves[key] = Move(name, arguments, guard, tuple(effect))
        return self._moves[key]

    def moves(self, name: str, numbers: Iterable[int] | None = None) -> Iterator[Move]:
        """Yield a row with every choice of its instances and flags, and of numbers from `numbers`.

        Where they are not given, numbers go from 1 to the largest constant.
        """
        return (self.move(name, arguments) for arguments in self._choices(name, numbers))

    def possible_moves(self, name: str, numbers: Iterable[int] | None = None) -> Iterator[Move]:
        """Yield those of `moves` whose guards do not fail for their arguments alone."""
        row = self._row(name)
        parts = [part for part in row.guard if next(cells(part), None) is None]
        for arguments in self._choices(name, numbers):
            bound = _bind(row, arguments)
            if all(self._compiler.of(part, bound)(()) for part in parts):
                yield self.move(name, arguments)

    def _choices(self, name: str, numbers: Iterable[int] | None) -> Iterator[Arguments]:
        domain = tuple(range(1, max(self.constants.values()) + 1) if numbers is None else numbers)
        choices: list[Iterable[int]] = []
        for parameter in self._row(name).parameters:
            if isinstance(parameter, Index):
                choices.append(self.layout.numbers[parameter.role])
            else:
                choices.append((False, True) if isinstance(parameter, FlagParameter) else domain)
        return product(*choices)

    def enabled(self, name: str, numbers: Iterable[int] | None = None) -> Iterator[Arguments]:
        """Yield the arguments with which a row can happen now; see `moves` for `numbers`."""
        moves = self.moves(name, numbers)
        return (move.arguments for move in moves if move.is_enabled(self.state))

    def snapshot(self) -> State:
        """Return the state, which can be kept, compared and hashed."""
        return self.state

    def restore(self, snapshot: State) -> None:
        """Go back to a state."""
        self.state = snapshot

    def violations(self) -> list[str]:
        """Return the names of the invariants of a state that are false now."""
        return self._broken(self.state, about_steps=False)

    def step_violations(self, before_snapshot: State) -> list[str]:
        """Return the names of the invariants of a step that are false of the one taken since."""
        return self._broken((*before_snapshot, *self.state), about_steps=True)

    def _broken(self, states: State, *, about_steps: bool) -> list[str]:
        return [
            row.name
            for row in self.declaration.all_invariants
            if speaks_of_before(row.formula) is about_steps
            and not all(claim(states) for claim in self.claims(row))
        ]

    def claims(self, invariant: Invariant) -> tuple[Closure, ...]:
        """Return what an invariant says, once for each choice of instances.

        A claim reads a state; where the invariant says `before`, the earlier state followed by the
        later one.
        """
        if invariant.name not in self._claims:
            late = len(self.layout.names) if speaks_of_before(invariant.formula) else 0
            compiler = evolve(self._compiler, shift=late)
            self._claims[invariant.name] = tuple(compiler.for_every(invariant.formula))
        return self._claims[invariant.name]

    def holds(self, formula: Formula) -> bool:
        """Return whether a formula about instances that are named by their numbers holds now."""
        return bool(self._compiler.of(formula, {})(self.state))

    def value(self, variable: str, *instances: int) -> int | str:
        """Return what a variable holds for the given instances; of a member, its name."""
        declared = self.declaration.variable[variable]
        given = iter(instances)
        numbers = tuple(0 if role.single else next(given) for role in declared.of)
        held = self.state[self.layout.slots[variable, numbers]]
        return held if declared.enumeration is None else declared.enumeration.members[held][0]

    def shown(self, slot: int) -> str:
        """Return what a cell holds, as a reader writes it."""
        return written_value(self.layout.variables[slot], self.state[slot])


def _bind(row: Transition, arguments: Arguments) -> Bound:
    pairs = zip(row.parameters, arguments, strict=True)
    return {item if isinstance(item, Index) else item.name: value for item, value in pairs}


def written_value(variable: AnyVariable, value: int) -> str:
    """Return a value of a variable as a reader writes it: RUNNING, true, 3."""
    if variable.enumeration is not None:
        return variable.enumeration.members[value][0]
    return str(bool(value)).lower() if variable.flag else str(value)


@frozen
class Layout:
    """Which slot of a state holds which cell.

    `numbers` says which instances a role has; the one instance of a single role has number 0.
    `names` and `variables` describe the cell in each slot.
    """

    numbers: Mapping[str, range]
    slots: Mapping[tuple[str, Arguments], int]
    names: tuple[str, ...]
    variables: tuple[AnyVariable, ...]

    @classmethod
    def of(
        cls, declaration: Declaration, constants: Mapping[str, int], instances: Mapping[str, int]
    ) -> Layout:
        """Return the layout for so many instances of each role."""
        numbers: dict[str, range] = {}
        for role in declaration.roles:
            given = 1 if role.single else instances.get(role.name, 1)
            count = given if role.count is None else constants[role.count.name]
            numbers[role.name] = range(role.first, role.first + count)
        slots: dict[tuple[str, Arguments], int] = {}
        for variable in declaration.variables:
            for chosen in product(*(numbers[role.name] for role in variable.of)):
                slots[variable.name, chosen] = len(slots)
        variables = tuple(declaration.variable[name] for name, _ in slots)
        names = (_cell_name(declaration.variable[name], chosen) for name, chosen in slots)
        return cls(numbers, slots, tuple(names), variables)

    def initial(self, constants: Mapping[str, int]) -> State:
        """Return the state in which every run starts."""
        return tuple(_initial(variable, constants) for variable in self.variables)

    def check(self, role: str, number: int) -> None:
        """Raise ValueError unless the role has an instance with this number."""
        known = self.numbers[role]
        if number not in known:
            raise ValueError(
                f"there is no {role} {number}; they go from {known[0]} to {known[-1]}."
            )

    def slot(self, cell: AnyCell, bound: Bound) -> int:
        """Return the slot of a cell whose indices are bound, single, or named by a number."""
        numbers = []
        for index in cell.indices:
            single = 0 if index.name == index.role else None
            number = bound.get(index, single)
            numbers.append(int(index.name) if number is None else number)
        return self.slots[cell.variable, tuple(numbers)]

    def every(self, indices: tuple[Index, ...], bound: Bound) -> Iterator[Bound]:
        """Yield `bound` with every choice of instances for some more indices."""
        for chosen in product(*(self.numbers[index.role] for index in indices)):
            yield {**bound, **dict(zip(indices, chosen, strict=True))}

    def slots_in(self, tree: Expression, bound: Bound) -> Iterator[int]:
        """Yield the slots of the cells that a tree reads, those under its totals too."""
        if isinstance(tree, AnyCell):
            yield self.slot(tree, bound)
        scopes = self.every((tree.index,), bound) if isinstance(tree, Total) else (bound,)
        for scope in scopes:
            for child in children(tree):
                yield from self.slots_in(child, scope)


def _cell_name(variable: AnyVariable, numbers: Arguments) -> str:
    pairs = zip(variable.of, numbers, strict=True)
    return f"{variable.name}[{', '.join(r.name if r.single else str(n) for r, n in pairs)}]"


def _initial(variable: AnyVariable, constants: Mapping[str, int]) -> int:
    if isinstance(variable.initial, Constant):
        return constants[variable.initial.name]
    return bool(variable.initial) if variable.flag else variable.initial


@frozen
class Compiler:
    """Makes a closure of a tree whose indices and parameters have values.

    `shift` is where the state that cells are read from starts; under `before` it is 0.
    """

    layout: Layout
    constants: Mapping[str, int]
    shift: int = 0

    def of(self, tree: Expression, bound: Bound) -> Closure:
        """Return a function from states to the value of the tree."""
        known = self.known(tree, bound)
        if known is not None:
            return lambda _: known
        return _READERS[type(tree)](self, tree, bound)

    def known(self, tree: Expression, bound: Bound) -> int | None:
        """Return the value of a tree that is the same in every state, if it is a leaf."""
        if isinstance(tree, Literal | Truth | Member):
            return tree.value
        if isinstance(tree, Constant):
            return self.constants[tree.name]
        return bound[tree.name] if isinstance(tree, NumberParameter | FlagParameter) else None

    def for_every(self, formula: Formula) -> Iterator[Closure]:
        """Yield the formula for every choice of instances for its free indices."""
        for bound in self.layout.every(quantified(formula), {}):
            yield self.of(formula, bound)

    def writes(self, assignment: Assignment, bound: Bound) -> Iterator[tuple[int, Closure]]:
        """Yield each slot that an assignment writes, with its value."""
        assert isinstance(assignment.cell, AnyCell)
        for scope in self.layout.every(assignment.every, bound):
            yield self.layout.slot(assignment.cell, scope), self.of(assignment.value, scope)


def _cell(compiler: Compiler, tree: AnyCell, bound: Bound) -> Closure:
    return operator.itemgetter(compiler.shift + compiler.layout.slot(tree, bound))


def _binary(compiler: Compiler, tree: Add | Subtract | Multiply | Compare, bound: Bound) -> Closure:
    apply = _OPERATORS[tree.operator if isinstance(tree, Compare) else type(tree)]
    left, constant = compiler.of(tree.left, bound), compiler.known(tree.right, bound)
    if constant is not None:
        return lambda state: apply(left(state), constant)
    right = compiler.of(tree.right, bound)
    return lambda state: apply(left(state), right(state))


def _choose(compiler: Compiler, tree: ChooseNumber, bound: Bound) -> Closure:
    condition = compiler.of(tree.condition, bound)
    then, otherwise = compiler.of(tree.then, bound), compiler.of(tree.otherwise, bound)
    return lambda state: then(state) if condition(state) else otherwise(state)


def _total(compiler: Compiler, tree: Total, bound: Bound) -> Closure:
    scopes = compiler.layout.every((tree.index,), bound)
    terms = [compiler.of(tree.body, scope) for scope in scopes]
    return lambda state: sum([term(state) for term in terms])


def _before(compiler: Compiler, tree: BeforeNumber | BeforeFormula, bound: Bound) -> Closure:
    return evolve(compiler, shift=0).of(tree.body, bound)


def _items(decided_by: bool) -> Callable[[Compiler, AllOf | AnyOf, Bound], Closure]:
    def read(compiler: Compiler, tree: AllOf | AnyOf, bound: Bound) -> Closure:
        items = [compiler.of(item, bound) for item in tree.items]

        def decide(state: State) -> bool:
            for item in items:
                if bool(item(state)) is decided_by:
                    return decided_by
            return not decided_by

        return decide

    return read


def _no(compiler: Compiler, tree: No, bound: Bound) -> Closure:
    body = compiler.of(tree.body, bound)
    return lambda state: not body(state)


_OPERATORS: dict[type | str, Callable[[Any, Any], Any]] = {
    Add: operator.add,
    Subtract: operator.sub,
    Multiply: operator.mul,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_READERS: dict[type, Callable[[Compiler, Any, Bound], Closure]] = {
    **dict.fromkeys((NumberCell, FlagCell, ChoiceCell), _cell),
    **dict.fromkeys((Add, Subtract, Multiply, Compare), _binary),
    **dict.fromkeys((BeforeNumber, BeforeFormula), _before),
    ChooseNumber: _choose,
    Total: _total,
    AllOf: _items(decided_by=False),
    AnyOf: _items(decided_by=True),
    No: _no,
    StandsAt: lambda compiler, tree, bound: compiler.of(tree.meaning, bound),
}
