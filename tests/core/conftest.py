"""The generated core and the interpreter of the declaration, driven side by side."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest

from kvproof.core import rows as functions
from kvproof.core.state import Configuration, State
from kvproof.core.tables import Tables
from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.simulator import Move, Simulator

CONSTANTS = {"BLOCK_SIZE": 2, "TOTAL_BLOCKS": 4, "TOKEN_BUDGET": 5, "MAX_RUNNING": 2}
INSTANCES = {"request": 3, "fence": 2}

Call = tuple[str, tuple[int, ...]]


def new_state() -> State:
    """Return the core's initial state, of the size that the interpreter has."""
    configuration = Configuration(**{name.lower(): value for name, value in CONSTANTS.items()})
    return State(configuration, requests=INSTANCES["request"], fences=INSTANCES["fence"])


@cache
def interpreter() -> Simulator:
    """Return the one interpreter, so that each row is compiled once."""
    return Simulator(SCHEDULER, CONSTANTS, INSTANCES)


INITIAL = interpreter().snapshot()


@cache
def all_moves(row: str) -> tuple[Move, ...]:
    """Return a row with every choice of arguments."""
    return tuple(interpreter().moves(row))


@cache
def enabled(state: tuple[int, ...]) -> tuple[tuple[Move, ...], ...]:
    """Return, for each row that can happen, all ways in which it can."""
    found = (
        tuple(m for m in all_moves(row) if m.is_enabled(state)) for row in SCHEDULER.transition
    )
    return tuple(moves for moves in found if moves)


class Twins:
    """A core and an interpreter that take the same steps."""

    def __init__(self, choices: Iterable[int] = ()) -> None:
        """Take a random step that is enabled for each number."""
        self.core = new_state()
        self.model = INITIAL
        self.history: list[Call] = []
        for choice in choices:
            self.take(self.enabled_move(choice))

    @classmethod
    def ready_for(cls, row: str, choices: Iterable[int]) -> Twins:
        """Take random steps, and stay at the moment at which the row could happen in most ways."""
        run = cls(choices)
        ways = [sum(m.is_enabled(model) for m in all_moves(row)) for model in run.past]
        best = len(ways) - 1 - ways[::-1].index(max(ways))
        stopped = cls()
        for name, arguments in run.history[:best]:
            stopped.take(interpreter().move(name, arguments))
        return stopped

    @property
    def past(self) -> list[tuple[int, ...]]:
        """Return every state of the model so far."""
        models = [INITIAL]
        for name, arguments in self.history:
            models.append(interpreter().move(name, arguments).applied(models[-1]))
        return models

    def enabled_move(self, choice: int) -> Move:
        """Return one of the moves that can happen; each row but `abort` is as likely as another."""
        by_row = enabled(self.model)
        if choice % 7:
            by_row = tuple(m for m in by_row if m[0].row != "abort") or by_row
        row, number = by_row[choice % len(by_row)], choice // len(by_row)
        return row[number % len(row)]

    def any_move(self, choice: int) -> Move:
        """Return one of all moves, whether or not it can happen."""
        names = list(SCHEDULER.transition)
        moves = all_moves(names[choice % len(names)])
        return moves[choice // len(names) % len(moves)]

    def take(self, move: Move) -> bool:
        """Apply a move to both, and return what the core said; the model decides if it happens."""
        if move.is_enabled(self.model):
            self.model = move.applied(self.model)
            self.history.append((move.row, move.arguments))
        return apply(self.core, (move.row, move.arguments))

    def copy(self) -> State:
        """Return another core in the same state, by the same steps."""
        core = new_state()
        for call in self.history:
            assert apply(core, call)
        return core

    def differences(self) -> list[str]:
        """Return the cells that hold something else in the core than in the interpreter."""
        layout = interpreter().layout
        return [
            f"{layout.names[slot]} is {read(self.core, name, numbers)}, not {self.model[slot]}"
            for (name, numbers), slot in layout.slots.items()
            if not layout.variables[slot].ghost
            and read(self.core, name, numbers) != self.model[slot]
        ]


def apply(core: State, call: Call) -> bool:
    """Call the function of a row."""
    name, arguments = call
    answer = getattr(functions, name)(core, *arguments)
    assert isinstance(answer, bool)
    return answer


def read(core: State, name: str, numbers: tuple[int, ...]) -> int:
    """Return what a core holds in the cell of a variable."""
    variable = SCHEDULER.variable[name]
    held = getattr(getattr(core, variable.of[0].name), name)
    if variable.of[0].single:
        return int(held)
    if variable.length is None:
        return int(held[numbers[0]])
    return entries(core, name, numbers[0]).count(numbers[1])


def entries(core: State, name: str, owner: int) -> list[int]:
    """Return a list of a table: the entries below its length."""
    variable = SCHEDULER.variable[name]
    assert variable.length is not None
    columns = getattr(core, variable.of[0].name)
    length = int(getattr(columns, variable.length.name)[owner])
    rows_of_table = getattr(columns, name).rows
    return [int(entry) for entry in rows_of_table[owner, : max(length, 0)]]


def snapshot(core: State) -> dict[str, Any]:
    """Return all that a core holds, tables in order; what lies beyond their ends means nothing."""
    found: dict[str, Any] = {}
    for variable in SCHEDULER.variables:
        if variable.ghost:
            continue
        held = getattr(getattr(core, variable.of[0].name), variable.name)
        if isinstance(held, Tables):
            owners = range(len(held.rows))
            found[variable.name] = [entries(core, variable.name, owner) for owner in owners]
        else:
            found[variable.name] = held.tolist() if isinstance(held, np.ndarray) else held
    return found


class Tools:
    """What the tests of this folder use; they get it as the fixture `tools`."""

    Twins = Twins
    CONSTANTS = CONSTANTS
    INSTANCES = INSTANCES
    new_state = staticmethod(new_state)
    interpreter = staticmethod(interpreter)
    apply = staticmethod(apply)
    read = staticmethod(read)
    entries = staticmethod(entries)
    snapshot = staticmethod(snapshot)


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    """Return the helpers of this folder."""
    return Tools
