"""The shortest run into a fault, on pools so small that a person can follow it.

A breadth-first search over a few sizes, the smallest first. Requests, blocks and fences have no
names of their own: two states that differ only in who is who are one state of the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations, product
from operator import itemgetter

from attrs import define, field, frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.rows import Invariant
from kvproof.spec.walk import speaks_of_before
from kvproof.verify.program import Run, program
from kvproof.verify.simulator import Arguments, Layout, Move, Simulator, State

SECONDS = 1.5


@frozen
class Size:
    """How large a searched state is, and up to which number parameters go."""

    constants: Mapping[str, int]
    instances: Mapping[str, int]
    numbers: range = range(1, 3)


def _size(block_size: int, blocks: int, budget: int, requests: int, fences: int) -> Size:
    constants = {
        "BLOCK_SIZE": block_size,
        "TOTAL_BLOCKS": blocks,
        "TOKEN_BUDGET": budget,
        "MAX_RUNNING": 2,
    }
    return Size(constants, {"request": requests, "fence": fences}, range(1, budget + 1))


# One request alone first: most faults need no second one, and its runs are soon exhausted.
SIZES = (
    _size(block_size=1, blocks=2, budget=2, requests=1, fences=1),
    _size(block_size=1, blocks=2, budget=2, requests=2, fences=2),
    _size(block_size=2, blocks=2, budget=2, requests=2, fences=2),
    _size(block_size=2, blocks=3, budget=3, requests=2, fences=2),
)


def find_run(
    declaration: Declaration, invariant_name: str, row_name: str = "", seconds: float = SECONDS
) -> str | None:
    """Return a shortest program whose last step, by the named row, breaks the named invariant.

    Without a row name, any row may break it. None means that none was found in the time given; it
    does not mean that there is none.
    """
    invariant = next(row for row in declaration.all_invariants if row.name == invariant_name)
    deadline = time.monotonic() + seconds
    for place, size in enumerate(SIZES):
        now = time.monotonic()
        share = (deadline - now) / (len(SIZES) - place)
        search = Search.of(declaration, invariant, row_name, size)
        steps = search.steps(now + share)
        if steps is not None:
            run = Run(declaration, search.simulator.constants, size.instances, steps)
            return program(run, invariant)
    return None


@define
class Search:
    """One breadth-first search: where it has been, and from where it came to each state."""

    simulator: Simulator
    invariant: Invariant
    row_name: str
    moves: tuple[Move, ...]
    canonical: Callable[[State], State]
    origin: dict[State, tuple[State, Move] | None] = field(factory=dict)
    seen: set[State] = field(factory=set)

    @classmethod
    def of(cls, declaration: Declaration, invariant: Invariant, row_name: str, size: Size) -> Search:
        """Return the search at its start; a constant that the size leaves open is as its least."""
        least = {constant.name: constant.minimum for constant in declaration.constants}
        simulator = Simulator(declaration, least | dict(size.constants), size.instances)
        moves = [move for row in declaration.transition for move in simulator.moves(row, size.numbers)]
        canonical = up_to_renaming(declaration, simulator.layout)
        return cls(simulator, invariant, row_name, tuple(moves), canonical)

    def steps(self, deadline: float) -> tuple[tuple[str, Arguments], ...] | None:
        """Return the steps of a shortest run into the fault, or None at the deadline or the end."""
        start = self.simulator.state
        if not self.row_name and self._breaks(start, start):
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
        """Add the new states that one row leads to, or return the move that breaks the invariant."""
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
        claims = self.simulator.claims(self.invariant)
        if speaks_of_before(self.invariant.formula):
            return not all(claim((*state, *later)) for claim in claims)
        # The initial state is its own predecessor, and may be the one that is broken.
        was_true = state is later or all(claim(state) for claim in claims)
        return was_true and not all(claim(later) for claim in claims)

    def _path(self, state: State) -> tuple[tuple[str, Arguments], ...]:
        steps: list[tuple[str, Arguments]] = []
        came = self.origin[state]
        while came is not None:
            state, move = came
            steps.append((move.row, move.arguments))
            came = self.origin[state]
        return tuple(reversed(steps))


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
