"""The shortest run into a fault, on pools so small that a person can follow it.

A breadth-first search over a few sizes, the smallest first. Requests, blocks and fences have no
names of their own: two states that differ only in who is who are one state of the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, permutations, product
from operator import itemgetter

from attrs import define, field, frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.derive import written
from kvproof.spec.rows import Invariant
from kvproof.spec.walk import cells, speaks_of_before
from kvproof.verify.program import Run, Steps, program
from kvproof.verify.simulator import Arguments, Closure, Layout, Move, Simulator, State

SECONDS = 1.5
ORDER = {"priority", "arrival"}


@frozen
class Size:
    """How large a searched state is, how far its parameters go, and its part of the time."""

    constants: Mapping[str, int]
    instances: Mapping[str, int]
    numbers: range
    share: float


def _size(
    *,
    block_size: int,
    blocks: int,
    budget: int,
    requests: int,
    fences: int,
    share: float,
    extras: int = 0,
) -> Size:
    """Return a size; `extras` is how much there is of what the smallest sizes do without."""
    constants = {
        "BLOCK_SIZE": block_size,
        "TOTAL_BLOCKS": blocks,
        "TOKEN_BUDGET": budget,
        "MAX_RUNNING": 2,
        "MAX_DRAFTS": extras,
        "ENCODER_SLOTS": extras,
        "ENCODER_BUDGET": extras,
    }
    # A row that has lost the guard of a number is caught by the numbers that it should refuse.
    return Size(constants, {"request": requests, "fence": fences}, range(-1, budget + 1), share)


# One request alone first: most faults need no second one, and show at once.
SIZES = (
    _size(block_size=1, blocks=2, budget=2, requests=1, fences=1, share=0.1),
    _size(block_size=1, blocks=2, budget=2, requests=1, fences=1, share=0.1, extras=1),
    _size(block_size=1, blocks=2, budget=2, requests=2, fences=2, share=0.3),
    _size(block_size=2, blocks=2, budget=2, requests=2, fences=2, share=0.25),
    _size(block_size=2, blocks=3, budget=3, requests=2, fences=2, share=0.25),
)


def find_run(
    declaration: Declaration, invariant_name: str, row_name: str = "", seconds: float = SECONDS
) -> str | None:
    """Return a shortest program in which the named row makes the named invariant false.

    Without a row name, any row may do it. None says that no run was found in the time given, not
    that there is none.
    """
    invariant = next(row for row in declaration.all_invariants if row.name == invariant_name)
    deadline = time.monotonic()
    for size in SIZES:
        deadline += seconds * size.share
        search = Search.of(declaration, invariant, row_name, size)
        steps = search.steps(deadline)
        if steps is not None:
            run = Run(declaration, search.simulator.constants, size.instances, steps)
            return program(run, invariant)
    return None


@define
class Search:
    """One breadth-first search, and from where it came to each state."""

    simulator: Simulator
    moves: tuple[Move, ...]
    canonical: Callable[[State], State]
    claims: tuple[Closure, ...]
    about_steps: bool
    row_name: str
    origin: dict[State, tuple[State, Move] | None] = field(factory=dict)
    seen: set[State] = field(factory=set)

    @classmethod
    def of(
        cls, declaration: Declaration, invariant: Invariant, row_name: str, size: Size
    ) -> Search:
        """Return the search at its start; a constant that the size leaves open is at its least."""
        least = {constant.name: constant.minimum for constant in declaration.constants}
        given = {name: value for name, value in size.constants.items() if name in least}
        simulator = Simulator(declaration, least | given, size.instances)
        names = _rows_that_matter(declaration, invariant, row_name)
        rows = (simulator.possible_moves(name, size.numbers) for name in names)
        return cls(
            simulator,
            tuple(chain.from_iterable(rows)),
            up_to_renaming(declaration, simulator.layout),
            simulator.claims(invariant),
            speaks_of_before(invariant.formula),
            row_name,
        )

    def steps(self, deadline: float) -> Steps | None:
        """Return the steps of a shortest run into the fault; None at the deadline or the end."""
        start = self.simulator.state
        if not (self.row_name or self.about_steps or self._is_true(start)):
            return ()
        self.origin[start] = None
        self.seen.add(self.canonical(start))
        frontier = [start]
        while frontier:
            following: list[State] = []
            for state in frontier:
                if time.monotonic() > deadline:
                    return None
                last = self._expand(state, following)
                if last is not None:
                    return (*self._path(state), (last.row, last.arguments))
            frontier = following
        return None

    def _expand(self, state: State, following: list[State]) -> Move | None:
        """Collect the new states that one row leads to; return the move that makes the fault."""
        for move in self.moves:
            if not move.is_enabled(state):
                continue
            later = move.applied(state)
            if self.row_name in {"", move.row} and self._breaks(state, later):
                return move
            key = self.canonical(later)
            if key not in self.seen:
                self.seen.add(key)
                self.origin[later] = (state, move)
                following.append(later)
        return None

    def _breaks(self, state: State, later: State) -> bool:
        if self.about_steps:
            return not self._is_true((*state, *later))
        return not self._is_true(later) and self._is_true(state)

    def _is_true(self, states: State) -> bool:
        return all(claim(states) for claim in self.claims)

    def _path(self, state: State) -> Steps:
        steps: list[tuple[str, Arguments]] = []
        came = self.origin[state]
        while came is not None:
            earlier, move = came
            steps.append((move.row, move.arguments))
            came = self.origin[earlier]
        return tuple(reversed(steps))


def _rows_that_matter(
    declaration: Declaration, invariant: Invariant, row_name: str
) -> Iterator[str]:
    """Yield the rows to search with, for each one more multiplies the states.

    Left out are rows of the reference, and those that only order requests, unless the fault is
    about them.
    """
    read = {cell.variable for cell in cells(invariant.formula)}
    for name, row in declaration.complete_transitions.items():
        orders_only = written(row) <= ORDER and not read & ORDER
        if name == row_name or not (row.breaks or orders_only):
            yield name


def up_to_renaming(declaration: Declaration, layout: Layout) -> Callable[[State], State]:
    """Return a function that is equal on two states exactly if renaming makes them equal."""
    orders = [itemgetter(*order) for order in _renamings(declaration, layout)]
    return lambda state: min([order(state) for order in orders])


def _renamings(declaration: Declaration, layout: Layout) -> Iterator[list[int]]:
    """Yield, for each renaming of instances, the slots of a state in their new order."""
    roles = [role.name for role in declaration.roles]
    for chosen in product(*(permutations(layout.numbers[role]) for role in roles)):
        names = {
            role: dict(zip(layout.numbers[role], order, strict=True))
            for role, order in zip(roles, chosen, strict=True)
        }
        yield [_renamed_slot(declaration, layout, names, slot) for slot in layout.slots]


def _renamed_slot(
    declaration: Declaration,
    layout: Layout,
    names: Mapping[str, Mapping[int, int]],
    slot: tuple[str, Arguments],
) -> int:
    variable, numbers = slot
    roles = declaration.variable[variable].of
    renamed = (names[role.name][number] for role, number in zip(roles, numbers, strict=True))
    return layout.slots[variable, tuple(renamed)]
