"""The generated core and the interpreter of the declaration, driven side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from attrs import frozen

from kvproof.core import rows as functions
from kvproof.core.state import Configuration, State
from kvproof.core.tables import Tables
from kvproof.spec.expression import FlagParameter, Index
from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.simulator import Move, Simulator

CONSTANTS = {
    "BLOCK_SIZE": 2,
    "TOTAL_BLOCKS": 4,
    "TOKEN_BUDGET": 5,
    "MAX_RUNNING": 2,
    "WATERMARK": 1,
    "LOOKAHEAD": 1,
    "ENCODER_SLOTS": 3,
    "ENCODER_BUDGET": 2,
}
INSTANCES = {"request": 3, "fence": 2, "item": 2}
DRAFTS = (2, 1, 0)  # Some rows happen only with draft tokens, and some only without.


def constants(drafts: int) -> dict[str, int]:
    """Return the constants with so many draft tokens: the more, the roomier, with look-ahead."""
    tight = {"TOTAL_BLOCKS": 3, "TOKEN_BUDGET": 4, "WATERMARK": 0, "LOOKAHEAD": 0}
    return {**CONSTANTS, **(tight if drafts < DRAFTS[0] else {}), "MAX_DRAFTS": drafts}


# What rows are asked for: numbers that they take and, next to those, numbers that they refuse.
NUMBERS = {
    "prompt": (0, 1, 3, 5),
    "max_tokens": (0, 1, 2, 3),
    "most": (2, 5, 7, 9),
    "shared": (-1, 0, 0, 0, 1),
    "wanted": (0, 1, 2, 4),
    "draft_count": (-1, 0, 1, 2, 3),
    "count": (0, 1, 2, 3, 4),
    "prefix": (0, 1, 2),
    "position": (-1, 0, 1, 2),
    "tokens": (0, 1, 2, 3, 5),
    "embeddings": (0, 1, 2, 3),
    "end": (1, 2, 4),
    "external": (0, 1, 2),
    "reserved": (-1, 0, 0, 1),
    "urgency": (-1, 0, 1),
    "time": (-1, 0, 1),
    "valid": (-1, 0, 1),
}

# Of a row with many numbers, few of each.
FEW = {
    "await_load": {
        "shared": (-1, 0, 1),
        "external": (0, 1, 2),
        "wanted": (1, 2),
        "taken": (0, 1),
        "claim": (1, 2),
    },
    "await_load_regardless": {
        "shared": (-1, 0, 1),
        "external": (0, 1, 2),
        "wanted": (1, 2),
        "reserved": (-1, 0, 1),
        "claim": (1, 2),
    },
}

# How many random runs are made from where the declaration's own runs lead, how many steps each
# goes on, and how many of those runs one that led to a rare row is worth; all that once for each
# seed, so that no row hangs on one chance.
RUNS, STEPS, PATIENCE = 120, 8, 30
SEEDS = range(2)

Call = tuple[str, tuple[int, ...]]


def new_state(drafts: int = DRAFTS[0]) -> State:
    """Return the core's initial state, of the size that the interpreter has."""
    return State(
        Configuration(**{name.lower(): value for name, value in constants(drafts).items()}),
        requests=INSTANCES["request"],
        fences=INSTANCES["fence"],
        items=INSTANCES["item"],
    )


@cache
def interpreter(drafts: int) -> Simulator:
    """Return the one interpreter with so many draft tokens, so that each row is compiled once."""
    return Simulator(SCHEDULER, constants(drafts), INSTANCES)


REFERENCE = [row.name for row in SCHEDULER.transitions if row.breaks]


@cache
def all_moves(row: str, drafts: int) -> tuple[Move, ...]:
    """Return a row with every choice of instances and flags, and of numbers from `NUMBERS`."""
    simulator, choices = interpreter(drafts), []
    numbers = {**NUMBERS, **FEW.get(row, {})}
    for parameter in SCHEDULER.transition[row].parameters:
        if isinstance(parameter, Index):
            choices.append(tuple(simulator.layout.numbers[parameter.role]))
        else:
            flag = isinstance(parameter, FlagParameter)
            choices.append((False, True) if flag else numbers[parameter.name])
    return tuple(simulator.move(row, arguments) for arguments in product(*choices))


@cache
def enabled(state: tuple[int, ...], drafts: int) -> tuple[tuple[Move, ...], ...]:
    """Return, for each row that can happen, all ways in which it can."""
    found = (
        tuple(m for m in all_moves(row, drafts) if m.is_enabled(state))
        for row in SCHEDULER.transition
    )
    return tuple(moves for moves in found if moves)


@frozen
class Run:
    """Calls that are accepted one after the other, and the state that the model is in then."""

    drafts: int
    calls: tuple[Call, ...] = ()
    model: tuple[int, ...] = ()

    @classmethod
    def start(cls, drafts: int) -> Run:
        """Return the run before its first step."""
        return cls(drafts, (), interpreter(drafts).snapshot())

    def after(self, move: Move) -> Run:
        """Return the run with one more step."""
        return Run(self.drafts, (*self.calls, (move.row, move.arguments)), move.applied(self.model))

    def ways_on(self, *, safe: bool) -> list[tuple[Move, ...]]:
        """Return, for each row that can happen next, all ways; safe ones use no reference row."""
        ways = enabled(self.model, self.drafts)
        return [moves for moves in ways if not (safe and moves[0].row in REFERENCE)]


