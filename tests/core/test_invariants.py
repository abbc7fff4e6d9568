"""The core's invariants say of a state what the interpreter of the declaration says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.core.invariants import INVARIANTS, violations
from kvproof.core.state import Configuration, State
from kvproof.spec.derive import quantified
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.walk import cells, speaks_of_before

CHOICES = st.lists(st.integers(0, 10**6), min_size=2, max_size=12)
BREAKS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(-1, 6)), max_size=4)
STORED = [variable.name for variable in SCHEDULER.variables if not variable.ghost]
READ = {
    c.variable for i in SCHEDULER.all_invariants if i.name in INVARIANTS for c in cells(i.formula)
}
COLUMNS = [name for name in STORED if SCHEDULER.variable[name].length is None and name in READ]


def broken_in_core(core: State) -> set[str]:
    """Return the names of the invariants that the core says are false."""
    return {name for name, holds in INVARIANTS.items() if not np.all(holds(core))}


def broken_in_interpreter(tools: Any, core: State) -> set[str]:
    """Return the names of those that the interpreter says are false of the same state."""
    interpreter = tools.interpreter(core.max_drafts)
    layout, state = interpreter.layout, list(interpreter.snapshot())
    for (name, numbers), slot in layout.slots.items():
        if name in STORED:
            state[slot] = tools.read(core, name, numbers)
    start = interpreter.snapshot()
    interpreter.restore(tuple(state))
    found = set(interpreter.violations())
    interpreter.restore(start)
    return found & set(INVARIANTS)


def set_cell(core: State, choice: int, value: int) -> None:
    """Put a value into some cell, or into some place of some table."""
    variable = SCHEDULER.variable[STORED[choice % len(STORED)]]
    part, where = getattr(core, variable.of[0].name), choice // len(STORED)
    if variable.of[0].single:
        setattr(part, variable.name, bool(value) if variable.flag else value)
    elif variable.length is not None:
        table = getattr(part, variable.name).rows
        table[where % len(table), where // len(table) % 3] = value
    else:
        first = variable.of[0].first
        column = getattr(part, variable.name)
        column[first + where % (len(column) - first)] = value


@given(CHOICES, BREAKS)
def test_invariants_agree_with_the_interpreter(
    tools: Any, choices: list[int], breaks: list[tuple[int, int]]
) -> None:
    """Of reachable states, and of states with cells overwritten, both find the same faults."""
    core = tools.Twins.somewhere(choices).core
    for choice, value in breaks:
        set_cell(core, choice, value)

    assert broken_in_core(core) == broken_in_interpreter(tools, core)


@given(CHOICES)
def test_reachable_states_have_no_violation(tools: Any, choices: list[int]) -> None:
    """No run of accepted rows, but those of the reference, breaks an invariant."""
    assert violations(tools.Twins.somewhere(choices, safe=True).core) == []


def changed(core: State, name: str, where: int, change: int) -> bool:
    """Return whether a change of one cell by one is seen; the cell is put back."""
    part = getattr(core, SCHEDULER.variable[name].of[0].name)
    column = getattr(part, name)
    single = not isinstance(column, np.ndarray)
    old = column if single else column[where]
    new = not old if SCHEDULER.variable[name].flag else old + change
    try:
        setattr(part, name, new) if single else column.__setitem__(where, new)
        return violations(core) != []
    finally:
        setattr(part, name, old) if single else column.__setitem__(where, old)


@pytest.mark.parametrize("name", COLUMNS)
def test_change_of_a_column_by_one_is_seen(tools: Any, name: str) -> None:
    """For every variable there is a run after which a change by one breaks an invariant."""
    witness = max(SCHEDULER.witnesses, key=lambda item: len(item.steps))
    constants = {key.lower(): value for key, value in witness.constants.items()}
    core = State(Configuration(**constants), requests=2, fences=2)
    first = SCHEDULER.variable[name].of[0].first
    seen = False
    for row, *arguments in witness.steps:
        assert tools.apply(core, (row, tuple(arguments)))
        seen = seen or any(changed(core, name, first + w, c) for w in (0, 1) for c in (1, -1))

    assert seen
    assert violations(core) == []


def test_one_variable_is_spoken_of_in_steps_only() -> None:
    """Whether the last step left a backlog is a law of that step, and of no state."""
    assert {name for name in STORED if name not in READ} == {"capacity_bound"}


def test_violation_names_the_first_instance(tools: Any) -> None:
    """A violation is reported by name, with the first instance it is false of."""
    core = tools.new_state()
    core.request.computed[2] = -1

    assert "computed_minimum (first at 2)" in violations(core)


def test_every_invariant_of_one_state_is_there() -> None:
    """Only sentences about ghosts, about two states or about pairs have no function."""
    left_out = [row for row in SCHEDULER.all_invariants if row.name not in INVARIANTS]
    ghosts = {variable.name for variable in SCHEDULER.variables if variable.ghost}

    assert len(INVARIANTS) + len(left_out) == len(SCHEDULER.all_invariants)
    for row in left_out:
        about_ghosts = not ghosts.isdisjoint(cell.variable for cell in cells(row.formula))
        about_pairs = len(quantified(row.formula)) > 1
        assert about_ghosts or about_pairs or speaks_of_before(row.formula), row.name