@cache
def prepared(*, safe: bool = False) -> dict[str, list[Run]]:
    """Return, for each row, runs after which it can happen; `safe` ones use no reference row."""
    found: dict[str, list[Run]] = {row: [] for row in SCHEDULER.transition}
    for drafts, seed in product(DRAFTS, SEEDS):
        for row, runs in _random_runs(drafts, seed, safe=safe).items():
            found[row] += runs
    return found


def _random_runs(drafts: int, seed: int, *, safe: bool) -> dict[str, list[Run]]:
    """Return the same with so many draft tokens, as chance has it.

    Runs go on from where the rows that few runs lead to can happen, so that what comes after those
    is reached as well.
    """
    chance, tries = Random(seed), Counter[str]()
    found: dict[str, list[Run]] = {row: [] for row in SCHEDULER.transition}
    for run in _declared_runs(drafts, safe=safe):
        for moves in run.ways_on(safe=safe):
            found[moves[0].row].append(run)
    for number in range(RUNS * STEPS):
        if number % STEPS == 0:
            reached = [row for row, runs in found.items() if runs]
            rarest = min(reached, key=lambda row: len(found[row]) + PATIENCE * tries[row])
            tries[rarest] += 1
            run = chance.choice(found[rarest])
        run = run.after(chance.choice(chance.choice(run.ways_on(safe=safe))))
        for moves in run.ways_on(safe=safe):
            found[moves[0].row].append(run)
    return found


def _declared_runs(drafts: int, *, safe: bool) -> Iterator[Run]:
    """Yield the runs that the declaration says are possible, step by step, as far as they go here.

    They lead to rows that chance would not find.
    """
    for witness in SCHEDULER.witnesses:
        run = Run.start(drafts)
        for step in witness.steps:
            yield run
            name, arguments = str(step[0]), [int(argument) for argument in step[1:]]
            move = interpreter(drafts).move(name, _numbers(name, arguments))
            if (safe and name in REFERENCE) or not move.is_enabled(run.model):
                break
            run = run.after(move)
        else:
            yield run


def _numbers(name: str, arguments: list[int]) -> tuple[int, ...]:
    """Return the arguments of a declared run, with instances that are here."""
    parameters = SCHEDULER.transition[name].parameters
    return tuple(
        argument % INSTANCES.get(p.role, argument + 1) if isinstance(p, Index) else argument
        for p, argument in zip(parameters, arguments, strict=True)
    )


class Twins:
    """A core and an interpreter that take the same steps."""

    def __init__(self, run: Run | None = None) -> None:
        """Take the steps of a run."""
        run = Run.start(DRAFTS[0]) if run is None else run
        self.drafts = run.drafts
        self.core = new_state(run.drafts)
        self.model = Run.start(run.drafts).model
        self.history: list[Call] = []
        for name, arguments in run.calls:
            assert self.take(interpreter(run.drafts).move(name, arguments))

    @classmethod
    def somewhere(cls, choices: Sequence[int], *, safe: bool = False) -> Twins:
        """Go where some row can happen, and take a random step for each further number."""
        first, second, *others = choices
        rows = [runs for runs in prepared(safe=safe).values() if runs]
        runs = rows[first % len(rows)]
        twins = cls(runs[second % len(runs)])
        for choice in others:
            rows_on = twins.run.ways_on(safe=safe)
            moves = rows_on[choice % len(rows_on)]
            twins.take(moves[choice // len(rows_on) % len(moves)])
        return twins

    @classmethod
    def ready_for(cls, row: str, choice: int) -> Twins:
        """Go where a row can happen."""
        runs = prepared()[row]
        return cls(runs[choice % len(runs)])

    @property
    def run(self) -> Run:
        """The steps taken so far."""
        return Run(self.drafts, tuple(self.history), self.model)

    def all_moves(self, row: str) -> tuple[Move, ...]:
        """Return a row with all arguments there are, whether or not it can happen with them."""
        return all_moves(row, self.drafts)

    def any_move(self, choice: int) -> Move:
        """Return one of all moves, whether or not it can happen."""
        names = list(SCHEDULER.transition)
        moves = self.all_moves(names[choice % len(names)])
        return moves[choice // len(names) % len(moves)]

    def take(self, move: Move) -> bool:
        """Apply a move to both, and return what the core said; the model decides if it happens."""
        if move.is_enabled(self.model):
            self.model = move.applied(self.model)
            self.history.append((move.row, move.arguments))
        return apply(self.core, (move.row, move.arguments))

    def copy(self) -> State:
        """Return another core in the same state, by the same steps."""
        core = new_state(self.drafts)
        for call in self.history:
            assert apply(core, call)
        return core

    def differences(self) -> list[str]:
        """Return the cells that hold something else in the core than in the interpreter."""
        layout = interpreter(self.drafts).layout
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

    Run = Run
    Twins = Twins
    CONSTANTS = CONSTANTS
    INSTANCES = INSTANCES
    REFERENCE = REFERENCE
    prepared = staticmethod(prepared)
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
